"""Our side of the matching bench: the exchange's matching operator, saturated, on warm books."""

from __future__ import annotations

import time

from penstock.bench.ours import UNBOUNDED_PER_S, _await_rows, running
from penstock.workloads.exchange import matching
from penstock.workloads.exchange_orders import WARM_UP_ORDERS


def match_rate(seconds: float) -> float:
    """Return orders matched per second, everything durable, at the demo's depth of book; the warm-up is not
    counted."""
    with running(matching(rate=UNBOUNDED_PER_S), maxEpochSeconds=1.0) as query:
        _await_rows(query, "matching", WARM_UP_ORDERS)
        time.sleep(2.0)
        before, since = query.lastProgress["operators"]["matching"]["rowsIn"], time.monotonic()
        time.sleep(seconds)
        after, spent = query.lastProgress["operators"]["matching"]["rowsIn"], time.monotonic() - since
    return float(after - before) / spent
