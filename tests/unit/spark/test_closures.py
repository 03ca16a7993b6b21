"""A function that cannot be sent to workers is refused before a start does anything, by operator, variable and fix."""

from __future__ import annotations

import functools
import queue
import re
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor

import penstock
from penstock.dataplane.compile import compile_program
from penstock.errors import DeclarationError
from penstock.spark.closures import check_closures

ROWS = penstock.from_rows([("a", 1)], schema="user string, n long", name="rows")
LOCK = threading.Lock()


class Spark(SparkSession):
    """A session that was never opened; it cannot be pickled either."""

    def __init__(self) -> None:
        self._lock = threading.Lock()


class Model:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def score(self, key: Any, rows: Any, state: Any) -> None:
        with self.lock:
            pass


class Worker(threading.Thread):
    """A thread of the user's."""


class Processor(StatefulProcessor):
    """A processor that holds what cannot be sent."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return iter([])

    def close(self) -> None: ...


UNSENT = ROWS.map(lambda row: (LOCK.locked(),), schema="b boolean")
"""A stream that holds what cannot be sent, as one of a DataFrame does."""


def refused(stream: penstock.Stream) -> str:
    with pytest.raises(DeclarationError) as raised:
        check_closures(compile_program(stream.node, tasks=1, memory_bytes=1 << 20), stream.node)
    return str(raised.value)


def applied(function: Callable[..., Any]) -> penstock.Stream:
    return ROWS.groupBy("user").apply_rows(function, schema="n long", name="op")


def test_what_can_be_sent_is_taken() -> None:
    table = {"a": 1}

    def fine(key: Any, rows: Any, state: Any) -> list[tuple[int]]:
        print(key, file=sys.stdout)
        return [(table.get(key[0], 0),)]

    check_closures(compile_program(applied(fine).node, tasks=1, memory_bytes=1 << 20), applied(fine).node)


def using(thing: Any) -> Callable[..., Any]:
    def count(key: Any, rows: Any, state: Any) -> None:
        str(thing)

    return count


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (threading.Lock, r"count uses 'thing', a _thread.lock, .*leave it out"),
        (Spark, r"count uses 'thing', a .*Spark, .*"),
        (
            lambda: open("/dev/null", "w"),  # noqa: SIM115
            r"count uses 'thing', an? _io.TextIOWrapper, .*open it inside the function",
        ),
        (socket.socket, r"count uses 'thing', a socket.socket, .*connect inside the function"),
        (lambda: (i for i in range(3)), r"count uses 'thing', a generator, .*make a list of it"),
        (lambda: {"deep": [threading.Lock()]}, r"count uses \"thing\['deep'\]\[0\]\", a _thread.lock"),
        (lambda: {1: Model()}, r"count uses 'thing\[1\].lock', a _thread.lock"),
        (lambda: open("/dev/null"), r"count uses 'thing', an? _io.TextIOWrapper, .*open it inside"),  # noqa: SIM115
        (lambda: [open("/dev/null")], r"count uses 'thing\[0\]', an? _io.TextIOWrapper"),  # noqa: SIM115
        (threading.Thread, r"count uses 'thing', a threading.Thread, .*leave it out"),
        (Worker, r"count uses 'thing', a .*Worker, .*no thread of this one runs"),
        (queue.Queue, r"count uses 'thing', a queue.Queue, "),
        (
            lambda: UNSENT,
            r"count uses 'thing', a penstock.Stream, .*a stream cannot be used inside a function",
        ),
        (
            lambda: UNSENT.writeStream,
            r"count uses 'thing', a penstock.StreamWriter, .*a stream cannot be used inside",
        ),
    ],
)
def test_the_variable_in_the_way_is_named_with_the_fix(make: Callable[[], Any], said: str) -> None:
    thing = make()
    text = refused(applied(using(thing)))
    assert text.startswith("operator 'op': ") and "which cannot be sent to workers" in text
    assert re.search(said, text), text


def test_globals_methods_partials_steps_and_sources_are_looked_into() -> None:
    def of_global(key: Any, rows: Any, state: Any) -> None:
        LOCK.acquire()

    of_global.__module__ = "__main__"  # functions of the program are pickled whole
    assert "op" in refused(applied(Model().score)) and "'self.lock'" in refused(applied(Model().score))
    with_argument = functools.partial(lambda lock, key, rows, state: None, threading.Lock())
    assert "'argument 0', a _thread.lock" in refused(applied(with_argument))
    lock = threading.Lock()
    text = refused(ROWS.map(lambda row: (str(lock),), schema="s string").groupBy("s").count())
    assert text.startswith("map(...) after 'rows': <lambda> uses 'lock'")

    def make(offset: int, count: int) -> Any:
        return lock

    text = refused(penstock.generate(make, schema="n long", rate=1, name="made").groupBy("n").count())
    assert text.startswith("source 'made': make uses 'lock'")


def test_what_a_processor_holds_is_named() -> None:
    stream = ROWS.groupBy("user").transformWithState(Processor(), "n long", "update", "none", name="op")
    assert re.search(
        r"^operator 'op': Processor uses 'lock', a _thread.lock, .*leave it out", refused(stream)
    )


class Odd:
    """What cannot be pickled, and lets nobody look at it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Closed(Odd):
    def __getattribute__(self, name: str) -> Any:
        if name in ("__reduce_ex__", "__reduce__"):
            raise SystemExit("no pickle")
        raise RuntimeError(f"no {name}")


@pytest.mark.parametrize(("change", "value"), [("__module__", None), ("__name__", "_"), ("__name__", "___")])
def test_a_thing_of_an_odd_class_is_refused_as_any_other(change: str, value: Any) -> None:
    thing = type("Made", (Odd,), {})()
    setattr(type(thing), change, value)
    assert "count uses 'thing" in refused(applied(using(thing)))


def test_a_thing_that_lets_nobody_look_at_it_is_refused_all_the_same() -> None:
    assert refused(applied(using(Closed()))).startswith("operator 'op': count ")
