"""Processors inside one task, on local state, without Spark: the kit here stands for PySpark's classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.dataplane.keys.hashing import group_rows_by_shard, hash_keys, shards_of
from penstock.dataplane.logic.processor import ProcessorLogic, ProcessorSpec
from penstock.dataplane.logic.protocol import LATE, EpochInput, ShardClock, ShardedRows
from penstock.dataplane.records import END_US
from penstock.errors import DeclarationError, OperatorError
from penstock.topology.processors import Processor, learn_states
from penstock.topology.schema import parse_schema

SHARDS = 4
INPUT = parse_schema("user string, amount long, at timestamp")
OUTPUT = parse_schema("user string, total long")
SECOND = 1_000_000


class PlainRow(tuple):  # type: ignore[type-arg]
    __fields__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        return self[self.__fields__.index(name)]


@dataclass(frozen=True)
class PlainTimes:
    processing_ms: int
    watermark_ms: int


class PlainKit:
    def row_class(self, names: Sequence[str]) -> type[tuple[Any, ...]]:
        return type("Row", (PlainRow,), {"__fields__": list(names)})

    def timer_values(self, processing_ms: int, watermark_ms: int) -> PlainTimes:
        return PlainTimes(processing_ms, watermark_ms)

    def expired_timer(self, expiry_ms: int) -> int:
        return expiry_ms

    def handle(self, tools: Any) -> Any:
        return PlainHandle(tools)

    def deleted_error(self, what: str, told: str) -> OperatorError:
        return OperatorError(f"Error {what}: {told}")

    def group_function(self, function: Callable[..., Any], timeout: str, watermarked: bool) -> Any:
        raise NotImplementedError

    def initial_rows(self, given: Any, operator: str) -> Any:
        raise NotImplementedError


class PlainHandle:
    def __init__(self, tools: Any) -> None:
        self.registerTimer, self.deleteTimer = tools.register_timer, tools.delete_timer
        self.listTimers, self.deleteIfExists, self._tools = tools.list_timers, tools.delete, tools

    def getValueState(self, name: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._tools.variable(name, "value")

    def getListState(self, name: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._tools.variable(name, "list")

    def getMapState(self, name: str, key: Any, value: Any, ttlDurationMs: int | None = None) -> Any:
        return self._tools.variable(name, "map")


class Base:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Any:
        return None

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        return iter(())

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        pass

    def close(self) -> None:
        pass


def build(
    processor: Any, path: Path, mode: Any = "none", initial: bool = False, memory_bytes: int = 1 << 20
) -> ProcessorLogic:
    states = learn_states(processor, "op", mode)
    declared = Processor(processor, "rows", mode, states, PlainKit(), "at" if mode == "event" else None)
    spec = ProcessorSpec(declared, OUTPUT, ("user",) if initial else ())
    logic = spec.build("op", ["user"], INPUT, SHARDS, memory_bytes)
    for shard in range(SHARDS):
        logic.state.open(shard, str(path / str(shard)), None)
        assert logic.state.seal(shard, 0, bytes(16))
    return logic


def sharded(rows: list[tuple[str, int, int]], late_us: int | None = None) -> ShardedRows:
    columns = {
        "user": pa.array([user for user, _, _ in rows], pa.string()),
        "amount": pa.array([amount for _, amount, _ in rows], pa.int64()),
        "at": pa.array([at for _, _, at in rows], pa.int64()).cast(pa.timestamp("us", "UTC")),
    }
    table = pa.table(columns, schema=INPUT)
    place = shards_of(hash_keys([table.column("user")], ["user"], "op"), SHARDS)
    order, counts = group_rows_by_shard(place, SHARDS)
    used = np.flatnonzero(counts).astype(np.uint16)
    offsets = np.zeros(len(used) + 1, np.int64)
    np.cumsum(counts[used], out=offsets[1:])
    late = None if late_us is None else np.full(len(rows), late_us, np.int64)
    return ShardedRows(used, offsets, table if order is None else table.take(pa.array(order)), late)


def run(
    logic: ProcessorLogic,
    epoch: int,
    *rows: tuple[str, int, int],
    time_ms: int = 0,
    watermark_us: int | None = None,
    late_us: int | None = None,
    initial: ShardedRows | None = None,
) -> list[tuple[Any, ...]]:
    inputs = [sharded(list(rows), late_us), *([initial] if initial is not None else [])]
    clocks = [ShardClock(np.arange(SHARDS, dtype=np.uint16), watermark_us)]
    out = logic.run(EpochInput(epoch, 1000 * time_ms, inputs, clocks))
    logic.state.stage(epoch)
    logic.state.commit()
    return [tuple(row.values()) for row in out.to_pylist()]


class Total(Base):
    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("the total", "total long, name string")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        assert type(key) is tuple and type(self.total.get()) in (tuple, type(None))
        before = self.total.get() or (0, None)
        self.total.update((before[0] + sum(row.amount for row in rows), None))
        yield (key[0], self.total.get()[0])


def test_a_value_state_lives_from_epoch_to_epoch(tmp_path: Path) -> None:
    logic = build(Total(), tmp_path)
    assert sorted(run(logic, 1, ("a", 1, 0), ("b", 2, 0), ("a", 5, 0))) == [("a", 6), ("b", 2)]
    assert run(logic, 2, ("a", 1, 0)) == [("a", 7)]


def test_init_runs_on_a_copy_and_the_declared_processor_stays_as_it_is(tmp_path: Path) -> None:
    processor = Total()
    first, second = build(processor, tmp_path / "1"), build(processor, tmp_path / "2")
    assert not hasattr(processor, "total")
    run(first, 1, ("a", 1, 0))
    assert run(second, 1, ("a", 1, 0)) == [("a", 1)]


def test_a_state_that_init_did_not_declare_is_refused_with_the_fix(tmp_path: Path) -> None:
    class Late(Base):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            self.handle.getValueState("more", "x int")

    with pytest.raises(OperatorError, match=r"asks for value state 'more', which init.* did not declare"):
        run(build(Late(), tmp_path), 1, ("a", 1, 0))


def test_using_a_state_or_a_timer_in_init_is_refused() -> None:
    class Early(Base):
        def init(self, handle: Any) -> None:
            handle.getValueState("x", "x int").get()

    class Timer(Base):
        def init(self, handle: Any) -> None:
            handle.registerTimer(1)

    with pytest.raises(DeclarationError, match="uses state 'x'; there is no key yet"):
        learn_states(Early(), "op", "none")
    with pytest.raises(DeclarationError, match="calls registerTimer"):
        learn_states(Timer(), "op", "processing")


def test_list_and_map_states_have_pysparks_methods(tmp_path: Path) -> None:
    class Both(Base):
        def init(self, handle: Any) -> None:
            self.items = handle.getListState("items", "n long")
            self.seen = handle.getMapState("seen", "n long, s string", "times int")
            self.one = handle.getMapState("one", "n long", "times int")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            for row in rows:
                self.items.appendValue((row.amount,))
                times = self.seen.getValue((row.amount, None))
                assert times is None or times.times == times[0]
                self.seen.updateValue((row.amount, None), ((times[0] if times else 0) + 1,))
                self.one.updateValue((row.amount,), (1,))
            assert list(self.seen.keys()) == [(n, None) for (n,) in sorted(set(self.items.get()))]
            assert sum(times for (times,) in self.seen.values()) == len(list(self.items.get()))
            assert self.one.containsKey((1,)) and not self.one.containsKey((99,))
            assert dict(self.one.iterator())[(1,)] == (1,)
            if len(list(self.items.get())) > 3:
                self.items.put([(0,)])
                self.seen.clear()
                assert self.items.exists() and not self.seen.exists() and self.one.exists()
                self.one.removeKey((99,))
            yield (key[0], len(list(self.items.get())))

    logic = build(Both(), tmp_path, memory_bytes=1)  # every key is read back from local state
    assert run(logic, 1, ("a", 1, 0), ("a", 1, 0)) == [("a", 2)]
    assert run(logic, 2, ("a", 2, 0)) == [("a", 3)]
    assert run(logic, 3, ("a", 1, 0)) == [("a", 1)]


class Alarm(Base):
    """Sets a timer five seconds after each row; an alarm sets another one, and takes back what comes later."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for row in rows:
            self.handle.registerTimer(int(row.at.timestamp() * 1000) + 5000)
        yield (key[0], timerValues.watermark_ms)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        assert expiredTimerInfo in self.handle.listTimers()
        self.handle.deleteTimer(7000)
        if expiredTimerInfo == 5000:
            self.handle.registerTimer(5001)
        yield (key.user, -expiredTimerInfo)


def test_timers_fire_after_the_rows_in_order_of_time_by_the_new_watermark(tmp_path: Path) -> None:
    logic = build(Alarm(), tmp_path, "event")
    rows = [("a", 1, 0), ("a", 1, 2 * SECOND), ("a", 1, SECOND)]
    assert run(logic, 1, *rows, watermark_us=5 * SECOND - 1, late_us=-(1 << 62)) == [("a", 0)]
    assert run(logic, 2, watermark_us=5 * SECOND) == [("a", -5000)]
    # set by the handler before: fires in a later epoch, and 7000 is taken back before its turn
    assert run(logic, 3, watermark_us=8 * SECOND) == [("a", -5001), ("a", -6000)]
    assert run(logic, 4, watermark_us=9 * SECOND) == []


def test_all_timers_fire_when_a_bounded_input_has_ended(tmp_path: Path) -> None:
    logic = build(Alarm(), tmp_path, "event")
    run(logic, 1, ("a", 1, 10**12), watermark_us=0, late_us=-(1 << 62))
    assert run(logic, 2, watermark_us=END_US) == [("a", -(10**9 + 5000))]


def test_late_rows_are_left_out_and_counted_and_rows_see_the_watermark_before_them(tmp_path: Path) -> None:
    logic = build(Alarm(), tmp_path, "event")
    rows = [("a", 1, 4 * SECOND), ("b", 2, 3 * SECOND), ("b", 3, 9 * SECOND)]
    found = run(logic, 1, *rows, watermark_us=9 * SECOND, late_us=4 * SECOND)
    assert found == [("b", 4000)]
    assert logic.late_rows == 2 and sorted(logic.sides[LATE].column("amount").to_pylist()) == [1, 2]


def test_rows_of_an_epoch_leave_by_shard_whoever_made_them(tmp_path: Path) -> None:
    logic = build(Alarm(), tmp_path, "event")
    users = [f"user {at}" for at in range(20)]
    run(logic, 1, *[(user, 1, 0) for user in users], watermark_us=0, late_us=-(1 << 62))
    found = run(logic, 2, *[(user, 1, 10**10) for user in users], watermark_us=6 * SECOND, late_us=0)
    shards = shards_of(hash_keys([pa.array([user for user, _ in found])], ["user"], "op"), SHARDS).tolist()
    assert shards == sorted(shards) and len(found) == 40


class Cache(Base):
    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "n long", ttlDurationMs=100)
        self.items = handle.getListState("items", "n long", ttlDurationMs=100)
        self.map = handle.getMapState("map", "n long", "n long", ttlDurationMs=100)
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        found = len(list(self.items.get())) + len(list(self.map.keys())) + (1 if self.value.exists() else 0)
        assert not list(self.handle.listTimers())
        for row in rows:
            if row.amount:
                self.value.update((row.amount,))
                self.items.appendValue((row.amount,))
                self.map.updateValue((row.amount,), (1,))
        yield (key[0], found)


def test_what_has_ended_is_not_seen_and_writes_give_it_new_time(tmp_path: Path) -> None:
    logic = build(Cache(), tmp_path, "processing")
    run(logic, 1, ("a", 1, 0), time_ms=1000)
    assert run(logic, 2, ("a", 0, 0), time_ms=1099) == [("a", 3)]
    assert run(logic, 3, ("a", 2, 0), time_ms=1099) == [("a", 3)]
    assert run(logic, 4, ("a", 0, 0), time_ms=1100) == [("a", 3)]  # the value and the second elements
    assert run(logic, 5, ("a", 0, 0), time_ms=1199) == [("a", 0)]


def test_what_has_ended_leaves_the_state_of_a_key_that_is_never_seen_again(tmp_path: Path) -> None:
    logic = build(Cache(), tmp_path, "processing")
    run(logic, 1, ("a", 1, 0), time_ms=1000)
    run(logic, 2, ("a", 2, 0), time_ms=1050)
    assert logic.state.next_timer_us() == 1_100_001
    run(logic, 3, time_ms=1101)
    assert logic.state.next_timer_us() == 1_150_001
    run(logic, 4, time_ms=1151)
    assert logic.state.next_timer_us() is None
    assert all(logic.state.snapshot(shard).num_rows == 0 for shard in range(SHARDS))


def test_initial_rows_come_before_the_rows_of_their_epoch(tmp_path: Path) -> None:
    class Start(Total):
        def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
            self.total.update((initialState.amount, None))

    logic = build(Start(), tmp_path, initial=True)
    assert run(logic, 1, ("a", 1, 0), initial=sharded([("a", 10, 0), ("b", 20, 0)])) == [("a", 11)]
    assert run(logic, 2, ("b", 1, 0), initial=sharded([])) == [("b", 21)]


def test_the_same_input_gives_the_same_bytes_after_eviction_and_after_a_move(tmp_path: Path) -> None:
    def digests(path: Path, memory_bytes: int) -> list[bytes]:
        logic = build(Alarm(), path, "event", memory_bytes=memory_bytes)
        rng = np.random.default_rng(5)
        found = []
        for epoch in range(1, 12):
            rows = [(f"u{user}", 1, epoch * SECOND) for user in rng.integers(0, 30, 20).tolist()]
            clocks = [ShardClock(np.arange(SHARDS, dtype=np.uint16), epoch * SECOND)]
            given = EpochInput(epoch, 0, [sharded(rows, (epoch - 1) * SECOND)], clocks)
            out = logic.run(given)
            delta = logic.state.stage(epoch)
            found += [out.to_pydict(), delta.entries.to_pydict(), delta.digests.tobytes()]
            logic.state.commit()
        return found

    assert digests(tmp_path / "1", 1 << 20) == digests(tmp_path / "2", 1)


def test_a_row_that_does_not_fit_names_the_key(tmp_path: Path) -> None:
    class Wrong(Base):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            return [(key[0], "no number")]

    with pytest.raises(OperatorError, match=r"column 'total'.*\(key \('a',\)\)"):
        run(build(Wrong(), tmp_path), 1, ("a", 1, 0))


def test_an_exception_names_operator_and_key(tmp_path: Path) -> None:
    class Broken(Base):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            raise ValueError("no such price")

    with pytest.raises(
        OperatorError, match=r"operator 'op' failed for key \('a',\): ValueError: no such price"
    ):
        run(build(Broken(), tmp_path), 1, ("a", 1, 0))


class Deleting(Base):
    def init(self, handle: Any) -> None:
        self.kept = handle.getValueState("kept", "n long")
        self.gone = handle.getListState("gone", "n long")
        handle.deleteIfExists("gone")
        handle.deleteIfExists("never was")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        self.kept.update((len(list(rows)),))
        try:
            self.gone.exists()
        except OperatorError as error:
            assert (
                "Error checking list state exists: operator 'op': init(handle) deleted state 'gone'"
                in str(error)
            )
            yield (key[0], 1)


def test_a_state_that_init_deletes_is_not_there(tmp_path: Path) -> None:
    assert [state.name for state in learn_states(Deleting(), "op", "none")] == ["kept"]
    assert run(build(Deleting(), tmp_path), 1, ("a", 1, 0)) == [("a", 1)]


@pytest.mark.parametrize(
    ("time", "told"),
    [
        (5.5, "is a whole number of milliseconds since 1970, not 5.5"),
        (True, "not True"),
        ("5", "not '5'"),
        (1 << 62, "a timer cannot stand at 4611686018427387904 ms"),
    ],
)
def test_a_time_that_is_none_is_refused_when_the_timer_is_set(tmp_path: Path, time: Any, told: str) -> None:
    class Wrong(Base):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            self.handle.registerTimer(time)

    with pytest.raises(OperatorError, match=told):
        run(build(Wrong(), tmp_path, "processing"), 1, ("a", 1, 0))


def test_the_times_of_timers_read_alike_before_and_after_a_commit(tmp_path: Path) -> None:
    class Timers(Base):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            if key[0] == "a" and not list(self.handle.listTimers()):
                for time in (np.int64(7 * 10**12), 9 * 10**15, 8 * 10**12):
                    self.handle.registerTimer(time)
            return [(repr(list(self.handle.listTimers())), 0)]

    logic = build(Timers(), tmp_path, "processing", memory_bytes=1)
    assert (
        run(logic, 1, ("a", 1, 0))
        == run(logic, 2, ("a", 1, 0))
        == [("[7000000000000, 8000000000000, 9000000000000000]", 0)]
    )


@pytest.mark.parametrize("ttl_ms", [None, 1000])
@pytest.mark.parametrize(
    ("value", "told"),
    [
        (5, r"state 'the total': 5 \(int\) is no value; give a tuple of n, s"),
        ("ab", r"'ab' \(str\) is no value"),
        (None, r"None is no value; give a tuple of n, s, or call clear\(\)"),
        ((1, 2, 3), r"state 'the total' of key \('a',\): .* it has 3 value\(s\) for the 2 field\(s\) n, s"),
        ((1.5, None), r"state 'the total' of key \('a',\): field 'n': 1.5 \(float\) is no bigint"),
        ((1, {"x": b"y"}), r"field 's.x': b'y' \(bytes\) is no string"),
    ],
)
def test_what_is_no_value_is_refused_by_the_call_with_the_name_that_init_gave(
    tmp_path: Path, value: Any, told: str, ttl_ms: int | None
) -> None:
    class Wrong(Base):
        def init(self, handle: Any) -> None:
            self.value = handle.getValueState("the total", "n long, s struct<x:string>", ttl_ms)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            try:
                self.value.update(value)
            except OperatorError:
                assert not self.value.exists()
                raise

    with pytest.raises(OperatorError, match=told):
        run(build(Wrong(), tmp_path, "processing"), 1, ("a", 1, 0))


@pytest.mark.parametrize("ttl_ms", [None, 1000])
def test_structs_and_maps_are_stored_as_rows_hold_them(tmp_path: Path, ttl_ms: int | None) -> None:
    class Keeping(Base):
        def init(self, handle: Any) -> None:
            fields = "s struct<x:int,y:string>, m map<string,int>"
            self.value = handle.getValueState("v", fields, ttl_ms)
            self.items = handle.getListState("l", fields, ttl_ms)
            self.map = handle.getMapState("m", "k int, t string", fields, ttl_ms)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            pairs = [("a", 1)]
            for row in rows:
                if row.amount:
                    held = ({"y": "q", "x": np.int32(1)}, pairs)
                    self.value.update(held)
                    self.items.put([held])
                    self.map.updateValue({"t": None, "k": 5}, {"m": pairs, "s": (1, "q")})
                    pairs.append(("b", 2))
            found = [self.value.get(), *self.items.get(), *self.map.values()]
            assert found == [((1, "q"), {"a": 1})] * 3 and list(self.map.keys()) == [(5, None)]
            found[0][1]["c"] = 3
            return [(key[0], int(self.value.get()[1] == {"a": 1}))]

    logic = build(Keeping(), tmp_path, "processing", memory_bytes=1)
    assert [run(logic, epoch, ("a", amount, 0)) for epoch, amount in ((1, 1), (2, 0))] == [[("a", 1)]] * 2


def test_a_key_of_several_fields_takes_the_form_of_its_types(tmp_path: Path) -> None:
    class Keyed(Base):
        def init(self, handle: Any) -> None:
            self.map = handle.getMapState("m", "k int, f float, d date", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            self.map.updateValue((np.int64(1), 0.1, None), (1,))
            assert self.map.containsKey((1, 0.10000000149011612, None))
            with pytest.raises(OperatorError, match=r"map key field 'k': 1099511627776 .* is no int"):
                self.map.getValue((1 << 40, 0.1, None))
            with pytest.raises(OperatorError, match=r"it has 1 value\(s\) for the 3 field\(s\) k, f, d"):
                self.map.removeKey((1,))
            with pytest.raises(OperatorError, match=r"5 \(int\) is no map key; give a tuple of k, f, d"):
                self.map.containsKey(5)
            return [(repr(list(self.map.keys())), 0)]

    assert run(build(Keyed(), tmp_path), 1, ("a", 1, 0)) == [("[(1, 0.10000000149011612, None)]", 0)]
