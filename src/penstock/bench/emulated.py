"""The operator of Elasticutor 5.1 with an emulated service time: a sleep per row, so that few real cores stand for many.

Runs inside tasks; keeps state of a set size per key and a count that every epoch changes. Says on the driver how a query
with it is declared. Measures nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import penstock
from penstock.workloads.dynamics import DDL

NAME = "calculate"
SHARDS = 256
KEYS = 10_000
UNBOUNDED_PER_S = 1e9
"""More than any query takes: the source is held back by what waits."""
EMULATION = "service time is a sleep per row, so that the machine's cores stand for more"


@dataclass
class Service:
    """Sleeps for work. Sleeps take longer than asked for; what was slept too much is taken off the next ones, up to a
    bound, so that the mean service time holds and a pause of the machine is not caught up with."""

    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    max_credit_s: float = 0.005
    _owed_s: float = field(default=0.0, repr=False)

    def serve(self, seconds: float) -> None:
        """Be busy for so long, all calls taken together."""
        self._owed_s += seconds
        if self._owed_s > 0.0:
            began = self.clock()
            self.sleep(self._owed_s)
            self._owed_s -= self.clock() - began
        self._owed_s = max(self._owed_s, -self.max_credit_s)


_SERVICE = Service()


@dataclass(frozen=True)
class Calculate:
    """`function(table, state)` of the operator: sleeps for its rows, counts them by key, returns the counts.

    A key that is new gets `key_bytes` of state that nothing changes later.
    """

    row_s: float = 1e-3
    key_bytes: int = 800

    def __call__(self, table: pa.Table, state: Any) -> pa.Table:
        grouped = table.group_by("key").aggregate([([], "count_all")])
        keys, rows = grouped.column("key").combine_chunks(), grouped.column("count_all").combine_chunks()
        seen = state.seen.lookup([keys])
        if self.key_bytes and seen.null_count:
            new = keys.filter(pc.is_null(seen))
            state.kept.update([new], pa.array([bytes(self.key_bytes)] * len(new), pa.binary()))
        count = pc.add(pc.fill_null(seen, 0), rows)
        state.seen.update([keys], count)
        _SERVICE.serve(self.row_s * table.num_rows)
        return pa.table({"key": keys, "rows": count})


def key_bytes_for(shard_bytes: int, shards: int = SHARDS, keys: int = KEYS) -> int:
    """Return the state of a key with which a shard of the mean number of keys has so many bytes."""
    return max(1, round(shard_bytes * shards / keys))


def calculate(
    rows: penstock.Stream, work: Calculate, cores: int | None = None, shards: int = SHARDS
) -> penstock.Stream:
    """Declare the operator on a stream of `dynamics` rows."""
    return rows.groupBy("key").apply_arrow(
        work,
        schema="key long, rows long",
        state={"seen": penstock.ValueState("long"), "kept": penstock.ValueState("binary")},
        name=NAME,
        shards=shards,
        cores=cores,
    )


def source(
    rows: Callable[[int, int], pa.RecordBatch], rate_per_s: Any = UNBOUNDED_PER_S, name: str = "rows"
) -> penstock.Stream:
    """Declare the source; by default it gives as much as is taken."""
    return penstock.generate(rows, schema=DDL, rate=rate_per_s, name=name)
