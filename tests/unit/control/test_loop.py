"""The loop on a fake data plane: every turn ends in a journalled decision, whatever plane and policy do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.control.fake_plane import FakePlane

from penstock.control.apply.actuator import Outcome, Ticket
from penstock.control.apply.journal import Journal
from penstock.control.loop import ControlLoop
from penstock.control.measure.estimate import Estimate
from penstock.control.measure.estimating import Measurer
from penstock.control.plan.guards import Guards
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.policy.advise import Advise
from penstock.control.policy.protocol import Limits, Option, Policy, Proposal
from penstock.control.policy.registry import make_policy
from penstock.control.sla import SLA
from penstock.errors import PlanError

SLA_HALF = SLA(0.5)
LIMITS = Limits(max_cores=8)
QUIET = Proposal(None, "", "no change: within the bound")


class Scripted:
    """A policy that is a function."""

    name = "scripted"

    def __init__(self, decide: Callable[[Estimate], Proposal]) -> None:
        self.decide, self.failures = decide, list[str]()

    def propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
        return self.decide(now)

    def note_failure(self, reason: str) -> None:
        self.failures.append(reason)


def loop_on(plane: FakePlane, policy: Policy, **guards: float) -> ControlLoop:
    return ControlLoop(
        Measurer(), policy, SLA_HALF, LIMITS, replace(Guards(), **guards), plane, Journal()  # type: ignore[arg-type]
    )  # fmt: skip


def move_all_to(task: int) -> Callable[[Estimate], Proposal]:
    def decide(now: Estimate) -> Proposal:
        match = now.executors["match"]
        if (match.task_of == task).all():
            return QUIET
        then = ExecutorPlan({one.index: one.node for one in match.tasks}, np.full_like(match.task_of, task))
        return Proposal(Plan({"match": then}), "p99 840 ms over 500 ms", f"moved all shards to task {task}")

    return decide


def balance(now: Estimate) -> Proposal:
    """As naive as can be: whenever two tasks differ at all, move the shard that evens them out best."""
    match = now.executors["match"]
    loads = match.task_loads()
    high, low = int(loads.argmax()), int(loads.argmin())
    gap = loads[high] - loads[low]
    mine = np.flatnonzero((match.task_of == match.tasks[high].index) & (match.load < gap) & (match.load > 0))
    if not len(mine):
        return QUIET
    shard = mine[np.abs(match.load[mine] - gap / 2).argmin()]
    task_of = match.task_of.copy()
    task_of[shard] = match.tasks[low].index
    then = ExecutorPlan({task.index: task.node for task in match.tasks}, task_of)
    return Proposal(Plan({"match": then}), f"task {high} holds more than task {low}", f"moved shard {shard}")


def test_a_turn_measures_asks_and_applies() -> None:
    plane, policy = FakePlane([50.0, 50.0]), Scripted(move_all_to(1))
    loop = loop_on(plane, policy)
    first, second, third = (loop.turn(plane.step()) for _ in range(3))
    assert str(first).startswith("the measurements cannot be used: match has one sample")
    assert str(second) == "p99 840 ms over 500 ms; moved all shards to task 1" and second.acted
    assert plane.plan.task_of.tolist() == [1, 1] and len(plane.applied) == 1
    assert str(third) == "no change: within the bound"
    assert [one.number for one in loop.journal.decisions()] == [1, 2, 3]
    assert loop.journal.decisions()[1].outcome == Outcome(True, moved_shards=1)


def test_a_plan_that_cannot_be_carried_out_leaves_the_old_one_and_says_why() -> None:
    plane, policy = FakePlane([50.0, 50.0]), Scripted(move_all_to(1))
    plane.refuse = "node n9 is gone"
    loop = loop_on(plane, policy)
    loop.turn(plane.step())
    decision = loop.turn(plane.step())
    assert not decision.acted and decision.refused == "node n9 is gone"
    assert str(decision).endswith("held back (moved all shards to task 1): node n9 is gone")
    assert policy.failures == ["node n9 is gone"] and plane.plan.task_of.tolist() == [0, 1]


def test_a_plan_that_fails_on_the_way_is_told_to_the_policy_and_the_journal() -> None:
    plane, policy = FakePlane([50.0, 50.0]), Scripted(move_all_to(1))
    loop = loop_on(plane, policy)
    plane.status = lambda ticket: Outcome(False, "task 1 was lost")  # type: ignore[method-assign]
    for _ in range(3):
        loop.turn(plane.step())
    assert policy.failures == ["task 1 was lost"]
    assert str(loop.journal.decisions()[1]).endswith("failed: task 1 was lost")


def test_a_policy_and_the_bound_are_swapped_while_it_runs() -> None:
    plane, asked = FakePlane([50.0, 50.0]), list[float]()

    class Asks(Scripted):
        name = "asks"

        def propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
            asked.append(sla.latency)
            return QUIET

    loop = loop_on(plane, Scripted(lambda now: QUIET))
    for _ in range(3):
        loop.turn(plane.step())
    loop.use(Asks(lambda now: QUIET))
    assert loop.turn(plane.step()).policy == "asks"
    loop.change_sla(SLA(0.1))
    loop.turn(plane.step())
    assert asked == [0.5, 0.1]


def test_advice_is_journalled_and_nothing_is_touched() -> None:
    plane, inner = FakePlane([50.0, 50.0]), Scripted(move_all_to(1))
    loop = loop_on(plane, Advise(inner))
    decisions = [loop.turn(plane.step()) for _ in range(5)]
    assert str(decisions[1]) == "p99 840 ms over 500 ms; advice, not done: moved all shards to task 1"
    assert plane.applied == [] and decisions[-1].count == 4
    assert loop.policy.name == "advise:scripted" and inner.failures


def test_a_worse_latency_is_rolled_back_once_and_said() -> None:
    # 220 rows a second: two tasks of 200 a second serve them, and one does not.
    plane, policy = FakePlane([55.0, 55.0, 55.0, 55.0]), Scripted(move_all_to(1))
    loop = loop_on(plane, policy, settle_s=3, hysteresis_s=1e9)
    loop.turn(plane.step())
    before = plane.plan
    for _ in range(30):
        loop.turn(plane.step())
    backs = [one for one in loop.journal.decisions() if "rolled back" in one.action]
    assert len(backs) == 1 and backs[0].acted
    assert str(backs[0]).startswith("latency rose from ")
    assert str(backs[0]).endswith(" after decision 2; rolled back to the plan before decision 2")
    assert plane.plan.task_of.tolist() == before.task_of.tolist() and len(plane.applied) == 2
    # The policy wants the same again and again; the guard knows that it was undone.
    assert "it would undo decision" in str(loop.journal.decisions()[-1])


def give_up(now: Estimate) -> Proposal:
    """Keep the second of two cores only."""
    if now.executors["match"].k == 1:
        return QUIET
    then = ExecutorPlan({1: "n1"}, np.full(4, 1, np.int32))
    return Proposal(Plan({"match": then}), "2 cores are held and 1 may be", "gave one up", urgent=True)


def test_no_roll_back_takes_more_cores_than_the_policy_may_hold() -> None:
    plane, policy = FakePlane([55.0, 55.0, 55.0, 55.0]), Scripted(give_up)
    policy.k_max = 1  # type: ignore[attr-defined]
    loop = loop_on(plane, policy, settle_s=3)
    for _ in range(30):
        loop.turn(plane.step())
    assert not [one for one in loop.journal.decisions() if "rolled back" in one.action]
    assert plane.plan.k == 1 and not policy.failures


def test_no_roll_back_takes_cores_that_went_to_another_query_meanwhile() -> None:
    plane, policy = FakePlane([55.0, 55.0, 55.0, 55.0]), Scripted(give_up)
    loop = loop_on(plane, policy, settle_s=3)
    loop.limits = Limits(max_cores=1)
    for _ in range(30):
        loop.turn(plane.step())
    assert not [one for one in loop.journal.decisions() if "rolled back" in one.action]
    assert plane.plan.k == 1 and not policy.failures


def test_a_bound_that_is_split_otherwise_meanwhile_does_not_hide_what_got_worse() -> None:
    plane, policy = FakePlane([55.0, 55.0, 55.0, 55.0]), Scripted(move_all_to(1))
    loop = loop_on(plane, policy, settle_s=3, hysteresis_s=1e9)
    for turn in range(30):
        loop.turn(plane.step())
        if turn == 1:
            policy.decide = lambda now: QUIET
        elif turn == 3:
            policy.decide = lambda now: Proposal(
                Plan(sla_shares={"match": 1.0}), "match", "shifted the bound"
            )
        elif turn == 6:
            policy.decide = lambda now: QUIET
    backs = [one for one in loop.journal.decisions() if "rolled back" in one.action]
    assert len(backs) == 1 and backs[0].acted


def test_a_bound_that_is_split_otherwise_is_no_action() -> None:
    shift = Proposal(Plan(sla_shares={"match": 1.0}), "match", "shifted the bound")
    plane = FakePlane([55.0, 55.0, 55.0, 55.0])
    decision = loop_on(plane, Scripted(lambda now: shift)).turn(plane.step())
    assert not decision.acted and decision.refused is None and not plane.applied


def test_a_roll_back_that_is_refused_is_not_proposed_again() -> None:
    plane, policy = FakePlane([55.0, 55.0, 55.0, 55.0]), Scripted(move_all_to(1))
    loop = loop_on(plane, policy)
    for _ in range(40):
        loop.turn(plane.step())
        plane.refuse = "node n1 is being drained" if plane.applied else None
    backs = [one for one in loop.journal.decisions() if "rolled back" in one.action]
    assert [(one.refused, one.count) for one in backs] == [("node n1 is being drained", 1)]


def swap_once(now: Estimate) -> Proposal:
    """Exchange the shards of two tasks, once: as good as before."""
    match = now.executors["match"]
    if match.task_of[0] != 0:
        return QUIET
    then = ExecutorPlan({one.index: one.node for one in match.tasks}, 1 - match.task_of)
    return Proposal(
        Plan({"match": then}), "p99 840 ms over 500 ms", "exchanged all shards", predicted_s=0.001
    )


def test_a_plan_is_not_blamed_for_a_source_that_gives_more_than_is_done() -> None:
    # 440 rows a second where two tasks do 400: what waits grows whatever is done.
    plane = FakePlane([110.0, 110.0, 110.0, 110.0])
    loop = loop_on(plane, Scripted(swap_once), settle_s=3)
    for _ in range(30):
        loop.turn(plane.step())
    assert len(plane.applied) == 1
    assert not [one for one in loop.journal.decisions() if "rolled back" in one.action]


def test_a_plan_with_which_less_is_done_is_rolled_back_under_such_a_source_too() -> None:
    plane = FakePlane([110.0, 110.0, 110.0, 110.0])
    loop = loop_on(plane, Scripted(move_all_to(1)), settle_s=3, hysteresis_s=1e9)
    for _ in range(30):
        loop.turn(plane.step())
    backs = [one for one in loop.journal.decisions() if "rolled back" in one.action]
    assert len(backs) == 1 and str(backs[0]).startswith("rows done fell from ")


def test_a_roll_back_that_does_not_help_is_left_alone() -> None:
    plane, policy = FakePlane([50.0, 50.0]), Scripted(move_all_to(1))
    loop = loop_on(plane, policy, settle_s=2)
    for turn in range(60):
        plane.extra_s = 0.02 * turn if turn > 2 else 0.0  # it gets worse whatever is done
        loop.turn(plane.step())
        policy.decide = (lambda now: QUIET) if turn > 3 else policy.decide
    assert len([one for one in loop.journal.decisions() if "rolled back" in one.action]) <= 1
    assert len(plane.applied) <= 2


def test_nothing_is_decided_on_what_cannot_be_believed() -> None:
    plane, policy = FakePlane([50.0, 50.0]), Scripted(move_all_to(1))
    loop = loop_on(plane, policy)
    for _ in range(10):
        sample = plane.step()
        decision = loop.turn(replace(sample, executors={}))
        assert not decision.acted
        assert not loop.turn(replace(sample, at_s=float("nan"))).acted
    assert plane.applied == []


def test_a_steady_noisy_load_does_not_oscillate() -> None:
    """Balancing on noise moves shards for ever; with the guards it moves a few and then rests."""
    rates = [30.0, 25.0, 20.0, 15.0, 10.0, 5.0, 5.0, 5.0]

    def run(**guards: float) -> int:
        plane = FakePlane(rates, seed=3)
        loop = loop_on(plane, Scripted(balance), **guards)
        for _ in range(400):
            loop.turn(plane.step())
        return len(plane.applied)

    off = run(cool_down_s=0, hysteresis_s=0, max_actions_per_minute=10**9, worse_ratio=1e9)
    assert off > 100
    assert run() < off / 2

    def predicting(now: Estimate) -> Proposal:
        found, match = balance(now), now.executors["match"]
        if found.plan is None:
            return found
        then = replace(match, task_of=found.plan.executors["match"].task_of)
        now_s, then_s = (0.01 / max(1 - one.task_loads().max(), 0.01) for one in (match, then))
        options = (Option("no change", now_s), Option(found.action, then_s, cost_s=0.1))
        return replace(found, options=options, predicted_s=then_s)

    plane = FakePlane(rates, seed=3)
    loop = loop_on(plane, Scripted(predicting), min_gain_ratio=0.25)
    for _ in range(400):
        loop.turn(plane.step())
    assert len(plane.applied) <= 3


def test_a_steady_load_is_one_entry() -> None:
    plane = FakePlane([50.0, 50.0])
    loop = loop_on(plane, Scripted(lambda now: QUIET))
    loop.journal = Journal(fold_s=1e9)
    for _ in range(500):
        loop.turn(plane.step())
    invalid, steady = loop.journal.decisions()
    assert steady.count == 499 and invalid.count == 1 and steady.until_s == 500.0


def test_predicted_and_observed_stand_side_by_side() -> None:
    plane = FakePlane([50.0, 50.0])
    steady = Proposal(None, "", "no change", predicted_s=0.01, details={"model": "epoch"})
    loop = loop_on(plane, Scripted(lambda now: steady))
    for _ in range(20):
        loop.turn(plane.step())
    error = loop.journal.model_errors()["epoch"]
    assert error.count == 18 and error.mean_ratio == pytest.approx(1.0)  # 10 ms predicted, 5 ms measured


def test_every_folded_turn_is_held_against_its_own_prediction() -> None:
    plane = FakePlane([50.0, 50.0])
    loop = loop_on(plane, Scripted(lambda now: Proposal(None, "", "no change", predicted_s=0.005 * now.at_s)))
    for _ in range(4):
        loop.turn(plane.step())
    # 10 and 15 ms were predicted at 2 s and 3 s, and 5 ms measured each time.
    assert loop.journal.model_errors()["scripted"].mean_ratio == pytest.approx(1.5)


def test_a_second_plan_may_follow_while_the_first_goes_on_up_to_the_cap() -> None:
    plane = FakePlane([50.0] * 4)
    plane.delay = 100
    then = [move_all_to(1), move_all_to(0)]
    policy = Scripted(lambda now: then[len(plane.applied) % 2](now))
    loop = loop_on(plane, policy, cool_down_s=0, hysteresis_s=0, max_moves_in_flight=5)
    for _ in range(4):
        loop.turn(plane.step())
    assert len(plane.applied) == 1
    assert "2 shards are on the move and 4 more would pass the cap of 5" in str(loop.journal.decisions()[-1])
    assert plane.status(Ticket(1)) is None


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), rates=st.lists(st.floats(1.0, 60.0), min_size=3, max_size=8))
def test_no_shard_goes_back_within_the_time_of_the_guard(seed: int, rates: list[float]) -> None:
    plane = FakePlane(rates, seed=seed)
    loop = loop_on(plane, Scripted(balance), hysteresis_s=20, cool_down_s=0, worse_ratio=1e9)
    places: list[list[int]] = []
    for _ in range(60):
        loop.turn(plane.step())
        places.append(plane.plan.task_of.tolist())
    for shard in range(len(rates)):
        moves = [
            (at, one[shard], two[shard])
            for at, (one, two) in enumerate(pairwise(places))
            if one[shard] != two[shard]
        ]
        for (first, source, _), (second, _, destination) in pairwise(moves):
            assert destination != source or second - first >= 20


@pytest.mark.parametrize(
    ("policy", "model"),
    [
        ("drs", "mmk"),
        ("streamswitch", "mm1"),
        ("penstock", "mm1"),
        ("esstream", "mmk"),
        ("elasticutor", "mmk"),
    ],
)
def test_the_error_of_a_prediction_goes_to_the_model_that_made_it_also_where_nothing_changes(
    policy: str, model: str
) -> None:
    plane = FakePlane([50.0, 50.0])
    loop = loop_on(plane, make_policy(policy))
    for _ in range(30):
        loop.turn(plane.step())
    assert {one.model for one in loop.journal.decisions() if one.predicted_s is not None} == {model}
    assert set(loop.journal.model_errors()) == {model}


def test_what_was_held_back_and_never_came_is_no_error_of_the_model() -> None:
    plane = FakePlane([50.0, 50.0])
    plane.refuse = "node n1 is being drained"
    loop = loop_on(plane, Scripted(lambda now: replace(move_all_to(1)(now), predicted_s=0.2)))
    for _ in range(30):
        loop.turn(plane.step())
    assert loop.journal.decisions()[-1].predicted_s == 0.2 and loop.journal.model_errors() == {}


def test_an_idle_node_is_given_back_behind_the_guards_too() -> None:
    plane = FakePlane([50.0, 50.0])
    loop = loop_on(plane, make_policy("esstream"))
    for _ in range(5):
        loop.turn(plane.step())
    assert plane.applied[0].release_nodes == ("n2",)


@pytest.mark.parametrize(("state_bytes", "refused"), [(10**3, False), (10**10, True)])
def test_a_plan_of_the_default_policy_is_refused_where_moving_its_state_costs_more_than_it_brings(
    state_bytes: int, refused: bool
) -> None:
    """An idle executor on two nodes could do with less; the state of its shards must cross for that."""
    plane = FakePlane([5.0] * 16, k=8)
    plane.plan = ExecutorPlan({at: f"n{1 + at % 2}" for at in range(8)}, plane.plan.task_of)
    loop = loop_on(plane, make_policy("penstock"))
    for _ in range(20):
        sample = plane.step()
        match = replace(sample.executors["match"], state_bytes=np.full(16, state_bytes, np.int64))
        loop.turn(replace(sample, executors={"match": match}))
    said = {one.refused for one in loop.journal.decisions() if one.refused and "core-seconds" in one.refused}
    assert bool(said) == refused and bool(plane.applied) != refused


def test_nothing_is_decided_while_the_query_is_paused_and_the_pause_is_no_rate() -> None:
    plane, policy = FakePlane([50.0, 50.0]), Scripted(lambda now: QUIET)
    loop, seen = loop_on(plane, policy), list[float]()
    policy.decide = lambda now: seen.append(now.executors["match"].rate_per_s) or QUIET  # type: ignore[func-returns-value]
    for _ in range(10):
        loop.turn(plane.step())
    before = len(seen)
    for _ in range(20):
        plane.at_s += 1.0
        decision = loop.turn(replace(plane.sample(), paused=True))
        assert str(decision).startswith("the query is paused; no change: paused") and not decision.acted
    assert len(seen) == before, "no policy was asked"
    assert loop.journal.decisions()[-1].count == 20
    for _ in range(3):
        loop.turn(plane.step())
    assert len(seen) == before + 3 and min(seen[before:]) > 50, "two shards of 50 rows a second"
    assert loop._past.manual_s == 30.0, "no decision before the pause is blamed for what waited"


class NodesLate(FakePlane):
    """Cores are there at once; the nodes of a plan fail in the end."""

    def apply(self, plan: Plan) -> Ticket:
        cores = super().apply(plan)
        return Ticket(cores.number, Ticket(-cores.number)) if plan.add_nodes else cores

    def status(self, ticket: Ticket) -> Outcome | None:
        if ticket.number > 0:
            return super().status(ticket)
        return Outcome(False, "1 node did not come") if self.at_s >= 60 else None


def test_cores_that_came_are_no_failure_when_the_nodes_asked_for_with_them_do_not() -> None:
    plane = NodesLate([50.0, 50.0])

    def decide(now: Estimate) -> Proposal:
        if plane.applied:
            return QUIET
        tasks = ExecutorPlan(dict.fromkeys(range(2), "n1"), np.array([1, 0], np.int32))
        return Proposal(Plan({"match": tasks}, add_nodes=1), "in trouble", "swapped, and asked for a node")

    policy = Scripted(decide)
    loop = loop_on(plane, policy)
    loop.limits = replace(LIMITS, max_nodes=3)
    for _ in range(70):
        loop.turn(plane.step())
    found = next(one for one in loop.journal.decisions() if one.acted)
    assert found.outcome is not None and found.outcome.ok
    assert found.nodes is not None and not found.nodes.ok
    assert str(found).endswith("its nodes failed: 1 node did not come")
    assert policy.failures == ["1 node did not come"]
    assert loop._past.recent[0].ended_s is not None and loop._past.recent[0].ended_s < 10


def test_moves_in_flight_are_those_that_the_actuator_counts_where_it_does() -> None:
    class Counting(FakePlane):
        flying = 0

        def moves_in_flight(self) -> int:
            return self.flying

    plane = Counting([50.0] * 8)
    plane.delay = 100  # the plan is long under way, and its shards have moved at once
    turns = iter(range(100))
    loop = loop_on(
        plane, Scripted(lambda now: move_all_to(next(turns) % 2)(now)), cool_down_s=0, hysteresis_s=0,
        max_moves_in_flight=5,
    )  # fmt: skip
    decisions = [loop.turn(plane.step()) for _ in range(6)]
    assert sum(one.acted for one in decisions) > 1
    plane.flying = 1
    held = [loop.turn(plane.step()) for _ in range(2)]
    assert all(not one.acted for one in held)
    assert any("1 shard is on the move" in (one.refused or "") for one in held)


def test_what_is_refused_is_tried_again_later_and_later() -> None:
    plane, policy = FakePlane([50.0, 50.0]), Scripted(move_all_to(1))
    plane.refuse, tries = "no lease is to be had", list[float]()
    apply = plane.apply

    def count(plan: Plan) -> Ticket:
        tries.append(plane.at_s)
        return apply(plan)

    plane.apply = count  # type: ignore[method-assign]
    loop = loop_on(plane, policy)
    for _ in range(200):
        loop.turn(plane.step())
    assert [later - earlier for earlier, later in pairwise(tries)] == [2, 4, 8, 16, 32, 60, 60]
    held = [one for one in loop.journal.decisions() if "next try in" in (one.refused or "")]
    assert held and all("no lease is to be had" in str(one) for one in held)
    plane.refuse = None
    for _ in range(61):
        loop.turn(plane.step())
    assert len(plane.applied) == 1


def test_plans_that_are_refused_count_as_actions_of_a_minute() -> None:
    """Another plan every time, so that none has to wait for itself."""
    plane, tries = FakePlane([50.0] * 8, k=8), list[float]()

    def refuse(plan: Plan) -> Ticket:
        tries.append(plane.at_s)
        raise PlanError("no")

    def shrink(now: Estimate) -> Proposal:
        keep = 1 + int(now.at_s) % 7
        then = ExecutorPlan(dict.fromkeys(range(keep), "n1"), (np.arange(8) % keep).astype(np.int32))
        return Proposal(Plan({"match": then}), "", "fewer tasks", urgent=True)

    plane.apply = refuse  # type: ignore[method-assign]
    loop = loop_on(plane, Scripted(shrink), max_actions_per_minute=5, hysteresis_s=0)
    for _ in range(60):
        loop.turn(plane.step())
    assert len(tries) == 5


@pytest.mark.parametrize("broken", ["apply", "current", "status"])
def test_an_actuator_that_fails_is_journalled_and_the_loop_turns_on(broken: str) -> None:
    plane, policy = FakePlane([50.0, 50.0]), Scripted(move_all_to(1))

    def fail(*_: object) -> None:
        raise ConnectionError("the hub is gone")

    setattr(plane, broken, fail)
    loop = loop_on(plane, policy)
    for _ in range(4):
        loop.turn(plane.step())
    assert "ConnectionError: the hub is gone" in "".join(map(str, loop.journal.decisions()))
    assert policy.failures[0] == "ConnectionError: the hub is gone"


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("division by zero"), asyncio.CancelledError("division by zero")]
)
def test_a_policy_that_fails_is_journalled_and_asked_again(error: BaseException) -> None:
    plane, asked = FakePlane([50.0, 50.0]), list[float]()

    class Fails(Scripted):
        def propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
            asked.append(now.at_s)
            raise error

        def note_failure(self, reason: str) -> None:
            raise KeyError(reason)

    loop = loop_on(plane, Fails(lambda now: QUIET))
    decisions = [loop.turn(plane.step()) for _ in range(4)]
    assert asked == [2, 3, 4] and decisions[-1].count == 3 and not decisions[-1].acted
    said = f"the policy scripted failed: {type(error).__name__}: division by zero"
    assert said in str(decisions[-1])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "propose must return a Proposal, not None"),
        (Plan(), "propose must return a Proposal, not a Plan"),
        (Proposal("wider", "", ""), "the plan of a Proposal must be a Plan or None, not a str"),  # type: ignore[arg-type]
        (Proposal(None, None, ""), "the symptom of a Proposal must be a sentence, not None"),  # type: ignore[arg-type]
    ],
)
def test_a_policy_that_answers_with_no_proposal_is_journalled_and_asked_again(
    answer: object, said: str
) -> None:
    plane, policy = FakePlane([50.0, 50.0]), Scripted(lambda now: answer)  # type: ignore[arg-type,return-value]
    loop = loop_on(plane, policy)
    decisions = [loop.turn(plane.step()) for _ in range(4)]
    assert str(decisions[-1]).startswith(f"the policy scripted failed: {said}")
    assert decisions[-1].count == 3 and policy.failures == [said] * 3


def test_a_plan_of_the_wrong_shape_is_refused_in_a_sentence_before_a_guard_computes_with_it() -> None:
    plane = FakePlane([50.0] * 4)
    short = Plan({"match": ExecutorPlan({0: "n1", 1: "n1"}, np.zeros(3, np.int32))})
    loop = loop_on(plane, Scripted(lambda now: Proposal(short, "", "three shards")))
    loop.turn(plane.step())
    decision = loop.turn(plane.step())
    assert (decision.refused or "").startswith("plan: executor 'match' maps 3 shards and its operator has 4")


def test_a_new_policy_is_not_held_back_for_what_the_one_before_it_did() -> None:
    plane = FakePlane([50.0, 50.0])
    swaps = Scripted(
        lambda now: Proposal(
            Plan({"match": ExecutorPlan(plane.plan.tasks, 1 - plane.plan.task_of)}),
            "",
            "exchanged",
            urgent=True,
        )
    )
    loop = loop_on(plane, swaps, max_actions_per_minute=3, worse_ratio=float("inf"))
    held_back = [loop.turn(plane.step()) for _ in range(8)][-1]
    assert held_back.refused == "3 actions in the last minute, the cap is 3" and len(plane.applied) == 3
    loop.use(swaps, "another")
    assert loop.turn(plane.step()).acted and len(plane.applied) == 4
    for _ in range(5):
        loop.turn(plane.step())
    assert len(plane.applied) == 6


@pytest.mark.parametrize("swapped", ["advise", "static"])
def test_a_policy_that_touches_nothing_rolls_nothing_back_that_another_did(swapped: str) -> None:
    plane = FakePlane([55.0] * 4)
    loop = loop_on(plane, Scripted(move_all_to(1)), settle_s=3, hysteresis_s=1e9)
    loop.turn(plane.step())
    assert loop.turn(plane.step()).acted
    loop.use(make_policy(swapped), swapped)
    assert not any(loop.turn(plane.step()).acted for _ in range(30)) and len(plane.applied) == 1


@pytest.mark.parametrize("other", [SLA(0.5, quantile=0.99), SLA(0.5, scope="operator"), SLA(0.5, 5.0)])
def test_a_bound_on_another_quantity_leaves_earlier_actions_unjudged(other: SLA) -> None:
    for settles in (0, 2):  # carried out before the change, and under way at it
        plane = FakePlane([55.0] * 4)
        loop = loop_on(plane, Scripted(move_all_to(1)), settle_s=3, hysteresis_s=1e9)
        loop.turn(plane.step())
        assert loop.turn(plane.step()).acted
        for _ in range(settles):
            loop.turn(plane.step())
        loop.change_sla(other)
        assert not any(loop.turn(plane.step()).acted for _ in range(30))


def test_a_lower_bound_on_the_same_quantity_does_not() -> None:
    plane = FakePlane([55.0] * 4)
    loop = loop_on(plane, Scripted(move_all_to(1)), settle_s=3, hysteresis_s=1e9)
    for _ in range(3):
        loop.turn(plane.step())
    loop.change_sla(SLA(0.4))
    assert any("rolled back" in loop.turn(plane.step()).action for _ in range(30))


def test_a_turn_ends_by_the_policy_and_the_bound_that_it_began_with() -> None:
    plane, then = FakePlane([50.0, 50.0]), Scripted(lambda now: QUIET)
    then.name = "then"
    plane.refuse = "no"

    def swaps(now: Estimate) -> Proposal:
        loop.hold(SLA(0.1), then, "then:x=1", replace(loop.guards, max_actions_per_minute=1))
        return move_all_to(1)(now)

    first = Scripted(swaps)
    loop = loop_on(plane, first)
    loop.turn(plane.step())
    decision = loop.turn(plane.step())
    inputs = loop.journal.entries()[-1].inputs
    assert (decision.policy, decision.stated, first.failures, then.failures) == ("scripted", "", ["no"], [])
    assert inputs is not None and inputs.sla == SLA(0.5)
    assert (loop.sla, loop.policy, loop.stated) == (SLA(0.1), then, "then:x=1")
    assert loop.guards.max_actions_per_minute == 1 and loop.turn(plane.step()).stated == "then:x=1"


def test_an_impossible_plan_is_refused_before_anybody_tries_it() -> None:
    plane = FakePlane([50.0] * 4)

    def impossible(now: Estimate) -> Proposal:
        tasks = dict.fromkeys(range(3), "n9")
        then = ExecutorPlan(tasks, np.arange(4, dtype=np.int32) % 3)
        return Proposal(Plan({"match": then}), "", "three tasks")

    loop = loop_on(plane, Scripted(impossible))
    decisions = [loop.turn(plane.step()) for _ in range(3)]
    assert plane.applied == [] and "node 'n9', which does not exist" in (decisions[-1].refused or "")


def test_a_roll_back_that_a_guard_holds_back_is_proposed_until_it_may_be_done() -> None:
    plane, policy = FakePlane([55.0, 55.0, 55.0, 55.0]), Scripted(move_all_to(1))
    loop = loop_on(plane, policy, settle_s=3, hysteresis_s=1e9, max_actions_per_minute=1)
    for turn in range(20):
        loop.turn(plane.step())
        if turn == 15:
            loop.guards = replace(loop.guards, max_actions_per_minute=12)
    backs = [one for one in loop.journal.decisions() if "rolled back" in one.action]
    assert "the cap is 1" in (backs[0].refused or "") and backs[-1].acted and len(plane.applied) == 2


def test_nothing_is_rolled_back_over_a_change_by_hand_and_the_journal_has_it() -> None:
    plane, policy = FakePlane([55.0, 55.0, 55.0, 55.0]), Scripted(move_all_to(1))
    loop = loop_on(plane, policy, settle_s=3, hysteresis_s=1e9)
    for turn in range(40):
        loop.turn(plane.step())
        if turn == 2:
            loop.note_manual(plane.at_s, "'match' goes from 2 to 3 cores")
    by_hand = [one for one in loop.journal.decisions() if one.symptom == "by hand"]
    assert [str(one) for one in by_hand] == ["by hand; 'match' goes from 2 to 3 cores"]
    assert by_hand[0].acted and by_hand[0].at_s == 3.0
    assert not [one for one in loop.journal.decisions() if "rolled back" in one.action]
    assert [entry.inputs is None for entry in loop.journal.entries()].count(True) == 1


def test_a_plan_that_can_wait_waits_after_a_change_by_hand() -> None:
    plane = FakePlane([50.0, 50.0])
    loop = loop_on(plane, Scripted(move_all_to(1)), cool_down_s=5)
    loop.turn(plane.step())
    loop.note_manual(plane.at_s, "moved a shard")
    decisions = [loop.turn(plane.step()) for _ in range(8)]
    assert "cooling down after a change by hand" in (decisions[0].refused or "")
    assert [one.acted for one in decisions].index(True) == 5


def test_a_node_is_asked_for_behind_the_guards_too() -> None:
    """All cores are taken, and more would help; the request by itself lowers no latency."""
    plane, asked = FakePlane([40.0] * 16, k=16, row_s=0.05), list[int]()
    plane.plan = ExecutorPlan({at: f"n{1 + at // 8}" for at in range(16)}, plane.plan.task_of)
    apply = plane.apply

    def note(plan: Plan) -> Ticket:
        asked.append(plan.add_nodes)
        return apply(plan)

    plane.apply = note  # type: ignore[method-assign]
    loop = loop_on(plane, make_policy("penstock"))
    loop.limits = Limits(32, 1, 4, 8)
    for _ in range(10):
        loop.turn(plane.step())
    assert any(asked), [str(one) for one in loop.journal.decisions()]


def test_a_roll_back_waits_until_the_actuator_says_again_what_is_there() -> None:
    plane = FakePlane([55.0, 55.0, 55.0, 55.0])
    loop, current = loop_on(plane, Scripted(move_all_to(1)), settle_s=3, hysteresis_s=1e9), plane.current

    def fail() -> dict[str, ExecutorPlan]:
        raise ConnectionError("the hub is gone")

    for turn in range(20):
        plane.current = fail if 3 <= turn < 10 else current  # type: ignore[method-assign]
        loop.turn(plane.step())
    backs = [one for one in loop.journal.decisions() if "rolled back" in one.action]
    assert len(backs) == 1 and backs[0].acted and backs[0].at_s >= 11
