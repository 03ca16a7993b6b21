"""Which executors get more tasks where epochs are too long for a bound: those that lower what is bounded most for each.

An operator's share of an end-to-end bound is no limit here: where one can do no better, others can make up for it. What is
late is `lateness`'s; `Shortener` remembers what was asked for, the rest is pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from penstock.control.measure.estimate import Estimate
from penstock.control.measure.observed import derive_observed_s
from penstock.control.measure.sample import F64
from penstock.control.model.epoch import largest_load_curve, lower_convex_hull
from penstock.control.policy.lateness import LOOK_S, Late, Lateness, derive_measured_s
from penstock.control.policy.lingering import Holding
from penstock.control.policy.predicting import Whole
from penstock.control.policy.studying import Study
from penstock.control.policy.treating import EVEN, LATE_ROOM, SPARE_ROOM
from penstock.control.policy.wording import count, in_ms
from penstock.control.sla import OPERATOR, SLA

LEAST_GAIN = 0.1
"""Share of the latency that more tasks must be predicted to win: less is not seen among what chance does."""
FAR = 1.25
"""Times the bound from which on latency misses it by far."""
TIE = 1e-3
"""How much latency that is not on the slowest path counts: of two paths as slow as each other both must get tasks."""

Predict = Callable[[Mapping[str, float]], float]
"""From the latency of each executor to that of what the SLA bounds."""


@dataclass(frozen=True)
class Shortening:
    """What is done about epochs that are too long, for all executors under one bound."""

    more: Mapping[str, int]
    """Executor -> further tasks; none where shards that are dealt evenly do."""
    predicted_s: float = math.inf
    why_not: str = ""
    lacking: int = 0
    """Cores that would help and are not there."""
    hopeless: bool = False
    """Nothing helps, and the bound is missed by far: cores that win nothing are of no use."""


@dataclass(frozen=True)
class _Group:
    """Executors under one bound, as they are at this turn."""

    key: str
    studies: tuple[Study, ...]
    late: Late | None
    bound_s: float
    predict: Predict

    def height(self) -> float:
        """Return what is measured of the whole over what its parts come to: a row ends with the last derived from it."""
        assert self.late is not None
        return self.late.latency_s / max(self.predict(self.late.measured_s), 1e-12)


@dataclass
class Shortener:
    """Looks at executors that take rows by epochs, and asks for tasks until the bound is held as measured."""

    _lateness: Lateness = field(default_factory=Lateness)
    _unhelped: Holding = field(default_factory=Holding)
    """By key: bounds that more tasks brought no nearer."""
    _undealt: Holding = field(default_factory=Holding)
    """The same, of shards that were dealt anew to the tasks there were."""
    _groups: dict[str, _Group] = field(default_factory=dict)
    _wanted: dict[str, Shortening] = field(default_factory=dict)
    """Executor -> what is done about its epochs, of those that are late."""
    _spared: dict[str, dict[str, float]] = field(default_factory=dict)
    """By key: the latencies there will be where cores are given back at this turn."""

    def look(
        self, now: Estimate, sla: SLA, studies: Sequence[Study], usable: int, holding: Holding
    ) -> list[Study]:
        """Take in a turn; return the executors, models brought to what is measured, those that are late marked.

        Args:
            usable: cores that can be had.
            holding: is told of executors whose new tasks did not help.
        """
        self._groups, self._wanted, self._spared = {}, {}, {}
        whole = Whole(now, sla)
        for key, found in _group(sla, studies).items():
            measured_s = {one.name: derive_measured_s(one) for one in found}
            latency_s = (
                None if sla.scope == OPERATOR or now.latency_s is None else derive_observed_s(now, sla)
            )
            seen_s = whole.predict_s(measured_s) if latency_s is None else latency_s
            late = self._lateness.take(now.at_s, key, found, seen_s, sla.latency, sla.window)
            group = _Group(key, tuple(found), late, sla.latency, whole.predict_s)
            self._groups |= dict.fromkeys((one.name for one in found), group)
            if late is not None:
                self._decide(now.at_s, group, late, usable, holding)
        return [self._adjust(one) for one in studies]

    def wanted(self, name: str) -> Shortening:
        """Return what is done about the epochs of an executor that is late."""
        return self._wanted[name]

    def explain_calm(self, name: str) -> str:
        """Say why an executor that is over its bound as measured at this turn does not count as late."""
        group = self._groups.get(name)
        if group is None:
            return "no model knows what more tasks would win"
        if group.late is None:
            return f"what epochs take is looked at for {LOOK_S:.0f} s before anything is done about it"
        if not group.late.is_late:
            return "the bound is not missed more often than chance explains"
        return "another executor has to be helped first"

    def begin(self, names: Sequence[str]) -> None:
        """Note that late executors are given the tasks that were wanted."""
        for group in {id(self._groups[name]): self._groups[name] for name in names}.values():
            if group.late is not None:
                mine = frozenset(one.name for one in group.studies if one.name in names)
                promised_s = min(self._wanted[name].predicted_s for name in mine)
                self._lateness.widen(group.key, mine, group.studies, group.late.latency_s, promised_s)

    def forget(self) -> None:
        """Note that the last plan did not happen."""
        self._lateness.forget()

    def spares(self, one: Study, predicted_s: float) -> bool:
        """Say whether an executor may be so slow for the bound to be held with room, as measured; one that may counts as
        such for the others at the same turn."""
        group = self._groups.get(one.name)
        if group is None:
            return True
        if group.late is None:
            return False
        slower = predicted_s / max(one.predicted_s, 1e-12)
        then_s = {**self._spared.get(group.key, group.late.measured_s)}
        then_s[one.name] *= slower
        if group.height() * group.predict(then_s) > SPARE_ROOM * group.bound_s:
            return False
        self._spared[group.key] = then_s
        return True

    def _decide(self, at_s: float, group: _Group, late: Late, usable: int, holding: Holding) -> None:
        unhelped = self._lateness.judge(group.key, group.studies, late)
        for name in unhelped.names:
            (self._unhelped if unhelped.added else self._undealt).note(group.key, at_s)
            if unhelped.added:
                holding.note(name, at_s)
        if not late.is_late or any(one.stuck for one in group.studies):
            return
        if at_s < self._unhelped.until_s(group.key):
            found = tell_unhelped(group.studies, late, group.bound_s)
        else:
            height = group.height()
            found = find_shorter(
                group.studies,
                late,
                group.bound_s,
                lambda latency_s: height * group.predict(latency_s),
                usable,
                deals=at_s >= self._undealt.until_s(group.key),
            )
        names = found.more or [find_worst(group.studies, late).name]
        self._wanted |= dict.fromkeys(names, found)

    def _adjust(self, one: Study) -> Study:
        late, epochs = one.name in self._wanted, one.demand.epochs
        ratio = max(self._lateness.ratio(one.name), 1.0)
        if epochs is None or ratio == 1.0:
            return replace(one, late=late)
        demand = replace(one.demand, epochs=replace(epochs, ratio=epochs.ratio * ratio))
        return replace(one, late=late, demand=demand)


def _group(sla: SLA, studies: Sequence[Study]) -> dict[str, list[Study]]:
    """Return the executors by the bound they share: each has its own, or all are on the way from end to end."""
    if sla.scope == OPERATOR:
        return {one.name: [one] for one in studies if one.demand.epochs is not None}
    named = sorted(studies, key=lambda one: one.name)
    return {"": named} if any(one.demand.epochs is not None for one in named) else {}


def find_shorter(
    studies: Sequence[Study],
    late: Late,
    bound_s: float,
    predict: Predict,
    usable: int,
    *,
    deals: bool = True,
) -> Shortening:
    """Return the fewest tasks that are predicted to hold the bound with room, or at all; else say why there are none.

    Args:
        deals: whether shards may be dealt anew to the tasks there are.
    """
    curves = {one.name: _derive_curve_s(one, late.measured_s[one.name]) for one in studies}
    for curve in curves.values() if not deals else ():
        curve[1:2] = curve[0]
    enough_s = (1 - LEAST_GAIN) * late.latency_s
    wanted: list[Shortening] = []
    for limit_s in (LATE_ROOM * bound_s, bound_s):
        found = _walk(curves, late, predict, min(limit_s, enough_s))
        if found is not None and sum(found.more.values()) <= usable:
            return found
        wanted += [found] if found is not None else []
    seen = _describe(studies, late, bound_s)
    if not wanted:
        why = f"nothing can help: {seen}, and the model sees no number of tasks that does better"
        return Shortening({}, why_not=why, hopeless=late.latency_s > FAR * bound_s)
    needed = sum(wanted[-1].more.values())
    why = (
        f"nothing can help within the cores there are: {seen}; epochs short enough need {count(needed, 'more task')}"
        f" and {usable} can be had"
    )
    return Shortening({}, why_not=why, lacking=needed - usable)


def tell_unhelped(studies: Sequence[Study], late: Late, bound_s: float) -> Shortening:
    """Say that more tasks were tried."""
    why = f"nothing can help: {_describe(studies, late, bound_s)}, and more tasks did not help"
    return Shortening({}, why_not=why, hopeless=late.latency_s > FAR * bound_s)


def find_worst(studies: Sequence[Study], late: Late) -> Study:
    """Return the executor that is furthest over its share of the bound."""
    return max(studies, key=lambda one: (late.measured_s[one.name] / one.bound.mean_s, one.name))


def _walk(curves: Mapping[str, F64], late: Late, predict: Predict, limit_s: float) -> Shortening | None:
    """Take the step that wins most for each task, along the lower hull of each executor's curve, until the limit is met."""
    at = dict.fromkeys(curves, 0)
    bends = {name: lower_convex_hull(curve) for name, curve in curves.items()}
    latency_s = dict(late.measured_s)

    def worth_s(found: Mapping[str, float]) -> float:
        return predict(found) + TIE * sum(found.values())

    while predict(latency_s) > limit_s:
        now_s, best, most = worth_s(latency_s), "", 0.0
        for name, places in bends.items():
            left = places[places > at[name]]
            if not len(left):
                continue
            then_s = worth_s({**latency_s, name: float(curves[name][left[0]])})
            gain = (now_s - then_s) / float(left[0] - at[name])
            if gain > most:
                best, most = name, gain
        if not best:
            return None
        at[best] = int(bends[best][bends[best] > at[best]][0])
        latency_s[best] = float(curves[best][at[best]])
    return Shortening({name: step - 1 for name, step in at.items() if step}, predict(latency_s))


def _derive_curve_s(one: Study, measured_s: float) -> F64:
    """Return the latency as it is, then with shards dealt evenly to 0, 1, 2, ... more tasks: the shape is the model's, the
    height as measured."""
    epochs, held = one.demand.epochs, len(one.tasks.indexes)
    if epochs is None:
        return np.array([measured_s])
    most = max(int(np.count_nonzero(one.executor.task_of >= 0)), held)
    mean = max(float(one.tasks.speed.mean()), 1e-9)
    load = one.demand.load / mean
    even = np.maximum(EVEN * float(load.sum()) / np.arange(1, most + 1), largest_load_curve(load, most))
    even_s = epochs.derive_curve_s(even)[held - 1 :]
    now_s = epochs.predict_s(held, float(one.tasks.sum(one.demand.load).max(initial=0.0)))
    if not 0 < now_s < math.inf:
        return np.array([measured_s])
    found: F64 = measured_s * np.concatenate([[1.0], even_s / now_s])
    return found


def _describe(studies: Sequence[Study], late: Late, bound_s: float) -> str:
    worst = find_worst(studies, late)
    ratio = worst.bound.latency_s / worst.bound.mean_s
    own = (
        f"{in_ms(late.measured_s[worst.name] * ratio)} are measured and {in_ms(late.said_s[worst.name] * ratio)}"
        f" were predicted of {worst.name}"
    )
    if len(studies) == 1:
        return f"{own}, of a bound of {in_ms(bound_s)}"
    share = f"on a share of {in_ms(worst.bound.latency_s)}"
    return f"{own} {share}, {in_ms(late.latency_s)} end to end of a bound of {in_ms(bound_s)}"
