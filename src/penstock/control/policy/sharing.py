"""An end-to-end bound split between operators so that the worst of their success rates is as high as can be.

StreamSwitch 6.6: an operator's success grows with its share, so the max-min split is the one that makes the successes
equal; it is found by measuring them and shifting bound from the operator that does best to the one that does worst.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.control.measure.estimate import Estimate
from penstock.control.measure.observed import derive_executor_s
from penstock.control.policy.ordering import derive_longest, derive_operators, derive_stations, derive_visits
from penstock.control.sla import OPERATOR, SLA

LEAST_TURNS = 5
"""Turns that an interval must have: fewer say nothing of a success."""


@dataclass
class BoundSplit:
    """Shares of the bound by operator: on every path from a source to a sink they add up to at most 1."""

    interval_s: float = 10.0
    """Time over which successes are measured before the shares are shifted."""
    step: float = 1.05
    """Factor by which a share grows or shrinks at once."""
    tolerance: float = 0.01
    """Difference of successes that is taken for equal, however many turns were counted."""
    least: float = 0.1
    """Smallest weight, as a share of an even one."""
    weights: dict[str, float] = field(default_factory=dict)
    _met: dict[str, int] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)
    _since_s: float | None = None

    def shares(self, now: Estimate, sla: SLA) -> dict[str, float]:
        """Return operator -> its share of the bound; 1 for each where the SLA bounds operators on their own."""
        operators = derive_operators(now)
        if sla.scope == OPERATOR:
            return dict.fromkeys(operators, 1.0)
        self.weights = {name: self.weights.get(name, 1.0) for name in operators}
        rates = {name: sum(now.executors[e].rate_per_s for e in found) for name, found in operators.items()}
        visits = derive_visits(operators, now.edges, rates)
        stations = derive_stations(operators, now.edges)
        passed = {name: self.weights[name] * visits[name] for name in operators}
        through, _ = derive_longest(stations, now.edges, passed)
        return {name: self.weights[name] / through[name] for name in operators}

    def learn(self, now: Estimate, sla: SLA, shares: Mapping[str, float]) -> bool:
        """Count which operators meet their share by the latency measured; at the end of an interval, shift. Return whether
        it did.

        What counters tell of a latency is off by up to a turn, which is more than a share may be.
        """
        if sla.scope == OPERATOR or len(shares) < 2:
            return False
        self._since_s = now.at_s if self._since_s is None else self._since_s
        self._count(now, sla, shares)
        if now.at_s - self._since_s < self.interval_s:
            return False
        met, seen = self._met, self._seen
        self._met, self._seen, self._since_s = {}, {}, now.at_s
        known = {name: turns for name, turns in seen.items() if turns >= LEAST_TURNS and name in shares}
        if len(known) < 2:
            return False
        before = dict(self.weights)
        success = {name: met[name] / turns for name, turns in known.items()}
        if not self._shift(success, min(known.values())):
            return False
        then = self.shares(now, sla)
        if all(math.isclose(then[name], share, rel_tol=1e-6) for name, share in shares.items()):
            self.weights = (
                before  # the two lie on no common path: what one gives up is of no use to the other
            )
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

    def _shift(self, success: Mapping[str, float], turns: int) -> bool:
        worst = min(sorted(success), key=lambda name: success[name])
        best = max(sorted(success), key=lambda name: success[name])
        noise = 1.0 / math.sqrt(turns)
        if success[best] - success[worst] <= max(self.tolerance, noise):
            return False
        if self.weights[best] / self.step < self.least:
            return False
        self.weights[best] /= self.step
        self.weights[worst] *= self.step
        mean = sum(self.weights.values()) / len(self.weights)
        self.weights = {name: weight / mean for name, weight in self.weights.items()}
        return True
