"""An end-to-end bound split between operators so that the worst of their success rates is as high as can be.

StreamSwitch 6.6: an operator's success grows with its share, so the max-min split is the one that makes the successes
equal; it is found by measuring them and shifting bound from the operator that does best to the one that does worst.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.control.measure.estimate import Estimate, ExecutorEstimate
from penstock.control.measure.observed import derive_executor_s, derive_observed_s
from penstock.control.policy.ordering import derive_longest, derive_operators, derive_stations, derive_visits
from penstock.control.sla import OPERATOR, SLA

LEAST_TURNS = 5
"""Turns that must have been counted: fewer say nothing of a success."""
MOST_AT_ONCE = 64.0
"""Most rows that are taken to come at once: past it, it is a change of rate that was measured."""
MOST_TURNS = 300
"""Turns after which counting begins anew: what was long ago says nothing either."""
Z = 4.0
"""Deviations by which two successes must differ: latencies of turns that follow each other are alike, as if there were
fewer of them."""
TOLERATED = 0.05
"""Share of turns that may miss a bound which is taken to be held."""


@dataclass
class BoundSplit:
    """Shares of the bound by operator: on every path from a source to a sink they add up to at most 1."""

    interval_s: float = 10.0
    """Time after which successes are compared; where chance explains the difference, they are counted on."""
    step: float = 1.05
    """Factor by which a share grows or shrinks at once."""
    tolerance: float = 0.01
    """Difference of successes that is taken for equal, however many turns were counted."""
    least: float = 0.25
    """Smallest weight, as a share of an even one."""
    only_missed: bool = False
    """Whether a bound that is held end to end stays split as it is."""
    by_service: bool = False
    """Whether it is first split by what a row takes at least at each operator, and not evenly."""
    weights: dict[str, float] = field(default_factory=dict)
    _shifted: bool = False
    """Whether weights are what was learnt of successes."""
    by_epochs: set[str] = field(default_factory=set)
    """Executors that have been seen to take rows by epochs: a turn may see none of them end."""
    _met: dict[str, int] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)
    _spent_s: dict[str, float] = field(default_factory=dict)
    _missed: int = 0
    _turns: int = 0
    _since_s: float | None = None
    _pair: tuple[str, str] | None = None
    """The best and the worst when they were last compared."""

    def shares(self, now: Estimate, sla: SLA) -> dict[str, float]:
        """Return operator -> its share of the bound; 1 for each where the SLA bounds operators on their own."""
        operators = derive_operators(now)
        self.by_epochs |= {name for name, one in now.executors.items() if one.commit_s is not None}
        if sla.scope == OPERATOR:
            return dict.fromkeys(operators, 1.0)
        # What a row takes, and how many come at once, is known better from turn to turn: a split is not a shift.
        first = {} if self._shifted or not self.by_service else self._derive_first(now, operators)
        self.weights = {name: first.get(name, self.weights.get(name, 1.0)) for name in operators}
        rates = {name: sum(now.executors[e].rate_per_s for e in found) for name, found in operators.items()}
        visits = derive_visits(operators, now.edges, rates)
        stations = derive_stations(operators, now.edges)
        passed = {name: self.weights[name] * visits[name] for name in operators}
        through, _ = derive_longest(stations, now.edges, passed)
        return {name: self.weights[name] / through[name] for name in operators}

    def learn(self, now: Estimate, sla: SLA, shares: Mapping[str, float]) -> bool:
        """Count which operators meet their share by the latency measured; shift where the same one does best and the same
        one worst twice in succession, by more than chance. Return whether it did.

        What counters tell of a latency is off by up to a turn, which is more than a share may be.
        """
        if sla.scope == OPERATOR or len(shares) < 2:
            return False
        self._since_s = now.at_s if self._since_s is None else self._since_s
        self._count(now, sla, shares)
        if now.at_s - self._since_s < self.interval_s:
            return False
        self._since_s = now.at_s
        before, pair = dict(self.weights), self._compare(shares)
        again, self._pair = pair is not None and pair == self._pair, pair
        if pair is None:
            if self._turns >= MOST_TURNS:
                self._restart()
            return False
        mean_s = self._spent_s[pair[0]] / self._seen[pair[0]]
        self._restart()
        shifted_before = self._shifted
        if not again or not self._shift(*pair):
            return False
        self._shifted = True
        then = self.shares(now, sla)
        if then[pair[0]] * sla.latency < mean_s:
            self.weights, self._shifted = before, shifted_before  # it would do no better than the other
            return False
        if all(math.isclose(then[name], share, rel_tol=1e-6) for name, share in shares.items()):
            # The two lie on no common path: what one gives up is of no use to the other.
            self.weights, self._shifted = before, shifted_before
            return False
        return True

    def _count(self, now: Estimate, sla: SLA, shares: Mapping[str, float]) -> None:
        latency_s: dict[str, float] = {}
        for executor in now.executors.values():
            one_s = derive_executor_s(executor, sla)
            if one_s is not None:
                latency_s[executor.operator] = max(latency_s.get(executor.operator, 0.0), one_s)
        for name, one_s in latency_s.items():
            self._seen[name] = self._seen.get(name, 0) + 1
            self._met[name] = self._met.get(name, 0) + (one_s <= shares[name] * sla.latency)
            self._spent_s[name] = self._spent_s.get(name, 0.0) + one_s
        whole_s = derive_observed_s(now, sla)
        self._turns += 1
        self._missed += whole_s is not None and whole_s > sla.latency

    def _restart(self) -> None:
        self._met, self._seen, self._spent_s, self._missed, self._turns = {}, {}, {}, 0, 0

    def _compare(self, shares: Mapping[str, float]) -> tuple[str, str] | None:
        """Return the operators that do best and worst, where chance does not explain it."""
        if self.only_missed and self._missed <= TOLERATED * self._turns:
            return None
        known = [
            name for name, turns in sorted(self._seen.items()) if turns >= LEAST_TURNS and name in shares
        ]
        success = {name: self._met[name] / self._seen[name] for name in known}
        if len(known) < 2:
            return None
        best, worst = max(known, key=lambda one: success[one]), min(known, key=lambda one: success[one])
        noise = Z * math.sqrt(self._variance(best) + self._variance(worst))
        return (best, worst) if success[best] - success[worst] > max(self.tolerance, noise) else None

    def _variance(self, name: str) -> float:
        """Return the variance of a success that was counted; that of none or all is not zero (Laplace)."""
        turns = self._seen[name]
        success = (self._met[name] + 1) / (turns + 2)
        return success * (1 - success) / turns

    def _shift(self, best: str, worst: str) -> bool:
        then = dict(self.weights)
        then[best] /= self.step
        then[worst] *= self.step
        mean = sum(then.values()) / len(then)
        if then[best] / mean < self.least:
            return False
        self.weights = {name: weight / mean for name, weight in then.items()}
        return True

    def _derive_first(self, now: Estimate, operators: Mapping[str, Sequence[str]]) -> dict[str, float]:
        """Return operator -> weight by what a row takes on an idle task, epochs included, over the mean of that; none is
        under `least`. Empty while not all are known."""
        taken_s = {
            name: max(_row_s(now.executors[one], one in self.by_epochs) for one in found)
            for name, found in operators.items()
        }
        mean_s = sum(taken_s.values()) / max(len(taken_s), 1)
        if not 0 < mean_s < math.inf:
            return {}
        return {name: max(one_s / mean_s, self.least) for name, one_s in taken_s.items()}


def _row_s(executor: ExecutorEstimate, by_epochs: bool) -> float:
    """Rows that come at once, I at a time by the index of dispersion, wait for half of each other on one task; an epoch
    takes in what there is."""
    row_s = 1.0 / executor.service_per_s if executor.service_per_s > 0 else math.inf
    if by_epochs:
        return executor.epoch.c * (executor.epoch.o0_s + executor.epoch.o1_s) + row_s
    return row_s * (min(max(executor.scv_arrival, 1.0), MOST_AT_ONCE) + 1.0) / 2.0
