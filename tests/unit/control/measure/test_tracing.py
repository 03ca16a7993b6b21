"""Latency from counters: exact on a story, within the paper's bound on anything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.control.measure.tracing import ShardTrace


def counts(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_a_row_is_traced_to_the_slot_it_arrived_in() -> None:
    trace = ShardTrace(0.0, counts(0, 0), counts(0, 0))
    trace.add(1.0, counts(4, 1), counts(0, 1))
    trace.add(2.0, counts(4, 1), counts(1, 1))
    trace.add(3.0, counts(6, 1), counts(5, 1))
    # Slot 3 completes rows 2 to 4 of slot 1 and row 5 of slot 3: (3 * 2 s + 0 s) / 4.
    assert trace.derive_latency_s(1.0)[0] == pytest.approx(1.5)
    assert np.isnan(trace.derive_latency_s(1.0)[1]), "nothing of shard 1 was completed, and nothing waits"


def test_a_longer_window_counts_earlier_slots_by_their_rows() -> None:
    trace = ShardTrace(0.0, counts(0), counts(0))
    trace.add(1.0, counts(4), counts(0))
    trace.add(2.0, counts(4), counts(1))
    trace.add(3.0, counts(4), counts(4))
    assert trace.derive_latency_s(2.0)[0] == pytest.approx((1 * 1.0 + 3 * 2.0) / 4)


def test_a_shard_that_stands_still_is_as_late_as_its_first_waiting_row() -> None:
    trace = ShardTrace(0.0, counts(0), counts(0))
    for at in range(1, 6):
        trace.add(float(at), counts(3), counts(0))
    assert trace.derive_latency_s(1.0)[0] == 4.0


def test_rows_from_before_the_first_sample_are_not_counted() -> None:
    trace = ShardTrace(100.0, counts(50), counts(10))
    trace.add(101.0, counts(51), counts(50))
    assert np.isnan(trace.derive_latency_s(1.0)[0])
    trace.add(102.0, counts(51), counts(51))
    assert trace.derive_latency_s(1.0)[0] == 1.0


def test_a_stuck_shard_does_not_fill_memory_and_keeps_its_place() -> None:
    trace = ShardTrace(0.0, counts(0, 0), counts(0, 0), max_slots=16)
    for at in range(1, 2000):
        trace.add(float(at), counts(at, 1), counts(at, 0))
    assert trace._to - trace._from <= 17 and len(trace._ends_s) == 32
    assert trace.derive_latency_s(1.0).tolist() == [0.0, 1998.0]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_error_is_at_most_the_longest_slot(data: st.DataObject) -> None:
    """The truth is known: every row has an arrival and a completion time, in FIFO order, at any load."""
    gaps = data.draw(st.lists(st.floats(0.05, 2.0), min_size=2, max_size=12))
    ends = np.cumsum(gaps)
    arrivals = np.sort(data.draw(st.lists(st.floats(0.001, float(ends[-1])), max_size=40)))
    waits = data.draw(st.lists(st.floats(0.0, 3.0), min_size=len(arrivals), max_size=len(arrivals)))
    completions = np.maximum.accumulate(arrivals + np.array(waits)) if len(arrivals) else arrivals
    trace = ShardTrace(0.0, counts(0), counts(0))
    for end in ends:
        trace.add(float(end), counts(int((arrivals <= end).sum())), counts(int((completions <= end).sum())))
    done = completions <= ends[-1]
    latency = trace.derive_latency_s(1e9)[0]
    if done.any():
        truth = float((completions - arrivals)[done].mean())
        assert abs(latency - truth) <= max(gaps) + 1e-9


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 20), st.floats(0.0, 1.0)), min_size=1, max_size=30),
)
def test_a_window_that_holds_everything_is_littles_law(
    steps: list[tuple[int, float]],
) -> None:
    """Row-seconds of completed rows are the rows waiting at the ends of slots, as long as all are completed."""
    trace, arrived, completed, waiting_s = ShardTrace(0.0, counts(0), counts(0)), 0, 0, 0.0
    for at, (new, share) in enumerate(steps, 1):
        arrived += new
        completed += int((arrived - completed) * share)
        trace.add(float(at), counts(arrived), counts(completed))
        waiting_s += arrived - completed
    trace.add(float(len(steps) + 1), counts(arrived), counts(arrived))
    if arrived:
        assert trace.derive_latency_s(1e9)[0] * arrived == pytest.approx(waiting_s)


def trace_row_by_row(slots: list[tuple[float, list[int], list[int]]], window_s: float) -> list[float]:
    """What `ShardTrace` derives, written down row by row: the slow form that it must be equal to."""
    found = []
    for shard in range(len(slots[0][1])):
        arrived_at = [end_s for end_s, arrived, _ in slots for _ in range(arrived[shard])]
        done, last_s, took = 0, slots[-1][0], []
        for end_s, _, completed in slots:
            inside = end_s > last_s - window_s or end_s == last_s
            took += [end_s - at_s for at_s in arrived_at[done : done + completed[shard]] if inside]
            done += completed[shard]
        if took:
            found.append(sum(took) / len(took))
        else:
            age_s = last_s - arrived_at[done] if done < len(arrived_at) else 0.0
            found.append(age_s if age_s > 0 else np.nan)
    return found


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 120))
def test_it_is_what_following_every_row_would_give(seed: int, turns: int) -> None:
    random, shards, at_s = np.random.default_rng(seed), 3, 0.0
    arrived, completed = np.zeros(shards, np.int64), np.zeros(shards, np.int64)
    trace, slots = ShardTrace(0.0, arrived, completed), []
    for _ in range(turns):
        at_s += float(random.choice([0.125, 0.25, 1.0]))
        come = random.integers(0, 4, shards)
        go = random.integers(0, arrived + come - completed + 1)
        slots.append((at_s, come.tolist(), go.tolist()))
        arrived, completed = arrived + come, completed + go
        trace.add(at_s, arrived, completed)
        if random.random() < 0.1:
            trace.derive_latency_s(1.0)  # looking forgets what lies before the window, and nothing else
    np.testing.assert_allclose(trace.derive_latency_s(1.0), trace_row_by_row(slots, 1.0), rtol=1e-12)
