"""What `writeStream` takes, and what it refuses with the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.errors import DeclarationError
from penstock.topology import writer as writing
from penstock.topology.triggers import Trigger
from penstock.topology.writer import Declared, StreamWriter


def make(first: int, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"k": list(range(first, first + count))})


def writer(limit: int | None = None) -> StreamWriter:
    stream = penstock.generate(
        make, schema="k bigint, at timestamp, d date", rate=1, limit=limit, name="numbers"
    )
    return stream.writeStream.option("checkpointLocation", "/c")


def test_a_trigger_is_what_pyspark_calls_so() -> None:
    noop = writer(5).format("noop")
    assert noop.declare().trigger == Trigger()
    assert noop.trigger(processingTime="2 seconds").declare().trigger == Trigger(
        2.0, interval="2000000 microseconds"
    )
    assert noop.trigger(processingTime="0 seconds").declare().trigger == Trigger()
    assert noop.trigger(availableNow=True).declare().trigger.for_spark() == {"availableNow": True}
    assert noop.trigger(once=True).declare().trigger.ends == "once"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, r"one of processingTime, once and availableNow, and was given 0"),
        ({"once": True, "availableNow": True}, "was given 2"),
        ({"once": False}, r"trigger\(once=...\) must be True, not False"),
        ({"availableNow": "yes"}, r"trigger\(availableNow=...\) must be True, not 'yes'"),
        (
            {"continuous": "1 second"},
            r"trigger\(continuous=...\) is not available: epochs follow one another",
        ),
        ({"realTime": "1 second"}, r"trigger\(realTime=...\) is not available: epochs follow one another"),
        ({"processingTime": "soon"}, r"trigger\(processingTime=...\): 'soon' is no duration"),
        ({"processingTime": "-1 second"}, r"trigger\(processingTime=...\)"),
    ],
)
def test_a_trigger_that_cannot_be_had_is_refused_with_the_reason(given: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        writer().trigger(**given)


def test_a_source_without_an_end_cannot_be_available_now() -> None:
    with pytest.raises(
        DeclarationError, match=r"source 'numbers' makes rows without an end.*give it a limit"
    ):
        writer().format("noop").trigger(availableNow=True).declare()


def test_the_pace_is_given_once() -> None:
    both = writer().format("noop").option("minEpochSeconds", 1).trigger(processingTime="1 second")
    with pytest.raises(DeclarationError, match=r"processingTime.*'minEpochSeconds'.*give one of them"):
        both.declare()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("parket", r"'parket' is unknown; did you mean 'parquet'\?"),
        ("Console", r"did you mean 'console'\?"),
        ("kafka", "use one of console, memory, noop, parquet.*foreachBatch"),
        (None, "None is unknown"),
    ],
)
def test_an_unknown_format_is_refused_with_the_nearest(given: Any, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        writer().format(given)


def test_a_query_without_a_sink_names_them() -> None:
    with pytest.raises(
        DeclarationError, match=r"'numbers' has no sink; call .*parquet.*foreachBatch.*foreach_arrow"
    ):
        writer().declare()


@pytest.mark.parametrize("method", ["foreachBatch", "foreach_arrow"])
def test_a_sink_function_must_be_one(method: str) -> None:
    with pytest.raises(DeclarationError, match=rf"{method}\(...\) takes a function .*sink_epoch\), not 5"):
        getattr(writer(), method)(5)


def test_options_of_another_sink_are_refused_by_name() -> None:
    with pytest.raises(DeclarationError, match=r"option 'rollBytes' belongs to format\('parquet'\)"):
        writer().format("console").option("rollBytes", 5).declare()
    with pytest.raises(DeclarationError, match=r"option 'numRows' belongs to format\('console'\)"):
        writer().format("parquet").option("path", "/p").option("numRows", 5).declare()
    with pytest.raises(DeclarationError, match=r"option 'path' belongs to format\('parquet'\)"):
        writer().foreach_arrow(print).option("path", "/p").declare()


def test_a_parquet_sink_needs_a_path() -> None:
    with pytest.raises(DeclarationError, match=r"format\('parquet'\) needs option\('path', ...\)"):
        writer().format("parquet").declare()


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("rollBytes", "much", "a whole number"),
        ("rollSeconds", 0, "greater than 0"),
        ("compression", "tar", "one of snappy, zstd, gzip, lz4, none"),
        ("truncate", "maybe", "true, false or a number of characters"),
        ("numRows", -1, "greater than 0"),
    ],
)
def test_a_value_of_another_kind_is_refused(name: str, given: object, said: str) -> None:
    with pytest.raises(DeclarationError, match=rf"option '{name}' must be {said}, not {given!r}"):
        writer().option(name, given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["K"], r"no column 'K'"),
        (["at"], r"column 'at' has type timestamp.*use integers, strings, booleans or dates"),
    ],
)
def test_a_partition_column_that_cannot_be_one_is_refused(given: list[str], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        writer().partitionBy(*given)


def test_partitions_belong_to_files_and_leave_a_column() -> None:
    with pytest.raises(DeclarationError, match=r"partitionBy\(...\) belongs to format\('parquet'\)"):
        writer().format("noop").partitionBy("k").declare()
    rows = penstock.from_rows([(1,)], schema="k long").writeStream
    with pytest.raises(DeclarationError, match=r"takes all columns.*leave one out"):
        rows.partitionBy("k")


def test_the_view_of_a_memory_sink_has_a_name_that_sql_takes() -> None:
    with pytest.raises(DeclarationError, match="queryName 'my rows' cannot be the name of a view"):
        writer().format("memory").queryName("my rows").declare()
    assert writer().format("noop").queryName("my rows").declare().name == "my rows"


def test_complete_mode_is_refused_with_what_to_use() -> None:
    counted = (
        penstock.generate(make, schema="k bigint", rate=1).groupBy("k").count(name="counted").writeStream
    )
    with pytest.raises(DeclarationError, match=r"operator 'counted': outputMode 'complete'.*use update"):
        counted.outputMode("complete")
    with pytest.raises(
        DeclarationError, match=r"operator 'counted': outputMode 'append' is not available.*use update"
    ):
        counted.outputMode("append")


def test_start_takes_what_pysparks_takes_or_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[Declared, Any]] = []
    monkeypatch.setattr(writing, "_starter", [lambda declared, spark: started.append((declared, spark))])
    session = object()
    writer().start("/out", "parquet", "append", ["k"], "copy", rollSeconds=3)
    writer().format("noop").start(session)
    writer().start(Path("/out"), format="parquet", partitionBy="k", spark=session)
    (first, active), (second, given), (third, also) = started
    assert first.sink == "parquet" and first.name == "copy" and first.partition_by == ("k",)
    assert first.options == {"checkpointLocation": "/c", "path": "/out", "rollSeconds": 3.0}
    assert active is None and given is session and also is session
    assert second.sink == "noop" and third.options["path"] == "/out" and third.partition_by == ("k",)


def test_a_query_may_have_further_sinks_with_names_of_their_own() -> None:
    from penstock.dataplane.compile import compile_program

    def work(key: object, rows: object, state: object) -> None:
        return None

    numbers = penstock.from_rows([(1,)], schema="n long", name="numbers")
    stream = numbers.groupBy("n").apply_rows(work, schema="n long", name="work", on_error="dead_letter")
    writer = stream.writeStream.format("noop").option("checkpointLocation", "x")
    letters = stream.dead_letters.writeStream.format("memory")
    declared = writer.also("letters", letters).declare()
    program = compile_program(
        declared.node, tasks=1, memory_bytes=1, also={str(one.name): one.node for one in declared.also}
    )
    assert [name for name, spec in program.stages.items() if spec.kind == "sink"] == ["sink", "sink.letters"]
    assert [edge.output for edge in program.stages["work"].edges] == ["main", "dead"]
    with pytest.raises(DeclarationError, match="has a sink of that name"):
        writer.also("letters", letters)
    with pytest.raises(
        DeclarationError,
        match=r"also\('other', ...\): checkpointLocation belongs to the query.*set it on the writer that is started",
    ):
        writer.also("other", stream.writeStream.format("noop").option("checkpointLocation", "y"))
    with pytest.raises(DeclarationError, match=r"takes stream\.writeStream with a sink"):
        writer.also("other", stream)  # type: ignore[arg-type]
    for further, said in (
        (stream.writeStream.option("maxEpochRows", 5), "maxEpochRows belongs to the query"),
        (stream.writeStream.option("export", "*").queryName("q"), "export, queryName belong to the query"),
    ):
        with pytest.raises(DeclarationError, match=said):
            writer.also("other", further.format("noop"))
    writer.also("files", stream.writeStream.format("parquet").option("path", "/out").option("rollSeconds", 3))


def test_a_source_without_an_end_cannot_be_available_now_behind_a_further_sink() -> None:
    ends = penstock.from_rows([(1,)], schema="n long", name="ends").writeStream.format("noop")
    endless = writer().format("noop")
    endless._options.clear()
    ends.option("checkpointLocation", "x").trigger(availableNow=True).also("more", endless)
    with pytest.raises(DeclarationError, match=r"source 'numbers' makes rows without an end.*availableNow"):
        ends.declare()


def test_two_sinks_do_not_write_to_one_folder() -> None:
    def files(path: str) -> StreamWriter:
        return penstock.from_rows([(1,)], schema="n long").writeStream.format("parquet").option("path", path)

    first = files("/out").option("checkpointLocation", "/c")
    with pytest.raises(DeclarationError, match=r"to the folder /out; give also\('more', ...\) another path"):
        first.also("more", files("/out/")).declare()


@pytest.mark.parametrize("policy", [3, None, "", penstock.SLA(0.5)])
def test_a_policy_that_is_not_named_by_text_is_refused_where_it_is_given(policy: Any) -> None:
    with pytest.raises(DeclarationError, match="a policy is named by text, such as 'penstock'"):
        writer(5).sla(penstock.SLA(0.5), policy)


def test_options_of_a_policy_are_given_beside_it() -> None:
    declared = writer(5).format("noop").sla(penstock.SLA(1.0), "drs", t_min_s=0.8, k_max=4).declare()
    assert (declared.policy, declared.policy_options) == ("drs", {"t_min_s": 0.8, "k_max": 4})
