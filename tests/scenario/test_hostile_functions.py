"""Functions that raise what no function should, in every place where user code is called: one letter or one OperatorError,
which names the operator and, where there is one, the key."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.streaming import StatefulProcessor

import penstock
from penstock.errors import DeclarationError, OperatorError
from penstock.testing import operator, run
from penstock.topology.expressions import function
from penstock.topology.stream import Stream

NAME = os.fsdecode(b"name-\xff")


class PanicException(BaseException):
    """What extensions written in Rust raise."""


class Odd(Exception):
    def __str__(self) -> str:
        raise asyncio.CancelledError("str raises")

    __repr__ = __str__


RAISED: dict[str, Callable[[], BaseException]] = {
    "surrogate": lambda: ValueError(f"cannot parse {NAME}"),
    "cancelled": lambda: asyncio.CancelledError("the reason"),
    "interrupt": lambda: KeyboardInterrupt("nobody pressed it"),
    "generator": GeneratorExit,
    "exit": lambda: SystemExit(3),
    "rust": lambda: PanicException("index out of bounds"),
    "odd": Odd,
    "long": lambda: ValueError("ä" * 3_000_000),
}


class Bad:
    """What a function returns as a value, or as a row: it fails whoever looks at it."""

    def __repr__(self) -> str:
        raise PanicException("no text")

    __str__ = __len__ = __iter__ = __index__ = __float__ = __repr__  # type: ignore[assignment]


def hurl(how: str) -> Any:
    raise RAISED[how]()


def rows(name: str = "src") -> Stream:
    return penstock.from_rows([(i % 2, i) for i in range(10)], schema="k long, id long", name=name)


def keyed() -> Any:
    return rows().groupBy("k")


class Hostile(StatefulProcessor):
    """Raises in one of its methods."""

    def __init__(self, how: str, where: str) -> None:
        self.how, self.where, self.inits = how, where, 0

    def init(self, handle: Any) -> None:
        self.handle = handle
        if self.where == "init" and not type(handle).__name__.startswith("Recording"):
            hurl(self.how)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        found = list(rows)
        if self.where == "rows" and key[0] == 1:
            hurl(self.how)
        if self.where == "timer":
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        yield from () if isinstance(found[0], pd.DataFrame) else [(key[0], len(found))]

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        hurl(self.how)
        yield

    def close(self) -> None:
        if self.where == "close" and not type(self.handle).__name__.startswith("Recording"):
            hurl(self.how)


def processed(how: str, where: str, flavour: str = "", **more: Any) -> Stream:
    mode = "ProcessingTime" if where == "timer" else "None"
    start = getattr(keyed(), f"transformWithState{flavour}")
    made: Stream = start(Hostile(how, where), "k long, n long", "Append", mode, name="op", **more)
    return made


def on_timer(how: str) -> Stream:
    def fn(key: Any, rows: Any, state: Any) -> None:
        state.set_timer(state.now, processing=True)

    return keyed().apply_rows(  # type: ignore[no-any-return]
        fn, schema="k long", name="op", on_timer=lambda key, time, state: hurl(how)
    )


def windowed(how: str) -> Stream:
    stream = (
        rows()
        .select("k", "id", penstock.lit(0).cast("timestamp").alias("at"))
        .withWatermark("at", "1 second")
    )
    grouped = stream.groupBy("k", penstock.window("at", "1 second"))
    return grouped.apply_rows(lambda key, rows, state: hurl(how), schema="k long", name="op")


def broadcast(how: str, where: str, **more: Any) -> Stream:
    return (  # type: ignore[no-any-return]
        keyed()
        .with_broadcast(rows("rules"))
        .apply_rows(
            lambda key, rows, state, shared: hurl(how) if where == "key" else None,
            on_broadcast=lambda rows, shared: hurl(how) if where == "broadcast" else None,
            shared={"n": penstock.ValueState("long")}, schema="k long", name="op", shards=1, **more,
        )
    )  # fmt: skip


def cogrouped(how: str, **more: Any) -> Stream:
    both = keyed().cogroup(rows("right").groupBy("k"))
    return both.apply_rows(lambda key, left, right, state: hurl(how), schema="k long", name="op", **more)  # type: ignore[no-any-return]


def in_pandas(how: str, **more: Any) -> Stream:
    return keyed().applyInPandasWithState(  # type: ignore[no-any-return]
        lambda key, frames, state: hurl(how), "k long", "n long", "append", "NoTimeout", name="op", **more
    )


def computed(how: str) -> Stream:
    def compute(column: Any) -> Any:
        return hurl(how) if len(column) else column

    return rows().select(function("mine", compute, "k").alias("n"))


def by_rows(how: str, **more: Any) -> Stream:
    return keyed().apply_rows(lambda key, rows, state: hurl(how), schema="k long", name="op", **more)  # type: ignore[no-any-return]


def made(how: str) -> Stream:
    return penstock.generate(lambda offset, count: hurl(how), schema="k long", rate=100, limit=10, name="op")


PLACES: dict[str, tuple[Callable[[str], Stream], str]] = {
    "apply_rows": (by_rows, "(0,)"),
    "generator": (
        lambda how: keyed().apply_rows(
            lambda key, rows, state: (hurl(how) for _ in rows), schema="k long", name="op"
        ),
        "(0,)",
    ),
    "on_timer": (on_timer, "(0,)"),
    "window": (windowed, "Row(start="),
    "cogroup": (cogrouped, "(0,)"),
    "broadcast": (lambda how: broadcast(how, "broadcast"), "op"),
    "beside a broadcast": (lambda how: broadcast(how, "key"), "(0,)"),
    "apply_arrow": (
        lambda how: keyed().apply_arrow(lambda table, state: hurl(how), schema="k long", name="op"),
        "op",
    ),
    "processor": (lambda how: processed(how, "rows"), "(1,)"),
    "processor in pandas": (lambda how: processed(how, "rows", "InPandas"), "(1,)"),
    "init": (lambda how: processed(how, "init"), "op"),
    "timer": (lambda how: processed(how, "timer"), "(0,)"),
    "timer in pandas": (lambda how: processed(how, "timer", "InPandas"), "(0,)"),
    "applyInPandasWithState": (in_pandas, "(0,)"),
    "map": (lambda how: rows().map(lambda row: hurl(how), schema="n long"), "map(...) after 'src'"),
    "flat_map": (lambda how: rows().flat_map(lambda row: hurl(how), schema="n long"), "k=0"),
    "map_arrow": (lambda how: rows().map_arrow(lambda table: hurl(how), schema="n long"), "after 'src'"),
    "station": (
        lambda how: rows().map_arrow(lambda table: hurl(how), schema="n long").station("op"),
        "after 'src'",
    ),
    "function": (computed, "select(...) after 'src'"),
    "generate": (made, "rows 0 to"),
}  # fmt: skip


@pytest.mark.parametrize("how", RAISED)
@pytest.mark.parametrize("place", PLACES)
def test_one_error_names_what_raised_and_where(place: str, how: str) -> None:
    declare, named = PLACES[place]
    with pytest.raises(OperatorError) as caught:
        run(declare(how), seed=1)
    text = str(caught.value)
    text.encode()
    assert len(text) < 60_000
    assert type(RAISED[how]()).__name__ in text or (place == "function" and "cannot be computed" in text)
    assert "'op'" in text or "after 'src'" in text
    assert named in text or (named == "(0,)" and "(1,)" in text)


LETTERED: dict[str, Callable[..., Stream]] = {
    "apply_rows": by_rows,
    "cogroup": cogrouped,
    "broadcast": lambda how, **more: broadcast(how, "key", **more),
    "processor": lambda how, **more: processed(how, "rows", **more),
    "processor in pandas": lambda how, **more: processed(how, "rows", "InPandas", **more),
    "timer": lambda how, **more: processed(how, "timer", **more),
    "applyInPandasWithState": in_pandas,
}


@pytest.mark.parametrize("how", RAISED)
@pytest.mark.parametrize("place", LETTERED)
def test_one_letter_for_each_call_that_raised(place: str, how: str) -> None:
    with operator(LETTERED[place](how, on_error="dead_letter")) as harness:
        lists = 2 if place in ("cogroup", "broadcast") else 1
        harness.send(*[[{"k": 0, "id": 1}, {"k": 1, "id": 2}]] * lists)
        if place == "timer":
            harness.advance("1 minute")
        letters = harness.dead_letters()
    expected = ["[1]"] if place.startswith("processor") else ["[0]", "[1]"]
    assert sorted(letter["key"] for letter in letters) == expected
    for letter in letters:
        assert type(RAISED[how]()).__name__ in letter["error"] and len(letter["error"]) < 5_000
        assert len(letter["traceback"]) < 45_000
        letter["error"].encode(), letter["traceback"].encode()


@pytest.mark.parametrize(
    "given", [[Bad()], [(Bad(),)], [{"k": Bad()}], [("x" * 5_000_000,)], [(NAME,)], Bad()]
)
def test_what_is_returned_and_cannot_be_read_is_refused_by_operator_and_key(given: Any) -> None:
    stream = keyed().apply_rows(lambda key, rows, state: given, schema="k long", name="op")
    with pytest.raises(OperatorError, match=r"'op'.*\([01],\)") as caught:
        run(stream)
    assert len(str(caught.value)) < 60_000
    stream = keyed().apply_rows(
        lambda key, rows, state: given if key.k else None, schema="k long", name="op", on_error="dead_letter"
    )
    with operator(stream) as harness:
        assert harness.send([{"k": 0, "id": 1}, {"k": 1, "id": 2}]) == []
        (letter,) = harness.dead_letters()
    assert letter["key"] == "[1]"


class BadFrame(pd.DataFrame):
    @property
    def columns(self) -> Any:  # type: ignore[override]
        raise PanicException("no columns")


UNREADABLE: dict[str, tuple[str, Callable[[], Any]]] = {
    "no row": ("", Bad),
    "a value": ("", lambda: (Bad(), 1)),
    "a frame": ("InPandas", lambda: BadFrame({"k": [1]})),
    "no frame": ("InPandas", Bad),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_a_processor_yields_and_cannot_be_read_is_refused_by_operator_and_key(what: str) -> None:
    flavour, make = UNREADABLE[what]

    class Yields(Hostile):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            if key[0] == 1:
                yield make()

    def declared(**more: Any) -> Stream:
        start = getattr(keyed(), f"transformWithState{flavour}")
        return start(Yields("", ""), "k long, n long", "Append", "None", name="op", **more)  # type: ignore[no-any-return]

    with pytest.raises(OperatorError, match=r"'op'.*\(1,\)"):
        run(declared())
    with operator(declared(on_error="dead_letter")) as harness:
        harness.send([{"k": 0, "id": 1}, {"k": 1, "id": 2}])
        assert [letter["key"] for letter in harness.dead_letters()] == ["[1]"]


def test_a_source_that_makes_no_rows_is_refused_by_name() -> None:
    stream = penstock.generate(lambda offset, count: Bad(), schema="k long", rate=100, limit=10, name="src")
    with pytest.raises(OperatorError, match="source 'src' made a Bad"):
        run(stream)


@pytest.mark.parametrize("how", ["cancelled", "rust", "odd", "exit"])
def test_close_that_raises_costs_nothing(how: str) -> None:
    assert run(processed(how, "close")).num_rows >= 2


@pytest.mark.parametrize("how", ["cancelled", "rust", "odd", "exit"])
def test_what_fails_as_it_is_declared_is_refused_then(how: str) -> None:
    class Early(Hostile):
        def init(self, handle: Any) -> None:
            hurl(how)

    with pytest.raises(DeclarationError, match="op"):
        keyed().transformWithState(Early(how, ""), "k long, n long", "Append", "None", name="op")
    with pytest.raises(DeclarationError, match="n cannot be computed"):
        rows().select(function("mine", lambda column: hurl(how), "k").alias("n"))


def test_a_function_of_an_expression_that_returns_too_few_values_is_refused() -> None:
    stream = rows().select(
        function("mine", lambda column: pa.array([1] * min(1, len(column)), pa.int64()), "k").alias("n")
    )
    with pytest.raises(OperatorError, match=r"select\(...\) after 'src'.*1 values for"):
        run(stream)
