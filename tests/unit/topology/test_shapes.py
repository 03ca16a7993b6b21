"""Shapes of topologies as declared: what is legal, what is refused, and what the program then says."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock import col
from penstock.dataplane.channel import Deal
from penstock.dataplane.compile import compile_program
from penstock.dataplane.program import Program


def source(name: str = "source", columns: str = "id long, k long, at timestamp") -> penstock.Stream:
    return penstock.generate(lambda start, count: None, schema=columns, rate=1, name=name)  # type: ignore[arg-type, return-value]


def compiled(stream: penstock.Stream) -> Program:
    return compile_program(stream.node, tasks=2, memory_bytes=1 << 20)


def echo(key: Any, rows: list[Any], *more: Any) -> None:
    return None


def test_a_station_takes_the_steps_before_it_out_of_the_stage_that_makes_the_rows() -> None:
    stream = source().filter(col("id") > 3).map(lambda row: row, schema="id long, k long, at timestamp")
    program = compiled(stream.station("work", cores=3, shards=16).select("id"))
    assert list(program.stages) == ["source", "work", "sink"]
    (edge,) = program.stages["source"].edges
    assert (edge.deal, edge.shards, edge.steps) == (Deal.TURN, 16, ())
    work = program.stages["work"]
    assert (work.tasks, work.stateful, len(work.edges[0].steps)) == (3, False, 1)
    near = compiled(source().station("work", keep_local=True))
    assert near.stages["source"].edges[0].deal is Deal.LOCAL


def test_a_watermark_inside_a_station_is_refused() -> None:
    with pytest.raises(penstock.DeclarationError, match=r"'work': call withWatermark\(...\) after"):
        source().withWatermark("at", "1 minute").station("work")


@pytest.mark.parametrize(
    ("column", "delay", "message"),
    [
        ("none", "1 minute", "no column 'none'"),
        ("k", "1 minute", "of type bigint, and event time is a timestamp"),
        ("at", "soon", "'soon' is no duration"),
        ("at", "1 month", "no fixed length"),
        ("at", "-1 seconds", "not negative"),
        ("at", 3, "3 is no duration"),
    ],
)
def test_a_watermark_that_cannot_be_is_refused(column: str, delay: Any, message: str) -> None:
    with pytest.raises(penstock.DeclarationError, match=message):
        source().withWatermark(column, delay)


def test_a_broadcast_goes_to_every_shard_and_the_keyed_rows_to_theirs() -> None:
    stream = (
        source()
        .groupBy("k")
        .with_broadcast(source("rules", "rule long"))
        .apply_rows(
            echo,
            on_broadcast=lambda rows, shared: None,
            shared={"rules": penstock.MapState("long", "long")},
            schema="id long",
            name="ruled",
            shards=8,
        )
    )
    program = compiled(stream)
    assert program.stages["rules"].edges[0].deal is Deal.BROADCAST
    assert program.stages["source"].edges[0].keys == ("k",)
    assert program.stages["ruled"].slots == 2
    with pytest.raises(penstock.DeclarationError, match=r"on_broadcast takes a function \(rows, shared\)"):
        source().groupBy("k").with_broadcast(source("r")).apply_rows(
            echo,
            on_broadcast=3,  # type: ignore[arg-type]
            shared={},
            schema="id long",
        )


def test_a_loop_is_taken_first_and_must_be_closed_over_an_operator() -> None:
    ring = penstock.loop("again", schema="id long, k long, at timestamp")
    counted = source().union(ring).groupBy("k").apply_rows(echo, schema="id long, k long, at timestamp")
    with pytest.raises(penstock.DeclarationError, match="loop 'again' is never closed"):
        compiled(counted)
    with pytest.raises(penstock.DeclarationError, match="go through no operator"):
        ring.feed(ring.filter(col("id") > 3))
    with pytest.raises(penstock.DeclarationError, match="select the same types"):
        ring.feed(counted.select("id"))
    ring.feed(counted.filter(col("id") > 3))
    with pytest.raises(penstock.DeclarationError, match="closed already"):
        ring.feed(counted)
    program = compiled(counted)
    inputs = program.stages["echo_by_k"].inputs
    assert [(given.producer, given.feedback) for given in inputs] == [("echo_by_k", True), ("source", False)]
    assert program.loops


def test_dead_letters_are_there_only_when_asked_for() -> None:
    with pytest.raises(penstock.DeclarationError, match="'echo_by_k' has no dead letters"):
        _ = source().groupBy("k").apply_rows(echo, schema="id long").dead_letters
    with pytest.raises(penstock.DeclarationError, match="'fail' or 'dead_letter', not 'ignore'"):
        source().groupBy("k").apply_rows(echo, schema="id long", on_error="ignore")
    stream = source().groupBy("k").apply_rows(echo, schema="id long", on_error="dead_letter")
    assert stream.dead_letters.columns == ["operator", "key", "time", "error", "traceback", "rows"]
    assert [edge.output for edge in compiled(stream.dead_letters).stages["echo_by_k"].edges] == ["dead"]


def test_two_parts_of_one_name_are_refused() -> None:
    with pytest.raises(penstock.DeclarationError, match="two parts of the topology are named 'source'"):
        compiled(source().union(source()))
