"""What the office tells the engine of slots and leases while a drained node is given back."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import SessionError
from penstock.spark import chores
from penstock.spark.leases import Stuck
from penstock.spark.slots import Node

NODES = [Node(name, "host", 4) for name in ("0", "1", "2")]


class Office:
    """Five leases, on as many slots as Spark counts at the moment."""

    def __init__(self) -> None:
        self.asked = {name: SimpleNamespace(node=node) for name, node in zip("abcde", "00111", strict=True)}
        self.counted = 12
        self.quiet: set[str] = set()

    def slots(self) -> int:
        return self.counted

    def capacity(self, reserve: int, usable: int, avoid: Collection[str] = ()) -> int:
        return usable - reserve

    def silent(self, usable: Collection[str]) -> set[str]:
        return self.quiet & set(usable)

    def forget_others(self, known: Collection[str]) -> None:
        self.known = known

    def slots_of(self, known: list[Node]) -> dict[str, int]:
        return {node.executor_id: node.cores for node in known}


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Office:
    monkeypatch.setattr(chores, "nodes", lambda spark: NODES)
    monkeypatch.setattr(
        chores, "slots_of_nodes", lambda spark, known: {node.executor_id: node.cores for node in known}
    )
    return Office()


def test_giving_a_drained_node_back_costs_no_lease_on_the_others(office: Office) -> None:
    told: list[tuple[int, int]] = []
    serving = SimpleNamespace(avoid={"2"})
    shell: Any = SimpleNamespace(
        engine=SimpleNamespace(serving=serving), hub=SimpleNamespace(post=lambda call: call())
    )
    made = chores.Chores(shell, None, office, reserve=1)  # type: ignore[arg-type]
    made._set_capacity = lambda capacity, surplus, slots_of, silent: told.append((capacity, surplus))  # type: ignore[method-assign]
    made.check_capacity()
    office.counted = 8  # Spark was told to end it and counts its slots no more, but still lists it
    made.check_capacity()
    assert told[0][0] == told[1][0] == 7
    assert all(surplus <= 0 for _, surplus in told)


def test_leases_on_a_drained_node_take_nothing_from_those_that_replace_them(office: Office) -> None:
    told: list[int] = []
    serving = SimpleNamespace(avoid={"0", "1"})
    shell: Any = SimpleNamespace(
        engine=SimpleNamespace(serving=serving), hub=SimpleNamespace(post=lambda call: call())
    )
    made = chores.Chores(shell, None, office, reserve=1)  # type: ignore[arg-type]
    made._set_capacity = lambda capacity, surplus, slots_of, silent: told.append(capacity)  # type: ignore[method-assign]
    made.check_capacity()
    office.asked = {name: SimpleNamespace(node=node) for name, node in zip("abcde", "01222", strict=True)}
    made.check_capacity()
    assert told == [3 + 5, 3 + 2], "three on node 2, whatever is left on the others"


def test_slots_of_a_silent_node_are_not_counted_on_until_it_is_tried_again(office: Office) -> None:
    told: list[tuple[int, set[str]]] = []
    shell: Any = SimpleNamespace(
        engine=SimpleNamespace(serving=SimpleNamespace(avoid=set())),
        hub=SimpleNamespace(post=lambda call: call()),
    )
    made = chores.Chores(shell, None, office, reserve=1)  # type: ignore[arg-type]
    made._set_capacity = lambda capacity, surplus, slots_of, silent: told.append((capacity, silent))  # type: ignore[method-assign]
    office.asked = {}
    made.check_capacity()
    office.quiet = {"1"}
    made.check_capacity()
    office.quiet = set()
    made.check_capacity()
    assert told == [(11, set()), (7, {"1"}), (11, set())]


class Stopping:
    """An office of which some leases do not connect."""

    def __init__(self, stuck: list[Stuck], heard: set[str]) -> None:
        self._stuck, self._heard = stuck, heard
        self.asked: dict[str, Any] = {}
        self.cancelled: list[str] = []
        self.noted: list[str] = []

    def stuck(self, silent: Collection[str], usable: Collection[str]) -> list[Stuck]:
        return self._stuck

    def cancel(self, name: str) -> None:
        self.cancelled.append(name)

    def is_heard(self, node: str) -> bool:
        return node in self._heard

    def note_silent(self, node: str, why: str) -> None:
        self.noted.append(node)


def drop_stuck(
    stuck: list[Stuck], heard: set[str], *, had_leases: bool = True, master: str = "spark://host:7077"
) -> tuple[Stopping, list[int]]:
    """Let the chores see to leases that do not connect; return the office and the capacities that the engine was told."""
    office, told = Stopping(stuck, heard), list[int]()
    engine = SimpleNamespace(leases={"a": None, "b": None}, set_capacity=told.append)
    hub = SimpleNamespace(post=lambda call: call(), forget=lambda name: None)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    made = chores.Chores(SimpleNamespace(engine=engine, hub=hub), spark, office, reserve=1)  # type: ignore[arg-type]
    made.had_leases = had_leases
    made._drop_stuck()
    return office, told


def test_a_lease_on_a_node_in_doubt_is_asked_for_elsewhere_at_once(caplog: pytest.LogCaptureFixture) -> None:
    for had_leases in (True, False):
        office, told = drop_stuck([Stuck("x", "1", True)], set(), had_leases=had_leases)
        assert (office.cancelled, office.noted, told) == (["x"], ["1"], [])
    assert "other jobs" not in caplog.text


def test_a_node_from_which_no_lease_ever_connects_is_silent_too() -> None:
    office, told = drop_stuck([Stuck("x", "1", False)], {"0"})
    assert (office.cancelled, office.noted, told) == (["x"], ["1"], [])


def test_a_node_that_is_heard_but_holds_one_lease_up_is_named_and_not_avoided(
    caplog: pytest.LogCaptureFixture,
) -> None:
    office, told = drop_stuck([Stuck("x", "1", False)], {"1"})
    assert (office.cancelled, office.noted, told) == (["x"], [], [2])
    assert "node 1 started it" in caplog.text


def test_other_jobs_are_blamed_where_spark_has_not_started_the_lease(
    caplog: pytest.LogCaptureFixture,
) -> None:
    office, told = drop_stuck([Stuck("x", "", False)], {"1"})
    assert (office.noted, told) == ([], [2]) and "other jobs hold its slots" in caplog.text
    with pytest.raises(SessionError, match="did not start a lease within"):
        drop_stuck([Stuck("x", "", False)], set(), had_leases=False)


def test_in_local_mode_a_lease_that_does_not_connect_is_never_put_down_to_a_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    office, told = drop_stuck([Stuck("x", "driver", False)], set(), master="local[4]")
    assert office.cancelled == ["x"] and not office.noted and told == [2]
    assert "another lease did not come up" in caplog.text
