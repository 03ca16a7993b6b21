"""Declaring windows: what is accepted, what the output looks like, and how mistakes are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.errors import DeclarationError
from penstock.topology.nodes import Node
from penstock.topology.output_modes import resolve_output_mode

SCHEMA = "ts timestamp, other timestamp, local timestamp_ntz, user string, v long"


def rows() -> penstock.Stream:
    return penstock.from_rows([], schema=SCHEMA, name="rows")


def marked() -> penstock.Stream:
    return rows().withWatermark("ts", "1 minute")


def test_the_window_stands_among_the_grouping_columns_where_it_was_given() -> None:
    window = penstock.window("ts", "5 minutes")
    edges = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
    first = marked().groupBy(window, "user").count()
    assert first.columns == ["window", "user", "count"] and first.schema.field("window").type == edges
    assert marked().groupBy("user", window, "v").count().columns == ["user", "window", "v", "count"]
    assert marked().groupBy(window.alias("w")).count().columns == ["w", "count"]
    assert marked().groupBy(penstock.session_window("ts", "1 second")).count().columns[0] == "session_window"


def test_windows_over_times_without_zone_have_edges_without_zone() -> None:
    made = rows().groupBy(penstock.window("local", "1 hour")).count()
    assert made.schema.field("window").type.field("start").type == pa.timestamp("us")


def test_a_row_belongs_to_as_many_windows_as_slides_fit_into_one() -> None:
    assert penstock.window("ts", "10 minutes").per_row == 1
    assert penstock.window("ts", "10 minutes", "4 minutes").per_row == 3
    assert penstock.window("ts", "1 hour 30 seconds", "30 seconds").per_row == 121


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: penstock.window("ts", "5 parsecs"), "windowDuration .*'5 parsecs' is no duration"),
        (lambda: penstock.window("ts", "1 month"), "no fixed length"),
        (lambda: penstock.window("ts", "0 seconds"), "windowDuration must be longer than nothing"),
        (lambda: penstock.window("ts", "-5 minutes"), "windowDuration must be longer than nothing"),
        (lambda: penstock.window("ts", "5 minutes", "0 seconds"), "slideDuration must be longer than nothing"),
        (lambda: penstock.window("ts", "5 minutes", "6 minutes"), "slideDuration '6 minutes' is longer than the window"),
        (lambda: penstock.window("ts", "5 minutes", startTime="5 minutes"), "startTime '5 minutes' must be shorter"),
        (lambda: penstock.window(5, "5 minutes"), "takes the name of a column, not 5"),  # type: ignore[arg-type]
        (lambda: penstock.session_window("ts", "0 seconds"), "gapDuration must be longer than nothing"),
        (lambda: rows().groupBy(penstock.window("tss", "1 hour")), r"'rows' has no column 'tss'.*did you mean 'ts'\?"),
        (lambda: rows().groupBy(penstock.window("v", "1 hour")), "'v' of 'rows' has type bigint, not timestamp"),
        (
            lambda: rows().groupBy(penstock.window("ts", "1 hour"), penstock.session_window("ts", "1 hour")),
            "has 2 windows; group by one",
        ),
        (
            lambda: rows().groupBy(penstock.window("ts", "1 hour").alias("user"), "user").count(name="twice"),
            "operator 'twice' has two output columns 'user'",
        ),
        (lambda: rows().late_rows, "'rows' has no late rows"),
    ],
)  # fmt: skip
def test_mistakes_are_refused_where_they_are_made(declare: Callable[[], Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        declare()


def writer(stream: penstock.Stream) -> Any:
    return stream.writeStream.format("noop").option("checkpointLocation", "/nowhere")


def mode_of(node: Node, name: str) -> str | None:
    found = [feed.stage for feed in node.feeds() if feed.stage.name == name]
    return found[0].output_mode if found else mode_of(node.feeds()[0].stage.inputs[0], name)


def test_append_is_the_default_and_the_writer_chooses() -> None:
    made = marked().groupBy(penstock.window("ts", "1 hour"), "user").count(name="counts")
    assert mode_of(writer(made).declare().node, "counts") == "append"
    later = made.select("user", "count")
    assert mode_of(writer(later).outputMode("update").declare().node, "counts") == "update"
    assert made.node.output_mode is None, "one stream can go to several writers"


def test_windows_further_upstream_are_put_out_when_they_close() -> None:
    counts = marked().groupBy(penstock.window("ts", "1 hour"), "user").count(name="counts")
    total = counts.groupBy("user").agg(penstock.sum("count"), name="total")
    assert mode_of(writer(total).outputMode("update").declare().node, "counts") == "append"


def test_a_topology_without_windows_is_left_as_it_is() -> None:
    node = rows().groupBy("user").count().node
    assert resolve_output_mode(node, "update") is node


@pytest.mark.parametrize(
    ("stream", "mode", "message"),
    [
        (
            lambda: rows().groupBy(penstock.window("ts", "1 hour")).count(name="counts"),
            None,
            r"operator 'counts': without a watermark no window ever closes; call withWatermark\('ts'.*or outputMode",
        ),
        (
            lambda: rows().withWatermark("other", "1 hour").groupBy(penstock.window("ts", "1 hour")).count(name="counts"),
            None,
            "its windows are over 'ts' and the watermark is on 'other'",
        ),
        (
            lambda: marked().groupBy(penstock.session_window("ts", "1 hour")).count(name="counts"),
            "update",
            "'counts': outputMode 'update' is not available for sessions",
        ),
        (
            lambda: marked().groupBy(penstock.window("ts", "1 hour")).apply_rows(print, schema="v long", name="all"),
            "update",
            "'all': outputMode 'update' is not available for functions over windows",
        ),
        (lambda: marked().groupBy(penstock.window("ts", "1 hour")).count(), "complete", "'complete' is not available"),
    ],
)  # fmt: skip
def test_modes_that_cannot_be_had_are_refused_by_operator(
    stream: Callable[[], penstock.Stream], mode: str | None, message: str
) -> None:
    with pytest.raises(DeclarationError, match=message):
        made = writer(stream())
        (made.outputMode(mode) if mode else made).declare()


def test_update_mode_needs_no_watermark() -> None:
    made = rows().groupBy(penstock.window("ts", "1 hour")).count(name="counts")
    assert mode_of(writer(made).outputMode("update").declare().node, "counts") == "update"
