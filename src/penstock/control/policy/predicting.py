"""From what is predicted of each elastic executor to the latency that the SLA bounds.

Everything that a proposal says in seconds goes through here, "no change" included, so that guards compare like with like.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.control.measure.estimate import Estimate
from penstock.control.policy.mapping import tail_factor
from penstock.control.policy.ordering import derive_longest, derive_operators, derive_stations, derive_visits
from penstock.control.policy.protocol import Option
from penstock.control.sla import OPERATOR, SLA

NO_CHANGE = "no change"


class Whole:
    """The latency of all executors together: of the slowest operator, or along the slowest path.

    A row passes an operator inside a loop several times, so that its latency counts as often (DRS III-A). A quantile
    is the mean times that of an exponential sojourn time.
    """

    def __init__(self, now: Estimate, sla: SLA) -> None:
        self._factor = tail_factor(sla)
        self._operator = {name: executor.operator for name, executor in now.executors.items()}
        self._edges = None if sla.scope == OPERATOR else now.edges
        if self._edges is not None:
            operators = derive_operators(now)
            self._stations = derive_stations(operators, now.edges)
            rates = {one: sum(now.executors[e].rate_per_s for e in found) for one, found in operators.items()}
            self._visits = derive_visits(operators, now.edges, rates)

    def predict_s(self, latency_s: Mapping[str, float]) -> float:
        """Return the latency of what the SLA bounds, from the mean of each executor on one visit."""
        worst: dict[str, float] = {}
        for name, one_s in latency_s.items():
            operator = self._operator[name]
            worst[operator] = max(worst.get(operator, 0.0), one_s)
        if self._edges is None:
            return self._factor * max(worst.values(), default=0.0)
        weights = {name: worst.get(name, 0.0) * visits for name, visits in self._visits.items()}
        return self._factor * derive_longest(self._stations, self._edges, weights)[1]

    def derive_options(
        self, before_s: Mapping[str, float], others: Iterable[tuple[str, tuple[Option, ...]]]
    ) -> tuple[Option, ...]:
        """Return "no change" and what could be done for one executor or another, each with the latency of the whole.

        Args:
            before_s: executor -> its mean if nothing is done.
            others: executor -> options, with its own mean after each.
        """
        named = list(others)
        found = [Option(NO_CHANGE, self.predict_s(before_s))]
        for name, options in named:
            for one in options:
                action = f"{name}: {one.action}" if len(named) > 1 else one.action
                then_s = self.predict_s({**before_s, name: one.predicted_s})
                found.append(Option(action, then_s, one.cost_s, one.feasible))
        return tuple(found)
