"""The built-in aggregates against a plain Python model, through every turn in the life of a shard."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock.topology.aggregates as agg
from penstock.dataplane.keys import hashing
from penstock.dataplane.keys.encoding import decode_keys
from penstock.dataplane.logic.aggregates import AggregateLogic, AggregateSpec
from penstock.dataplane.logic.protocol import EpochInput, ShardedRows
from penstock.dataplane.logic.wide_aggregates import WideAggregateLogic
from penstock.dataplane.state.column_entries import entry_hash
from penstock.dataplane.state.protocol import EMPTY_DIGEST, Delta, digest_bytes
from penstock.errors import DeclarationError, OperatorError

SHARDS = 4
VALUES = pa.schema(
    [
        ("v", pa.int64()),
        ("i", pa.int32()),
        ("f", pa.float64()),
        ("b", pa.bool_()),
        ("t", pa.timestamp("us", "UTC")),
        ("s", pa.string()),
        ("d", pa.decimal128(10, 2)),
    ]
)
UTC = dt.UTC
STAMPS = st.integers(-(10**6), 10**6).map(
    lambda s: dt.datetime(1970, 1, 1, tzinfo=UTC) + dt.timedelta(seconds=s)
)
FLOATS = st.sampled_from([math.nan, -0.0, 0.0, 1.0, -2.0, 3.0, math.inf, -math.inf])
KEYS: dict[str, tuple[pa.Schema, st.SearchStrategy[tuple[Any, ...]]]] = {
    "int": (pa.schema([("k", pa.int64())]), st.tuples(st.integers(-9, 9) | st.just(-(2**63)))),
    "string": (pa.schema([("k", pa.string())]), st.tuples(st.text("abé", max_size=3))),
    "two": (
        pa.schema([("k", pa.int32()), ("l", pa.string())]),
        st.tuples(st.integers(0, 3), st.text("ab", max_size=2)),
    ),
    "float": (pa.schema([("k", pa.float64())]), st.tuples(FLOATS)),
    "timestamp": (pa.schema([("k", pa.timestamp("us", "UTC"))]), st.tuples(STAMPS)),
    "pair": (pa.schema([("k", pa.float32()), ("l", pa.bool_())]), st.tuples(FLOATS, st.booleans())),
}
ROW = st.tuples(
    st.none() | st.integers(-5, 5) | st.just(2**63 - 1),
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.none() | FLOATS,
    st.none() | st.booleans(),
    st.none() | STAMPS,
    st.none() | st.text("xyé", max_size=2),
    st.none() | st.integers(-(10**9), 10**9).map(lambda cents: decimal.Decimal(cents).scaleb(-2)),
)
FIXED = [
    agg.count(),
    agg.count("v"),
    agg.sum("v"),
    agg.sum("i").alias("isum"),
    agg.sum("f"),
    agg.mean("i"),
    agg.mean("f"),
    agg.min("f"),
    agg.max("f"),
    agg.last("f"),
    agg.min("b"),
    agg.max("t"),
    agg.last("i"),
    agg.min("v"),
    agg.max("v"),
]
WIDE = [
    *FIXED,
    agg.min("s"),
    agg.max("s"),
    agg.last("s"),
    agg.top_n("f", 2),
    agg.top_n("s", 2),
    agg.top_n("d", 3),
    agg.sum("d"),
    agg.min("d"),
    agg.last("d"),
]


def canonical(value: Any) -> Any:
    """NaN equals NaN, 0.0 equals -0.0; used for keys and results alike."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, (list, tuple)):
        return tuple(map(canonical, value))
    return value


def spark_order(value: Any) -> Any:
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


def expected(one: agg.Aggregate, rows: list[dict[str, Any]]) -> Any:
    values = [row[one.column] for row in rows] if one.column else []
    there = [value for value in values if value is not None]
    kind = agg.AggregateKind
    if one.kind is kind.COUNT_ROWS:
        return len(rows)
    if one.kind is kind.COUNT:
        return len(there)
    if one.kind is kind.TOP_N:
        return sorted(there, key=spark_order, reverse=True)[: one.n]
    if one.kind is kind.LAST:
        return values[-1]
    if not there:
        return None
    if one.kind is kind.SUM:
        total = sum(there)
        return (total + 2**63) % 2**64 - 2**63 if isinstance(total, int) else total
    if one.kind is kind.MEAN:
        return math.fsum(there) / len(there) if all(map(math.isfinite, there)) else sum(there) / len(there)
    return (min if one.kind is kind.MIN else max)(there, key=spark_order)


def sharded(table: pa.Table, keys: Sequence[str]) -> ShardedRows:
    hashes = hashing.hash_keys([table.column(key) for key in keys], keys, "op")
    shards = hashing.shards_of(hashes, SHARDS)
    order = np.argsort(shards, kind="stable")
    ids, counts = np.unique(shards, return_counts=True)
    return ShardedRows(
        ids, np.concatenate(([0], np.cumsum(counts))).astype(np.int64), table.take(pa.array(order))
    )


class Story:
    """One operator's life: its logic, what was put into it, and what it logged."""

    def __init__(self, kind: str, aggregates: list[agg.Aggregate], memory_bytes: int) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="aggregates", ignore_cleanup_errors=True)
        self.key_schema = KEYS[kind][0]
        self.keys = self.key_schema.names
        self.schema = pa.schema([*self.key_schema, *VALUES])
        self.aggregates, self.memory_bytes = aggregates, memory_bytes
        self.spec = AggregateSpec.declare(aggregates, self.keys, self.schema, "op")
        self.logic: Any = self.spec.build("op", self.keys, self.schema, SHARDS, memory_bytes)
        self.epoch = 0
        self.paths = 0
        self.seen: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        self.deltas: list[tuple[int, Delta]] = []
        self.versions = [0] * SHARDS
        self.digests = [EMPTY_DIGEST] * SHARDS
        self.snapshots: dict[int, tuple[int, pa.RecordBatch]] = {}
        self.where = [self.new_path() for _ in range(SHARDS)]
        for shard in range(SHARDS):
            assert self.state.open(shard, self.where[shard], None)
            assert self.state.seal(shard, 0, EMPTY_DIGEST)

    @property
    def state(self) -> Any:
        return self.logic.state

    def new_path(self) -> str:
        self.paths += 1
        return f"{self.folder.name}/{self.paths}"

    def run(self, rows: list[tuple[tuple[Any, ...], tuple[Any, ...]]]) -> None:
        self.epoch += 1
        dicts = [dict(zip(self.schema.names, (*key, *values), strict=True)) for key, values in rows]
        table = pa.Table.from_pylist(dicts, schema=self.schema)
        taken = sharded(table, self.keys)
        for row in taken.rows.to_pylist():
            self.seen[canonical(tuple(row[key] for key in self.keys))].append(row)
        output = self.logic.run(EpochInput(self.epoch, 0, [taken]))
        self.check_output(output, {canonical(key) for key, _ in rows})
        delta = self.state.stage(self.epoch)
        self.check_delta(delta)
        self.state.commit()

    def check_output(self, output: pa.Table, touched: set[Any]) -> None:
        assert output.schema == self.spec.schema
        found = {}
        for row in output.to_pylist():
            key = canonical(tuple(row.pop(key) for key in self.keys))
            assert key not in found
            found[key] = row
        assert found.keys() == touched
        for key, row in found.items():
            for one in self.aggregates:
                want, got = canonical(expected(one, self.seen[key])), canonical(row[one.name])
                near = isinstance(want, float) and got == pytest.approx(want, rel=1e-12)
                assert near or got == want, (key, one.name, got, want)

    def check_delta(self, delta: Delta) -> None:
        shards = delta.entries.column("shard").to_pylist()
        assert shards == sorted(shards)
        assert sorted(set(shards)) == delta.shards.tolist()
        self.deltas.append((self.epoch, delta))
        for at, shard in enumerate(delta.shards.tolist()):
            self.versions[shard] = self.epoch
            self.digests[shard] = digest_bytes(delta.digests[at])
            entries = [row for row in delta.entries.to_pylist() if row["shard"] == shard]
            assert int(delta.shard_bytes[at]) == sum(len(row["key"]) + len(row["value"]) for row in entries)
            if isinstance(self.logic, AggregateLogic):
                assert digest_bytes(self.recomputed(shard)) == self.digests[shard]

    def content(self, shard: int) -> dict[bytes, bytes]:
        """What all deltas together hold."""
        content = {}
        for _, delta in self.deltas:
            content.update({r["key"]: r["value"] for r in delta.entries.to_pylist() if r["shard"] == shard})
        return content

    def recomputed(self, shard: int) -> list[int]:
        """Sum the entry hashes of everything logged, one entry at a time by the scalar references."""
        lanes = [0, 0]
        types = [field.type for field in self.key_schema]
        for key, value in self.content(shard).items():
            assert key[:1] == b"\x01" and int.from_bytes(key[1:3], "big") == len(key) - 3
            columns = decode_keys(pa.array([key[3:]], pa.binary()), types)
            words = len(value) // 8
            row = [
                int(hashing.hash_keys(columns, self.keys, "op")[0]),
                int.from_bytes(value[8 * words :], "little"),
            ]
            row += [int.from_bytes(value[8 * at : 8 * at + 8], "little") for at in range(words)]
            lanes = [(lane + own) % 2**64 for lane, own in zip(lanes, entry_hash(row), strict=True)]
        return lanes

    def local_version(self, shard: int) -> int:
        state = self.state
        local = state._locals[shard] if hasattr(state, "_locals") else state._shards[shard].local
        return int(local.version)

    def bring_later_deltas(self, shard: int, after: int) -> None:
        for epoch, delta in self.deltas:
            mine = delta.entries.filter(pa.array(delta.entries.column("shard").to_numpy() == shard))
            if epoch > after and len(mine):
                self.state.apply(shard, epoch, mine.column("key"), mine.column("value"))
        assert self.state.seal(shard, self.versions[shard], self.digests[shard])

    def snapshot(self, shard: int) -> None:
        batch = self.state.snapshot(shard)
        assert {row["key"]: row["value"] for row in batch.to_pylist()} == self.content(shard)
        self.snapshots[shard] = (self.versions[shard], batch)

    def hand_over(self, shard: int) -> None:
        """Release the shard, and take the environment over with a state that knows nothing of it."""
        self.state.release(shard)
        assert shard not in self.state.owned()
        assert not self.state.open(shard, self.where[shard], self.versions[shard] + 1)
        assert self.state.open(shard, self.where[shard], self.versions[shard])
        assert self.state.seal(shard, self.versions[shard], self.digests[shard])

    def rebuild(self, shard: int) -> None:
        """Lose the shard and bring it from the last snapshot and the deltas after it."""
        self.state.drop(shard)
        self.where[shard] = self.new_path()
        assert self.state.open(shard, self.where[shard], None)
        version, batch = self.snapshots.get(shard, (0, None))
        if batch is not None and version:
            self.state.apply(shard, version, batch.column("key"), batch.column("value"))
        self.bring_later_deltas(shard, version)

    def catch_up(self, shard: int) -> None:
        """Lose what is in memory, and bring the environment, which is behind, up with deltas."""
        behind = self.local_version(shard)
        self.state.drop(shard)
        assert self.state.open(shard, self.where[shard], behind)
        self.bring_later_deltas(shard, behind)

    def restart(self) -> None:
        """Go on with a new task that takes every environment over."""
        for shard in range(SHARDS):
            self.state.release(shard)
        self.state.close()
        self.logic = self.spec.build("op", self.keys, self.schema, SHARDS, self.memory_bytes)
        for shard in range(SHARDS):
            assert self.state.open(shard, self.where[shard], self.versions[shard])
            assert self.state.seal(shard, self.versions[shard], self.digests[shard])

    def end(self) -> None:
        for shard in range(SHARDS):
            self.snapshot(shard)
        assert list(self.state.owned()) == list(range(SHARDS))
        self.state.close()
        self.folder.cleanup()


def steps(kind: str) -> st.SearchStrategy[list[tuple[str, Any]]]:
    rows = st.lists(st.tuples(KEYS[kind][1], ROW), min_size=1, max_size=12)
    shard = st.integers(0, SHARDS - 1)
    turns = [st.tuples(st.just(name), shard) for name in ("snapshot", "hand_over", "rebuild", "catch_up")]
    flush = st.tuples(st.just("flush"), st.sampled_from([0.0, 1.0]))
    return st.lists(
        st.one_of(st.tuples(st.just("run"), rows), flush, *turns, st.just(("restart", None))), max_size=12
    )


def tell(kind: str, aggregates: list[agg.Aggregate], memory_bytes: int, told: list[tuple[str, Any]]) -> Story:
    story = Story(kind, aggregates, memory_bytes)
    for name, what in told:
        if name == "flush":
            story.state.flush(what)
        elif what is None:
            story.restart()
        else:
            getattr(story, name)(what)
    story.end()
    return story


MEMORY = st.sampled_from([1, 17_000, 1 << 26])
quick = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("kind", KEYS)
def test_fixed_width_aggregates_equal_the_model_whatever_happens_to_their_shards(kind: str) -> None:
    @quick
    @given(MEMORY, steps(kind))
    def check(memory_bytes: int, told: list[tuple[str, Any]]) -> None:
        story = tell(kind, FIXED, memory_bytes, told)
        assert isinstance(story.logic, AggregateLogic)

    check()


@pytest.mark.parametrize("kind", ["int", "two"])
def test_wide_aggregates_equal_the_model_whatever_happens_to_their_shards(kind: str) -> None:
    @quick
    @given(MEMORY, steps(kind))
    def check(memory_bytes: int, told: list[tuple[str, Any]]) -> None:
        story = tell(kind, WIDE, memory_bytes, told)
        assert isinstance(story.logic, WideAggregateLogic)

    check()


@pytest.fixture
def few_hashes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real: Callable[..., Any] = hashing.hash_keys
    monkeypatch.setattr(hashing, "hash_keys", lambda *given: real(*given) & np.uint64(0b11 << 62))
    yield


@pytest.mark.parametrize("kind", ["string", "two", "pair"])
@pytest.mark.usefixtures("few_hashes")
def test_keys_that_share_a_hash_keep_their_own_state(kind: str) -> None:
    @quick
    @given(MEMORY, steps(kind))
    def check(memory_bytes: int, told: list[tuple[str, Any]]) -> None:
        tell(kind, FIXED[:3], memory_bytes, told)

    check()


# ---------------------------------------------------------------------------------------------- single facts


def one_epoch(
    table: pa.Table, aggregates: list[agg.Aggregate], keys: Sequence[str] = ("k",)
) -> tuple[pa.Table, Delta]:
    spec = AggregateSpec.declare(aggregates, keys, table.schema, "op")
    logic: Any = spec.build("op", keys, table.schema, SHARDS, 1 << 20)
    with tempfile.TemporaryDirectory() as directory:
        for shard in range(SHARDS):
            logic.state.open(shard, f"{directory}/{shard}", None)
            logic.state.seal(shard, 0, EMPTY_DIGEST)
        output = logic.run(EpochInput(1, 0, [sharded(table, keys)]))
        delta = logic.state.stage(1)
        logic.state.close()
    return output, delta


def test_the_same_rows_give_the_same_bytes_however_they_are_chunked() -> None:
    rng = np.random.default_rng(7)
    table = pa.table(
        {"k": rng.integers(0, 500, 5000), "f": rng.normal(size=5000) * 10.0 ** rng.integers(-9, 9, 5000)}
    )
    chunked = pa.concat_tables([table.slice(at, 77) for at in range(0, 5000, 77)])
    aggregates = [agg.sum("f"), agg.mean("f"), agg.last("f")]
    (first, logged), (second, logged_again) = one_epoch(table, aggregates), one_epoch(chunked, aggregates)
    assert first.combine_chunks().equals(second.combine_chunks())
    assert logged.entries.equals(logged_again.entries)
    assert logged.digests.tolist() == logged_again.digests.tolist()


def test_output_is_ordered_by_shard() -> None:
    table = pa.table({"k": np.arange(3000)})
    output, delta = one_epoch(table, [agg.count()])
    shards = hashing.shards_of(hashing.hash_keys([output.column("k")], ["k"], "op"), SHARDS)
    assert (np.diff(shards.astype(int)) >= 0).all()
    assert delta.shards.tolist() == [0, 1, 2, 3]


def test_shards_come_from_the_rows_when_a_table_sends_keys_elsewhere(tmp_path: Any) -> None:
    schema = pa.schema([("k", pa.int64())])
    spec = AggregateSpec.declare([agg.count()], ["k"], schema, "op")
    logic: Any = spec.build("op", ["k"], schema, SHARDS, 1 << 20)
    for shard in range(SHARDS):
        logic.state.open(shard, f"{tmp_path}/{shard}", None)
        logic.state.seal(shard, 0, EMPTY_DIGEST)
    rows = pa.table({"k": [*range(30)] * 2 + [*range(30, 50)] * 2})
    moved = ShardedRows(np.array([1, 3], np.uint16), np.array([0, 60, 100]), rows)
    logic.run(EpochInput(1, 0, [moved]))
    delta = logic.state.stage(1)
    assert delta.shards.tolist() == [1, 3]
    assert delta.entries.column("shard").to_pylist() == [1] * 30 + [3] * 20
    logic.state.commit()
    assert len(logic.state.snapshot(1)) == 30
    logic.state.close()


def test_an_epoch_without_rows_changes_nothing() -> None:
    schema = pa.schema([("k", pa.int64()), ("s", pa.string())])
    for aggregates in ([agg.count()], [agg.max("s")]):
        spec = AggregateSpec.declare(aggregates, ["k"], schema, "op")
        logic: Any = spec.build("op", ["k"], schema, SHARDS, 1 << 20)
        empty = ShardedRows(np.empty(0, np.uint16), np.zeros(1, np.int64), schema.empty_table())
        assert logic.run(EpochInput(1, 0, [empty])).equals(spec.schema.empty_table())
        assert logic.state.stage(1).entries.num_rows == 0
        logic.state.commit()


def test_a_value_that_does_not_change_its_aggregate_is_emitted_but_not_logged(tmp_path: Any) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    spec = AggregateSpec.declare([agg.max("v")], ["k"], schema, "op")
    logic: Any = spec.build("op", ["k"], schema, SHARDS, 1 << 20)
    for shard in range(SHARDS):
        logic.state.open(shard, f"{tmp_path}/{shard}", None)
        logic.state.seal(shard, 0, EMPTY_DIGEST)
    for epoch, value, logged in ((1, 5, 1), (2, 3, 0), (3, 6, 1)):
        taken = sharded(pa.table({"k": [1], "v": [value]}), ["k"])
        assert logic.run(EpochInput(epoch, 0, [taken])).num_rows == 1
        assert logic.state.stage(epoch).entries.num_rows == logged
        logic.state.commit()
    logic.state.close()


@pytest.mark.parametrize(
    "type_",
    [
        pa.int8(),
        pa.uint8(),
        pa.uint64(),
        pa.float32(),
        pa.date32(),
        pa.time32("s"),
        pa.time64("us"),
        pa.duration("us"),
    ],
)
def test_every_word_type_keeps_its_values(type_: pa.DataType) -> None:
    raw = [3, 1, 2, 200 if type_ == pa.uint8() else 100]
    if pa.types.is_temporal(type_):
        values = pa.array(raw, pa.int32() if type_.bit_width == 32 else pa.int64()).view(type_)
    else:
        values = pa.array(raw, type_)
    table = pa.table({"k": [1, 1, 2, 2], "v": values})
    output, _ = one_epoch(table, [agg.min("v"), agg.max("v"), agg.last("v")])
    rows = {row["k"]: row for row in output.to_pylist()}
    python = values.to_pylist()
    assert rows[1] == {"k": 1, "min(v)": python[1], "max(v)": python[0], "last(v)": python[1]}
    assert rows[2] == {"k": 2, "min(v)": python[2], "max(v)": python[3], "last(v)": python[3]}


def test_a_null_key_is_refused_by_name() -> None:
    with pytest.raises(OperatorError, match="key column 'k' holds 1 null"):
        table = pa.table({"k": pa.array([1, None])})
        taken = ShardedRows(np.zeros(1, np.uint16), np.array([0, 2]), table)
        spec = AggregateSpec.declare([agg.count()], ["k"], table.schema, "op")
        spec.build("op", ["k"], table.schema, SHARDS, 1 << 20).run(EpochInput(1, 0, [taken]))


def test_a_decimal_sum_beyond_its_digits_is_refused_by_name() -> None:
    big = decimal.Decimal("9" * 38)
    table = pa.table({"k": [1, 1], "d": pa.array([big, None], pa.decimal128(38, 0))})
    one_epoch(table, [agg.sum("d")])
    with pytest.raises((OperatorError, pa.ArrowInvalid), match=r"beyond|overflow"):
        story_table = pa.table({"k": [1], "d": pa.array([big], pa.decimal128(38, 0))})
        spec = AggregateSpec.declare([agg.sum("d")], ["k"], story_table.schema, "op")
        logic: Any = spec.build("op", ["k"], story_table.schema, 1, 1 << 20)
        with tempfile.TemporaryDirectory() as directory:
            logic.state.open(0, directory, None)
            logic.state.seal(0, 0, EMPTY_DIGEST)
            for epoch in (1, 2):
                taken = ShardedRows(np.zeros(1, np.uint16), np.array([0, 1]), story_table)
                logic.run(EpochInput(epoch, 0, [taken]))
                logic.state.stage(epoch)
                logic.state.commit()


def test_identity_names_kinds_columns_and_types_but_not_aliases() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int32())])
    first = AggregateSpec.declare([agg.sum("v")], ["k"], schema, "op")
    renamed = AggregateSpec.declare([agg.sum("v").alias("total")], ["k"], schema, "op")
    other = AggregateSpec.declare([agg.max("v")], ["k"], schema, "op")
    assert (
        first.identity()
        == renamed.identity()
        == {"kind": "aggregates", "aggregates": [["sum", "v", "int32", 0]]}
    )
    assert first.identity() != other.identity()


def test_an_unknown_key_is_refused_at_declaration() -> None:
    with pytest.raises(DeclarationError, match="'nope'"):
        AggregateSpec.declare([agg.count()], ["nope"], pa.schema([("k", pa.int64())]), "op")
