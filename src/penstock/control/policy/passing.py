"""What an operator that cannot keep up holds back from those after it: they get it as soon as it can.

Each operator's forecast is raised to what will come once the ones before it have cores enough, so that a step in the load
is met along the whole path at once. Derives, decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.control.measure.estimate import Estimate
from penstock.control.policy.forecasting import Forecast
from penstock.control.policy.ordering import derive_operators, derive_stations
from penstock.control.policy.outlook import derive_speeds

MOST_GROWTH = 10.0
"""Most by which a load is expected to grow: what is far beyond the cores there are is known no closer."""


def pass_on(now: Estimate, forecasts: Mapping[str, Forecast]) -> dict[str, Forecast]:
    """Return forecasts that look ahead to what operators in front hold back."""
    operators = derive_operators(now)
    if len(operators) < 2:
        return dict(forecasts)
    growth: dict[str, float] = {}
    held: dict[str, float] = {}
    found = dict(forecasts)
    for station in derive_stations(operators, now.edges):
        for operator in station:
            growth[operator] = _derive_growth(now, operator, held)
        for operator in station:
            names = [name for name in operators[operator] if name in found]
            for name in names:
                one = found[name]
                if growth[operator] > 1.0:
                    ahead_per_s = max(one.ahead_per_s, one.total_per_s * growth[operator])
                    found[name] = replace(one, ahead_per_s=ahead_per_s)
            coming = sum(found[name].total_per_s for name in names) * growth[operator]
            served = sum(_derive_capacity(now, name) for name in names)
            held[operator] = min(max(coming / served, 1.0), MOST_GROWTH) if served > 0 else 1.0
    return found


def _derive_growth(now: Estimate, operator: str, held: Mapping[str, float]) -> float:
    """Return the factor by which rows to an operator grow once those before it have all the cores they need."""
    rates = {source: rate for (source, target), rate in now.edges.items() if target == operator and rate > 0}
    total = sum(rates.values())
    return sum(rate * held.get(source, 1.0) for source, rate in rates.items()) / total if total > 0 else 1.0


def _derive_capacity(now: Estimate, name: str) -> float:
    executor = now.executors[name]
    return executor.service_per_s * sum(derive_speeds(executor).values())
