"""What the handle of a query takes: whole numbers of any kind, names of nodes as numbers; the rest is refused by name."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penstock.control.plan.shards import Shards
from penstock.control.policy.protocol import Limits
from penstock.errors import DeclarationError, PenstockError, PlanError
from penstock.spark import elasticity as elastic
from penstock.spark.arguments import check_bound, check_cores, check_node, check_nodes, check_shards
from penstock.spark.by_hand import check_room, share_cores
from penstock.spark.elasticity import Elasticity
from penstock.spark.hub import HubOver
from penstock.spark.query import Query
from penstock.topology.sla import SLA


class Heard:
    """Stands where plans are made, and notes what reaches it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, verb: str) -> Any:
        return lambda *arguments: self.calls.append((verb, *arguments)) or f"did {verb}"  # type: ignore[func-returns-value]


def handle() -> tuple[Query, Heard]:
    query, heard = Query("counts"), Heard()
    kinds = {"clicks": "source", "total": "operator", "sink": "sink"}
    stages = {name: SimpleNamespace(kind=kind) for name, kind in kinds.items()}
    query._shell = SimpleNamespace(engine=SimpleNamespace(program=SimpleNamespace(stages=stages)))  # type: ignore[assignment]
    query._elasticity = SimpleNamespace(by_hand=heard, close=lambda: None)  # type: ignore[assignment]
    return query, heard


def test_numbers_of_any_kind_arrive_as_whole_numbers_and_nodes_as_names() -> None:
    query, heard = handle()
    query.rescale("total", np.int64(3), {0: np.int32(2), "1": 1, 2: 0})
    query.move("total", np.array([3, 1, 3]), np.int64(1))
    query.move("total#2", range(2), 0)
    query.move("total", np.int16(4), 0)
    query.drain(0)
    assert heard.calls == [
        ("rescale", "total", 3, {"0": 2, "1": 1}),
        ("move", "total", [3, 1], 1),
        ("move", "total#2", [0, 1], 0),
        ("move", "total", [4], 0),
        ("drain", "0", False, 60.0),
    ]
    assert all(type(one) is int for one in heard.calls[1][2])


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda query: query.rescale("total", 0), "at least one core"),
        (lambda query: query.rescale("total", -2), "at least one core"),
        (lambda query: query.rescale("total", True), "'total': cores is a whole number such as 4, not True"),
        (lambda query: query.rescale("total", "4"), "cores is a whole number such as 4, not '4'"),
        (lambda query: query.rescale("total", 2.0), "not 2.0"),
        (lambda query: query.rescale("total", None), "not None"),
        (
            lambda query: query.rescale("total", 2, {"0": 3, "1": -1}),
            "node 1 are a whole number of zero or more",
        ),
        (lambda query: query.rescale("total", 2, {"0": 3}), "do not add up to 2, they are 3"),
        (lambda query: query.rescale("total", 2, {0: 1, "0": 1}), "node 0 is named twice"),
        (lambda query: query.rescale("total", 2, {}), "do not add up"),
        (lambda query: query.rescale("total", 2, ["0", "1"]), "nodes maps executor ids to cores"),
        (lambda query: query.rescale("total", 2, {None: 2}), "executor id, such as '0', not None"),
        (lambda query: query.move("total", [], 0), "name at least one shard"),
        (lambda query: query.move("total", "3", 0), r"shards are whole numbers such as \[3, 17\]"),
        (lambda query: query.move("total", [3, "x"], 0), "counted from 0, not 'x'"),
        (lambda query: query.move("total", [True], 0), "not True"),
        (lambda query: query.move("total", [-1], 0), "not -1"),
        (lambda query: query.move("total", [[1]], 0), r"not \[1\]"),
        (lambda query: query.move("total", None, 0), "not None"),
        (lambda query: query.move("total", [1], "0"), "a task is a whole number"),
        (lambda query: query.move("total", [1], -1), "a task is a whole number"),
        (lambda query: query.drain(None), "executor id"),
        (lambda query: query.drain(True), "executor id"),
        (lambda query: query.drain("0", timeout=float("nan")), "timeout is a positive number of seconds"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_give(ask: Any, says: str) -> None:
    query, heard = handle()
    with pytest.raises(PlanError, match=says):
        ask(query)
    assert heard.calls == []


@pytest.mark.parametrize("verb", ["rescale", "move", "split", "merge"])
@pytest.mark.parametrize("stage", ["clicks", "sink"])
def test_what_only_operators_have_is_refused_alike_for_sources_and_sinks(verb: str, stage: str) -> None:
    query, heard = handle()
    arguments = {"rescale": (2,), "move": ([1], 0)}.get(verb, ())
    with pytest.raises(
        PlanError, match=rf"'{stage}' is a s\w+ and has no shards; {verb} is for operators: total"
    ):
        getattr(query, verb)(stage, *arguments)
    assert heard.calls == []


ENDED = {
    "rescale": lambda query: query.rescale("total", 2),
    "move": lambda query: query.move("total", [1], 0),
    "split": lambda query: query.split("total"),
    "merge": lambda query: query.merge("total"),
    "drain": lambda query: query.drain("0"),
    "pause": lambda query: query.pause(),
    "resume": lambda query: query.resume(),
}


@pytest.mark.parametrize("verb", ENDED)
def test_after_its_end_a_query_says_so_to_every_request(verb: str) -> None:
    query, heard = handle()
    query._over.set()
    with pytest.raises(PlanError, match=rf"{verb}: the query has ended; start counts again"):
        ENDED[verb](query)
    assert heard.calls == []


def test_an_end_in_the_midst_of_a_request_is_told_in_the_same_words() -> None:
    assert issubclass(HubOver, PlanError)


def test_a_bound_may_be_a_number_of_seconds() -> None:
    assert check_bound(0.5) == SLA(0.5) == check_bound(SLA(0.5)) and check_bound(np.float64(2)) == SLA(2.0)
    for wrong in (None, "0.5", True, [0.5]):
        with pytest.raises(PlanError, match=r"such as SLA\(0.5\)"):
            check_bound(wrong)
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(DeclarationError, match="latency"):
            check_bound(wrong)


def test_a_bound_that_is_held_already_goes_on_with_its_policy() -> None:
    loop = SimpleNamespace(stated="", sla=None, guards=None, used=0)

    def hold(sla: SLA, policy: Any, stated: str, guards: Any) -> None:
        loop.sla, loop.stated, loop.used = sla, stated, loop.used + 1

    loop.hold = hold
    elasticity = Elasticity.__new__(Elasticity)
    elasticity._shell = SimpleNamespace(hub=SimpleNamespace(ask=lambda call: None))  # type: ignore[assignment]
    elasticity._steering = SimpleNamespace(loop=loop)  # type: ignore[assignment]
    elasticity._holding = threading.Lock()
    elasticity._asked = None
    for policy, latency_s, used in (
        ("drs", 0.5, 1),
        ("drs", 0.5, 1),
        ("drs:k_max=3", 0.5, 2),
        ("drs:k_max=3", 0.6, 3),
    ):
        elasticity.hold(latency_s, policy)
        assert loop.used == used


def test_options_of_a_policy_are_given_where_a_bound_is_held() -> None:
    seen: list[Any] = []
    loop = SimpleNamespace(stated="", sla=None, hold=lambda *given: seen.extend(given[:2]))
    elasticity = Elasticity.__new__(Elasticity)
    elasticity._shell = SimpleNamespace(hub=SimpleNamespace(ask=lambda call: None))  # type: ignore[assignment]
    elasticity._steering = SimpleNamespace(loop=loop)  # type: ignore[assignment]
    elasticity._holding = threading.Lock()
    elasticity._asked = None
    elasticity.hold(0.5, "drs", k_max=8)
    elasticity.hold(SLA(0.5), "drs:k_max=9")
    elasticity.hold(SLA(0.5), "advise:drs:k_max=9", k_max=10)
    assert seen[0] == SLA(0.5)
    assert (seen[1].k_max, seen[3].k_max, seen[5].policy.k_max) == (8, 9, 10)
    for wrong in ({"k_max": 1.5}, {"k_mx": 3}):
        with pytest.raises(PenstockError, match="k_max"):
            elasticity.hold(0.5, "drs", **wrong)


def test_two_who_hold_a_bound_at_once_make_one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def make(loop: Any, *_: object) -> Any:
        time.sleep(0.1)  # time enough for the other to come in between
        made.append(loop)
        return SimpleNamespace(loop=loop)

    monkeypatch.setattr(elastic, "Steering", make)
    monkeypatch.setattr(Elasticity, "_limits", lambda self: Limits(4))
    both = Elasticity.__new__(Elasticity)
    both._shell = SimpleNamespace(hub=SimpleNamespace(ask=lambda call: None))  # type: ignore[assignment]
    both._actuator = SimpleNamespace()  # type: ignore[assignment]
    both._steering, both._holding, both.journal, both.every_s = None, threading.Lock(), "", 1.0
    both._cores = 0
    threads = [threading.Thread(target=both.hold, args=(bound,)) for bound in (0.5, 0.7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert len(made) == 1 and both._steering.loop is made[0]


def test_more_cores_than_there_are_are_refused_before_any_is_dealt() -> None:
    with pytest.raises(PlanError, match="cannot have 3,000,000,000 cores: the nodes have 6"):
        check_room("total", 3_000_000_000, {"0": 4, "1": 2})
    with pytest.raises(PlanError, match="there is no node 7; the nodes there are: 0, 1"):
        check_room("total", 2, {"0": 4, "1": 2}, {"7": 2})
    check_room("total", 6, {"0": 4, "1": 2}, {"0": 4, "1": 2})


def test_a_share_of_each_executor_adds_up() -> None:
    one = Shards("a", np.array([3.0]), np.zeros(1, np.int32), {0: "0"}, np.zeros(1, np.int64))
    two = Shards("a#2", np.array([1.0]), np.zeros(1, np.int32), {0: "0"}, np.zeros(1, np.int64))
    assert share_cores("a", [one, two], 4) == [3, 1]


def test_checks_give_back_what_they_were_given() -> None:
    assert check_cores("a", 4) == 4 and check_node("mars") == "mars"
    assert check_nodes("a", 4, None) is None and check_shards("a", 7) == [7]
