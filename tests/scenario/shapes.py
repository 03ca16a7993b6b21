"""A topology of every shape: a split, a union, a broadcast, a station, a join and a loop, with a plain model of it.

Its result does not depend on how epochs are cut, so that any engine that runs it must agree with the model.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa

import penstock
from penstock import col
from penstock.sim import timelines

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
ORDERS = pa.schema([("id", pa.int64()), ("user", pa.int64()), ("amount", pa.int64())])
RULES = pa.schema([("rule", pa.int64()), ("least", pa.int64())])
USERS = 23
HOPS = 3
TARDY_S = 2
"""Delay of the watermark behind which rows do come late."""
PLACES = 1_000_000
BEFORE = 1_000
"""Seconds before `START` from which times of `in_a_row` are counted."""
ORIGIN = round(START.timestamp()) - BEFORE
KINDS_IN_A_ROW = frozenset({"windows1", "windows2", "windows3", "timers", "early", "behind"})


def order(number: int) -> tuple[int, int, int]:
    """An order of some user: half of all are made by three of them."""
    mixed = (number * 2654435761 + 97) & 0xFFFFFFFF
    user = (mixed >> 16) % 3 if (mixed >> 5) % 2 else mixed % USERS
    return number, user, (mixed >> 8) % 100


def make_orders(start: int, count: int) -> pa.RecordBatch:
    rows = [order(number) for number in range(start, start + count)]
    return pa.RecordBatch.from_pylist(
        [dict(zip(ORDERS.names, row, strict=True)) for row in rows], schema=ORDERS
    )


def make_payments(start: int, count: int) -> pa.RecordBatch:
    """Every other order is paid, in another order than they were made."""
    rows = [order(2 * (number ^ 1)) for number in range(start, start + count)]
    return pa.RecordBatch.from_pylist(
        [dict(zip(ORDERS.names, row, strict=True)) for row in rows], schema=ORDERS
    )


def make_rules(start: int, count: int) -> pa.RecordBatch:
    rows = [(number, 10 * number) for number in range(start, start + count)]
    return pa.RecordBatch.from_pylist(
        [dict(zip(RULES.names, row, strict=True)) for row in rows], schema=RULES
    )


def score(row: Any) -> tuple[int, int, int]:
    return row.id, row.user, row.amount * 2


def join(key: Any, left: list[Any], right: list[Any], state: Any) -> list[tuple[int, int, int]]:
    """Put an order out when both it and its payment are there, in whatever order they come."""
    out = []
    for row in left:
        state.made.update(row.amount)
    for row in right:
        state.paid.update(row.user)
    if (left or right) and state.made.exists() and state.paid.exists():
        out.append((key.id, state.paid.get(), state.made.get()))
    return out


def walk(key: Any, rows: list[Any], state: Any) -> list[tuple[int, int, int, int]]:
    """Send every row round the loop until it has made its hops; each hop goes to another key."""
    count = (state.seen.get() or 0) + len(rows)
    state.seen.update(count)
    return [(row.id, (row.user + 7) % USERS, row.amount + 1, row.hops + 1) for row in rows]


def keep_rules(rows: list[Any], shared: Any) -> None:
    for row in rows:
        shared.rules[row.rule] = row.least


def classify(key: Any, rows: list[Any], state: Any, shared: Any) -> list[tuple[int, int, int]]:
    return [(row.id, row.user, row.amount) for row in rows]


def flow(orders: penstock.Stream, payments: penstock.Stream, rules: penstock.Stream) -> penstock.Stream:
    """Return one stream of (kind, id, user, amount, n) over all parts of the topology."""
    scored = orders.map(score, schema="id long, user long, amount long").station("score", cores=2, shards=8)
    small, large = scored.filter(col("amount") < 100), scored.filter(col("amount") >= 100)  # the split
    joined = (
        scored.groupBy("id")
        .cogroup(payments.groupBy("id"))
        .apply_rows(
            join,
            schema="id long, user long, amount long",
            state={"made": penstock.ValueState("long"), "paid": penstock.ValueState("long")},
            name="joined",
            shards=8,
            cores=2,
        )
    )
    ring = penstock.loop("again", schema="id long, user long, amount long, hops long")
    first = small.withColumn("hops", col("id") * 0)
    walked = (
        first.union(ring)
        .groupBy("user")
        .apply_rows(
            walk,
            schema="id long, user long, amount long, hops long",
            state={"seen": penstock.ValueState("long")},
            name="walked",
            shards=8,
            cores=2,
        )
    )
    ring.feed(walked.filter(col("hops") < HOPS))
    done = walked.filter(col("hops") >= HOPS).select("id", "user", "amount")
    ruled = (
        large.groupBy("user")
        .with_broadcast(rules)
        .apply_rows(
            classify,
            on_broadcast=keep_rules,
            shared={"rules": penstock.MapState("long", "long")},
            schema="id long, user long, amount long",
            name="ruled",
            shards=4,
            cores=2,
        )
    )
    kinds = [("joined", joined), ("walked", done), ("ruled", ruled)]
    shown = [stream.withColumn("kind", penstock.lit(kind)) for kind, stream in kinds]
    return (
        shown[0].union(shown[1]).union(shown[2])
        .groupBy("kind", "user")
        .agg(penstock.count(), penstock.sum("amount").alias("amount"), name="total", shards=8, cores=2)
    )  # fmt: skip


def model(rows: int, paid: int) -> dict[tuple[str, int], tuple[int, int]]:
    """What `flow` must have counted and summed in the end, by kind and user."""
    counts: Counter[tuple[str, int]] = Counter()
    sums: dict[tuple[str, int], int] = defaultdict(int)

    def add(kind: str, user: int, amount: int) -> None:
        counts[(kind, user)] += 1
        sums[(kind, user)] += amount

    payments = {2 * (number ^ 1) for number in range(paid)}
    for number in range(rows):
        id_, user, amount = order(number)
        if id_ in payments:
            add("joined", user, amount * 2)
        if amount * 2 < 100:
            add("walked", (user + 7 * HOPS) % USERS, amount * 2 + HOPS)
        else:
            add("ruled", user, amount * 2)
    return {key: (counts[key], sums[key]) for key in counts}


def stamp(row: Any) -> tuple[int, int, int, dt.datetime]:
    """Give an order its event time: a second after the one before, up to twenty seconds early."""
    return row.id, row.user, row.amount, event_time(row.id)


def event_time(number: int) -> dt.datetime:
    mixed = (number * 2246822519 + 3) & 0xFFFFFFFF
    return START + dt.timedelta(seconds=number - (mixed >> 9) % 20)


def remind(key: Any, rows: list[Any], state: Any) -> None:
    state.count.update((state.count.get() or 0) + len(rows))
    for row in rows:
        state.set_timer(row.at + dt.timedelta(seconds=10))


def reminded(key: Any, time: dt.datetime, state: Any) -> list[tuple[int, int, int]]:
    return [(0, key.user, time.second)]


def timed(orders: penstock.Stream) -> tuple[list[tuple[str, penstock.Stream]], penstock.Stream]:
    """Windows, sessions and timers over the event time of the orders, as (kind, stream of id, user, amount), and the rows
    that come late for the kind `late`."""
    stamped = orders.map(stamp, schema="id long, user long, amount long, at timestamp")
    on_time = stamped.withWatermark("at", "30 seconds")
    whole = (penstock.count().alias("id"), penstock.sum("amount").alias("amount"))
    more = {"shards": 6, "cores": 2}
    windows = on_time.groupBy(penstock.window("at", "20 seconds"), "user").agg(*whole, name="windows", **more)
    slides = on_time.groupBy(penstock.window("at", "20 seconds", "10 seconds")).agg(
        *whole, name="slides", **more
    )
    sessions = on_time.groupBy(penstock.session_window("at", "15 seconds"), "user").agg(
        *whole, name="sessions", **more
    )
    reminders = on_time.groupBy("user").apply_rows(
        remind,
        on_timer=reminded,
        schema="id long, user long, amount long",
        state={"count": penstock.ValueState("long")},
        name="reminders",
        **more,
    )
    tardy = stamped.withWatermark("at", f"{TARDY_S} seconds")
    late = tardy.groupBy(penstock.window("at", "5 seconds"), "user").agg(*whole, name="late", **more)
    columns = ["id", "user", "amount"]
    kinds = [
        ("windows", windows.select(*columns)),
        ("slides", slides.select("id", (col("id") * 0).alias("user"), "amount")),
        ("sessions", sessions.select(*columns)),
        ("reminders", reminders),
        ("late", late.select(*columns)),
    ]
    return kinds, late.late_rows.select(*columns)


def everything(
    orders: penstock.Stream, payments: penstock.Stream, rules: penstock.Stream, depth: int = 0
) -> penstock.Stream:
    """`flow` and `timed` in one topology; the kind `late` depends on how the sources' epochs were cut. With a `depth`, as
    many watermarks in a row behind an operator, and the rows that come late for the kind `late`."""
    kinds, tardy = timed(orders)
    shown = [stream.withColumn("kind", penstock.lit(kind)) for kind, stream in kinds]
    together = shown[0]
    for stream in shown[1:]:
        together = together.union(stream)
    counted = together.groupBy("kind", "user").agg(
        penstock.count(), penstock.sum("amount").alias("amount"), name="timed", shards=5, cores=1
    )
    made = flow(orders, payments, rules).union(counted.select("kind", "user", "count", "amount"))
    if not depth:
        return made
    told = tardy.select(
        penstock.lit("tardy").alias("kind"),
        col("id").alias("user"),
        (col("id") * 0 + 1).alias("count"),
        "amount",
    )
    return made.union(in_a_row(orders, depth)).union(told)


def in_a_row(orders: penstock.Stream, depth: int) -> penstock.Stream:
    """Watermarks in a row, told as (kind, key and second, rows, sum), behind an operator without a watermark."""
    stamped = orders.map(stamp, schema="id long, user long, amount long, at timestamp").select(
        "id", "user", "at"
    )
    timed = timelines.carry(stamped, "carried").withWatermark("at", "20 seconds")
    place = (col("key") * PLACES + col("at").cast("long") - ORIGIN).alias("user")
    first, *others = [
        one.select("kind", place, col("rows").alias("count"), col("n").alias("amount"))
        for one in timelines.in_a_row(timed, depth)
    ]
    for other in others:
        first = first.union(other)
    return first


def in_a_row_model(rows: int, depth: int) -> Counter[timelines.Result]:
    seconds = [
        (order(number)[1], round((event_time(number) - START).total_seconds())) for number in range(rows)
    ]
    return timelines.expected(seconds, depth, ends=True)


def in_a_row_result(kind: str, place: int, count: int, amount: int) -> timelines.Result:
    """A row of `in_a_row` as the model has it."""
    return kind, place // PLACES, place % PLACES - BEFORE, count, amount


def late_at_best(rows: int, window_s: int = 5) -> set[int]:
    """The orders that can come late for the kind `late`: whose window ended by the watermark of some order before them."""
    found, latest = set(), -math.inf
    for number in range(rows):
        second = round((event_time(number) - START).total_seconds())
        if second // window_s * window_s + window_s <= latest - TARDY_S:
            found.add(number)
        latest = max(latest, second)
    return found


def timed_model(rows: int) -> dict[tuple[str, int], tuple[int, int]]:
    """What `timed` must have given in the end, by kind and user, where that does not depend on epochs."""
    counts: Counter[tuple[str, int]] = Counter()
    sums: dict[tuple[str, int], int] = defaultdict(int)

    def add(kind: str, user: int, amount: int) -> None:
        counts[(kind, user)] += 1
        sums[(kind, user)] += amount

    windows: dict[tuple[str, int, int], int] = defaultdict(int)
    times: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number in range(rows):
        _, user, amount = order(number)
        second = round((event_time(number) - START).total_seconds())
        windows[("windows", second // 20, user)] += amount
        for start in (second // 10 * 10, second // 10 * 10 - 10):
            windows[("slides", start, 0)] += amount
        times[user].append((second, amount))
    for (kind, _, user), amount in windows.items():
        add(kind, user, amount)
    for user, found in times.items():
        for second in {second for second, _ in found}:
            add("reminders", user, (START + dt.timedelta(seconds=second + 10)).second)
        end, total = None, 0
        for second, amount in sorted(found):
            if end is not None and second > end:
                add("sessions", user, total)
                total = 0
            end, total = second + 15, total + amount
        add("sessions", user, total)
    return {key: (counts[key], sums[key]) for key in counts}
