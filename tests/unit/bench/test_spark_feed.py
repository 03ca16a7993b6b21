"""The folder plain Spark reads from, and the reading of Spark's own logs. No Spark is started here."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.bench import spark_feed
from penstock.bench.spark_feed import (
    PARTS,
    CommitWatch,
    OpenLoopFeed,
    RowSpec,
    Workspace,
    file_name,
    file_number,
    prepare_batches,
    prepare_every_key,
    remove_leftovers,
    workspace,
)

SPEC = RowSpec(keys=100)


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Workspace]:
    with workspace(tmp_path, tmp_path) as lent:
        yield lent
    assert os.listdir(tmp_path) == [], "a run leaves nothing behind"


def in_reading_order(space: Workspace) -> list[Path]:
    return sorted(space.rows.iterdir(), key=lambda path: (path.stat().st_mtime, path.name))


def test_folders_are_removed_when_the_run_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), workspace(tmp_path, tmp_path) as lent:
        (lent.rows / "left").touch()
        raise RuntimeError
    assert os.listdir(tmp_path) == []


def test_what_an_ended_process_left_is_removed_and_nobody_elses(tmp_path: Path) -> None:
    for name in ("penstock-bench-12-a", "penstock-bench-12-b", "penstock-bench-123-c", "other"):
        (tmp_path / name / "checkpoint").mkdir(parents=True)
    remove_leftovers(12, [tmp_path])
    assert sorted(os.listdir(tmp_path)) == ["other", "penstock-bench-123-c"]


def test_a_workspace_carries_the_name_by_which_its_leftovers_are_found(space: Workspace) -> None:
    space.checkpoint.mkdir()
    top = space.checkpoint.parent
    remove_leftovers(os.getpid(), [top.parent])
    assert not top.exists()


def test_batches_hold_the_rows_of_the_workload_in_order(space: Workspace) -> None:
    prepare_batches(space, SPEC, 1000, 3)
    files = in_reading_order(space)
    assert len(files) == 3 * PARTS
    read = pa.concat_tables([pq.read_table(path) for path in files]).combine_chunks()
    assert read == pa.Table.from_batches([SPEC.rows(0, 3000)])


def test_rows_come_again_only_past_the_limit(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_feed, "MAX_PREPARED_ROWS", 2000)
    prepare_batches(space, SPEC, 1000, 5)
    assert len(list(space.rows.iterdir())) == 5 * PARTS
    assert len(list(space.pool.iterdir())) == 2 * PARTS
    assert sum(pq.read_metadata(path).num_rows for path in space.rows.iterdir()) == 5000


@pytest.mark.parametrize("keys", [1, 7, 1000, 1024, 2310])
def test_every_key_is_there_once_and_before_the_rows_that_are_measured(space: Workspace, keys: int) -> None:
    first = prepare_every_key(space, keys, 200)
    prefill = len(in_reading_order(space))
    assert first == -(-prefill // PARTS)
    prepare_batches(space, RowSpec(keys, 0.0), 200, 2, first=first)
    files = in_reading_order(space)
    found = [key for path in files[:prefill] for key in pq.read_table(path)["key"].to_pylist()]
    assert sorted(found) == list(range(keys))
    assert len(files) == prefill + 2 * PARTS


def test_the_feed_keeps_its_times_and_drops_whole_files(space: Workspace) -> None:
    feed = OpenLoopFeed(space, SPEC, rate_per_s=10_000, lump_s=0.02)
    started_s = time.time()
    feed.start()
    time.sleep(0.5)
    feed.stop()
    files = sorted(space.rows.iterdir())
    assert [file_number(str(path)) for path in files] == list(range(len(files)))
    assert 5 <= len(files) <= (time.time() - started_s) / 0.02
    assert all(pq.read_metadata(path).num_rows == 200 for path in files)
    assert feed.due_s(9) - feed.due_s(8) == pytest.approx(0.02)
    assert feed.due_s(0) >= started_s + 0.02


def test_committed_files_leave_the_folder_and_later_ones_stay(space: Workspace) -> None:
    feed = OpenLoopFeed(space, SPEC, rate_per_s=1000, lump_s=0.01)
    feed.start()
    time.sleep(0.2)
    feed.stop()
    dropped = len(list(space.rows.iterdir()))
    feed.remove_before(3)
    assert sorted(path.name for path in space.rows.iterdir()) == [file_name(n) for n in range(3, dropped)]


def put_log(folder: Path, name: str, entries: list[tuple[int, int]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"path": f"file:///x/{file_name(file)}", "batchId": batch}) for batch, file in entries
    ]
    (folder / name).write_text("\n".join(["v1", *lines]))


def test_commits_and_files_are_read_as_they_appear_and_compaction_repeats_none(tmp_path: Path) -> None:
    watch = CommitWatch(tmp_path)
    assert watch.poll() == {} and watch.files() == {}
    put_log(tmp_path / "sources" / "0", "0", [(0, 0), (0, 1)])
    put_log(tmp_path / "commits", "0", [])
    (tmp_path / "commits" / ".1.crc").touch()
    first = watch.poll()
    assert list(first) == [0] and abs(first[0] - time.time()) < 5
    assert list(watch.files()) == [0]
    put_log(tmp_path / "sources" / "0", "1.compact", [(0, 0), (0, 1), (1, 2)])
    files = {batch: [file_number(path) for path in paths] for batch, paths in watch.files().items()}
    assert files == {0: [0, 1], 1: [2]}
    (tmp_path / "commits" / "0").unlink()
    assert watch.poll() == first, "what was seen stays known after Spark deletes it"


def test_a_row_is_charged_from_its_due_time_to_its_own_batchs_commit(
    tmp_path: Path, space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = OpenLoopFeed(space, SPEC, rate_per_s=1000, lump_s=0.1)
    monkeypatch.setattr(feed, "_start_s", time.time() - 10)
    checkpoint = space.checkpoint
    put_log(checkpoint / "sources" / "0", "0", [(0, 0)])
    put_log(checkpoint / "sources" / "0", "1", [(1, 1), (1, 2)])
    put_log(checkpoint / "commits", "0", [])
    put_log(checkpoint / "commits", "1", [])
    watch = CommitWatch(checkpoint)
    committed_s = watch.poll()
    waits = watch.waits_ms([1], feed)
    assert waits == [pytest.approx((committed_s[1] - feed.due_s(n)) * 1000) for n in (1, 2)]
    assert waits[0] == pytest.approx(9800, abs=300)


def test_stamped_rows_carry_the_moment_their_file_was_due(space: Workspace) -> None:
    feed = OpenLoopFeed(space, SPEC, 2000.0, lump_s=0.02, stamped=True)
    feed.start()
    time.sleep(0.15)
    feed.stop()
    for path in space.rows.iterdir():
        stamps = set(pq.read_table(path).column("stamp").to_pylist())
        assert stamps == {round(feed.due_s(file_number(path.name)) * 1e6)}
    assert len(list(space.rows.iterdir())) >= 2


def test_batches_of_several_sizes_are_read_one_size_after_the_other(space: Workspace) -> None:
    prepare_batches(space, SPEC, 100, 2)
    prepare_batches(space, SPEC, 1000, 2, first=2)
    rows = [pq.read_metadata(path).num_rows for path in in_reading_order(space)]
    assert rows == [50, 50, 50, 50, 500, 500, 500, 500]
