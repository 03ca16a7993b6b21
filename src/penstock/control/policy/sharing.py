"""An end-to-end bound split between operators so that the worst of their success rates is as high as can be.

StreamSwitch 6.6: an operator's success grows with its share, so the max-min split is the one that makes the successes
equal; it is found by measuring them and shifting bound from the operator that does best to the one that does worst.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from penstock.control.measure.estimate import Estimate
from penstock.control.policy.ordering import derive_longest, derive_operators, derive_stations, derive_visits
from penstock.control.sla import OPERATOR, SLA


@dataclass
class BoundSplit:
    """Shares of the bound by operator: on every path from a source to a sink they add up to at most 1."""

    interval_s: float = 10.0
    """Time over which successes are measured before the shares are shifted."""
    step: float = 1.05
    """Factor by which a share grows or shrinks at once."""
    tolerance: float = 0.01
    """Difference of successes that is taken for equal."""
    least: float = 0.1
    """Smallest weight, as a share of an even one."""
    weights: dict[str, float] = field(default_factory=dict)
    _met: dict[str, float] = field(default_factory=dict)
    _seen: dict[str, float] = field(default_factory=dict)
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
        """Count which shards meet their operator's share; at the end of an interval, shift. Return whether it did."""
        if sla.scope == OPERATOR or len(shares) < 2:
            return False
        for executor in now.executors.values():
            known = np.isfinite(executor.latency_s) & (executor.task_of >= 0)
            met = np.count_nonzero(executor.latency_s[known] <= shares[executor.operator] * sla.latency)
            self._met[executor.operator] = self._met.get(executor.operator, 0.0) + met
            self._seen[executor.operator] = self._seen.get(executor.operator, 0.0) + np.count_nonzero(known)
        self._since_s = now.at_s if self._since_s is None else self._since_s
        if now.at_s - self._since_s < self.interval_s:
            return False
        success = {
            name: self._met.get(name, 0.0) / seen
            for name, seen in self._seen.items()
            if seen and name in shares
        }
        self._met, self._seen, self._since_s = {}, {}, now.at_s
        return self._shift(success)

    def _shift(self, success: Mapping[str, float]) -> bool:
        if len(success) < 2:
            return False
        worst = min(sorted(success), key=lambda name: success[name])
        best = max(sorted(success), key=lambda name: success[name])
        if success[best] - success[worst] <= self.tolerance or self.weights[best] / self.step < self.least:
            return False
        self.weights[best] /= self.step
        self.weights[worst] *= self.step
        mean = sum(self.weights.values()) / len(self.weights)
        self.weights = {name: weight / mean for name, weight in self.weights.items()}
        return True
