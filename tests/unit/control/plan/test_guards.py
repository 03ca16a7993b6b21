"""Each guard by itself, in a table: what it lets pass and what it refuses, in words."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as given_any
from hypothesis import strategies as st

from penstock.control.plan import guards as g
from penstock.control.plan.guards import Action, Facts, Guards, Pressure, judge, plan_back, resolve
from penstock.control.plan.plan import ExecutorPlan, Plan


def executor(*task_of: int, node: str = "n1") -> ExecutorPlan:
    return ExecutorPlan(dict.fromkeys(sorted(set(task_of)), node), np.array(task_of, np.int32))


TWO, SKEWED, ONE, THREE = (
    executor(0, 0, 1, 1),
    executor(0, 1, 1, 1),
    executor(0, 0, 0, 0),
    executor(0, 1, 2, 0),
)


def plan(then: ExecutorPlan) -> Plan:
    return Plan({"match": then})


def action(before: ExecutorPlan, then: ExecutorPlan, at_s: float = 90.0, **fields: object) -> Action:
    made = Action(7, at_s, {"match": before}, plan(then), 0.2, 1000.0, ended_s=at_s)
    return replace(made, **fields)  # type: ignore[arg-type]


def facts(then: ExecutorPlan = SKEWED, now: ExecutorPlan = TWO, **fields: object) -> Facts:
    return replace(Facts(100.0, plan(then), {"match": now}, 0.5), **fields)  # type: ignore[arg-type]


SETTINGS = Guards(
    cool_down_s=5, hysteresis_s=30, max_moves_in_flight=2, max_actions_per_minute=2, payback_s=10
)

SHIFT = Plan(sla_shares={"match": 0.4})

TABLE: list[tuple[g.Guard, str, Facts, str | None]] = [
    (g.guard_moves_in_flight, "nothing is on the move", facts(THREE), None),
    (g.guard_moves_in_flight, "moves under way and too many more",
     facts(ONE, recent=(action(TWO, SKEWED, ended_s=None),)),
     "1 shard is on the move and 2 more would pass the cap of 2"),
    (g.guard_moves_in_flight, "moves under way and room for one",
     facts(SKEWED, recent=(action(TWO, SKEWED, ended_s=None),)), None),
    (g.guard_moves_in_flight, "a plan without moves", facts(TWO, recent=(action(TWO, ONE, ended_s=None),)), None),
    (g.guard_actions_per_minute, "one action in the last minute", facts(recent=(action(TWO, ONE),)), None),
    (g.guard_actions_per_minute, "two of them, and urgent all the same",
     facts(urgent=True, recent=(action(TWO, ONE), action(TWO, ONE))), "2 actions in the last minute, the cap is 2"),
    (g.guard_actions_per_minute, "two, one of them long ago",
     facts(recent=(action(TWO, ONE, 30.0), action(TWO, ONE))), None),
    (g.guard_actions_per_minute, "two, of other executors",
     facts(recent=tuple(replace(action(TWO, ONE), plan=Plan({"sort": ONE})) for _ in range(2))), None),
    (g.guard_actions_per_minute, "two, and a plan that splits a bound otherwise",
     replace(facts(recent=(action(TWO, ONE), action(TWO, ONE))), plan=SHIFT), None),
    (g.guard_cool_down, "no action yet", facts(), None),
    (g.guard_cool_down, "a bound split otherwise a moment ago",
     facts(recent=(replace(action(TWO, ONE, 99.0), before={}, plan=SHIFT),)), None),
    (g.guard_cool_down, "a bound to split otherwise, too soon",
     replace(facts(recent=(action(TWO, ONE, 97.0),)), plan=SHIFT), None),
    (g.guard_cool_down, "too soon", facts(recent=(action(TWO, ONE, 97.0),)), "cooling down after decision 7, 2.0 s left"),
    (g.guard_cool_down, "too soon after it was carried out", facts(recent=(action(TWO, ONE, ended_s=96.0),)),
     "cooling down after decision 7, 1.0 s left"),
    (g.guard_cool_down, "too soon and urgent", facts(urgent=True, recent=(action(TWO, ONE, 97.0),)), None),
    (g.guard_cool_down, "late enough", facts(recent=(action(TWO, ONE, 95.0),)), None),
    (g.guard_undoing, "cores go up and were taken a while ago",
     facts(TWO, ONE, recent=(action(TWO, ONE),)), "it would undo decision 7 of 10.0 s ago"),
    (g.guard_undoing, "the same, long ago", facts(TWO, ONE, recent=(action(TWO, ONE, 60.0),)), None),
    (g.guard_undoing, "the same, urgent", facts(TWO, ONE, urgent=True, recent=(action(TWO, ONE),)), None),
    (g.guard_undoing, "the same, with the bound broken", facts(TWO, ONE, observed_s=0.9, recent=(action(TWO, ONE),)), None),
    (g.guard_undoing, "cores go down, with the bound broken",
     facts(ONE, TWO, without_s=0.9, recent=(action(ONE, TWO),)), "it would undo decision 7 of 10.0 s ago"),
    (g.guard_undoing, "a shard goes back",
     facts(TWO, SKEWED, recent=(action(TWO, SKEWED),)), "it would undo decision 7 of 10.0 s ago"),
    (g.guard_undoing, "another shard moves", facts(executor(0, 1, 0, 1), SKEWED, recent=(action(TWO, SKEWED),)), None),
    (g.guard_undoing, "cores go up twice", facts(THREE, TWO, recent=(action(ONE, TWO),)), None),
    (g.guard_margin, "fewer cores, far under the bound", facts(ONE, predicted_s=0.3), None),
    (g.guard_margin, "fewer cores, close to the bound", facts(ONE, predicted_s=0.47),
     "with 1 fewer cores 470 ms are predicted, more than 450 ms of a bound of 500 ms"),
    (g.guard_margin, "fewer cores, while others are far over the bound anyway",
     facts(ONE, predicted_s=2.01, without_s=2.0), None),
    (g.guard_margin, "fewer cores, which makes it worse", facts(ONE, predicted_s=2.5, without_s=2.0),
     "with 1 fewer cores 2500 ms are predicted, more than 450 ms of a bound of 500 ms"),
    (g.guard_margin, "more cores, close to the bound", facts(THREE, predicted_s=0.47), None),
    (g.guard_margin, "fewer cores, nothing predicted", facts(ONE), None),
    (g.guard_gain, "nothing predicted", facts(), None),
    (g.guard_gain, "too little to act on", facts(predicted_s=0.196, without_s=0.2),
     "it would change 200 ms to 196 ms, too little to act on"),
    (g.guard_gain, "worse", facts(predicted_s=1.28, without_s=1.11), "it would change 1110 ms to 1280 ms, no gain"),
    (g.guard_gain, "a gain above its cost", facts(predicted_s=0.1, without_s=0.2, cost_s=0.9), None),
    (g.guard_gain, "a gain below its cost", facts(predicted_s=0.1, without_s=0.2, cost_s=1.1),
     "it would win 100 ms a row and costs 1.1 s"),
    (g.guard_gain, "a gain below its cost that mends the bound", facts(predicted_s=0.4, without_s=0.6, cost_s=99.0), None),
    (g.guard_gain, "more cores, with the bound broken and none of it mended",
     facts(THREE, predicted_s=0.7, without_s=0.6, observed_s=0.65, cost_s=9.0), None),
    (g.guard_gain, "more cores, for a gain below its cost", facts(THREE, predicted_s=0.1, without_s=0.2, cost_s=1.1),
     "it would win 100 ms a row and costs 1.1 s"),
    (g.guard_gain, "measured, and not predicted, without it", facts(predicted_s=0.3, observed_s=0.2), None),
    (g.guard_gain, "no gain, with the bound broken", facts(predicted_s=0.7, without_s=0.6),
     "it would change 600 ms to 700 ms, no gain"),
    (g.guard_gain, "from unserved to served", facts(predicted_s=0.4, without_s=float("inf"), cost_s=5.0), None),
    (g.guard_gain, "a node more, which changes nothing by itself",
     replace(facts(predicted_s=0.6, without_s=0.6), plan=Plan(add_nodes=1)), None),
    (g.guard_gain, "another split of the bound",
     replace(facts(predicted_s=0.2, without_s=0.2), plan=Plan(sla_shares={"match": 0.4})), None),
    (g.guard_cool_down, "a change by hand a short while ago", facts(manual_s=98.0),
     "cooling down after a change by hand, 3.0 s left"),
    (g.guard_cool_down, "a change by hand long ago", facts(manual_s=95.0), None),
    (g.guard_cool_down, "a change by hand, and urgent", facts(manual_s=98.0, urgent=True), None),
    (g.guard_actions_per_minute, "an action, and a plan that could not be carried out",
     facts(refused=1, recent=(action(TWO, ONE),)), "2 actions in the last minute, the cap is 2"),
    (g.guard_gain, "a core saved", facts(ONE, predicted_s=0.3, without_s=0.2, cost_s=9.0), None),
    (g.guard_gain, "a core saved for too much", facts(ONE, predicted_s=0.3, without_s=0.2, cost_s=11.0),
     "it saves 10.0 core-seconds and costs 11.0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("guard", "case", "given", "answer"), TABLE, ids=[f"{t[0].__name__}: {t[1]}" for t in TABLE]
)
def test_a_guard_answers(guard: g.Guard, case: str, given: Facts, answer: str | None) -> None:
    assert guard(replace(given, guards=SETTINGS)) == answer


def test_every_guard_is_asked_and_tested() -> None:
    defined = {one for name, one in vars(g).items() if name.startswith("guard_")}
    assert defined == {guard for _, guard in g.GUARDS} == {row[0] for row in TABLE}


def test_the_first_refusal_is_heard_and_a_roll_back_is_held_by_caps_only() -> None:
    again = facts(TWO, SKEWED, guards=SETTINGS, recent=(action(TWO, SKEWED, 99.0),))
    assert resolve(again) == "cooling down after decision 7, 4.0 s left"
    assert resolve(again, rolls_back=True) is None
    storm = replace(again, recent=again.recent * 2)
    assert resolve(storm, rolls_back=True) == "2 actions in the last minute, the cap is 2"


def test_all_guards_accept_a_plain_improvement() -> None:
    assert resolve(facts(predicted_s=0.1, without_s=0.3)) is None


def test_guards_that_are_switched_off_let_everything_pass() -> None:
    off = Guards(
        0, 0, 0, 10**9, 10**9, payback_s=math.inf, min_gain_ratio=-math.inf, worse_ratio=math.inf
    )  # fmt: skip
    recent = (action(TWO, ONE, 100.0), action(ONE, TWO, 100.0, ended_s=None))
    for then in (ONE, SKEWED, THREE):
        for predicted_s in (0.001, 0.9, math.inf):
            for without_s in (0.0, 0.1, math.inf):
                given = facts(then, guards=off, recent=recent, predicted_s=predicted_s, without_s=without_s)
                assert resolve(replace(given, cost_s=1e9)) is None
    assert judge(action(TWO, ONE, observed_s=0.0), 9.0, 1.0, 0.5, off) is None


JUDGED = [
    ("as before", {}, 0.21, 1000, None),
    ("worse", {"predicted_s": 0.1}, 0.4, 1000, "latency rose from 200 ms to 400 ms after decision 7"),
    ("worse, under more load", {"predicted_s": 0.1}, 0.4, 1200, None),
    ("worse, far under the bound", {"predicted_s": 0.1, "observed_s": 0.01}, 0.02, 1000, None),
    ("worse as promised, and the bound holds", {"predicted_s": 0.4}, 0.4, 1000, None),
    ("worse than promised, and the bound is broken", {"predicted_s": 0.4}, 0.6, 1000,
     "latency rose from 200 ms to 600 ms after decision 7"),
    ("worse by what chance makes of it", {"predicted_s": 0.1, "chance_s": 0.08}, 0.4, 1000, None),
    ("worse by more than chance", {"predicted_s": 0.1, "chance_s": 0.06}, 0.4, 1000,
     "latency rose from 200 ms to 400 ms after decision 7"),
    ("a roll-back", {"predicted_s": 0.1, "rolls_back": 3}, 0.6, 1000, None),
    ("what waited at the time comes out late whatever is done",
     {"predicted_s": 0.1, "pressure": Pressure(waited_s=0.6)}, 0.6, 1000, None),
    ("a little waited at the time", {"predicted_s": 0.4, "pressure": Pressure(waited_s=0.1)}, 0.6, 1000,
     "latency rose from 200 ms to 600 ms after decision 7"),
    ("nothing was measured before", {"observed_s": None}, 0.6, 1000, None),
    ("nothing is measured now", {"predicted_s": 0.1}, None, 1000, None),
]  # fmt: skip


@pytest.mark.parametrize(("case", "fields", "observed", "rate", "answer"), JUDGED, ids=[j[0] for j in JUDGED])
def test_an_action_is_judged(
    case: str, fields: dict[str, object], observed: float | None, rate: float, answer: str | None
) -> None:
    assert judge(action(TWO, SKEWED, **fields), observed, rate, 0.5, SETTINGS) == answer


SATURATED = st.one_of(
    st.builds(Pressure, st.floats(0.9, 2.0), st.floats(0.0, 60.0), st.just(1000.0)),
    st.builds(Pressure, st.floats(0.0, 2.0), st.floats(0.51, 60.0), st.just(1000.0)),
)
CALM = st.builds(Pressure, st.floats(0.0, 0.89), st.floats(0.0, 0.5), st.just(1000.0))
LATENCY_S = st.floats(0.001, 1e4)
PROMISED_S = st.none() | LATENCY_S


@given_any(
    SATURATED, SATURATED, LATENCY_S, LATENCY_S, PROMISED_S, st.floats(0.1, 10.0), st.floats(100.0, 2000.0)
)
def test_under_a_source_that_gives_more_than_is_done_only_fewer_rows_done_are_evidence(
    before: Pressure,
    after: Pressure,
    was_s: float,
    is_s: float,
    promised_s: float | None,
    done: float,
    rate: float,
) -> None:
    did = action(TWO, SKEWED, observed_s=was_s, predicted_s=promised_s, pressure=before)
    said = judge(did, is_s, rate, 0.5, SETTINGS, replace(after, done_per_s=done * before.done_per_s))
    if done * (1 + SETTINGS.worse_ratio) >= 1:
        assert said is None
    elif is_s > max(was_s * (1 + SETTINGS.worse_ratio), 0.25):
        assert said == f"rows done fell from 1,000 to {done * 1000:,.0f} a second after decision 7"


@given_any(st.tuples(CALM, CALM) | st.tuples(CALM, SATURATED), LATENCY_S, LATENCY_S, PROMISED_S)
def test_a_plan_that_saturates_what_was_not_is_judged_by_latency(
    pressures: tuple[Pressure, Pressure], was_s: float, is_s: float, promised_s: float | None
) -> None:
    did = action(TWO, SKEWED, observed_s=was_s, predicted_s=promised_s, pressure=pressures[0])
    assert judge(did, is_s, 1000.0, 0.5, SETTINGS, pressures[1]) == judge(did, is_s, 1000.0, 0.5, SETTINGS)


def test_an_action_after_which_more_rows_are_done_is_not_what_rows_wait_for() -> None:
    """Cores that came as a wave of rows rose: they wait longer than before, and more of them are done."""
    did = action(TWO, SKEWED, observed_s=0.2, predicted_s=0.1, pressure=Pressure(0.8, 0.3, 800.0))
    for done, said in ((800.0, "latency rose from 200 ms to 600 ms after decision 7"), (1_300.0, None)):
        assert judge(did, 0.6, 1000.0, 0.5, SETTINGS, Pressure(0.8, 0.4, done)) == said


@pytest.mark.parametrize(
    ("before", "now", "seconds", "answer"),
    [
        (10.0, 6.0, 1.0, None),
        (10.0, 6.0, 5.0, None),
        (10.0, 6.0, 10.0, "rows done fell from 10 to 6 a second after decision 7"),
        (10.0, 0.0, 1.0, "rows done fell from 10 to 0 a second after decision 7"),
        (1_000.0, 600.0, 1.0, "rows done fell from 1,000 to 600 a second after decision 7"),
    ],
)
def test_fewer_rows_done_are_no_evidence_where_chance_makes_as_much_of_so_few(
    before: float, now: float, seconds: float, answer: str | None
) -> None:
    def pressed(done: float) -> Pressure:
        return Pressure(1.2, 5.0, done, math.sqrt(done / seconds))

    did = action(TWO, SKEWED, observed_s=0.6, pressure=pressed(before))
    assert judge(did, 6.0, 1000.0, 0.5, SETTINGS, pressed(now)) == answer


@pytest.mark.parametrize(
    ("done", "rate", "answer"),
    [
        (800.0, 1000.0, None),
        (400.0, 1000.0, "rows done fell from 800 to 400 a second after decision 7"),
        (400.0, 500.0, None),
    ],
)
def test_latency_that_a_shard_beyond_any_core_explains_is_no_decisions_fault(
    done: float, rate: float, answer: str | None
) -> None:
    did = action(TWO, SKEWED, observed_s=0.116, predicted_s=0.1, pressure=Pressure(0.8, 0.1, 800.0))
    assert judge(did, 0.508, rate, 0.5, SETTINGS, Pressure(1.2, 0.4, done, has_hot_shard=True)) == answer


def test_the_plan_before_comes_back_only_where_its_nodes_still_are() -> None:
    back = plan_back(action(TWO, SKEWED), {"match": SKEWED}, {"n1": None})
    assert back is not None and back.executors["match"] is TWO
    assert plan_back(action(TWO, SKEWED), {"match": SKEWED}, {"n2": None}) is None
    assert plan_back(action(TWO, SKEWED), {}, {"n1": None}) is None
