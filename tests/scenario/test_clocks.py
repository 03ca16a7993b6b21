"""The system's clock is set while a query runs: rows arrive, take as long and come out as if it had not been; timers by
processing time follow the wall ahead and never wait for it.

What is expected is arithmetic on virtual time, which nobody sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.faults.runs import fast_disk, scratch

import penstock
from penstock.dataplane.compile import compile_program
from penstock.sim.inprocess import Driver
from penstock.sim.programs import make_rows, memory_program
from penstock.sim.timing import SMALL, quick

RATE, ROWS = 100.0, 300
BEHIND_S = 0.5
"""What an epoch and its messages take at most here."""
STEPS = st.lists(
    st.tuples(st.floats(0.1, 1.0), st.sampled_from([-86_400.0, -3_600.0, -1.0, 1.0, 3_600.0, 86_400.0])),
    min_size=1, max_size=3,
)  # fmt: skip


def fold_rows(driver: Driver) -> int:
    return driver.engine.chains["fold"].rows_in


def started(driver: Driver) -> float:
    """Run until the schedule of the source begins; return the virtual time."""
    assert driver.run_until(lambda: driver.engine.sources.arrivals["source"].running)
    return driver.loop.now


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, seed=st.integers(0, 99))
def test_no_step_of_the_clock_moves_an_arrival_or_a_latency(
    steps: list[tuple[float, float]], seed: int
) -> None:
    with scratch() as folder:
        driver = Driver(fast_disk(), str(folder / "cp"), memory_program(), SMALL, seed, rows=ROWS, rate=RATE)
        began = started(driver)
        for after_s, by_s in [*steps, (0.5, 0.0)]:
            driver.run_until(after_s)
            arrived = min(ROWS, (driver.loop.now - began) * RATE)
            assert arrived - BEHIND_S * RATE <= fold_rows(driver) <= arrived + 1
            driver.loop.set_wall(by_s)
        assert driver.run_until("drained", 10.0), driver.failed
        assert driver.loop.now - began <= ROWS / RATE + BEHIND_S
        for stage in ("source", "fold", "gather"):
            latency = driver.engine.latency_since(stage, 0.0)
            assert latency is not None and latency.rows == ROWS
            assert 0.0 <= latency.mean_ms <= latency.max_ms <= BEHIND_S * 1e3
        assert sorted(row["id"] for row in driver.sink.rows()) == list(range(ROWS))
        driver.stop()


@pytest.mark.parametrize("by_s", [-3_600.0, 3_600.0])
def test_a_restart_after_the_clock_was_set_goes_on_with_arrivals_and_never_back_in_epoch_time(
    tmp_path: Path, by_s: float
) -> None:
    driver = Driver(fast_disk(), str(tmp_path / "cp"), memory_program(), SMALL, 3, rows=ROWS, rate=RATE)
    started(driver)
    driver.run_until(1.0)
    driver.crash()
    before = max(chain.time_us for chain in driver.engine.chains.by_name.values())
    driver.loop.set_wall(by_s)
    driver.restart()
    made, began = driver.engine.chains["source"].offset, started(driver)
    assert driver.run_until("drained", 10.0), driver.failed
    assert driver.loop.now - began <= (ROWS - made) / RATE + BEHIND_S
    after = min(chain.time_us for chain in driver.engine.chains.by_name.values())
    assert after >= before + (max(0.0, by_s) - BEHIND_S) * 1e6
    latency = driver.engine.latency_since("fold", 0.0)
    assert latency is not None and latency.mean_ms >= 0.0
    if by_s < 0:  # else rows that waited did so for an hour, by all that can be known
        assert latency.max_ms <= 2_000.0


# -- timers -------------------------------------------------------------------------------------------------------

WAIT_S = 2.0


def silent(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Say once of a key that nothing of it came for two seconds."""
    if state.hasTimedOut:
        state.remove()
        yield pd.DataFrame({"k": [key[0]]})
        return
    for _ in frames:
        pass
    state.update((1,))
    state.setTimeoutDuration(round(WAIT_S * 1_000))


def timed_driver(folder: Path, seed: int = 1) -> Driver:
    source = penstock.generate(make_rows, schema="id long, k long", rate=1000, name="source")
    stream = source.groupBy("k").applyInPandasWithState(
        silent, "k long", "n long", "append", "ProcessingTimeTimeout", name="silent", shards=4
    )
    program = compile_program(stream.node, tasks=2, memory_bytes=4 << 20)
    return Driver(
        fast_disk(), str(folder / "cp"), program, quick(SMALL, max_epoch_rows=200), seed, str(folder / "node"),
        rows=40, rate=400.0,
    )  # fmt: skip


def fired(driver: Driver) -> list[int]:
    return sorted(row["k"] for row in driver.sink.rows())


def told_after(driver: Driver, began: float) -> float:
    """Run until every key has timed out once; return the virtual seconds since `began`."""
    keys = sorted(set(make_rows(0, 40).column("k").to_pylist()))
    assert driver.run_until(lambda: len(fired(driver)) >= len(keys), 20.0), driver.failed
    assert fired(driver) == keys
    return driver.loop.now - began


@pytest.mark.parametrize("by_s", [-86_400.0, -3_600.0, -1.0, 0.0])
def test_a_timer_does_not_wait_for_a_clock_that_was_set_back(tmp_path: Path, by_s: float) -> None:
    driver = timed_driver(tmp_path)
    began = started(driver)
    driver.run_until(0.6)
    assert fired(driver) == []
    driver.loop.set_wall(by_s)
    assert WAIT_S <= told_after(driver, began) <= WAIT_S + 0.1 + BEHIND_S
    driver.stop()


def test_timers_follow_a_clock_that_was_set_ahead(tmp_path: Path) -> None:
    driver = timed_driver(tmp_path)
    began = started(driver)
    driver.run_until(0.6)
    driver.loop.set_wall(1.0)
    assert WAIT_S - 1.0 <= told_after(driver, began) <= WAIT_S - 1.0 + 0.1 + BEHIND_S
    driver.stop()


def test_a_timer_of_the_driver_before_does_not_wait_for_a_clock_that_was_set_back(tmp_path: Path) -> None:
    driver = timed_driver(tmp_path)
    began = started(driver)
    driver.run_until(0.6)
    driver.crash()
    driver.loop.set_wall(-3_600.0)
    driver.run_until(0.1)
    driver.restart()
    assert WAIT_S <= told_after(driver, began) <= WAIT_S + 0.7 + BEHIND_S
    driver.stop()
