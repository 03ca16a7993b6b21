"""A topology that changes between two starts on one checkpoint: what goes on, and what is refused with what to do."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.faults.runs import fast_disk
from tests.scenario import shapes

import penstock
from penstock import col
from penstock.dataplane import paths, recordlog
from penstock.dataplane.chains import Chains
from penstock.dataplane.channel import EdgeSpec
from penstock.dataplane.compile import compile_program
from penstock.dataplane.exports import add_exports
from penstock.dataplane.fitting import state_fault
from penstock.dataplane.frames import FrameKind
from penstock.dataplane.identity import Meta, hash_meta, skeleton
from penstock.dataplane.inspecting import look
from penstock.dataplane.metas import read_metas
from penstock.dataplane.opening import open_checkpoint
from penstock.dataplane.positions import ChannelKey
from penstock.dataplane.program import InputSpec, Program, StageSpec
from penstock.dataplane.recordlog import LogWriter, frame_bytes
from penstock.dataplane.records import END_US, NO_HASH, Position, Record, encode
from penstock.dataplane.verifying import verify
from penstock.errors import CheckpointError
from penstock.sim.inprocess import Driver
from penstock.sim.programs import key_of, make_rows
from penstock.sim.timing import SMALL, quick
from penstock.testing.line import read_line
from penstock.testing.schedule import check_schedule, find_schedule_faults

ROWS = 300
KEPT = quick(SMALL, retain_all=True)


def program_of(stream: penstock.Stream) -> Program:
    return compile_program(stream.node, tasks=2, memory_bytes=1 << 20)


def source(schema: str = "id long, k long", name: str = "source") -> penstock.Stream:
    def make(start: int, count: int) -> pa.RecordBatch:
        rows = make_rows(start, count)
        columns = {
            "tag": pa.array([f"t{i}" for i in range(start, start + count)]),
            "k": rows.column(1),
            "id": rows.column(0),
        }
        names = [part.split()[0] for part in schema.split(", ")]
        return pa.RecordBatch.from_pydict({name: columns[name] for name in names})

    return penstock.generate(make, schema=schema, rate=1000, name=name)


def fold(
    rows: penstock.Stream,
    schema: str = "id long, k long, seq long",
    kept: str = "struct<seq:bigint>",
    **changes: Any,
) -> penstock.Stream:
    wide, grown = "tag" in schema, "times" in kept

    def function(key: Any, given: list[Any], state: Any) -> Any:
        stored = state.last.get()
        seq, times = (stored.seq, stored.times if grown else None) if stored else (0, None)
        for row in given:
            seq += 1
            yield (row.id, key.k, seq, row.tag) if wide else (row.id, key.k, seq)
        state.last.update((seq, (times or 0) + 1) if grown else (seq,))
        state.ids.appendValue((given[-1].id,))

    states = {
        "last": penstock.ValueState(kept),
        "ids": penstock.ListState("struct<id:bigint>"),
        "seen": penstock.MapState("long", "struct<n:bigint>"),
    }
    given = {"state": states, "name": "fold", "shards": 8, "cores": 2, **changes}
    return rows.groupBy("k").apply_rows(function, schema=schema, **given)


def crashed(folder: Path, program: Program, *, drain: bool = False) -> Driver:
    """Run half of the rows, or all there are, and crash while rows wait in every channel."""
    driver = Driver(
        fast_disk(), str(folder / "cp"), program, KEPT, 3, str(folder / "node"), rows=ROWS // 2, rate=8_000.0
    )
    if drain:
        assert driver.run_until("drained"), driver.failed
    else:
        chains = driver.engine.chains.by_name
        assert driver.run_until(
            lambda: (
                chains["fold"].rows_in > 40
                and all(any(one.out.values()) for one in chains.values() if one.spec.edges)
            )
        )
    driver.crash()
    driver.loop.run_until(lambda: False, 1.0)
    return driver


def goes_on(driver: Driver, program: Program) -> Driver:
    driver.program, driver.rows = program, ROWS
    driver.restart()
    assert driver.run_until("drained"), driver.failed
    return driver


def expected() -> dict[int, tuple[int, int]]:
    """By id: key and how many rows of the key came up to it."""
    seen: dict[int, int] = {}
    rows = {}
    for number in range(ROWS):
        key = key_of(number)
        seen[key] = seen.get(key, 0) + 1
        rows[number] = (key, seen[key])
    return rows


def test_fields_and_states_that_are_added_are_null_in_what_was_written_before(tmp_path: Path) -> None:
    driver = crashed(tmp_path, program_of(fold(source())))
    made = driver.engine.chains["source"].offset
    waiting = sum(item.rows for item in driver.engine.chains["source"].out[0])
    sunk = {row["id"] for row in driver.sink.rows()}
    assert made and waiting and len(sunk) < driver.engine.chains["fold"].rows_out
    wide = fold(
        source("tag string, id long, k long"),
        "id long, k long, seq long, tag string",
        "struct<seq:bigint,times:bigint>",
    )
    goes_on(driver, program_of(wide))
    rows = driver.sink.rows()
    assert {row["id"]: (row["k"], row["seq"]) for row in rows} == expected()
    assert len(rows) == ROWS
    assert all("tag" in row for row in rows if row["id"] not in sunk)
    assert {row.get("tag") for row in rows if int(str(row["id"])) < made} == {None}
    assert all(row["tag"] == f"t{row['id']}" for row in rows if int(str(row["id"])) >= made)
    driver.stop()
    # and once more: nothing is noted twice, and rows of both schemas read back
    before = sorted(Path(driver.checkpoint).glob("meta*"))
    driver.restart()
    assert sorted(Path(driver.checkpoint).glob("meta*")) == before and len(before) == 2
    driver.stop()


def test_an_added_operator_begins_behind_what_was_published_and_the_others_miss_nothing(
    tmp_path: Path,
) -> None:
    driver = crashed(tmp_path, program_of(fold(source())))
    made = driver.engine.chains["source"].offset
    rows = source()
    extra = rows.groupBy("k").apply_rows(
        lambda key, given, state: [(row.id, key.k, -1) for row in given],
        schema="id long, k long, seq long",
        name="extra",
        shards=4,
    )
    # The new operator stands first, so that a numbering in declared order would shift every edge.
    driver = goes_on(driver, program_of(extra.union(fold(rows))))
    found = driver.sink.rows()
    assert {row["id"]: (row["k"], row["seq"]) for row in found if row["seq"] != -1} == expected()
    assert sorted(int(str(row["id"])) for row in found if row["seq"] == -1) == list(range(made, ROWS))
    edges = {
        (given.producer, name): given.edge
        for name, stage in driver.program.stages.items()
        for given in stage.inputs
    }
    assert edges == {
        ("source", "fold"): 0, ("fold", "sink"): 1, ("source", "extra"): 2, ("extra", "sink"): 3,
    }  # fmt: skip
    driver.stop()


def test_a_sink_epoch_that_was_intended_is_handed_over_unchanged_after_an_operator_was_added(
    tmp_path: Path,
) -> None:
    program = program_of(fold(source()))
    driver = Driver(
        fast_disk(),
        str(tmp_path / "cp"),
        program,
        KEPT,
        3,
        str(tmp_path / "node"),
        rows=ROWS // 2,
        rate=8_000.0,
    )
    assert driver.run_until(
        lambda: driver.engine.chains["sink"].intent is not None and bool(driver.sink.calls)
    )
    intent = driver.engine.chains["sink"].intent
    assert intent is not None
    driver.crash()
    rows = source()
    added = rows.groupBy("k").apply_rows(
        lambda key, given, state: [(-1, key.k, -1)],
        schema="id long, k long, seq long",
        name="extra",
        shards=4,
    )
    goes_on(driver, program_of(fold(rows).union(added)))
    kept = [row for row in driver.sink.rows() if row["seq"] != -1]
    assert {row["id"]: (row["k"], row["seq"]) for row in kept} == expected() and len(kept) == ROWS
    handed = [table for generation, epoch, table in driver.sink.calls if epoch == intent.epoch]
    assert all(table.equals(handed[0]) for table in handed)
    driver.stop()


def behind(stream: penstock.Stream) -> penstock.Stream:
    return stream.groupBy("seq").agg(penstock.count(), name="per_seq", shards=4)


def test_an_operator_can_be_put_in_front_of_the_sink_once_nothing_waits_for_it(tmp_path: Path) -> None:
    driver = crashed(tmp_path, program_of(fold(source())), drain=True)
    goes_on(driver, program_of(behind(fold(source()))))
    later: dict[int, int] = {}
    for number, (_, seq) in expected().items():
        if number >= ROWS // 2:
            later[seq] = later.get(seq, 0) + 1
    counted = {row["seq"]: row["count"] for row in driver.sink.rows() if "count" in row}
    assert counted == later
    driver.stop()


def test_a_further_sink_or_an_export_is_accepted_later_and_cannot_be_left_out_again(tmp_path: Path) -> None:
    driver = crashed(tmp_path, program_of(fold(source())), drain=True)
    rows = source()
    more = compile_program(fold(rows).node, tasks=2, memory_bytes=1 << 20, also={"raw": rows.node})
    goes_on(driver, add_exports(more, ["fold"]))
    chains = driver.engine.chains
    assert chains["sink.raw"].epoch > 0 and chains["export.fold"].epoch > 0
    taken = [set(table.column_names) for _, _, table in driver.sink.calls]
    assert {"id", "k"} in taken
    driver.crash()
    for program, gone in ((more, "export.fold"), (add_exports(program_of(fold(rows)), ["fold"]), "sink.raw")):
        driver.program = program
        with pytest.raises(CheckpointError, match=re.escape(gone)):
            driver.restart()


def test_an_edge_that_is_taken_away_while_rows_wait_on_it_is_refused_with_what_to_do(tmp_path: Path) -> None:
    driver = crashed(tmp_path, program_of(fold(source())))
    driver.program = program_of(behind(fold(source())))
    with pytest.raises(
        CheckpointError, match=r"\d+ rows of 'fold' wait for 'sink', which .* start the topology as it was"
    ):
        driver.restart()
    goes_on(driver, program_of(fold(source())))
    assert {row["id"]: (row["k"], row["seq"]) for row in driver.sink.rows()} == expected()
    driver.stop()
    check_schedule(driver.checkpoint, driver.program, complete=True)


def kept_states(**changes: Any) -> dict[str, Any]:
    return {
        "last": penstock.ValueState("struct<seq:bigint>"),
        "ids": penstock.ListState("struct<id:bigint>"),
        "seen": penstock.MapState("long", "struct<n:bigint>"),
        **changes,
    }


REFUSED: dict[str, tuple[Callable[[], penstock.Stream] | None, str]] = {
    "a renamed operator": (
        lambda: fold(source(), name="folded"),
        "has operator 'fold', which this topology lacks.*if it is 'folded' now, name it 'fold' again",
    ),
    "a renamed source": (lambda: fold(source(name="rows")), "has source 'source'.*name it 'source' again"),
    "another number of shards": (lambda: fold(source(), shards=16), "'fold' had shards 8 .* now has 16"),
    "another key": (
        lambda: (
            source()
            .withColumn("q", col("k"))
            .groupBy("q")
            .apply_rows(
                lambda key, rows, state: [],
                schema="id long, k long, seq long",
                state=kept_states(),
                name="fold",
                shards=8,
            )
        ),
        r"'fold' had keys \['k'\] .* now has \['q'\]",
    ),
    "another type of the key": (
        lambda: fold(source().withColumn("k", col("k").cast("string"))),
        r"'fold' had key types \['bigint'\] .* now has \['string'\]",
    ),
    "a field of the source less": (
        lambda: fold(source("k long").withColumn("id", col("k"))),
        r"Source 'source' does not fit .*field 'id' \(bigint\) is gone; put it back, or use a new",
    ),
    "another type of a field": (
        lambda: fold(source(), "id string, k long, seq long"),
        "Operator 'fold' does not fit .*field 'id' was bigint and is string; change it back",
    ),
    "an added field that is not nullable": (
        lambda: fold(source(), "id long, k long, seq long, more long not null"),
        "the added field 'more' must be nullable",
    ),
    "a field that may no longer be null": (
        lambda: fold(source(), "id long not null, k long, seq long"),
        "field 'id' was nullable and is NOT NULL",
    ),
    "a step between that drops a field": (
        lambda: fold(source().drop("id")),
        r"Rows from 'source' to 'fold' do not fit .*field 'id' \(bigint\) is gone",
    ),
    "a state less": (
        lambda: fold(source(), state={"last": penstock.ValueState("struct<seq:bigint>")}),
        "state 'ids' is gone; declare it again",
    ),
    "states in another order": (
        lambda: fold(source(), state={"new": penstock.ValueState("long"), **kept_states()}),
        "state 'last' was number 1 and is number 2; add states behind the others",
    ),
    "another kind of state": (
        lambda: fold(source(), state=kept_states(ids=penstock.ValueState("struct<id:bigint>"))),
        "state 'ids' was list struct<id:bigint> and is value struct<id:bigint>",
    ),
    "another type of state": (
        lambda: fold(source(), state=kept_states(last=penstock.ValueState("long"))),
        "state 'last' was .*: a state cannot change its type",
    ),
    "a struct that grows in the middle": (
        lambda: fold(source(), state=kept_states(last=penstock.ValueState("struct<a:int,seq:bigint>"))),
        "field 'seq' is not where or what it was; add fields at the end",
    ),
    "a map whose values grow": (
        lambda: fold(
            source(), state=kept_states(seen=penstock.MapState("long", "struct<n:bigint,m:bigint>"))
        ),
        "values of a map cannot gain fields",
    ),
    "another kind of operator": (
        lambda: source().groupBy("k").agg(penstock.count(), name="fold", shards=8),
        "'fold' does not fit .*its kind was 'rows' and is 'aggregates'; change it back",
    ),
    "a DataFrame instead of a function": (None, "was native in .* and is fed by a DataFrame now"),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_what_would_change_the_meaning_of_state_is_refused_by_name(tmp_path: Path, what: str) -> None:
    make, said = REFUSED[what]
    first = program_of(fold(source()))
    opened = open_checkpoint(fast_disk(), str(tmp_path), first)
    writer = LogWriter(fast_disk(), str(tmp_path), opened.claim)
    writer.start_part(opened.chains.to_base(opened.query, opened.claim.generation, 1, opened.identity, 0))
    writer.close()
    if make is None:
        stages = dict(first.stages)
        stages["source"] = dataclasses.replace(stages["source"], ingested=True)
        program = dataclasses.replace(first, stages=stages)
    else:
        program = program_of(make())
    with pytest.raises(CheckpointError, match=said) as refused:
        open_checkpoint(fast_disk(), str(tmp_path), program, takeover=True)
    assert "new checkpointLocation" in str(refused.value) and str(tmp_path) in str(refused.value)
    assert recordlog.newest_generation(fast_disk(), str(tmp_path)) == 1, (
        "it was refused before it claimed anything"
    )


def test_states_may_grow_at_their_end_only() -> None:
    def value(type_: str) -> dict[str, str]:
        return {"kind": "value", "value": type_}

    was = [["a", value("struct<x:int,y:string>")]]
    assert state_fault(was, [*was, ["b", value("long")]]) is None
    assert state_fault(was, [["a", value("struct<x:int,y:string,z:date>")]]) is None
    for worse in ("struct<x:int>", "struct<x:int,y:string,z:date not null>", "struct<x:bigint,y:string>"):
        assert state_fault(was, [["a", value(worse)]]) is not None


def test_a_topology_that_was_noted_and_never_run_does_not_hold(tmp_path: Path) -> None:
    driver = crashed(tmp_path, program_of(fold(source())))
    wide = program_of(fold(source("id long, k long, tag string"), "id long, k long, seq long, tag string"))
    open_checkpoint(fast_disk(), driver.checkpoint, wide, takeover=True)  # and dies before its first base
    goes_on(driver, program_of(fold(source())))
    assert {row["id"]: (row["k"], row["seq"]) for row in driver.sink.rows()} == expected()
    driver.stop()
    assert len(read_metas(fast_disk(), driver.checkpoint).known) == 2


def test_a_start_with_the_topology_as_it_was_does_not_end_the_query_that_outgrew_it(tmp_path: Path) -> None:
    first = program_of(fold(source()))
    driver = crashed(tmp_path, first)
    driver.program = program_of(
        fold(source("id long, k long, tag string"), "id long, k long, seq long, tag string")
    )
    driver.restart()
    stood = driver.engine.chains["fold"].epoch
    assert driver.run_until(lambda: driver.engine.chains["fold"].epoch > stood)
    with pytest.raises(CheckpointError, match=r"field 'tag' \(string\) is gone"):
        open_checkpoint(fast_disk(), driver.checkpoint, first, takeover=True)
    assert driver.run_until("drained"), driver.failed
    driver.stop()


def test_a_lost_or_swapped_file_of_a_changed_topology_is_named(tmp_path: Path) -> None:
    driver = crashed(tmp_path, program_of(fold(source())))
    wide = program_of(fold(source("id long, k long, tag string"), "id long, k long, seq long, tag string"))
    goes_on(driver, wide)
    driver.stop()
    (noted,) = Path(driver.checkpoint).glob("meta-*")
    data = noted.read_bytes()
    noted.unlink()
    with pytest.raises(CheckpointError, match=re.escape(noted.name) + " is gone"):
        driver.restart()
    noted.write_bytes(Path(driver.checkpoint, "meta").read_bytes())
    with pytest.raises(CheckpointError, match=re.escape(noted.name) + " holds another topology"):
        driver.restart()
    noted.write_bytes(data)
    driver.restart()
    driver.stop()


def test_a_checkpoint_without_noted_edges_opens_and_notes_them(tmp_path: Path) -> None:
    driver = crashed(tmp_path, program_of(fold(source())))
    meta = Path(driver.checkpoint, "meta")
    noted = read_metas(fast_disk(), driver.checkpoint).first
    early = {
        "format": 1,
        "query": noted.query,
        "stages": {
            name: {
                field: getattr(stage, field)
                for field in ("kind", "schema", "inputs", "keys", "shards", "logic")
            }
            for name, stage in noted.stages.items()
        },
    }
    payload = msgspec.json.encode(early)
    meta.write_bytes(frame_bytes(FrameKind.META, payload))
    _rename_identity(driver.checkpoint, payload)
    goes_on(driver, program_of(fold(source())))
    assert {row["id"]: (row["k"], row["seq"]) for row in driver.sink.rows()} == expected()
    driver.stop()
    metas = read_metas(fast_disk(), driver.checkpoint)
    holds = metas.in_force(recordlog.read_tail(fast_disk(), driver.checkpoint))
    assert isinstance(holds, Meta) and [edge.number for edge in holds.edges] == [0, 1]


def _rename_identity(checkpoint: str, payload: bytes) -> None:
    """Write the newest part again so that its base names another topology file."""
    tail = recordlog.read_tail(fast_disk(), checkpoint)
    assert tail.base is not None and tail.part is not None
    base = msgspec.structs.replace(tail.base, identity=hash_meta(payload))
    path = Path(paths.log(checkpoint, tail.part))
    path.unlink()
    claim = recordlog.read_claim(fast_disk(), checkpoint, tail.part.generation)
    assert claim is not None
    writer = LogWriter(fast_disk(), checkpoint, claim)
    writer.start_part(base)
    writer.append([encoded for _, encoded in tail.records])
    writer.close()


def shapes_flow() -> tuple[penstock.Stream, penstock.Stream]:
    def given(make: Callable[[int, int], pa.RecordBatch], name: str) -> penstock.Stream:
        return penstock.from_rows(pa.Table.from_batches([make(0, 240)]), name=name)

    orders, payments = given(shapes.make_orders, "orders"), given(shapes.make_payments, "payments")
    rules = given(shapes.make_rules, "rules")
    return orders, shapes.everything(orders, payments, rules)


@pytest.mark.parametrize("seed", range(2))
def test_a_topology_of_every_shape_goes_on_exactly_once_beside_an_added_operator(
    tmp_path: Path, seed: int
) -> None:
    _, total = shapes_flow()
    driver = Driver(
        fast_disk(),
        str(tmp_path / "cp"),
        program_of(total),
        KEPT,
        seed,
        str(tmp_path / "node"),
        rows=240,
        rate=4e3,
    )
    chains = driver.engine.chains.by_name
    assert driver.run_until(lambda: chains["total"].rows_in > 20 and chains["score"].out_bytes > 0)
    made = chains["orders"].offset
    driver.crash()
    driver.loop.run_until(lambda: False, 1.0)
    report = verify(fast_disk(), driver.checkpoint)
    assert not report.damaged, report.findings
    seen = look(fast_disk(), driver.checkpoint)
    assert find_schedule_faults(read_line(driver.checkpoint, fast_disk()), skeleton(seen.meta)) == []
    orders, total = shapes_flow()
    audit = orders.groupBy("user").agg(
        penstock.count(), penstock.sum("amount").alias("amount"), name="audit", shards=4
    )
    named = audit.withColumn("kind", penstock.lit("audit")).select("kind", "user", "count", "amount")
    driver.program = program_of(named.union(total))
    assert made < 240
    driver.restart()
    assert driver.run_until("drained", 60.0), driver.failed
    last = {(row["kind"], row["user"]): (row["count"], row["amount"]) for row in driver.sink.rows()}
    audited = {key[1]: counted for key, counted in last.items() if key[0] == "audit"}
    model = {**shapes.model(240, 240), **shapes.timed_model(240)}
    assert {key: counted for key, counted in last.items() if key[0] not in ("audit", "late")} == model
    assert sum(int(str(count)) for count, _ in audited.values()) == 240 - made
    driver.stop()
    assert not verify(fast_disk(), driver.checkpoint).damaged


def test_what_was_said_of_event_time_is_known_on_a_new_edge_and_an_end_is_said_again() -> None:
    schema = pa.schema([("at", pa.timestamp("us"))])
    given = InputSpec(0, "source", schema, marked=True)
    edge = EdgeSpec(0, ("k",), 2, "a", marked=True)
    stages = {
        "source": StageSpec("source", "source", schema, edges=[edge], bounded=True),
        "a": StageSpec("a", "operator", schema, [given], shards=2),
    }
    chains = Chains(Program(stages))
    end = Record("source", 1, "epoch", 1, NO_HASH, 1, watermark_us=END_US)
    chains.apply(end, encode(end))
    assert chains["source"].ended and chains["source"].said == {0: END_US}
    more = {
        "source": dataclasses.replace(
            stages["source"],
            edges=[edge, EdgeSpec(1, ("k",), 3, "b", marked=True), EdgeSpec(2, (), 1, "sink")],
        ),
        "a": stages["a"],
        "b": StageSpec("b", "operator", schema, [InputSpec(1, "source", schema, marked=True)], shards=3),
        "sink": StageSpec("sink", "sink", schema, [InputSpec(2, "source", schema)]),
    }
    assert chains.adopt(Program(more)) == {}
    (group,) = chains["b"].groups
    key = ChannelKey(1, "source")
    assert (group.at, group.marks, len(group.shards)) == ({key: Position(2, 0)}, {key: END_US}, 3)
    assert chains["source"].ended and chains["a"].groups[0].at == {ChannelKey(0, "source"): Position(1, 0)}
    told = {**more, "source": dataclasses.replace(more["source"], edges=[
        edge, EdgeSpec(1, ("k",), 3, "b", marked=True), EdgeSpec(2, (), 1, "sink", marked=True)])}  # fmt: skip
    chains.adopt(Program(told))
    assert not chains["source"].ended and not chains["source"].has_said_its_end()
