"""Latency at a stage begins when its rows arrive there; (shard, window) pairs are judged as the simulator judges them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.faults.runs import KEPT, fast_disk

from penstock.control.sla import SLA
from penstock.dataplane.positions import ChannelKey, PublishedRows
from penstock.dataplane.records import Extent, Published, Record, Segment, Stamp, TaskPart, pack_u16
from penstock.dataplane.sojourns import Bound, Pairs, Sojourns, Stay, stays_of
from penstock.dataplane.taking import GroupTake, PieceTaken, stamp_of
from penstock.sim.elastic.truth import Truth
from penstock.sim.inprocess import Driver
from penstock.sim.programs import local_program


def stamp(first_s: float, last_s: float | None = None) -> Stamp:
    last = first_s if last_s is None else last_s
    return Stamp(0, round(first_s * 1e6), (first_s + last) / 2 * 1e6, round(last * 1e6))


def stay(rows: list[int], arrived_s: float, root_s: float | None = None) -> Stay:
    return Stay(np.array(rows), stamp(arrived_s), stamp(arrived_s if root_s is None else root_s))


def us(at_s: float) -> int:
    return round(at_s * 1e6)


def test_latency_at_a_stage_does_not_count_the_way_there(tmp_path: Path) -> None:
    driver = Driver(
        fast_disk(), str(tmp_path / "cp"), local_program(), KEPT, 1, str(tmp_path / "node"), rows=300
    )
    driver.run_until("drained", 30.0)
    engine = driver.engine
    operators = [name for name, run in engine.runs.items() if run.spec.kind == "operator"]
    first, second = operators
    own = {name: engine.runs[name].counts.sojourns.log.since(0.0) for name in operators}
    whole = {name: engine.latency[name].since(0.0) for name in operators}
    assert all(one is not None for one in (*own.values(), *whole.values()))
    assert own[first].mean_ms == pytest.approx(whole[first].mean_ms), (
        "a source feeds it: its queue is this one"
    )
    assert own[second].rows == whole[second].rows
    assert own[second].mean_ms < whole[second].mean_ms - 0.9 * own[first].mean_ms


def test_a_mean_over_the_bound_fails_its_shard_and_its_window_only() -> None:
    pairs = Pairs(2, Bound(1.0, 1.0), 0.0)
    pairs.add(0.5, us(0.5), [stay([1, 1], 0.4)])
    pairs.add(2.5, us(2.5), [stay([1, 0], 1.2), stay([0, 1], 2.4)])
    found = pairs.success(4.0, np.zeros(2, np.bool_))
    # Shard 0: its row of 1.2 s waited through the end of second 1 for less than the bound, and broke it in second 2.
    assert (found.met, found.judged) == (7, 8)


def test_a_window_without_rows_fails_where_a_row_waited_longer_than_the_bound() -> None:
    pairs = Pairs(1, Bound(1.0, 1.0), 0.0)
    pairs.add(5.5, us(5.5), [stay([1], 0.5)])
    # Arrived at 0.5: the windows that end at 2, 3, 4 and 5 found it waiting for more than a second; so did the sixth.
    found = pairs.success(6.0, np.zeros(1, np.bool_))
    assert (found.met, found.judged) == (1, 6)


def test_a_window_for_which_rows_still_wait_is_judged_when_they_are_through() -> None:
    pairs = Pairs(1, Bound(1.0, 1.0), 0.0)
    assert pairs.success(3.0, np.ones(1, np.bool_)).judged == 0
    assert pairs.success(3.0, np.zeros(1, np.bool_)).judged == 3
    pairs.add(3.5, us(3.5), [stay([1], 0.2)])
    assert pairs.success(4.0, np.zeros(1, np.bool_)).met == 1
    assert Pairs(1, Bound(1.0, 1.0), 0.0).success(0.5, np.zeros(1, np.bool_)).ratio is None


def test_a_quantile_is_judged_by_rows_and_end_to_end_from_the_source() -> None:
    def is_met(bound: Bound) -> bool:
        """95 rows took 0.1 s; 5 took 1.5 s, and 4 s from the source."""
        pairs = Pairs(1, bound, 4.0)
        pairs.add(5.0, us(5.0), [stay([95], 4.9), Stay(np.array([5]), stamp(3.5), stamp(1.0))])
        before = pairs.success(5.0, np.ones(1, np.bool_))
        return pairs.success(6.0, np.ones(1, np.bool_)).met > before.met

    assert is_met(Bound(1.0, 1.0)) and is_met(Bound(1.0, 1.0, quantile=0.95))
    assert not is_met(Bound(1.0, 1.0, quantile=0.96))
    assert is_met(Bound(0.2, 1.0)) and not is_met(Bound(0.2, 1.0, from_source=True))


def published(rows: list[int], arrived_s: float | None, root_s: float) -> PublishedRows:
    segment = Segment(0, Extent("f", 0, 1, 0), sum(rows), np.array(rows, "<u4").tobytes())
    found = PublishedRows(Published(1, [segment], stamp(root_s)), len(rows))
    found.arrived_us = None if arrived_s is None else us(arrived_s)
    return found


def epoch(*taken: PublishedRows) -> tuple[list[GroupTake], Record]:
    """An epoch of two tasks, a shard each, of which the second was lost."""
    pieces = [PieceTaken(ChannelKey(0, "a"), 0, -1, one) for one in taken]
    take = GroupTake(np.arange(2, dtype=np.uint16), [], pieces, np.sum([one.counts for one in taken], axis=0))
    part = TaskPart(0, "l", pack_u16(np.array([0], np.uint16)), 1, 0, [])
    return [take], Record("op", 1, "epoch", 1, b"", 0, [], [part], stamp_of([take]))


def test_without_a_bound_nothing_is_judged_and_latency_is_kept_all_the_same() -> None:
    kept = Sojourns()
    kept.add(2.0, us(2.0), *epoch(published([3, 1], 1.5, root_s=0.0), published([0, 4], None, root_s=1.0)))
    found = kept.log.since(0.0)
    assert kept.pairs is None and found is not None
    assert (found.rows, found.mean_ms) == (8, pytest.approx((4 * 500 + 4 * 1000) / 8))


def test_rows_of_a_task_that_was_lost_are_not_judged_before_they_are_through() -> None:
    takes, record = epoch(published([3, 1], 1.5, root_s=0.0))
    (found,) = stays_of(takes, record)
    assert found.rows.tolist() == [3, 0]
    assert (found.arrival.first_us, found.root.first_us) == (us(1.5), 0)


ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.floats(0.0, 1.5), st.floats(0.001, 4.0)), min_size=1, max_size=40
)


@settings(max_examples=100, deadline=None)
@given(
    ROWS, st.sampled_from([0.30037, 1.00037, 2.00037])
)  # no mean of so few milliseconds meets them exactly
def test_pairs_are_those_of_the_simulator(rows: list[tuple[int, float, float]], bound_s: float) -> None:
    """Rows of a shard arrive and leave in order, each committed alone; the simulator's truth is the oracle."""
    arrived = np.zeros(3)
    left = np.zeros(3)
    events = []
    for shard, gap_s, stay_s in rows:
        arrived[shard] = round(arrived[shard] + gap_s, 3)
        left[shard] = round(max(left[shard], arrived[shard] + stay_s), 3)
        events.append((float(left[shard]), shard, float(arrived[shard])))
    events.sort()
    truth, pairs = Truth(3, SLA(bound_s, 1.0), 10.0), Pairs(3, Bound(bound_s, 1.0), 0.0)
    for done_s, shard, at_s in events:
        truth.add(np.array([at_s]), np.array([done_s]), np.array([shard]))
        counts = [0, 0, 0]
        counts[shard] = 1
        pairs.add(done_s, us(done_s), [stay(counts, at_s)])
    end_s = float(np.ceil(events[-1][0] + 1e-6))
    found = pairs.success(end_s, np.zeros(3, np.bool_))
    nothing = (np.empty(0), np.empty(0, np.int64))
    assert found.judged == 3 * end_s
    assert found.met == pytest.approx(truth.success(end_s, nothing).mean() * 3 * end_s)
