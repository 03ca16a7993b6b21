"""No row that is in time at its source is late anywhere, whatever sits out, moves or dies: windows over windows and timers
equal what arithmetic makes of the source's rows, and event time does not get stuck."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.faults.shape_runs import lateness

import penstock
from penstock import col, count, window
from penstock.dataplane.compile import compile_program
from penstock.errors import PlanError
from penstock.sim import timelines
from penstock.sim.inprocess import Driver
from penstock.sim.plans import random_plan
from penstock.sim.timing import SMALL, quick
from penstock.testing import Crash, LoseLease, Pause, run, script
from penstock.testing.disk import SimDisk

T = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
KEYS, SECONDS = 20, 40


@pytest.mark.parametrize("seed", [0, 2, 4, 7, 8, 9, 23, 39])
def test_nothing_is_late_behind_watermarks_in_a_row_in_a_storm(seed: int) -> None:
    assert lateness(seed) is None


@pytest.mark.long
@pytest.mark.parametrize("seed", range(144))
def test_nothing_is_late_behind_watermarks_in_a_row_in_many_storms(seed: int) -> None:
    assert lateness(seed) is None


def _at(second: float) -> dt.datetime:
    return T + dt.timedelta(seconds=second)


def _story(lost: Any) -> list[Any]:
    story: list[Any] = []
    for second in range(SECONDS):
        story += [(key, _at(second)) for key in range(KEYS)]
        story.append(Pause("20 milliseconds"))
        if second == SECONDS // 3 and lost is not None:
            story.append(lost)
    return story


@pytest.mark.parametrize("lost", [None, LoseLease(), Crash()], ids=["calm", "lease", "crash"])
@pytest.mark.parametrize("seed", [2, 5])
def test_windows_over_windows_are_whole_though_a_lease_is_lost(seed: int, lost: Any) -> None:
    rows = script(_story(lost), schema="k long, ts timestamp")
    counts = rows.withWatermark("ts", "0 seconds").groupBy(window("ts", "1 second"), "k").agg(
        count().alias("n"), name="counts"
    )  # fmt: skip
    ends = counts.select(col("window").getField("end").alias("end"), "n").withWatermark("end", "0 seconds")
    totals = ends.groupBy(window("end", "1 second")).agg(penstock.sum("n").alias("rows"), name="totals")
    found = [row["rows"] for row in run(totals, seed=seed).to_pylist()]
    assert found == [KEYS] * SECONDS


@pytest.mark.parametrize("seed", [0, 2])
def test_late_rows_of_a_disturbed_run_are_those_of_an_undisturbed_one(seed: int) -> None:
    batches = [
        [(1, _at(10)), (2, _at(4))],
        [(3, _at(30))],
        [(4, _at(12)), (5, _at(29))],
        [(6, _at(60)), (7, _at(24))],
    ]

    def late(*more: Any) -> list[int]:
        items = [
            item for batch in batches for item in (*batch, Pause("2 seconds"), *more, Pause("2 seconds"))
        ]
        rows = script(items, schema="id long, ts timestamp").withWatermark("ts", "5 seconds")
        carried = rows.groupBy("id").apply_rows(lambda key, some, state: [(r.id, r.ts) for r in some],
            schema="id long, ts timestamp", name="carried", shards=4, cores=2)  # fmt: skip
        windows = carried.groupBy(window("ts", "5 seconds"), "id").agg(count(), name="win", shards=4, cores=2)
        return sorted(row["id"] for row in run(windows.late_rows, seed=seed).to_pylist())

    by_arithmetic, watermark, latest = [], -1.0, 0.0
    for batch in batches:
        seconds = {number: (at - T).total_seconds() for number, at in batch}
        by_arithmetic += [number for number, at in seconds.items() if at // 5 * 5 + 5 <= watermark]
        latest = max(latest, *seconds.values())
        watermark = latest - 5
    assert late() == late(LoseLease()) == late(Crash()) == by_arithmetic == [4, 7]


@pytest.mark.parametrize(
    ("way", "executors"), [("two operators", 1), pytest.param("station", 2, marks=pytest.mark.long)]
)
def test_event_time_goes_on_with_a_bounded_lag_though_shards_never_stand_still(
    tmp_path: Path, way: str, executors: int
) -> None:
    rng, disk = random.Random(1), SimDisk(1)
    disk.make_dirs("/work")
    stream = timelines.topology(way, 2, ends=False)
    program = compile_program(stream.node, tasks=2, memory_bytes=1 << 20, executors=executors)
    driver = Driver(disk, "/work/cp", program, quick(SMALL), 1, str(tmp_path), rows=timelines.ROWS, rate=80.0)
    lags = []
    while driver.engine.chains["rows"].offset < timelines.ROWS - 20:
        driver.run_until(0.02)
        try:
            driver.place(random_plan(driver.engine, rng, 4), 5.0)
        except PlanError:
            continue
        said = [chain.watermark_us for chain in driver.engine.chains.of("windows2")]
        if None not in said:
            behind = driver.engine.chains["rows"].offset - (min(said) / 1e6 - timelines.EPOCH.timestamp())
            lags.append(behind)
    assert len(lags) > 40, "it has begun to move"
    assert max(lags) < timelines.DELAY_S + 3 * timelines.WINDOW_S + 45, "and stays near the rows"
    assert driver.run_until("drained", 60.0), driver.failed
    found: Counter[timelines.Result] = timelines.results(driver.sink.rows())
    wanted = timelines.expected(timelines.source_rows(), 2, ends=False)
    assert not timelines.differences(found, wanted)
    driver.stop()


def test_rows_that_a_later_filter_drops_move_a_watermark_and_those_that_an_earlier_one_drops_do_not() -> None:
    items = [
        ("a", _at(1)),
        ("clock", _at(100)),
        ("a", _at(2)),
        ("a", _at(101)),
        ("clock", _at(300)),
        ("a", _at(103)),
    ]
    story = [one for item in items for one in (item, Pause("1 second"))]

    def windows(filter_first: bool) -> list[int]:
        rows = script(story, schema="who string, ts timestamp")
        mine = col("who") == "a"
        if filter_first:
            timed = rows.filter(mine).withWatermark("ts", "1 second")
        else:
            timed = rows.withWatermark("ts", "1 second").filter(mine)
        counts = timed.groupBy(window("ts", "10 seconds"), "who").agg(count().alias("n"), name="win")
        return [row["n"] for row in run(counts, seed=1).to_pylist()]

    assert windows(filter_first=False) == [1, 1]
    assert windows(filter_first=True) == [2, 2]
