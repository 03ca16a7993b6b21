"""What is in its normal form is stored by the call that writes it alone; all else is left to the rules of its type."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.dataplane.state.test_normal import Task
from tests.unit.dataplane.state.typed import same

from penstock.dataplane.state.normal import normal_of
from penstock.errors import OperatorError
from penstock.topology.schema import parse_any_type
from penstock.topology.states import ListState, MapState, ValueState

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
ROW = "struct<a:bigint,b:double,c:string>"
NORMAL: tuple[tuple[str, Any], ...] = (
    ("bigint", -(2**63)), ("tinyint", 127), ("double", 1.5), ("string", "text"), ("binary", b"x"), ("boolean", True),
    ("date", NOON.date()), ("timestamp", NOON), ("timestamp_ntz", NOON.replace(tzinfo=None)),
    (ROW, (1, 1.5, "x")), ("struct<a:bigint,t:timestamp>", (1, NOON)),
)  # fmt: skip


def calls_of(function: Callable[..., Any], *given: Any) -> int:
    """Return how many calls of functions in Python it takes, itself included."""
    count = 0

    def note(_frame: Any, event: str, _given: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        function(*given)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(("type_", "value"), NORMAL)
def test_a_value_that_is_normal_is_stored_by_one_call_and_reads_back(
    tmp_path: Path, type_: str, value: Any
) -> None:
    specs = {"value": ValueState(type_), "items": ListState(type_), "book": MapState("string", type_)}
    task = Task(str(tmp_path), specs)
    ann = task.ann
    assert [calls_of(ann.value.update, value), calls_of(ann.items.appendValue, value)] == [1, 1]
    held = ann.value.get()
    assert calls_of(ann.value.update, held) == 1
    ann.book["a"] = value
    assert calls_of(ann.book.__setitem__, "a", value) <= 2
    for _ in range(2):
        assert same([task.ann.value.get(), *task.ann.items, task.ann.book["a"]], [held] * 3)
        assert type(held) is type(normal_of(parse_any_type(type_, "type"))(value))
        task.commit()
        task.die()


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("array<bigint>", list(range(10))),
        ("array<double>", [1.5] * 10),
        ("array<string>", ["x"] * 10),
        ("map<string,bigint>", {f"k{at}": at for at in range(10)}),
        (ROW, {"a": 1, "b": 1.5, "c": "x"}),
        ("struct<a:bigint,b:double,c:string>", [1, 1.5, "x"]),
    ],
)
def test_the_parts_of_a_value_take_no_call_of_their_own(type_: str, value: Any) -> None:
    assert calls_of(normal_of(parse_any_type(type_, "type")), value) <= 3


@pytest.mark.parametrize(
    ("type_", "held", "given"),
    [
        ("struct<a:bigint,b:string>", (None, "é"), (None, "é")),
        ("struct<a:bigint,b:string>", (1, None), {"a": 1}),
        ("struct<a:bigint,b:string>", (1, "x"), [True and 1, "x"]),
        ("struct<a:double>", (1.0,), {"a": 1}),
        ("array<bigint>", [1, None, 3], (1, None, 3)),
        ("map<double,string>", {1.0: None}, {1: None}),
        ("bigint", 5, 5),
    ],
)
def test_what_is_not_passed_at_once_is_brought_into_its_form(type_: str, held: Any, given: Any) -> None:
    normal = normal_of(parse_any_type(type_, "type"))
    made = normal(given)
    assert made == held and type(made) is type(normal(held)) and normal(made) == held


@pytest.mark.parametrize(
    "wrong", [{"a": "x"}, {"a": 2**63}, {"a": True}, {"b": "1"}, {"c": "\ud800"}, {"c": b"x"}]
)
def test_a_row_that_was_read_and_changed_is_checked_again(tmp_path: Path, wrong: dict[str, Any]) -> None:
    ann = Task(str(tmp_path), {"value": ValueState(ROW), "items": ListState(ROW)}).ann
    ann.value.update((1, 1.5, "x"))
    row = ann.value.get()
    for write in (ann.value.update, ann.items.appendValue):
        with pytest.raises(OperatorError, match=f"field '{next(iter(wrong))}'"):
            write(row._replace(**wrong))
    assert (ann.value.get(), list(ann.items)) == (row, [])
