"""Guards: what stands between a proposal and its being carried out. Pure: facts in, accept or a reason in words out.

Each guard is a function of its own in the table `GUARDS`; the first that refuses is heard. Whoever asks keeps the
history; nothing is remembered here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from penstock.control.plan.plan import ExecutorPlan, Plan, derive_moves
from penstock.words import counted


@dataclass(frozen=True)
class Guards:
    """Settings of the guards. Zero or infinity switches one off."""

    cool_down_s: float = 2.0
    """Time after an action in which only an urgent one may follow."""
    hysteresis_s: float = 30.0
    """Time in which what an action did is not undone, unless it is urgent."""
    hysteresis_ratio: float = 0.1
    """A plan that gives cores back must be predicted to stay this far under the bound."""
    max_moves_in_flight: int = 64
    """Shards that may be on the move at once; a plan with more is begun only when none is."""
    max_actions_per_minute: int = 12
    """Actions for one executor within a minute; those for others do not count."""
    payback_s: float = 60.0
    """Time within which the gain of a plan must exceed its cost."""
    min_gain_ratio: float = 0.05
    """Share of the latency that a plan which leaves the number of cores as it is must win, while the bound holds."""
    settle_s: float = 3.0
    """Time after an action is carried out before latency is compared with what it was."""
    blame_s: float = 30.0
    """Time after an action is carried out in which it may be rolled back."""
    worse_ratio: float = 0.25
    """An action after which latency is this much higher is rolled back."""
    worse_from_ratio: float = 0.5
    """Share of the bound under which no action is blamed: there is room, and small latencies are mostly noise."""
    same_load_ratio: float = 0.1
    """An action is not blamed where the load has risen by more than this since."""
    beyond_chance: float = 3.0
    """Standard deviations by which the rows that are done must have fallen for an action to be blamed for it, or latency
    must have risen."""
    saturated_ratio: float = 0.9
    """Load of the busiest task from which on an executor is taken to be saturated: the rest goes to epochs."""


@dataclass(frozen=True)
class Pressure:
    """How hard executors are pressed at one moment."""

    load_ratio: float = 0.0
    """Load of the busiest task of all, core-seconds per second."""
    waited_s: float = 0.0
    """Time that what waits would take all tasks of its executor together; of the slowest executor."""
    done_per_s: float = 0.0
    """Rows a second that all tasks together complete."""
    chance_per_s: float = 0.0
    """Standard deviation of that by chance, as few or many rows as were counted."""
    has_hot_shard: bool = False
    """Whether some shard alone needs more than a core: its rows wait ever longer whatever is done."""

    def is_saturated(self, bound_s: float, guards: Guards) -> bool:
        """Whether more arrives than is done, or so much waits that no row can be done within the bound."""
        return self.load_ratio >= guards.saturated_ratio or self.waited_s > bound_s


@dataclass(frozen=True)
class Action:
    """An action that was begun: what it changed, and what was so before."""

    number: int
    at_s: float
    before: Mapping[str, ExecutorPlan]
    """The executors it names, as they were."""
    plan: Plan
    observed_s: float | None
    """Measured latency when it was decided."""
    rate_per_s: float
    predicted_s: float | None = None
    ended_s: float | None = None
    """When it was carried out; None while it is not."""
    rolls_back: int | None = None
    """Number of the action that it undoes."""
    pressure: Pressure = Pressure()
    """When it was decided."""
    chance_s: float = 0.0
    """Standard deviation of the latency from turn to turn before that: few rows of a window are late, or not, by chance."""

    @property
    def moves(self) -> int:
        return count_moves(self.before, self.plan)


@dataclass(frozen=True)
class Facts:
    """All that a guard may look at."""

    at_s: float
    plan: Plan
    current: Mapping[str, ExecutorPlan]
    bound_s: float
    guards: Guards = field(default_factory=Guards)
    urgent: bool = False
    predicted_s: float | None = None
    """Latency predicted after the plan."""
    without_s: float | None = None
    """Latency predicted by the same model if nothing is done."""
    observed_s: float | None = None
    """Latency as measured."""
    cost_s: float = 0.0
    """Row-seconds of delay that carrying it out causes, for each row a second."""
    recent: tuple[Action, ...] = ()
    """Actions of the last minutes, oldest first."""
    flying: int | None = None
    """Shards on the move as whoever moves them counts them; None: all those of actions under way."""
    manual_s: float | None = None
    """When something was last changed by hand."""
    refused: int = 0
    """Plans of the last minute that were tried and could not be carried out."""
    used_s: float = -math.inf
    """When another policy began to decide; actions until then were of the one before."""

    @property
    def breaks_bound(self) -> bool:
        return any(one is not None and one > self.bound_s for one in (self.without_s, self.observed_s))

    @property
    def freed_cores(self) -> int:
        """Cores that the plan gives back, less those it takes."""
        return sum(
            (self.current[name].k if name in self.current else 0) - then.k
            for name, then in self.plan.executors.items()
        )


Guard = Callable[[Facts], str | None]
"""None: accepted."""


def guard_moves_in_flight(facts: Facts) -> str | None:
    """Refuse moves beyond the cap while others go on."""
    flying = facts.flying
    if flying is None:
        flying = sum(action.moves for action in facts.recent if action.ended_s is None)
    moves, cap = count_moves(facts.current, facts.plan), facts.guards.max_moves_in_flight
    if flying and moves and flying + moves > cap:
        now = f"{counted(flying, 'shard')} {'is' if flying == 1 else 'are'} on the move"
        return f"{now} and {moves} more would pass the cap of {cap}"
    return None


def guard_actions_per_minute(facts: Facts) -> str | None:
    """Refuse more actions for an executor within a minute than the cap, urgent ones too: a storm of them never helps.

    With many executors a cap for all of them would let those that are ill wait for those that are not. A policy that has
    just begun is not held back for what the one before it did.
    """
    if facts.plan.touches_nothing:
        return None
    since_s = max(facts.at_s - 60, facts.used_s)
    recent = [action.plan for action in facts.recent if action.at_s > since_s]
    done = facts.refused + max(
        (sum(name in one.executors for one in recent) for name in facts.plan.executors),
        default=sum(not one.executors and not one.touches_nothing for one in recent),
    )
    cap = facts.guards.max_actions_per_minute
    return f"{counted(done, 'action')} in the last minute, the cap is {cap}" if done >= cap else None


def guard_cool_down(facts: Facts) -> str | None:
    """Refuse an action too soon after the last one, or after a change by hand, unless it is urgent."""
    if facts.urgent or facts.plan.touches_nothing:
        return None
    if facts.manual_s is not None:
        left_s = facts.manual_s + facts.guards.cool_down_s - facts.at_s
        if left_s > 1e-9:
            return f"cooling down after a change by hand, {left_s:.1f} s left"
    last = next((one for one in reversed(facts.recent) if not one.plan.touches_nothing), None)
    if last is None:
        return None
    left_s = (last.at_s if last.ended_s is None else last.ended_s) + facts.guards.cool_down_s - facts.at_s
    return f"cooling down after decision {last.number}, {left_s:.1f} s left" if left_s > 1e-9 else None


def guard_undoing(facts: Facts) -> str | None:
    """Refuse to undo what an action did a short while ago, unless it is urgent or adds cores where the bound is broken.

    Undone is a change of an executor's cores in the other direction, or a shard that goes back to the task it was
    taken from. An action that was rolled back counts with what its roll-back undid: doing it again is refused too.
    """
    if facts.urgent or (facts.breaks_bound and facts.freed_cores < 0):
        return None
    for action in reversed(facts.recent):
        if facts.at_s - action.at_s < facts.guards.hysteresis_s and _undoes(facts, action):
            return f"it would undo decision {action.number} of {facts.at_s - action.at_s:.1f} s ago"
    return None


def guard_margin(facts: Facts) -> str | None:
    """Refuse to give cores back where the latency is predicted to land close to the bound, unless it does so anyway:
    what others lack is no reason to keep them from it."""
    limit_s = (1 - facts.guards.hysteresis_ratio) * facts.bound_s
    if facts.freed_cores <= 0 or facts.guards.hysteresis_ratio <= 0:
        return None
    if facts.predicted_s is None or facts.predicted_s <= limit_s:
        return None
    without_s = facts.without_s or 0.0
    if without_s > facts.bound_s and facts.predicted_s <= without_s * (1 + facts.guards.min_gain_ratio):
        return None
    return (
        f"with {facts.freed_cores} fewer cores {_ms(facts.predicted_s)} are predicted, "
        f"more than {_ms(limit_s)} of a bound of {_ms(facts.bound_s)}"
    )


def guard_gain(facts: Facts) -> str | None:
    """Refuse what costs more than it brings.

    Gain and cost are row-seconds for each row a second. A plan that lowers the latency by g brings g for every row that
    comes within the time of payback T: g T; what it costs is the delay of rows while their shards are held up. Cores
    given back bring core-seconds for that time, and a core-second counts as much as a row-second for each row a second.
    Predictions are compared with predictions, as no model is free of bias. Where the bound is broken, more cores are
    worth any cost, and so is any gain. A plan that leaves every executor as it is (nodes come or go, a bound is split
    otherwise, executors are split or merged with their tasks) changes no latency at once and is not judged by it.
    """
    if not facts.plan.executors:
        return None
    if not math.isfinite(facts.guards.payback_s) or (facts.breaks_bound and facts.freed_cores < 0):
        return None
    if facts.freed_cores > 0:
        saved = facts.freed_cores * facts.guards.payback_s
        return (
            None
            if saved >= facts.cost_s
            else f"it saves {saved:.1f} core-seconds and costs {facts.cost_s:.1f}"
        )
    if facts.predicted_s is None or facts.without_s is None:
        return None
    gain_s = facts.without_s - facts.predicted_s
    if facts.breaks_bound and gain_s > 0:
        return None
    if facts.freed_cores == 0 and gain_s < facts.guards.min_gain_ratio * facts.without_s:
        why = "no gain" if gain_s < 0 else "too little to act on"
        return f"it would change {_ms(facts.without_s)} to {_ms(facts.predicted_s)}, {why}"
    if gain_s * facts.guards.payback_s < facts.cost_s:
        return f"it would win {_ms(gain_s)} a row and costs {facts.cost_s:.3g} s"
    return None


GUARDS: tuple[tuple[str, Guard], ...] = (
    ("moves in flight", guard_moves_in_flight),
    ("actions per minute", guard_actions_per_minute),
    ("cool-down", guard_cool_down),
    ("hysteresis", guard_undoing),
    ("margin", guard_margin),
    ("gain", guard_gain),
)
"""Asked in this order."""

_ALWAYS = ("moves in flight", "actions per minute")
"""Those that hold for a roll-back too."""


def resolve(facts: Facts, *, rolls_back: bool = False) -> str | None:
    """Return why a plan must not be carried out now, in words; None where it may."""
    for name, guard in GUARDS:
        if not rolls_back or name in _ALWAYS:
            reason = guard(facts)
            if reason is not None:
                return reason
    return None


def judge(
    action: Action,
    observed_s: float | None,
    rate_per_s: float,
    bound_s: float,
    guards: Guards,
    pressure: Pressure | None = None,
) -> str | None:
    """Say why an action should be rolled back, in words; None where it should stay.

    Latency must be higher than before by the margin and no longer far under the bound, the load not higher, and what
    waited at the time less than the bound allows: that comes out late whatever is done. One that promised no lower
    latency (it gave cores back, say) is only blamed where the bound is broken. What chance makes of latency from turn to
    turn is no rise.

    Where executors were saturated before the action and are saturated after it, latency grows with what waits whatever
    is done: there the action is judged by the rows a second that are done, which must have fallen by the same margin, and
    by more than chance makes of as many rows. So it is where one shard needs more than a core, unless fewer rows come. One
    after which more rows are done by that margin is not what rows wait for.

    Args:
        pressure: how hard executors are pressed now; None where it is not known.
    """
    before_s = action.observed_s
    if action.rolls_back is not None or not math.isfinite(guards.worse_ratio):
        return None
    if before_s is None or observed_s is None:
        return None
    limit_s = max(before_s * (1 + guards.worse_ratio), bound_s * guards.worse_from_ratio)
    if observed_s <= limit_s:
        return None
    if pressure is not None and _saturated_throughout(action, pressure, bound_s, guards):
        return _judge_done(action, pressure, guards)
    if pressure is not None and pressure.has_hot_shard:
        fewer_come = rate_per_s * (1 + guards.same_load_ratio) < action.rate_per_s
        return None if fewer_come else _judge_done(action, pressure, guards)
    if (
        pressure is not None
        and pressure.done_per_s > action.pressure.done_per_s * (1 + guards.worse_ratio) > 0
    ):
        return None
    if rate_per_s > action.rate_per_s * (1 + guards.same_load_ratio) or action.pressure.waited_s > bound_s:
        return None
    promised = action.predicted_s is not None and action.predicted_s < before_s
    if not promised and observed_s <= bound_s:
        return None
    if observed_s - before_s <= guards.beyond_chance * action.chance_s:
        return None
    return f"latency rose from {_ms(before_s)} to {_ms(observed_s)} after decision {action.number}"


def _saturated_throughout(action: Action, now: Pressure, bound_s: float, guards: Guards) -> bool:
    return action.pressure.is_saturated(bound_s, guards) and now.is_saturated(bound_s, guards)


def _judge_done(action: Action, pressure: Pressure, guards: Guards) -> str | None:
    """Say how far the rows that are done have fallen since an action, where chance does not explain it."""
    before, now = action.pressure.done_per_s, pressure.done_per_s
    chance = guards.beyond_chance * math.hypot(action.pressure.chance_per_s, pressure.chance_per_s)
    if now * (1 + guards.worse_ratio) >= before or before - now <= chance:
        return None
    return f"rows done fell from {before:,.0f} to {now:,.0f} a second after decision {action.number}"


def plan_back(
    action: Action, current: Mapping[str, ExecutorPlan], nodes: Mapping[str, object]
) -> Plan | None:
    """Return the plan before an action; None where it cannot come back: an executor or a node is gone."""
    for name, before in action.before.items():
        if name not in current or not set(before.tasks.values()) <= set(nodes):
            return None
    return Plan(executors=dict(action.before)) if action.before else None


def count_moves(before: Mapping[str, ExecutorPlan], plan: Plan) -> int:
    """Return how many shards change their task."""
    return sum(
        len(derive_moves(name, before[name], then)) for name, then in plan.executors.items() if name in before
    )


def _undoes(facts: Facts, action: Action) -> bool:
    for name, then in facts.plan.executors.items():
        past, did, now = action.before.get(name), action.plan.executors.get(name), facts.current.get(name)
        if past is None or did is None or now is None:
            continue
        if (did.k - past.k) * (then.k - now.k) < 0:
            return True
        moved = (did.task_of != past.task_of) & (now.task_of == did.task_of)
        back = moved & (then.task_of == past.task_of)
        if then.k == now.k and did.k == past.k and bool(np.any(back)):
            return True
    return False


def _ms(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "no bound"
    ms = seconds * 1e3
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.3g} ms"
