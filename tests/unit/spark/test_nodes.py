"""The negotiator on a manager that gives and takes nodes as it is told, late, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from penstock.spark.nodes import NodeChange, SparkNegotiator
from penstock.spark.slots import Node


@dataclass
class FakeManager:
    """Starts a node after `slow_s` and ends one at once; replaces killed ones up to the total, as Spark does."""

    free: int = 10
    slow_s: float = 9.0
    refuses: str = ""
    deaf: bool = False
    total: int | None = None
    now: float = 0.0
    ids: list[str] = field(default_factory=lambda: ["0"])
    _due: list[float] = field(default_factory=list)
    calls: list[tuple[str, object]] = field(default_factory=list)

    def nodes(self) -> list[Node]:
        for due in [due for due in self._due if due <= self.now]:
            self._due.remove(due)
            self.ids.append(str(int(self.ids[-1]) + 1))
        return [Node(name, "host", 2) for name in self.ids]

    def request_total(self, total: int) -> bool:
        self.calls.append(("total", total))
        if self.deaf:
            return False
        self.total = total
        wanted = total - len(self.ids)
        self._due = self._due[: max(0, wanted)]
        while len(self._due) < wanted and self.free:
            self._due.append(self.now + self.slow_s)
            self.free -= 1
        return True

    def kill(self, executor_ids: Sequence[str]) -> bool:
        self.calls.append(("kill", list(executor_ids)))
        if self.deaf:
            return False
        self.ids = [name for name in self.ids if name not in executor_ids]
        # Spark lowers what it was asked for by the killed ones, or forgets it all where nothing was asked.
        self.total = 0 if self.total is None else max(0, self.total - len(executor_ids))
        return True

    def refusal(self) -> str:
        return self.refuses

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def negotiating(manager: FakeManager, held: dict[str, list[str]] | None = None) -> SparkNegotiator:
    return SparkNegotiator(
        manager, lambda node: (held or {}).get(node, []), clock=manager.clock, sleep=manager.sleep
    )


def test_a_node_that_comes_is_named_with_the_time_it_took() -> None:
    change = negotiating(FakeManager()).acquire(2)
    assert change.done and change.came == ("1",) and change.took_s == pytest.approx(9.0, abs=0.3)
    assert str(change) == "asked Spark for 2 nodes: node 1 came in 9.0 s"


def test_a_request_that_is_withdrawn_asks_for_no_fewer_nodes_than_before_it() -> None:
    manager = FakeManager(free=0, ids=["0", "1", "2"])
    asking = negotiating(manager)
    asking.settle()
    manager.ids.remove("1")  # a machine is lost, and Spark is to replace it
    change = asking.acquire(4, timeout_s=20.0)
    assert not change.done and asking.target == 3 and manager.total == 3
    asking.acquire(3, timeout_s=1.0)
    assert min(total for what, total in manager.calls if what == "total") == 3  # type: ignore[type-var]


def test_a_node_that_does_not_come_in_time_is_asked_for_no_longer() -> None:
    manager = FakeManager(free=1)
    change = negotiating(manager).acquire(4, timeout_s=20.0)
    assert not change.done and change.came == ("1",)
    assert "2 nodes did not come within 20 s" in change.problem and "spark.cores.max" in change.problem
    assert manager.total == 2
    manager.free, manager.now = 5, 100.0
    assert len(manager.nodes()) == 2


def test_acquiring_never_takes_a_node_away_and_asks_nothing_for_what_there_is() -> None:
    manager = FakeManager(ids=["0", "1", "2"])
    negotiator = negotiating(manager)
    assert "never takes one away" in negotiator.acquire(2).problem
    assert negotiator.acquire(3).done
    assert manager.calls == []


def test_a_released_node_is_not_replaced_and_the_others_stay_wanted() -> None:
    manager = FakeManager(ids=["0", "1", "2"])
    change = negotiating(manager).release(["1"])
    assert change.done and change.went == ("1",)
    assert manager.total == 2
    assert manager.calls[0] == ("total", 3), (
        "Spark forgets what it wants when nothing was asked before a kill"
    )
    manager.now += 100
    assert [node.executor_id for node in manager.nodes()] == ["0", "2"]


def test_a_lost_node_that_is_released_is_no_longer_replaced_and_one_on_its_way_stays_wanted() -> None:
    manager = FakeManager(ids=["0", "1", "2"])
    negotiator = negotiating(manager)
    negotiator.settle()
    manager.ids.remove("1")
    negotiator.release(["1"])
    assert negotiator.target == manager.total == 2
    manager.ids = ["0", "2"]
    negotiator.acquire(3)
    manager.ids.remove("0")  # lost; its replacement has not come yet
    negotiator.release(["2"])
    assert negotiator.target == manager.total == 2


def test_a_node_that_still_serves_a_query_is_not_released() -> None:
    manager = FakeManager(ids=["0", "1"])
    change = negotiating(manager, {"1": ["orders", "orders"]}).release(["0", "1"])
    assert not change.done and manager.calls == []
    change = negotiating(manager, {"1": ["orders", "orders"]}).release(["1"])
    assert change.in_use
    assert change.problem == "node 1 still serves orders; drain it first"
    assert manager.calls == []


def test_the_last_node_stays() -> None:
    assert "one node at least must stay" in negotiating(FakeManager()).release(["0"]).problem


def test_after_a_start_with_too_many_nodes_the_newest_that_serve_nothing_go() -> None:
    manager = FakeManager(ids=["0", "1", "2", "3"])
    change = negotiating(manager, {"3": ["orders"]}).settle(2)
    assert change.done and manager.ids == ["0", "3"]
    assert manager.total == 2


def test_settling_keeps_what_there_is() -> None:
    manager = FakeManager(ids=["0", "1"])
    assert negotiating(manager).settle().done
    assert manager.total == 2 and manager.ids == ["0", "1"]


def test_where_driver_and_node_are_one_process_every_request_is_refused_with_the_reason() -> None:
    manager = FakeManager(refuses="the session runs on local[4]")
    negotiator = negotiating(manager)
    for change in (negotiator.acquire(2), negotiator.release(["0"]), negotiator.settle(1)):
        assert change.problem == "the session runs on local[4]"
    assert manager.calls == []


def test_a_manager_that_does_not_listen_is_told_of() -> None:
    manager = FakeManager(deaf=True, ids=["0", "1"])
    assert "refused" in negotiating(manager).acquire(3).problem
    assert "refused" in negotiating(manager).release(["1"]).problem


def test_a_change_reads_as_a_sentence() -> None:
    change = NodeChange("release", 1, ("0", "1", "2"), ("0",), 5.04)
    assert str(change) == "asked Spark for 1 node: nodes 1, 2 went in 5.0 s"
    unmet = NodeChange("acquire", 2, ("0",), ("0",), 60.0, "none came")
    assert str(unmet) == "asked Spark for 2 nodes: nothing changed in 60.0 s; none came"
