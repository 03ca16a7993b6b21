"""A driver and its cluster for tests that make hosts silent: `python silent_app.py GIVEN`, a process of its own, which may
be inside a network namespace.

Reads stories from standard input, one JSON line each: how long which cuts last, and a seed. Each is a query of its own on
the one running cluster; what came of it is printed as a line.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.faults.links import CutLinks, LinkedCluster, StoppedProcesses, Way
from tests.faults.spark_app import end_sources

from penstock.spark.localcluster import LocalCluster

KEYS, SHARDS, RATE = 64, 16, 400.0
BLOB = 256 * 1024
"""Bytes that each key keeps: about 1 MB in each shard."""
LEASE_TIMEOUT_S, WITHIN_S = 15.0, 5.0
"""Rows of every key come again so soon after the lease's time-out."""
CORES = 4


def make(offset: int, count: int) -> pa.RecordBatch:
    ids = list(range(offset, offset + count))
    return pa.record_batch(
        {"id": pa.array(ids, pa.int64()), "k": pa.array([i % KEYS for i in ids], pa.int64())}
    )


def number(key: Any, rows: list[Any], state: Any) -> Any:
    seen = state.seen.get()
    if seen is None:
        seen = 0
        state.blob.update(bytes([key.k]) * BLOB)
    for row in rows:
        seen += 1
        yield row.id, key.k, seen
    state.seen.update(seen)


class Book:
    """What reached the sink. Arithmetic says what it has to be: the n-th row of key k is k + (n - 1) * KEYS."""

    def __init__(self) -> None:
        self.counts = [0] * KEYS
        self.last_at = [0.0] * KEYS
        self.wrong: list[str] = []

    def take(self, table: pa.Table, epoch: int) -> None:
        now = time.monotonic()
        for row, key, seen in zip(*(column.to_pylist() for column in table.columns), strict=True):
            self.counts[key] += 1
            self.last_at[key] = now
            if seen != self.counts[key] or row != key + (seen - 1) * KEYS:
                self.wrong.append(
                    f"sink epoch {epoch}: row {row} of key {key} came as its {seen}th, after {self.counts[key] - 1}"
                )

    def all_after(self, moment: float) -> bool:
        return min(self.last_at) > moment

    def check(self, total: int) -> None:
        expected = [len(range(key, total, KEYS)) for key in range(KEYS)]
        if self.counts != expected:
            missing = sum(expected) - sum(self.counts)
            self.wrong.append(
                f"{sum(self.counts)} rows at the sink for {total} that were made ({missing} missing)"
            )


def tell(on: LocalCluster, way: Way, folder: Path, cuts: list[float], seed: int) -> dict[str, Any]:
    """Run one query while its hosts fall silent one after the other; return what was seen and what is wrong."""
    draw, book = random.Random(seed), Book()
    seen: list[dict[str, Any]] = []
    spark = on.session("silent")
    rows = penstock.generate(make, schema="id long, k long", rate=RATE, name="src")
    states = {"seen": penstock.ValueState("long"), "blob": penstock.ValueState("binary")}
    out = rows.groupBy("k").apply_rows(
        number, schema="id long, k long, seen long", state=states, name="op", shards=SHARDS, cores=CORES
    )  # fmt: skip
    query = out.writeStream.option("checkpointLocation", str(folder)).foreach_arrow(book.take).start(spark)
    for seconds in cuts:
        _await(lambda: book.all_after(time.monotonic() - 2.0), 90.0, "all keys to have rows")
        time.sleep(3.0)
        before = seen[-1]["worker"] if seen else None
        seen.append(_cut(on, way, query, book, seconds, _choose(on, query, before, draw)))
    total = query._ask(end_sources)
    _await(lambda: query._ask(lambda shell: shell.engine.draining.is_drained()), 120.0, "the end of all rows")
    query.stop()
    spark.stop()
    book.check(total)
    bound = LEASE_TIMEOUT_S + WITHIN_S
    book.wrong.extend(
        f"worker {one['worker']}, cut for {one['cut_s']:.0f} s: keys had rows again after {one['took_s']:.1f} s, and "
        f"{bound:.0f} s are allowed" for one in seen if one["took_s"] > bound
    )  # fmt: skip
    return {"rows": total, "cuts": seen, "wrong": book.wrong[:10]}


def _choose(on: LocalCluster, query: Any, before: int | None, draw: random.Random) -> int:
    """Choose a host that serves shards, another one than before where there is one."""

    def look(shell: Any) -> list[str]:
        slots = shell.engine.runs["op"].slots.values()
        return sorted({shell.engine.leases[slot.lease].node for slot in slots if slot.lease})

    serving = [worker for node in query._ask(look) if (worker := on.worker_of(node)) is not None]
    return draw.choice([worker for worker in serving if worker != before] or serving)


def _cut(on: LocalCluster, way: Way, query: Any, book: Book, seconds: float, worker: int) -> dict[str, Any]:
    """Make one host silent for so long; return the time until every key had rows again."""
    began = time.monotonic()
    way.cut(worker)
    try:
        took, began_again = None, began + 3.0  # rows that were on their way may come a little later
        while time.monotonic() < began + seconds or (
            took is None and time.monotonic() < began + seconds + 120.0
        ):
            if took is None and book.all_after(began_again):
                took = time.monotonic() - began
            if time.monotonic() >= began + seconds:
                way.mend(worker)
            time.sleep(0.1)
    finally:
        way.mend(worker)
    return {"worker": worker, "cut_s": seconds, "took_s": took if took is not None else 999.0}


def _await(holds: Any, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.05)


def main() -> None:
    given = json.loads(sys.argv[1])
    shape = (given["workers"], CORES, "768m")
    on = LinkedCluster(given["name"], *shape) if given["name"] else LocalCluster(*shape)
    with on:
        way: Way = CutLinks(given["name"]) if given["name"] else StoppedProcesses(on)
        for line in sys.stdin:
            story = json.loads(line)
            try:
                found = tell(on, way, Path(story["folder"]), story["cuts"], story["seed"])
            except Exception as error:
                found = {"rows": 0, "cuts": [], "wrong": [f"{type(error).__name__}: {error}"]}
            print("TOLD " + json.dumps(found), flush=True)
            if found["wrong"]:
                return  # what is left of a query may disturb the next one


if __name__ == "__main__":
    main()
