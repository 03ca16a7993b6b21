"""Windows against a plain Python model, over any rows, epochs and watermarks, through every turn in the life of a
shard."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import penstock
from penstock.dataplane.compile import compile_program
from penstock.dataplane.keys.hashing import group_rows_by_shard, hash_keys, shards_of
from penstock.dataplane.logic.keyed_windows import AggregateWindows, FunctionWindows
from penstock.dataplane.logic.protocol import LATE, EpochInput, ShardClock, ShardedRows
from penstock.dataplane.logic.window_rows import START, assign_windows
from penstock.dataplane.logic.windows import ColumnWindowLogic
from penstock.dataplane.records import END_US
from penstock.dataplane.state.expiring_columns import LEAST
from penstock.dataplane.state.protocol import EMPTY_DIGEST, digest_bytes
from penstock.topology.schema import parse_schema
from penstock.topology.windows import Window

SECOND = 1_000_000
SHARDS = 3
INPUT = parse_schema("ts timestamp, user string, v long, at long")
ZERO = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
ALL = np.arange(SHARDS, dtype=np.uint16)

WINDOWS = {
    "tumbling": penstock.window("ts", "10 seconds"),
    "shifted": penstock.window("ts", "10 seconds", startTime="-3 seconds"),
    "sliding": penstock.window("ts", "10 seconds", "4 seconds"),
    "dense": penstock.window("ts", "9 seconds", "3 seconds", "1 second"),
    "session": penstock.session_window("ts", "5 seconds"),
}
WORDS = [
    penstock.count(),
    penstock.sum("v").alias("sum"),
    penstock.max("at").alias("most"),
    penstock.last("v"),
]
WIDE = [*WORDS, penstock.top_n("at", 2), penstock.max("user").alias("who")]

Row = tuple[int | None, str, int | None, int]


def rows_in(key: Any, rows: list[Any], state: Any) -> Iterator[tuple[Any, ...]]:
    assert all(row.ts >= key[key._fields.index("w")].start for row in rows)
    window = key.w
    user = key.user if "user" in key._fields else "all"
    yield window.start, window.end, user, [row.at for row in rows]


def stream_of(window: Window, kind: str, keyed: bool) -> penstock.Stream:
    source = penstock.from_rows([], schema=INPUT)
    grouped = source.groupBy(window.alias("w"), "user") if keyed else source.groupBy(window.alias("w"))
    if kind == "function":
        schema = "start timestamp, end timestamp, user string, ats array<long>"
        return grouped.apply_rows(rows_in, schema=schema, shards=SHARDS)
    return grouped.agg(*(WORDS if kind == "words" else WIDE), shards=SHARDS)


def spec_of(window: Window, kind: str, keyed: bool, mode: str) -> Any:
    node = stream_of(window, kind, keyed).node
    stage = compile_program(node, tasks=1, memory_bytes=1 << 20).stages[node.name]
    assert stage.logic is not None
    stage.logic.mode = mode  # type: ignore[attr-defined]
    return stage


class Bench:
    """One task over all shards of a windowed operator; keeps every delta, as a checkpoint does."""

    def __init__(self, stage: Any, path: Path, memory_bytes: int = 1 << 22) -> None:
        self.stage, self.path, self.memory_bytes = stage, path, memory_bytes
        self.shards = stage.shards
        self.ids = np.arange(self.shards, dtype=np.uint16)
        self.digests = dict.fromkeys(range(self.shards), EMPTY_DIGEST)
        self.versions = dict.fromkeys(range(self.shards), 0)
        self.history: dict[int, list[tuple[int, Any, Any]]] = defaultdict(list)
        self.number = 0
        self.late_rows = self.untimed_rows = 0
        self.late: list[dict[str, Any]] = []
        self.logic = self.fresh()
        for shard in range(self.shards):
            self.logic.state.open(shard, self.place(shard), None)
            assert self.logic.state.seal(shard, 0, EMPTY_DIGEST)

    def fresh(self) -> Any:
        stage = self.stage
        return stage.logic.build(stage.name, stage.keys, INPUT, self.shards, self.memory_bytes)

    def place(self, shard: int) -> str:
        self.number += 1
        return str(self.path / f"{self.number}-{shard}")

    def run(
        self, epoch: int, rows: list[Row], late_us: int | list[int] | None, watermark_us: int | None
    ) -> pa.Table:
        clocks = [ShardClock(self.ids[::2], watermark_us), ShardClock(self.ids[1::2], watermark_us)]
        made = self.logic.run(EpochInput(epoch, 0, [self.sharded(rows, late_us)], clocks))
        self.late_rows += self.logic.late_rows
        self.untimed_rows += self.logic.untimed_rows
        if LATE in self.logic.sides:
            self.late += self.logic.sides[LATE].to_pylist()
        delta = self.logic.state.stage(epoch)
        for shard, digest in zip(delta.shards.tolist(), delta.digests, strict=True):
            mine = delta.entries.filter(pa.array(delta.entries.column(0).to_numpy() == shard))
            self.history[shard].append((epoch, mine.column(1), mine.column(2)))
            self.digests[shard], self.versions[shard] = digest_bytes(digest), epoch
        self.logic.state.commit()
        if self.memory_bytes == 1:
            self.logic.state.flush(1.0)  # evicts all
        return made

    def sharded(self, rows: list[Row], late_us: int | list[int] | None) -> ShardedRows:
        ts = pa.array([None if row[0] is None else row[0] * SECOND for row in rows], pa.int64())
        table = pa.Table.from_arrays(
            [
                ts.cast(pa.timestamp("us", "UTC")),
                *(pa.array([row[at] for row in rows], INPUT.field(at).type) for at in (1, 2, 3)),
            ],
            schema=INPUT,
        )
        late = None if late_us is None else np.full(len(rows), late_us, np.int64)
        if not self.stage.keys:
            used = np.zeros(min(1, len(rows)), np.uint16)
            return ShardedRows(used, np.array([0, len(rows)][: len(used) + 1]), table, late)
        place = shards_of(hash_keys([table.column("user")], ["user"], "test"), self.shards)
        order, counts = group_rows_by_shard(place, self.shards)
        used = np.flatnonzero(counts).astype(np.uint16)
        offsets = np.concatenate(([0], np.cumsum(counts[used]))).astype(np.int64)
        if order is None:
            return ShardedRows(used, offsets, table, late)
        return ShardedRows(used, offsets, table.take(pa.array(order)), None if late is None else late[order])

    def replay(self) -> None:
        """Bring all shards from their deltas into another task."""
        self.logic.state.close()
        self.logic = self.fresh()
        for shard in range(self.shards):
            self.logic.state.open(shard, self.place(shard), None)
            for version, keys, values in self.history[shard]:
                self.logic.state.apply(shard, version, keys, values)
            assert self.logic.state.seal(shard, self.versions[shard], self.digests[shard])

    def move(self) -> None:
        """Bring all shards from a snapshot into another task."""
        snapshots = {shard: self.logic.state.snapshot(shard) for shard in range(self.shards)}
        self.logic.state.close()
        self.logic = self.fresh()
        for shard, batch in snapshots.items():
            self.logic.state.open(shard, self.place(shard), None)
            self.logic.state.apply(shard, self.versions[shard], batch.column(1), batch.column(2))
            assert self.logic.state.seal(shard, self.versions[shard], self.digests[shard])

    def hand_over(self) -> None:
        """Let another task of the node take the environments over."""
        places = [self.place(shard) for shard in range(self.shards)]
        self.move_to(places)
        for shard in range(self.shards):
            self.logic.state.release(shard)
        self.logic.state.close()
        self.logic = self.fresh()
        for shard, path in enumerate(places):
            assert self.logic.state.open(shard, path, self.versions[shard])
            assert self.logic.state.seal(shard, self.versions[shard], self.digests[shard])

    def move_to(self, places: list[str]) -> None:
        snapshots = {shard: self.logic.state.snapshot(shard) for shard in range(self.shards)}
        self.logic.state.close()
        self.logic = self.fresh()
        for shard, batch in snapshots.items():
            self.logic.state.open(shard, places[shard], None)
            self.logic.state.apply(shard, self.versions[shard], batch.column(1), batch.column(2))
            assert self.logic.state.seal(shard, self.versions[shard], self.digests[shard])

    def is_empty(self) -> bool:
        self.logic.state.flush(1.0)
        whole = all(self.logic.state.snapshot(shard).num_rows == 0 for shard in range(self.shards))
        return whole and set(self.digests.values()) == {EMPTY_DIGEST}


class Model:
    """What windows are, row by row."""

    def __init__(self, window: Window, keyed: bool) -> None:
        self.window, self.keyed = window, keyed
        self.open: dict[tuple[int, int, str], list[Row]] = {}
        self.late_rows = self.untimed_rows = 0

    def run(self, rows: list[Row], late_us: int | None, watermark_us: int | None) -> tuple[Any, Any]:
        changed = set()
        for row in rows:
            if row[0] is None:
                self.untimed_rows += 1
                continue
            spans = list(self.spans(row[0] * SECOND))
            there = [span for span in spans if late_us is None or span[1] > late_us]
            self.late_rows += len(there) < len(spans)
            for span in there:
                changed.add(self.add(*span, row[1] if self.keyed else "all", row, late_us))
        ended = [one for one in self.open if watermark_us is not None and one[1] <= watermark_us]
        updated = {one: list(self.open[one]) for one in changed if one in self.open}
        return updated, {one: self.open.pop(one) for one in ended}

    def spans(self, time: int) -> Iterator[tuple[int, int]]:
        window = self.window
        if window.session:
            yield time, time + window.size_us
            return
        start = (time - window.offset_us) // window.slide_us * window.slide_us + window.offset_us
        while start + window.size_us > time:
            yield start, start + window.size_us
            start -= window.slide_us

    def add(self, start: int, end: int, key: str, row: Row, late_us: int | None) -> tuple[int, int, str]:
        rows: list[Row] = []
        if self.window.session:
            touching = [one for one in self.open if one[2] == key and one[0] <= end and start <= one[1]]
            for one in [one for one in touching if late_us is None or one[1] > late_us]:
                rows += self.open.pop(one)
                start, end = min(start, one[0]), max(end, one[1])
            rows.sort(key=lambda each: each[3])
        held = self.open.setdefault((start, end, key), rows)
        held.append(row)
        return start, end, key


def expected(kind: str, spans: dict[tuple[int, int, str], list[Row]], keyed: bool) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for (start, end, key), rows in spans.items():
        edges = (ZERO + dt.timedelta(microseconds=start), ZERO + dt.timedelta(microseconds=end))
        if kind == "function":
            found.append((*edges, key, tuple(row[3] for row in rows)))
            continue
        values = [row[2] for row in rows]
        there = [value for value in values if value is not None]
        made: list[Any] = [len(rows), sum(there) if there else None, max(row[3] for row in rows), values[-1]]
        if kind == "wide":
            made += [tuple(sorted((row[3] for row in rows), reverse=True)[:2]), max(row[1] for row in rows)]
        found.append((*edges, *([key] if keyed else []), *made))
    return sorted(found, key=str)


def shown(table: pa.Table) -> list[tuple[Any, ...]]:
    found = []
    for row in table.to_pylist():
        edges = tuple(row.pop("w").values()) if "w" in row else ()
        found.append(
            (*edges, *(tuple(value) if isinstance(value, list) else value for value in row.values()))
        )
    return sorted(found, key=str)


TIMES = st.none() | st.integers(-30, 60)
EPOCHS = st.lists(
    st.tuples(
        st.lists(st.tuples(TIMES, st.sampled_from("abc"), st.none() | st.integers(-5, 5)), max_size=8),
        st.none() | st.integers(-20, 60),
        st.sampled_from(["", "", "replay", "move", "hand_over", "flush"]),
    ),
    min_size=1,
    max_size=6,
)


def schedule(drawn: Any) -> list[tuple[list[Row], int | None, int | None, str]]:
    """Epochs with rows, what was late before them, the watermark after them, and what happens then."""
    at, mark, found = 0, None, []
    for rows, watermark, turn in [*drawn, ([], None, "")]:
        before = mark
        if watermark is not None:
            mark = watermark * SECOND if mark is None else max(mark, watermark * SECOND)
        numbered = [(*row, at + number) for number, row in enumerate(rows)]
        at += len(rows)
        found.append((numbered, before, mark, turn))
    rows, before, _, turn = found[-1]
    found[-1] = (rows, before, END_US, turn)
    return found


@pytest.mark.parametrize("kind", ["words", "wide", "function"])
@pytest.mark.parametrize("name", list(WINDOWS))
@settings(max_examples=14, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=EPOCHS, keyed=st.booleans(), memory_bytes=st.sampled_from([1, 1 << 22]))
@example(
    drawn=[([(0, "a", 1), (5, "a", 2), (11, "a", 3)], 10, "replay"), ([(4, "a", 4)], 15, "move")],
    keyed=True,
    memory_bytes=1,
)
def test_closed_windows_equal_a_naive_model(
    name: str, kind: str, keyed: bool, memory_bytes: int, drawn: Any
) -> None:
    window = WINDOWS[name]
    with tempfile.TemporaryDirectory() as path:
        stage = spec_of(window, kind, keyed, "append")
        bench = Bench(stage, Path(path) / "disturbed", memory_bytes)
        calm = Bench(stage, Path(path) / "calm")
        model = Model(window, keyed)
        for epoch, (rows, late_us, watermark_us, turn) in enumerate(schedule(drawn), start=1):
            made, same = (one.run(epoch, rows, late_us, watermark_us) for one in (bench, calm))
            _, closed = model.run(rows, late_us, watermark_us)
            assert shown(made) == expected(kind, closed, keyed)
            assert made.equals(same), "what moved or was evicted shows in the output"
            assert bench.digests == calm.digests
            if turn == "flush":
                bench.logic.state.flush(1.0)
            elif turn:
                getattr(bench, turn)()
        assert (bench.late_rows, bench.untimed_rows) == (model.late_rows, model.untimed_rows)
        assert len(bench.late) == bench.late_rows
        assert bench.is_empty() and calm.is_empty()
        bench.logic.state.close()
        calm.logic.state.close()


@pytest.mark.parametrize("kind", ["words", "wide"])
@pytest.mark.parametrize("name", ["tumbling", "sliding"])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=EPOCHS)
def test_update_mode_puts_out_the_windows_that_changed(name: str, kind: str, drawn: Any) -> None:
    window = WINDOWS[name]
    with tempfile.TemporaryDirectory() as path:
        bench = Bench(spec_of(window, kind, True, "update"), Path(path))
        model = Model(window, True)
        for epoch, (rows, late_us, watermark_us, _) in enumerate(schedule(drawn), start=1):
            made = bench.run(epoch, rows, late_us, watermark_us)
            changed, _ = model.run(rows, late_us, watermark_us)
            assert shown(made) == expected(kind, changed, True)
        assert bench.is_empty()
        bench.logic.state.close()


@pytest.mark.parametrize("kind", ["words", "function"])
@pytest.mark.parametrize("name", ["sliding", "session"])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=EPOCHS, cuts=st.sets(st.integers(0, 6)))
@example(drawn=[([(58, "a", 1)], 63, ""), ([(62, "a", 2)], 63, "")], cuts={2})
def test_closed_windows_do_not_depend_on_how_epochs_are_cut(
    name: str, kind: str, drawn: Any, cuts: set[int]
) -> None:
    """Several epochs of the producer taken as one give the same windows: a row brings along what was late before it."""
    with tempfile.TemporaryDirectory() as path:
        bench, model = (
            Bench(spec_of(WINDOWS[name], kind, True, "append"), Path(path)),
            Model(WINDOWS[name], True),
        )
        made: list[Any] = []
        closed: list[Any] = []
        waiting: list[tuple[Row, int]] = []
        planned = schedule(drawn)
        for epoch, (rows, late_us, watermark_us, _) in enumerate(planned, start=1):
            closed += expected(kind, model.run(rows, late_us, watermark_us)[1], True)
            waiting += [(row, LEAST if late_us is None else late_us) for row in rows]
            if epoch in cuts or epoch == len(planned):
                made += shown(
                    bench.run(epoch, [row for row, _ in waiting], [late for _, late in waiting], watermark_us)
                )
                waiting = []
        assert sorted(made, key=str) == sorted(closed, key=str)
        assert bench.late_rows == model.late_rows
        assert bench.is_empty()
        bench.logic.state.close()


def test_each_kind_of_window_has_the_logic_made_for_it(tmp_path: Path) -> None:
    found = {
        (name, kind): type(Bench(spec_of(WINDOWS[name], kind, True, "append"), tmp_path / name / kind).logic)
        for name in ("sliding", "session")
        for kind in ("words", "wide", "function")
    }
    assert found["sliding", "words"] is ColumnWindowLogic
    assert {found["session", "words"], found["sliding", "wide"]} == {AggregateWindows}
    assert {found["session", "function"], found["sliding", "function"]} == {FunctionWindows}


def test_without_a_watermark_windows_stay_open_and_update_mode_works(tmp_path: Path) -> None:
    bench = Bench(spec_of(WINDOWS["tumbling"], "words", True, "update"), tmp_path)
    bench.run(1, [(1, "a", 1, 0)], None, None)
    made = bench.run(2, [(2, "a", 1, 1), (-1000, "a", 1, 2)], None, None)
    assert sorted(row["count"] for row in made.to_pylist()) == [1, 2]
    assert not bench.is_empty()


def test_late_rows_are_kept_as_they_came(tmp_path: Path) -> None:
    bench = Bench(spec_of(WINDOWS["sliding"], "words", True, "append"), tmp_path)
    bench.run(1, [(20, "a", 1, 0)], None, 17 * SECOND)
    bench.run(2, [(9, "a", 7, 1), (12, "b", 8, 2), (30, "b", 9, 3)], 17 * SECOND, 17 * SECOND)
    assert sorted(row["at"] for row in bench.late) == [1, 2]  # 12 is late for [4, 14) alone
    made = bench.run(3, [], 17 * SECOND, END_US)
    assert [
        row["count"]
        for row in made.to_pylist()
        if row["user"] == "b" and row["w"]["start"] < ZERO + dt.timedelta(seconds=16)
    ] == [1, 1]


def test_functions_over_windows_have_state_of_the_key_across_windows(tmp_path: Path) -> None:
    def number(key: Any, rows: list[Any], state: Any) -> Iterator[tuple[str, int, int]]:
        state.seen.update((state.seen.get() or 0) + 1)
        yield key.user, state.seen.get(), len(rows)

    stream = penstock.from_rows([], schema=INPUT).groupBy("user", penstock.window("ts", "10 seconds"))
    node = stream.apply_rows(
        number,
        schema="user string, number long, rows long",
        state={"seen": penstock.ValueState("long")},
        shards=SHARDS,
    ).node
    bench = Bench(compile_program(node, tasks=1, memory_bytes=1 << 20).stages[node.name], tmp_path)
    made = bench.run(1, [(1, "a", 1, 0), (11, "a", 1, 1), (12, "a", 1, 2), (1, "b", 1, 3)], None, 10 * SECOND)
    assert sorted(map(tuple, (row.values() for row in made.to_pylist()))) == [("a", 1, 1), ("b", 1, 1)]
    made = bench.run(2, [], None, END_US)
    assert [tuple(row.values()) for row in made.to_pylist()] == [("a", 2, 2)]


@pytest.mark.parametrize(("window", "starts"), [("tumbling", [20, 30]), ("sliding", [16, 20, 24, 28, 32])])
def test_rows_of_windows_that_need_no_column_are_all_there_when_one_is_late(
    window: str, starts: list[int]
) -> None:
    times = pa.array([second * SECOND for second in (1, 25, 33)], pa.timestamp("us", tz="UTC"))
    late = np.full(3, 12 * SECOND, np.int64)
    taken = ShardedRows(np.zeros(1, np.uint16), np.array([0, 3]), pa.table({"ts": times}), late)
    found = assign_windows(WINDOWS[window], taken, [])
    assert found.late_rows == 1
    assert sorted({start // SECOND for start in found.rows.rows[START].to_pylist()}) == starts
