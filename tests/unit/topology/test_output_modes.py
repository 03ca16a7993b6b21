"""Whom the output mode of a writer concerns: it does not depend on steps in between, or on the order of operands."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest

import penstock
from penstock.errors import DeclarationError
from penstock.topology.nodes import Node
from penstock.topology.writer import Declared, StreamWriter

ROW = (1, dt.datetime(2024, 1, 1, tzinfo=dt.UTC))


def rows() -> penstock.Stream:
    return penstock.from_rows([ROW], schema="id long, ts timestamp", name="rows").withWatermark(
        "ts", "1 minute"
    )


def windows() -> penstock.Stream:
    return rows().groupBy(penstock.window("ts", "1 hour"), "id").count(name="counts")


def writer(stream: penstock.Stream) -> StreamWriter:
    return stream.writeStream.format("noop").option("checkpointLocation", "/nowhere")


def modes(declared: Declared) -> set[str | None]:
    found: set[str | None] = set()

    def visit(node: Node) -> None:
        if node.name == "counts" and node.kind == "windowed":
            found.add(node.output_mode)
        for given in node.inputs:
            visit(given)

    visit(declared.root)
    return found


@pytest.mark.parametrize(
    "behind",
    [
        lambda totals: totals.select("id"),
        lambda totals: totals.select("id").union(rows().select("id")),
        lambda totals: rows().select("id").union(totals.select("id")),
        lambda totals: totals.filter(penstock.col("count") > 1).station("apart"),
    ],
)
def test_append_is_refused_for_an_aggregate_behind_stateless_steps(
    behind: Callable[[penstock.Stream], penstock.Stream],
) -> None:
    totals = rows().groupBy("id").count(name="totals")
    with pytest.raises(DeclarationError, match="operator 'totals': outputMode 'append' is not available"):
        behind(totals).writeStream.outputMode("append")


def test_append_is_refused_for_an_aggregate_of_a_further_sink() -> None:
    totals = rows().groupBy("id").count(name="totals").writeStream.format("noop")
    with pytest.raises(DeclarationError, match="operator 'totals': outputMode 'append' is not available"):
        writer(windows()).also("totals", totals).outputMode("append").declare()
    writer(windows()).also("totals", totals).declare()


def test_append_is_taken_where_the_aggregate_goes_into_another_operator() -> None:
    def work(key: object, rows: object, state: object) -> None:
        return None

    applied = rows().groupBy("id").count(name="totals").groupBy("id").apply_rows(work, schema="id long")
    assert writer(applied).outputMode("append").declare()


def test_the_mode_of_a_window_does_not_depend_on_the_order_of_operands() -> None:
    counts = windows()

    def same(key: object, rows: object, state: object) -> None:
        return None

    behind = counts.groupBy("id").apply_rows(same, schema=counts.schema, name="behind")
    for merged in (counts.union(behind), behind.union(counts)):
        assert modes(writer(merged).outputMode("update").declare()) == {"update"}
    plain = writer(behind).also("counts", counts.writeStream.format("noop")).outputMode("update").declare()
    assert modes(plain) == {"update"}


def test_the_mode_goes_through_a_station() -> None:
    apart = windows().select("id").station("apart")
    assert modes(writer(apart).outputMode("update").declare()) == {"update"}


@pytest.mark.parametrize("given", ["Update", "UPDATE", "update"])
def test_a_mode_is_taken_in_any_case(given: str) -> None:
    assert modes(writer(windows()).outputMode(given).declare()) == {"update"}


def test_what_is_no_mode_is_refused() -> None:
    with pytest.raises(
        DeclarationError, match="outputMode 'upsert' is not available here; use append or update"
    ):
        writer(windows()).outputMode("upsert")
    with pytest.raises(DeclarationError, match="outputMode 3 is not available here"):
        writer(windows()).outputMode(3)  # type: ignore[arg-type]
