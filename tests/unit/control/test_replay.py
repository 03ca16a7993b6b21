"""Deciding again: the same policy decides the same, its memory included; runs in one file are kept apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.control.fake_plane import FakePlane

from penstock.control.apply.actuator import Outcome, Ticket
from penstock.control.apply.journal import Entry, Journal, read_entries
from penstock.control.loop import ControlLoop
from penstock.control.measure.estimate import Estimate
from penstock.control.measure.estimating import Measurer, Measuring
from penstock.control.plan.guards import Guards
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.policy import registry
from penstock.control.policy.protocol import Limits, Policy, Proposal
from penstock.control.policy.registry import make_policy
from penstock.control.replay import replay, replay_as_recorded
from penstock.control.sla import SLA
from penstock.sim.elastic.cases import order_stream_case
from penstock.sim.elastic.compare import make_guards
from penstock.sim.elastic.simulation import Simulation


def record(policy: str, seconds: int) -> list[bytes]:
    """The order stream, a turn every second; a journal of it."""
    case, lines = order_stream_case(1, seconds=float(seconds), interval_s=1.0), list[bytes]()
    sim = Simulation(case.setting(5), case.feeds(), case.sla, case.seconds)
    made = make_policy(policy)
    journal = Journal(write=lines.append, run=policy)
    loop = ControlLoop(
        Measurer(Measuring(case.sla.window)), made, case.sla, case.limits, make_guards(made), sim, journal
    )
    for at in range(1, seconds + 1):
        sim.advance(float(at))
        loop.turn(sim.sample())
    journal.close_run()
    return lines


@pytest.mark.parametrize("policy", ["penstock", "elasticutor", "streamswitch", "drs", "esstream"])
def test_a_policy_that_remembers_decides_the_same_again(policy: str) -> None:
    entries = read_entries(record(policy, 60))
    assert max(entry.decision.count for entry in entries) > 3, "there is something to remember"
    found = replay(entries, make_policy(policy))
    assert found.decided + found.skipped == len(entries) and found.actions_recorded
    assert (found.differences, found.missing_turns) == ((), 0)
    assert found.actions_decided == found.actions_recorded


class Third:
    """Acts at every third turn that it is asked, not counting those before its last failure."""

    name = "third"

    def __init__(self) -> None:
        self.asked, self.told = 0, list[str]()

    def propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
        self.asked += 1
        if self.asked % 3:
            return Proposal(None, "", "no change")
        match = now.executors["match"]
        then = ExecutorPlan({task.index: task.node for task in match.tasks}, np.roll(match.task_of, 1))
        return Proposal(Plan({"match": then}), "", "moved all", urgent=True)

    def note_failure(self, reason: str) -> None:
        self.asked = 0
        self.told.append(reason)


RATES = [20.0, 30.0, 10.0, 5.0]


class Failing(FakePlane):
    """Every plan is found to have failed two steps later."""

    def __init__(self, rates: list[float]) -> None:
        super().__init__(rates)
        self.delay = 2

    def status(self, ticket: Ticket) -> Outcome | None:
        found = super().status(ticket)
        return found and Outcome(False, f"no core could be had at {self.at_s:g} s")


def drive(turns: int, guards: Guards, run: str, fails: bool = False) -> tuple[list[bytes], Third]:
    plane = Failing(RATES) if fails else FakePlane(RATES)
    lines, policy = list[bytes](), Third()
    journal = Journal(write=lines.append, run=run)
    loop = ControlLoop(Measurer(), policy, SLA(0.5), Limits(4), guards, plane, journal)
    for _ in range(turns):
        loop.turn(plane.step())
    journal.close_run()
    return lines, policy


@pytest.mark.parametrize("guards", [Guards(), Guards(max_actions_per_minute=1)])
@pytest.mark.parametrize("fails", [False, True])
def test_failures_and_refusals_are_told_again_at_the_turn_they_were_told(guards: Guards, fails: bool) -> None:
    lines, live = drive(40, guards, "a", fails)
    assert live.told
    again = Third()
    again.__deepcopy__ = lambda _: again  # type: ignore[attr-defined]
    assert replay(read_entries(lines), again).differences == ()
    assert again.told == live.told


def test_runs_in_one_file_are_kept_apart_and_each_begins_with_a_new_memory() -> None:
    lines = drive(11, Guards(), "a")[0] + drive(7, Guards(), "b")[0]
    entries = read_entries(lines)
    assert [entry.decision.number for entry in entries] == [
        *(entry.decision.number for entry in read_entries(drive(11, Guards(), "a")[0])),
        *(entry.decision.number for entry in read_entries(drive(7, Guards(), "b")[0])),
    ]
    for entry in entries:
        assert entry.inputs is not None and entry.inputs.estimate.at_s == entry.decision.at_s
    assert replay(entries, Third()).differences == ()


def test_lines_without_a_run_are_told_apart_by_their_numbers_and_folded_turns_counted_as_missing() -> None:
    one, other = drive(11, Guards(), "")[0], drive(9, Guards(), "")[0]
    entries = read_entries(one + other)
    assert len(entries) == len(read_entries(one)) + len(read_entries(other))
    assert {entry.run for entry in entries} == {"", "2"}
    older = [replace(entry, turns=()) for entry in entries]
    assert replay(older, Third()).missing_turns == sum(entry.decision.count - 1 for entry in entries) > 0


def test_a_folded_turn_is_written_to_the_last_bit() -> None:
    """Against the estimates that the loop really had, with numbers that are none among them."""
    plane, lines, seen = FakePlane([20.0, 30.0, 0.0]), list[bytes](), list[Estimate]()

    class Look(Third):
        def propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
            seen.append(now)
            return Proposal(None, f"{now.at_s:.0f} s", "no change")

    journal = Journal(write=lines.append)
    loop = ControlLoop(Measurer(), Look(), SLA(0.5), Limits(4), Guards(), plane, journal)
    for _ in range(700):  # more than one line holds
        loop.turn(plane.step(0.1))
    journal.close_run()
    assert len(lines) < 20
    told = [turn.inputs.estimate for entry in read_entries(lines) for turn in entry.all_turns()]
    told = [one for one in told if one.invalid is None]
    assert len(told) == len(seen) == 699
    for mine, theirs in zip(told, seen, strict=True):
        a, b = mine.executors["match"], theirs.executors["match"]
        assert mine.at_s == theirs.at_s and a.tasks == b.tasks and mine.nodes == theirs.nodes
        for name in ("task_of", "arrival_per_s", "load", "backlog_rows", "latency_s", "state_bytes"):
            assert np.array_equal(getattr(a, name), getattr(b, name), equal_nan=name == "latency_s")


def test_an_entry_without_inputs_has_no_turns() -> None:
    (entry,) = read_entries(drive(1, Guards(), "a")[0])
    assert not list(Entry(entry.decision).all_turns())


def record_holding(holds: list[tuple[str, float]], turns: int = 12) -> list[bytes]:
    """A query's loop that is told to hold a bound by a policy, then by another one, in one file."""
    plane, lines = FakePlane([20.0, 30.0, 10.0, 5.0]), list[bytes]()
    journal = Journal(write=lines.append, run="a")
    loop = ControlLoop(Measurer(), make_policy("static"), SLA(0.5), Limits(4), Guards(), plane, journal)
    for stated, latency_s in holds:
        loop.change_sla(SLA(latency_s))
        loop.use(make_policy(stated), stated)
        for _ in range(turns):
            loop.turn(plane.step())
    journal.close_run()
    return lines


HOLDS = [("third", 0.5), ("third", 0.25), ("drs:k_max=3", 0.5), ("third", 0.5), ("drs", 0.5), ("static", 0.5)]


@pytest.fixture
def third() -> Iterator[None]:
    registry.register("third", Third)
    yield
    registry.unregister("third")


@pytest.mark.usefixtures("third")
def test_each_stretch_of_a_run_is_decided_by_the_policy_of_its_lines() -> None:
    entries = read_entries(record_holding(HOLDS))
    found = replay_as_recorded(entries, make_policy)
    assert found.differences == ()
    assert found.actions_decided == found.actions_recorded > 3
    assert [one.policy for one in found.by_policy] == ["third", "drs:k_max=3", "drs", "static"]
    assert sum(one.decided for one in found.by_policy) == found.decided
    assert replay(entries, make_policy("static")).differences, "one policy for all of them differs"


@pytest.mark.usefixtures("third")
def test_a_policy_held_again_or_with_another_bound_remembers_nothing() -> None:
    made: list[str] = []

    def make(text: str) -> Policy:
        made.append(text)
        return make_policy(text)

    replay_as_recorded(read_entries(record_holding(HOLDS)), make)
    assert made == [stated for stated, _ in HOLDS]


@pytest.mark.usefixtures("third")
def test_turns_of_a_policy_that_is_not_there_are_counted_and_left_out() -> None:
    made: list[str] = []

    def make(text: str) -> Policy:
        made.append(text)
        return make_policy(text)

    holds = [("third", 0.5), ("static", 0.5), ("third", 0.5)]
    found = replay_as_recorded(read_entries(record_holding(holds)), make, lambda name: name != "static")
    assert made == ["third", "third"], "it begins anew after the stretch that is left out"
    assert found.unregistered == {"static": 12} and not found.differences
    assert [one.policy for one in found.by_policy] == ["third"]


@pytest.mark.usefixtures("third")
def test_a_journal_without_options_is_decided_by_names() -> None:
    entries = read_entries(record_holding(HOLDS))
    older = [replace(entry, decision=replace(entry.decision, stated="")) for entry in entries]
    found = replay_as_recorded(older, make_policy)
    assert [one.policy for one in found.by_policy] == ["third", "drs", "static"]


def test_the_same_words_of_a_policy_with_other_options_are_another_decision() -> None:
    entries = read_entries(record_holding([("static", 0.5), ("static:tasks=1", 0.5)]))
    assert {entry.decision.stated for entry in entries} == {"static", "static:tasks=1"}
