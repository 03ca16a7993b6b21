"""Our side of the matching bench: the exchange's matching operator, saturated, on warm books."""

from __future__ import annotations

from dataclasses import dataclass

import penstock
from penstock.bench.ours import UNBOUNDED_PER_S, Window, await_rows, running, watch
from penstock.workloads.exchange import matching
from penstock.workloads.exchange_orders import WARM_UP_ORDERS

MAX_EPOCH_S = 1.0
"""Longer epochs than the default: a stock's book is read and written once an epoch, however many orders it gets."""


@dataclass(frozen=True)
class Matched:
    """Orders per second, and the mean latency of orders that come in at exactly that rate."""

    rate_per_s: float
    derived_ms: float


def match_rate(seconds: float) -> Matched:
    """Match orders as fast as they go, everything durable, at the demo's depth of book; the warm-up is not
    counted."""
    window = match_stream(matching(rate=UNBOUNDED_PER_S), seconds)
    was, now = window.of("matching")
    rate = (now["rowsIn"] - was["rowsIn"]) / window.seconds
    return Matched(rate, window.derived_ms("matching", "orders"))


def match_stream(reports: penstock.Stream, seconds: float) -> Window:
    """Run a matching operator on warm books and look at it for a while."""
    with running(reports, maxEpochSeconds=MAX_EPOCH_S) as query:
        await_rows(query, "matching", 2 * WARM_UP_ORDERS)
        return watch(query, "matching", seconds)
