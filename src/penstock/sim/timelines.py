"""Watermarks in a row, and what must come of them by arithmetic over the source's rows: windows, timers, late rows.

The source's rows are out of order by less than the delay, each operator has one input and nobody is idle: so no row is late
anywhere and every window is whole, whatever sits out, moves, dies or is dealt anew. What a run gives is compared with that,
and not with its own records.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

import penstock
from penstock import col
from penstock.dataplane.compile import compile_program
from penstock.dataplane.program import Program
from penstock.errors import PenstockError, PlanError
from penstock.sim.inprocess import Driver
from penstock.sim.plans import random_plan
from penstock.sim.redeals import random_deal
from penstock.sim.timing import SMALL, quick
from penstock.testing.disk import SimDisk
from penstock.topology.stream import Stream

ROWS = 240
EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DELAY_S = 20
WINDOW_S = 5
LANES = 4
WAYS = ("operator", "source", "station", "two operators", "both ways", "broadcast")
"""What stands before the first watermark, or behind it."""
ACTIONS = ("kill", "kill", "pause", "cut", "crash", "stop", "capacity", *("plan",) * 5, *("deal",) * 3)
ROW = "id long, user long, at timestamp"
Result = tuple[str, int, int, int, int]
"""Kind, key, second of the event, rows, sum."""
_MORE: dict[str, Any] = {"shards": 6, "cores": 2}


def second_of(number: int) -> int:
    """Event time of a row, in seconds: one a row, up to `DELAY_S` - 1 early, so that none is late by that delay."""
    return number - ((number * 2246822519 + 3) >> 9) % DELAY_S


def user_of(number: int) -> int:
    return ((number * 2654435761 + 97) >> 7) % 11


def make_rows(start: int, count: int) -> pa.RecordBatch:
    numbers = range(start, start + count)
    times = [EPOCH + dt.timedelta(seconds=second_of(number)) for number in numbers]
    return pa.record_batch(
        {
            "id": pa.array(numbers, pa.int64()),
            "user": pa.array(map(user_of, numbers), pa.int64()),
            "at": pa.array(times, pa.timestamp("us", tz="UTC")),
        }
    )


# -- the topology -----------------------------------------------------------------------------------------------------


def _pass_on(key: Any, rows: list[Any], state: Any) -> list[tuple[int, int, dt.datetime]]:
    state.seen.update((state.seen.get() or 0) + len(rows))
    return [(row.id, row.user, row.at) for row in rows]


def _pass_beside(key: Any, rows: list[Any], state: Any, shared: Any) -> list[tuple[int, int, dt.datetime]]:
    return _pass_on(key, rows, state)


def _hold(key: Any, rows: list[Any], state: Any) -> None:
    for row in rows:
        state.waiting.appendValue((row.at, row.n))
        state.set_timer(row.at)


def _give(key: Any, time: dt.datetime, state: Any) -> Iterable[tuple[int, dt.datetime, int, bool]]:
    due = [one for one in state.waiting if one[0] <= time]
    state.waiting.put([one for one in state.waiting if one[0] > time])
    early = state.last.get() is not None and time < state.last.get()
    state.last.update(time)
    return [(key.lane, at, n, early) for at, n in due]


def carry(stream: Stream, name: str) -> Stream:
    """Pass rows on through a keyed operator."""
    return stream.groupBy("user").apply_rows(
        _pass_on, schema=ROW, state={"seen": penstock.ValueState("long")}, name=name, **_MORE
    )


def _beside(stream: Stream) -> Stream:
    rules = penstock.from_rows([(number,) for number in range(ROWS)], schema="rule long", name="rules")
    return stream.groupBy("user").with_broadcast(rules).apply_rows(
        _pass_beside, on_broadcast=lambda rows, shared: None, shared={"rules": penstock.MapState("long", "long")},
        state={"seen": penstock.ValueState("long")}, schema=ROW, name="beside", **_MORE,
    )  # fmt: skip


def first_watermark(rows: Stream, way: str) -> Stream:
    """Declare the watermark of the source's times, at the source or behind what passes its rows on."""
    delay = f"{DELAY_S} seconds"
    match way:
        case "source":
            return carry(rows.withWatermark("at", delay), "carried")
        case "station":
            return carry(rows.station("even", shards=4, cores=2), "carried").withWatermark("at", delay)
        case "two operators":
            return carry(carry(rows, "carried"), "again").withWatermark("at", delay)
        case "both ways":
            # one way has no rows in most epochs, and says how far it is all the same
            few, most = rows.filter(col("id") % 40 == 1), rows.filter(col("id") % 40 != 1)
            both = carry(few, "few").union(carry(carry(most, "carried"), "most"))
            return carry(both, "again").withWatermark("at", delay)
        case "broadcast":
            return _beside(carry(rows, "carried")).withWatermark("at", delay)
        case _:
            return carry(rows, "carried").withWatermark("at", delay)


def in_a_row(timed: Stream, depth: int) -> list[Stream]:
    """Windows over windows, each behind a watermark of its own, and timers behind the second; as streams of results. Late
    rows are results too, of the kind `behind`; so are timers that fire out of order."""
    shown, level = [], timed.select("user", "at", (col("id") * 0 + 1).alias("n"))
    for number, key in enumerate(["user", "lane", "one"][:depth], 1):
        if number > 1:
            level = level.withWatermark("at", "0 seconds")
        whole = (penstock.count().alias("rows"), penstock.sum("n").alias("n"))
        made = level.groupBy(penstock.window("at", f"{WINDOW_S} seconds"), key).agg(
            *whole, name=f"windows{number}", **(_MORE if number < 3 else {})
        )
        start = col("window").getField("start").alias("at")
        shown.append(_shown(made.select(col(key).alias("key"), start, "rows", "n"), f"windows{number}"))
        nothing = col(key) * 0
        shown.append(
            _shown(made.late_rows.select(col(key).alias("key"), "at", nothing.alias("rows"), "n"), "behind")
        )
        if number == 2:
            shown.extend(_timers(level))
        kept = (col(key) % LANES).alias("lane") if number == 1 else (col(key) * 0).alias("one")
        level = made.select(kept, col("window").getField("end").alias("at"), "n")
    return shown


def _timers(level: Stream) -> list[Stream]:
    fired = level.groupBy("lane").apply_rows(
        _hold,
        on_timer=_give,
        schema="key long, at timestamp, n long, early boolean",
        name="timers",
        state={
            "waiting": penstock.ListState("at timestamp, n long"),
            "last": penstock.ValueState("timestamp"),
        },
        **_MORE,
    )
    rows = (col("key") * 0 + 1).alias("rows")
    return [
        _shown(fired.filter(~col("early")).select("key", "at", rows, "n"), "timers"),
        _shown(fired.filter(col("early")).select("key", "at", rows, "n"), "early"),
    ]


def _shown(stream: Stream, kind: str) -> Stream:
    return stream.select(penstock.lit(kind).alias("kind"), "key", "at", "rows", "n")


def topology(way: str, depth: int, ends: bool) -> Stream:
    """All of it, over a source that ends or one that falls silent."""
    if ends:
        source = penstock.from_rows(pa.Table.from_batches([make_rows(0, ROWS)]), name="rows")
    else:
        source = penstock.generate(make_rows, schema=ROW, rate=1, name="rows")
    first, *others = in_a_row(first_watermark(source, way), depth)
    for other in others:
        first = first.union(other)
    return first


# -- what must come of it ---------------------------------------------------------------------------------------------


def source_rows() -> list[tuple[int, int]]:
    """Key and second of all rows of `make_rows`."""
    return [(user_of(number), second_of(number)) for number in range(ROWS)]


def expected(rows: Iterable[tuple[int, int]], depth: int, ends: bool) -> Counter[Result]:
    """What every run must give, by arithmetic over the source's rows (key and second): all windows and timers where it
    ends, else those that the last row's watermark closes."""
    level = [(key, second, 1) for key, second in rows]
    watermark = math.inf if ends else max(second for _, second, _ in level) - DELAY_S
    found: Counter[Result] = Counter()
    for number in range(1, depth + 1):
        windows: dict[tuple[int, int], list[int]] = defaultdict(list)
        for key, second, n in level:
            if second // WINDOW_S * WINDOW_S + WINDOW_S <= watermark:
                windows[key, second // WINDOW_S * WINDOW_S].append(n)
        if number == 2:
            found.update(("timers", key, second, 1, n) for key, second, n in level if second <= watermark)
        found.update(
            (f"windows{number}", key, start, len(some), sum(some)) for (key, start), some in windows.items()
        )
        level = [
            (key % LANES if number == 1 else 0, start + WINDOW_S, sum(some))
            for (key, start), some in windows.items()
        ]
        watermark = watermark if ends else max(second for _, second, _ in level)
    return found


def results(rows: Iterable[dict[str, Any]]) -> Counter[Result]:
    """What a run gave, from the rows of its sink."""
    return Counter(
        (row["kind"], row["key"], round((row["at"] - EPOCH).total_seconds()), row["rows"], row["n"])
        for row in rows
    )


def differences(found: Counter[Result], wanted: Counter[Result]) -> list[str]:
    """Say what is wrong with results, in words."""
    more = [f"{result} is too much" for result in sorted((found - wanted).elements())]
    return more + [f"{result} is missing" for result in sorted((wanted - found).elements())]


# -- storms -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Story:
    """What a seed stands for."""

    way: str
    depth: int
    """Watermarks in a row."""
    executors: int
    """Of each operator."""
    ends: bool
    """Whether the source ends, so that everything closes."""


def story_of(seed: int) -> Story:
    """Seeds take turns."""
    return Story(WAYS[seed % 6], 1 + seed // 6 % 3, (1, 1, 2, 3)[seed // 18 % 4], seed // 3 % 2 == 0)


def storm(
    seed: int, actions: Sequence[str] = ACTIONS, look: Callable[[Driver], None] | None = None
) -> str | None:
    """Run one seed; return what is wrong with its results, None when nothing is.

    Args:
        look: is given the driver when it has stopped.
    """
    story = story_of(seed)
    stream = topology(story.way, story.depth, story.ends)
    program = compile_program(stream.node, tasks=2, memory_bytes=1 << 20, executors=story.executors)
    with TemporaryDirectory(prefix="penstock-storm-") as folder:
        try:
            driver = _ridden(seed, program, folder, actions)
        except (AssertionError, PenstockError) as error:
            return f"{type(error).__name__}: {error}"
        driver.stop()
        wrong = differences(results(driver.sink.rows()), expected(source_rows(), story.depth, story.ends))
        if not wrong and look is not None:
            try:
                look(driver)
            except Exception as error:
                wrong = [f"{type(error).__name__}: {error}"]
    return f"{story}: {len(wrong)} differences: {'; '.join(wrong[:4])}" if wrong else None


def _ridden(seed: int, program: Program, folder: str, actions: Sequence[str]) -> Driver:
    rng = random.Random(seed)
    disk = SimDisk(seed)
    disk.make_dirs("/work")
    driver = Driver(
        disk,
        "/work/checkpoint",
        program,
        quick(SMALL, retain_all=True),
        seed,
        folder,
        rows=ROWS,
        rate=400.0,
        uneven=seed if seed % 2 else None,
    )
    for _ in range(rng.randint(6, 14)):
        driver.run_until(rng.choice([0.02, 0.04, 0.08]))
        disturb(driver, rng, rng.choice(actions))
    if not driver.running:
        driver.restart()
    assert driver.run_until("drained", 120.0), f"not drained: {driver.failed}"
    return driver


def disturb(driver: Driver, rng: random.Random, action: str) -> None:
    """Do to a driver and its leases what `action` says; where that cannot be, crash the driver and start the next one."""
    leases = driver.live_leases() if driver.running else []
    match action:
        case "deal" if driver.running:
            if (deal := random_deal(driver.engine, rng)) is not None:
                with contextlib.suppress(PlanError):
                    driver.redeal(deal.giver, deal.taker, deal.shards, deal.tasks)
        case "plan" if driver.running:
            with contextlib.suppress(PlanError):
                driver.place(random_plan(driver.engine, rng, 4), rng.choice([0.05, 5.0]))
        case "kill" if leases:
            driver.kill(rng.choice(leases))
        case "pause" if leases:
            driver.pause(rng.choice(leases))
        case "cut" if leases:
            driver.cut(rng.choice(leases))
        case "capacity" if driver.running:
            driver.set_capacity(rng.randint(1, 4))
        case "stop" if driver.running:
            driver.stop()
            driver.restart()
        case _:
            driver.crash()
            driver.restart()
