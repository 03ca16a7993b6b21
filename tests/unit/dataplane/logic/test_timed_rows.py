"""Row functions with timers: when they fire, in which order, and that state and replays agree."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.dataplane.compile import compile_program
from penstock.dataplane.keys.hashing import group_rows_by_shard, hash_keys, shards_of
from penstock.dataplane.logic.protocol import EpochInput, ShardClock, ShardedRows
from penstock.dataplane.records import END_US
from penstock.dataplane.state.protocol import EMPTY_DIGEST, digest_bytes
from penstock.errors import DeclarationError, OperatorError
from penstock.topology.schema import parse_schema

SHARDS = 2
SECOND = 1_000_000
INPUT = parse_schema("user string, at long")
OUTPUT = "user string, what string, at long"
ALL = np.arange(SHARDS, dtype=np.uint16)


def time(seconds: float) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)


def seconds(when: dt.datetime) -> int:
    return round((when - time(0)).total_seconds())


def remind(key: Any, rows: list[Any], state: Any) -> None:
    """Set a timer at the time of each row; a negative time takes one back, a large one goes by the epoch time."""
    for row in rows:
        if row.at < 0:
            state.delete_timer(time(-row.at))
        else:
            state.set_timer(time(row.at), processing=row.at >= 1000)


def tell(key: Any, when: dt.datetime, state: Any) -> Iterator[tuple[str, str, int]]:
    state.fired.update((state.fired.get() or 0) + 1)
    yield key.user, f"{state.fired.get()} of {state.fired.get() + len(state.timers())}", seconds(when)


class Bench:
    def __init__(
        self, path: Path, on_rows: Any = remind, on_timer: Any = tell, memory_bytes: int = 1 << 20
    ) -> None:
        source = penstock.from_rows([], schema=INPUT)
        node = (
            source.groupBy("user")
            .apply_rows(
                on_rows,
                schema=OUTPUT,
                state={"fired": penstock.ValueState("long")},
                on_timer=on_timer,
                shards=SHARDS,
            )
            .node
        )
        self.stage = compile_program(node, tasks=1, memory_bytes=memory_bytes).stages[node.name]
        assert self.stage.clocked
        self.path, self.memory_bytes = path, memory_bytes
        self.digests = dict.fromkeys(range(SHARDS), EMPTY_DIGEST)
        self.versions = dict.fromkeys(range(SHARDS), 0)
        self.epoch = 0
        self.logic = self.fresh({})

    def fresh(self, snapshots: dict[int, Any]) -> Any:
        assert self.stage.logic is not None
        logic: Any = self.stage.logic.build("timed", self.stage.keys, INPUT, SHARDS, self.memory_bytes)
        for shard in range(SHARDS):
            logic.state.open(shard, str(self.path / f"{self.epoch}-{shard}"), None)
            if shard in snapshots:
                batch = snapshots[shard]
                logic.state.apply(shard, self.versions[shard], batch.column(1), batch.column(2))
            assert logic.state.seal(shard, self.versions[shard], self.digests[shard])
        return logic

    def run(
        self, rows: list[tuple[str, int]], watermark: float | None, now: float = 0
    ) -> list[tuple[Any, ...]]:
        self.epoch += 1
        table = pa.Table.from_pylist([{"user": user, "at": at} for user, at in rows], schema=INPUT)
        place = shards_of(hash_keys([table.column("user")], ["user"], ""), SHARDS)
        order, counts = group_rows_by_shard(place, SHARDS)
        used = np.flatnonzero(counts).astype(np.uint16)
        offsets = np.concatenate(([0], np.cumsum(counts[used]))).astype(np.int64)
        given = ShardedRows(used, offsets, table if order is None else table.take(pa.array(order)))
        micros = None if watermark is None else min(int(watermark * SECOND), END_US)
        made = self.logic.run(EpochInput(self.epoch, int(now * SECOND), [given], [ShardClock(ALL, micros)]))
        delta = self.logic.state.stage(self.epoch)
        for shard, digest in zip(delta.shards.tolist(), delta.digests, strict=True):
            self.digests[shard], self.versions[shard] = digest_bytes(digest), self.epoch
        self.logic.state.commit()
        return [tuple(row.values()) for row in made.to_pylist()]

    def move(self) -> None:
        snapshots = {shard: self.logic.state.snapshot(shard) for shard in range(SHARDS)}
        self.logic.state.close()
        self.logic = self.fresh(snapshots)


def test_a_timer_fires_once_when_the_watermark_has_reached_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.run([("a", 10), ("b", 20)], None) == []
    assert bench.run([], 9.999999) == []
    assert bench.run([], 10) == [("a", "1 of 1", 10)]
    assert bench.run([], 19) == []
    assert bench.run([("c", 5)], 30) in (
        [("b", "1 of 1", 20), ("c", "1 of 1", 5)],
        [("c", "1 of 1", 5), ("b", "1 of 1", 20)],
    )
    assert bench.run([], 40) == []


@pytest.mark.parametrize("memory_bytes", [1, 1 << 20])
def test_timers_of_a_key_fire_in_order_of_time_whatever_moved_or_was_evicted(
    tmp_path: Path, memory_bytes: int
) -> None:
    bench = Bench(tmp_path, memory_bytes=memory_bytes)
    bench.run([("a", 30), ("a", 10)], None)
    bench.move()
    bench.run([("a", 20), ("a", 10)], None)
    bench.move()
    assert bench.run([("a", 25)], 30) == [("a", f"{n} of 4", at) for n, at in enumerate((10, 20, 25, 30), 1)]


def test_a_timer_that_was_taken_back_does_not_fire(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run([("a", 10), ("a", 11), ("a", 12)], None)
    assert bench.run([("a", -11)], 20) == [("a", "1 of 2", 10), ("a", "2 of 2", 12)]


def test_epoch_timers_go_by_the_epoch_time_and_the_worker_knows_the_next(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run([("a", 2000), ("b", 1500)], None, now=1000)
    assert bench.logic.state.next_timer_us() == 1500 * SECOND
    assert bench.run([], 99999, now=1499) == []
    assert [row[0] for row in bench.run([], None, now=1500)] == ["b"]
    assert bench.logic.state.next_timer_us() == 2000 * SECOND
    assert [row[0] for row in bench.run([], None, now=2500)] == ["a"]
    assert bench.logic.state.next_timer_us() is None


def test_a_timer_can_set_later_ones_and_they_fire_however_far_the_watermark_jumps(tmp_path: Path) -> None:
    def tick(key: Any, when: dt.datetime, state: Any) -> Iterator[tuple[str, str, int]]:
        state.set_timer(when + dt.timedelta(seconds=10))
        yield key.user, "tick", seconds(when)

    def ats(bench: Bench, *marks: float) -> list[int]:
        bench.run([("a", 10)], None)
        return [row[2] for mark in marks for row in bench.run([], mark)]

    assert ats(Bench(tmp_path / "jump", on_timer=tick), 45) == [10, 20, 30, 40]
    assert ats(Bench(tmp_path / "steps", on_timer=tick), 12, 30, 31, 45) == [10, 20, 30, 40]
    # At the end of the input what is set fires, and sets nothing off.
    assert ats(Bench(tmp_path / "end", on_timer=tick), 12, END_US) == [10, 20]


def test_a_timer_that_sets_one_that_is_not_later_is_refused(tmp_path: Path) -> None:
    def again(key: Any, when: dt.datetime, state: Any) -> None:
        state.set_timer(when)

    bench = Bench(tmp_path, on_timer=again)
    with pytest.raises(
        OperatorError, match=r"operator 'timed' failed for key \('a',\): ValueError: a timer at .* later"
    ):
        bench.run([("a", 10)], 20)


def test_functions_see_the_watermark_and_the_epoch_time(tmp_path: Path) -> None:
    seen = []

    def note(key: Any, rows: list[Any], state: Any) -> None:
        seen.append((state.watermark, state.now))
        state.set_timer(dt.datetime(1970, 1, 1, 0, 0, 50))  # without a zone: UTC
        assert state.timers() == [time(50)] and state.timers(processing=True) == []

    bench = Bench(tmp_path, on_rows=note)
    bench.run([("a", 1)], None, now=3)
    bench.run([("a", 1)], 40, now=4)
    bench.run([("a", 1)], END_US, now=5)
    assert seen == [(None, time(3)), (time(40), time(4)), (dt.datetime.max.replace(tzinfo=dt.UTC), time(5))]


def test_the_same_input_gives_the_same_bytes_and_digests(tmp_path: Path) -> None:
    one, other = Bench(tmp_path / "one", memory_bytes=1), Bench(tmp_path / "other")
    for rows, mark in (([("a", 5), ("b", 9)], 1), ([("c", 2), ("a", 7)], 6), ([], 8), ([("b", -9)], 20)):
        assert one.run(rows, mark) == other.run(rows, mark)
        assert one.digests == other.digests
        one.move()


def test_bad_timer_declarations_are_refused() -> None:
    grouped = penstock.from_rows([], schema=INPUT).groupBy("user")
    with pytest.raises(DeclarationError, match="on_timer takes a function"):
        grouped.apply_rows(remind, schema=OUTPUT, on_timer="tell")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="a state cannot be named 'now'"):
        grouped.apply_rows(remind, schema=OUTPUT, on_timer=tell, state={"now": penstock.ValueState("long")})
