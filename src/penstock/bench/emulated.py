"""The operator of Elasticutor 5.1 with an emulated service time: a sleep per row, so that few real cores stand for many.

Runs inside tasks; keeps state of a set size per key and a count that every epoch changes. Says on the driver how a query
with it is declared. Measures nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from penstock.workloads.dynamics import DDL, SCHEMA

NAME = "calculate"
SHARDS = 256
KEYS = 10_000
UNBOUNDED_PER_S = 1e9
"""More than any query takes: the source is held back by what waits."""
EMULATION = "service time is a sleep per row, so that the machine's cores stand for more"


@dataclass
class Service:
    """Sleeps for work, a few milliseconds at a time: the machine could not wake up for every row of many cores.

    Less than `at_least_s` is owed until more comes. Sleeps take longer than asked for; what was slept too much is taken off
    the next ones, up to a bound, so that the mean service time holds and a long pause of the machine is not caught up with.
    """

    at_least_s: float = 0.005
    max_credit_s: float = 0.05
    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    _owed_s: float = field(default=0.0, repr=False)

    def serve(self, seconds: float) -> None:
        """Be busy for so long, all calls taken together."""
        self._owed_s += seconds
        if self._owed_s < self.at_least_s:
            return
        began = self.clock()
        self.sleep(self._owed_s)
        self._owed_s = max(self._owed_s - (self.clock() - began), -self.max_credit_s)


_SERVICE = Service()


def serve(seconds: float) -> None:
    """Be busy for so long, as this process."""
    _SERVICE.serve(seconds)


@dataclass(frozen=True)
class Calculate:
    """`function(key, rows, state)` of the operator: sleeps for its rows and returns how many the key has had.

    A key that is new gets `key_bytes` of state that nothing changes later, of bytes that cannot be compressed. With
    `first_is_free` rows that bring a key take no time, so that much state is there soon.
    """

    row_s: float = 1e-3
    key_bytes: int = 800
    first_is_free: bool = False

    def __call__(self, key: Any, rows: Any, state: Any) -> Any:
        seen = state.seen.get()
        if seen is None and self.key_bytes:
            state.kept.update(random.Random(int(key.key)).randbytes(self.key_bytes))
        count = (seen or 0) + len(rows)
        state.seen.update(count)
        if seen is not None or not self.first_is_free:
            serve(self.row_s * len(rows))
        return [(key.key, count)]


@dataclass(frozen=True)
class InTurn:
    """A source whose keys come in turn, so that the first `keys` rows touch each once."""

    keys: int
    payload_bytes: int = 128

    def __call__(self, offset: int, count: int) -> pa.RecordBatch:
        columns: list[Any] = [
            pa.array(np.arange(offset, offset + count, dtype=np.int64) % self.keys),
            pa.array([bytes(self.payload_bytes)] * count, pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def key_bytes_for(shard_bytes: int, shards: int = SHARDS, keys: int = KEYS) -> int:
    """Return the state of a key with which a shard of the mean number of keys has so many bytes."""
    return max(1, round(shard_bytes * shards / keys))


def calculate(
    rows: penstock.Stream, work: Calculate, cores: int | None = None, shards: int = SHARDS
) -> penstock.Stream:
    """Declare the operator on a stream of `dynamics` rows."""
    return rows.groupBy("key").apply_rows(
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
