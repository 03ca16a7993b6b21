"""Running totals: what arrived is what was completed in the end, and time goes to the shards that cost it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.faults.runs import KEPT, fast_disk

from penstock.dataplane.counting import Counts
from penstock.dataplane.records import Record, TaskPart, pack_u16
from penstock.dataplane.taking import GroupTake
from penstock.sim.inprocess import Driver
from penstock.sim.programs import local_program


def take(rows: list[int]) -> GroupTake:
    return GroupTake(np.arange(len(rows), dtype=np.uint16), [], [], np.array(rows))


def record(parts: list[TaskPart]) -> Record:
    return Record("op", 1, "epoch", 1, b"", 0, [], parts)


def part(task: int, shards: list[int], rows: int, busy_us: int) -> TaskPart:
    return TaskPart(task, "l", pack_u16(np.array(shards, np.uint16)), rows, 0, [], busy_us=busy_us)


def warm(shards: int, tasks: int) -> Counts:
    """Totals of a stage whose tasks have been on their leases for an epoch."""
    counts = Counts(shards)
    counts.complete(record([part(task, [], 0, 0) for task in range(tasks)]), [], 0.0)
    return counts


def test_all_that_arrives_is_completed_in_the_end(tmp_path: Path) -> None:
    driver = Driver(
        fast_disk(), str(tmp_path / "cp"), local_program(), KEPT, 1, str(tmp_path / "node"), rows=300
    )
    driver.run_until("drained", 30.0)
    counts = driver.engine.runs["fold"].counts
    assert counts.arrived.sum() == 300
    assert (counts.arrived == counts.completed).all()
    assert sum(counts.task_rows.values()) == 300
    driver.crash()
    driver.restart()
    driver.run_until("drained", 30.0)
    fresh = driver.engine.runs["fold"].counts
    assert (fresh.arrived == fresh.completed).all()


@pytest.mark.parametrize(("nodes", "remote"), [(1, False), (2, True)])
def test_bytes_read_of_another_node_are_counted(tmp_path: Path, nodes: int, remote: bool) -> None:
    driver = Driver(
        fast_disk(), str(tmp_path / "cp"), local_program(), KEPT, 1, str(tmp_path / "node"),
        rows=300, nodes=nodes, capacity=6,
    )  # fmt: skip
    driver.run_until("drained", 30.0)
    counts = driver.engine.runs["fold"].counts
    assert (counts.remote_bytes > 0) is remote
    assert counts.in_bytes > 0


def test_time_goes_by_rows_until_somebody_looks() -> None:
    counts = warm(4, 2)
    counts.complete(
        record([part(0, [0, 1], 4, 4_000), part(1, [2, 3], 10, 5_000)]), [take([1, 3, 0, 10])], 0.1
    )
    assert counts.busy_s == pytest.approx([0.001, 0.003, 0.0, 0.005])
    assert counts.longest_task_s == pytest.approx(0.005)
    assert counts.touched_shards == 3


def test_time_goes_to_the_shard_whose_rows_are_dear() -> None:
    counts = warm(2, 1)
    taken = [take([10, 10])]
    counts.note_costs([(0, 1_000), (1, 9_000)], taken)
    counts.complete(record([part(0, [0, 1], 20, 10_000)]), taken, 0.1)
    assert counts.busy_s == pytest.approx([0.001, 0.009])


def test_the_first_epoch_on_a_lease_says_nothing_of_what_rows_cost() -> None:
    counts = Counts(2)
    taken = [take([2, 3])]
    counts.complete(record([part(0, [0, 1], 5, 900_000)]), taken, 1.0)
    assert counts.completed.tolist() == [2, 3]
    assert not counts.busy_s.any() and not counts.task_rows
    counts.complete(record([part(0, [0, 1], 5, 5_000)]), taken, 0.1)
    assert counts.task_rows == {0: 10} and counts.task_busy_s == {0: pytest.approx(0.010)}
    assert counts.busy_s == pytest.approx([0.004, 0.006])
