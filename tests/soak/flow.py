"""The topology of a soak: what a long-running job has, with keys and state that are bounded, and a model of it.

Nothing in it may grow by itself: whatever grows is ours or Spark's. Every row can be accounted for at the sink.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import penstock
from penstock import col

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLICKS = "id long, user long, cents long, category long, at timestamp"
ORDERS = "id long, user long, region long, amount long"
OUT = "kind long, id long, n long, value long"
NUMBERED, DEAD, TOTALS, WALKED, RULED, TOLD, WINDOWED = range(7)

USERS = 1_000
REGIONS = 16
CATEGORIES = 16
RULES = 32
RULED_SHARDS = 4
HOPS = 3
POISON = 40_009
"""One click in so many makes the function raise."""
DROPPED_CENTS = 990
TO_WALK = 100
"""One order in so many goes round the loop."""
WINDOW_S = 10
START_US = int(dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp() * 1_000_000)


@dataclass(frozen=True)
class Load:
    """How much goes in, and for how long."""

    seconds: int
    clicks_per_s: int = 12_000
    orders_per_s: int = 8_000
    rules_per_s: int = 20

    @property
    def clicks(self) -> int:
        return self.seconds * self.clicks_per_s

    @property
    def orders(self) -> int:
        return self.seconds * self.orders_per_s

    @property
    def rules(self) -> int:
        """Rules of Spark's source that are passed on; it starts later than ours, and ends a little earlier."""
        return max(1, self.seconds - 10) * self.rules_per_s


def mixed(ids: Any) -> Any:
    return (ids * 2_654_435_761 + 97) & 0xFFFFFFFF


def click_columns(ids: Any) -> dict[str, Any]:
    return {"id": ids, "user": mixed(ids) % USERS, "cents": ids * 31 % 1000, "category": ids % CATEGORIES}


def order_columns(ids: Any) -> dict[str, Any]:
    return {
        "id": ids,
        "user": mixed(ids + 13) % USERS,
        "region": mixed(ids) % REGIONS,
        "amount": ids * 17 % 500,
    }


@dataclass(frozen=True)
class MakeClicks:
    per_s: int

    def __call__(self, offset: int, count: int) -> pa.RecordBatch:
        ids = np.arange(offset, offset + count, dtype=np.int64)
        at = START_US + ids * 1_000_000 // self.per_s
        columns = {name: pa.array(value) for name, value in click_columns(ids).items()}
        return pa.record_batch({**columns, "at": pa.array(at).cast(pa.timestamp("us", "UTC"))})


def make_orders(offset: int, count: int) -> pa.RecordBatch:
    ids = np.arange(offset, offset + count, dtype=np.int64)
    return pa.record_batch({name: pa.array(value) for name, value in order_columns(ids).items()})


def number_clicks(key: Any, rows: list[Any], state: Any) -> list[tuple[int, int, int, int]]:
    """Number the clicks of a user and keep some counts by category; poison undoes the whole call."""
    seen = state.seen.get() or 0
    out = []
    for row in rows:
        seen += 1
        out.append((NUMBERED, row.id, row.user, seen))
    state.seen.update(seen)
    state.categories[rows[-1].category] = (state.categories.get(rows[-1].category) or 0) + len(rows)
    if any(row.id % POISON == 7 for row in rows):
        raise ValueError("poison")
    return out


def account(letter: Any) -> tuple[int, int, int, int]:
    """What a dead letter holds: how many rows, and the sum of their ids."""
    ids = [json.loads(row)["id"] for row in letter.rows]
    return DEAD, sum(ids), len(ids), 0


def walk(key: Any, rows: list[Any], state: Any) -> list[tuple[int, int, int]]:
    state.seen.update((state.seen.get() or 0) + len(rows))
    return [(row.id, (row.user + 7) % USERS, row.hops + 1) for row in rows]


def keep_rules(rows: list[Any], shared: Any) -> list[tuple[int, int, int, int]]:
    for row in rows:
        shared.rules[row.value % RULES] = row.value
    return [(TOLD, row.value, 1, 0) for row in rows]


def apply_rules(key: Any, rows: list[Any], state: Any, shared: Any) -> list[tuple[int, int, int, int]]:
    newest = shared.rules.get(key.region % RULES) or 0
    state.newest.update(newest)
    return [(RULED, sum(row.id for row in rows), len(rows), key.region)]


def flow(spark: SparkSession, load: Load) -> penstock.Stream:
    """Declare the topology; its rows are of `OUT`."""
    _travel_by_value()
    clicks = penstock.generate(
        MakeClicks(load.clicks_per_s), schema=CLICKS, rate=load.clicks_per_s, name="clicks", limit=load.clicks
    )
    orders = penstock.generate(
        make_orders, schema=ORDERS, rate=load.orders_per_s, name="orders", limit=load.orders
    )
    frame = spark.readStream.format("rate").option("rowsPerSecond", load.rules_per_s).load()
    rules = penstock.from_dataframe(frame.selectExpr("value").where(f"value < {load.rules}"), name="rules")
    parts = [*_of_clicks(clicks), *_of_orders(orders, rules)]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.union(part)
    return whole


def _of_clicks(clicks: penstock.Stream) -> list[penstock.Stream]:
    kept = clicks.filter(col("cents") < DROPPED_CENTS).station("kept", cores=1, shards=4)
    timed = kept.withWatermark("at", "2 seconds")
    numbered = timed.groupBy("user").apply_rows(
        number_clicks,
        schema=OUT,
        state={"seen": penstock.ValueState("long"), "categories": penstock.MapState("long", "long")},
        name="numbered",
        shards=16,
        cores=2,
        on_error="dead_letter",
    )
    windowed = timed.groupBy(penstock.window("at", f"{WINDOW_S} seconds"), "category").agg(
        penstock.count().alias("n"), name="windowed", shards=4, cores=1
    )
    return [
        numbered,
        numbered.dead_letters.map(account, schema=OUT),
        windowed.map(place_window, schema=OUT),
    ]


def place_window(row: Any) -> tuple[int, int, int, int]:
    start = row.window["start"] if isinstance(row.window, dict) else row.window.start
    return WINDOWED, round(start.timestamp() - START_US / 1e6) // WINDOW_S, row.n, row.category


def _of_orders(orders: penstock.Stream, rules: penstock.Stream) -> list[penstock.Stream]:
    totals = orders.groupBy("user").agg(
        penstock.count().alias("n"), penstock.sum("amount").alias("value"), name="totals", shards=16, cores=1
    )
    ring = penstock.loop("again", schema="id long, user long, hops long")
    some = orders.filter(col("id") % TO_WALK == 0).select("id", "user", (col("id") * 0).alias("hops"))
    walked = some.union(ring).groupBy("user").apply_rows(
        walk,
        schema="id long, user long, hops long",
        state={"seen": penstock.ValueState("long")},
        name="walked",
        shards=4,
        cores=1,
    )  # fmt: skip
    ring.feed(walked.filter(col("hops") < HOPS))
    ruled = orders.groupBy("region").with_broadcast(rules).apply_rows(
        apply_rules,
        on_broadcast=keep_rules,
        shared={"rules": penstock.MapState("long", "long")},
        state={"newest": penstock.ValueState("long")},
        schema=OUT,
        name="ruled",
        shards=RULED_SHARDS,
        cores=1,
    )  # fmt: skip
    return [
        totals.select(penstock.lit(TOTALS).cast("long").alias("kind"), col("user").alias("id"), "n", "value"),
        walked.filter(col("hops") >= HOPS).select(
            penstock.lit(WALKED).cast("long").alias("kind"),
            "id",
            col("hops").alias("n"),
            col("user").alias("value"),
        ),
        ruled,
    ]


def _travel_by_value() -> None:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
