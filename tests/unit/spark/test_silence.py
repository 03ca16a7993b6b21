"""Which nodes are avoided, for how long, and where a lease is asked for instead: decisions over facts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dataplane.heartbeats import is_silent, late_leases
from penstock.spark.silence import (
    FIRST_S,
    FORGET_S,
    LANDED_S,
    MOST_S,
    TRIAL_S,
    SilentNodes,
    choose_node,
    patience_s,
)
from penstock.spark.slots import Node

NAMES = ("0", "1", "2", "3")
nodes = st.lists(st.sampled_from(NAMES), unique=True, min_size=1).flatmap(
    lambda names: st.tuples(
        *(st.integers(1, 4).map(lambda cores, name=name: Node(name, "host", cores)) for name in names)
    )
)
some = st.sets(st.sampled_from(NAMES))


@given(nodes, st.lists(st.sampled_from(NAMES), max_size=20), st.sampled_from((None, *NAMES)), some, some)
def test_no_silent_node_is_chosen_while_there_is_another(known, held, wanted, silent, trial) -> None:  # type: ignore[no-untyped-def]
    choice = choose_node(known, held, wanted, silent, trial)
    speaking = [node for node in known if node.executor_id not in silent]
    assert choice.node in known and choice.reason
    if not speaking:
        assert choice.reason == "all nodes are silent"
        return
    assert choice.node in speaking
    if wanted in [node.executor_id for node in speaking]:
        assert choice.node.executor_id == wanted
        return
    room = [node for node in speaking if held.count(node.executor_id) < node.cores]
    assert not room or choice.node in room
    sure = [node for node in room if node.executor_id not in trial]
    assert not sure or choice.node in sure
    loads = {node.executor_id: held.count(node.executor_id) / node.cores for node in sure}
    assert not sure or loads[choice.node.executor_id] == min(loads.values())


def test_a_choice_says_why() -> None:
    known = [Node("0", "host", 2), Node("1", "host", 2)]
    assert choose_node(known, [], "1").reason == "a plan names it"
    assert choose_node(known, [], "1", silent={"1"}).reason.endswith("of those that are not silent")
    assert choose_node(known, ["0", "0"], None, trial={"1"}).reason.startswith("it is tried again")
    assert choose_node(known, [], None, silent={"0", "1"}).reason == "all nodes are silent"


def test_a_silent_node_is_tried_again_later_and_later() -> None:
    silence, now = SilentNodes(), 100.0
    for wait_s in (FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S, MOST_S, MOST_S):
        assert silence.note_silent("1", now) == wait_s
        assert silence.note_silent("1", now + 1.0) is None, "it is avoided already"
        assert silence.avoided(now + wait_s - 0.1) == {"1"} and not silence.on_trial(now + wait_s - 0.1)
        assert not silence.avoided(now + wait_s) and silence.on_trial(now + wait_s) == {"1"}
        now += wait_s


def test_a_node_that_is_heard_again_is_one_like_the_others() -> None:
    silence = SilentNodes()
    silence.note_silent("1", 0.0)
    assert (
        silence.note_heard("1", 5.0) and not silence.note_heard("1", 6.0) and not silence.note_heard("2", 6.0)
    )
    assert not silence.avoided(7.0) and not silence.on_trial(100.0)
    assert silence.note_silent("1", 60.0) == 2 * FIRST_S, "one that comes and goes is trusted less"
    silence.note_heard("1", 70.0)
    assert silence.note_silent("1", 70.0 + FORGET_S) == FIRST_S


@given(st.lists(st.tuples(st.sampled_from("sh"), st.floats(0.1, 300.0)), max_size=30))
def test_a_node_is_never_avoided_for_longer_than_the_longest_time(steps: list[tuple[str, float]]) -> None:
    silence, now, said = SilentNodes(), 0.0, 0.0
    for what, seconds in steps:
        now += seconds
        if what == "s":
            wait_s = silence.note_silent("1", now)
            said = now if wait_s is not None else said
            assert silence.avoided(now) == {"1"}
        else:
            silence.note_heard("1", now)
            assert not silence.avoided(now)
        assert not silence.avoided(said + MOST_S)


def test_a_lease_has_little_time_on_a_silent_node_and_all_of_it_on_one_that_is_slow() -> None:
    assert patience_s("1", {"1"}, (), 60.0) == LANDED_S
    assert patience_s("1", (), {"1"}, 60.0) == TRIAL_S
    assert [patience_s("1", (), {"1"}, 60.0, times) for times in (1, 2, 3, 4, 5)] == [
        10.0,
        20.0,
        40.0,
        60.0,
        60.0,
    ]
    assert patience_s("1", {"1"}, {"1"}, 60.0, 4) == LANDED_S
    assert patience_s("1", {"0"}, {"2"}, 60.0) == patience_s("", {"0"}, {"2"}, 60.0) == 60.0


@dataclass
class Heard:
    node: str
    heard_at: float


@pytest.mark.parametrize(
    ("heard", "late", "silent"),
    [
        (
            {"a": 80.0, "b": 84.0, "c": 99.0},
            ["a", "b"],
            True,
        ),  # b's last heartbeat was a little later: all go at once
        ({"a": 80.0, "b": 98.0, "c": 99.0}, ["a"], False),  # one process stands still, its node does not
        ({"a": 99.0, "b": 98.0, "c": 99.0}, [], False),
        ({"a": 80.0, "b": 80.0, "c": 80.0}, ["a", "b", "c"], True),
    ],
)
def test_a_node_is_silent_when_all_of_its_leases_are(
    heard: dict[str, float], late: list[str], silent: bool
) -> None:
    leases = {name: Heard("1" if name != "c" else "2", at) for name, at in heard.items()}
    assert late_leases(leases, 100.0, 15.0) == late
    assert is_silent("1", leases, 100.0, 15.0) == silent


def test_a_node_that_stays_silent_for_weeks_is_still_tried_again() -> None:
    silence, now = SilentNodes(), 0.0
    for _ in range(3_000):
        now += silence.note_silent("1", now) or 0.0
    assert silence.on_trial(now) == {"1"} and silence.times("1") == 3_000
    assert patience_s("1", (), {"1"}, 60.0, silence.times("1")) == 60.0


def test_nodes_that_are_gone_are_forgotten() -> None:
    silence = SilentNodes()
    for node in ("1", "2"):
        silence.note_silent(node, 0.0)
    silence.keep({"2", "3"})
    assert silence.on_trial(100.0) == {"2"} and silence.times("1") == 0
