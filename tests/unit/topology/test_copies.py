"""What a user declares can be copied, pickled by value, and looked at by tools that ask for whatever there may be."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
from pyspark import cloudpickle

import penstock
from penstock.dataplane.logic.processor_states import Deleted
from penstock.errors import OperatorError
from penstock.topology.processors import RecordingHandle, Undefined

STREAM = penstock.from_rows([("a", 1)], schema="user string, n long", name="rows")
WINDOWED = penstock.from_rows([], schema="user string, ts timestamp", name="timed").groupBy(
    penstock.window("ts", "1 minute"), "user"
)
THINGS: dict[str, Any] = {
    "stream": STREAM,
    "grouped": STREAM.groupBy("user"),
    "cogrouped": STREAM.groupBy("user").cogroup(STREAM.groupBy("user")),
    "windowed": WINDOWED,
    "column": penstock.col("n") + 1,
    "case": penstock.when(penstock.col("n") == 1, 2),
    "writer": STREAM.writeStream,
    "recording handle": RecordingHandle("op", "none"),
    "undefined": Undefined("op", "s"),
    "deleted": Deleted("op", "s", "value", lambda *told: OperatorError(str(told))),
}


def by_value(thing: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(thing))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", THINGS)
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, by_value])
def test_a_copy_is_one_of_the_same(name: str, way: Any) -> None:
    thing = THINGS[name]
    made = way(thing)
    assert type(made).__name__ == type(thing).__name__ and vars(made).keys() == vars(thing).keys()


@pytest.mark.parametrize("name", THINGS)
def test_tools_may_ask_for_whatever_there_may_be(name: str) -> None:
    thing = THINGS[name]
    for asked in ("_repr_html_", "__array__", "_ipython_canary_method_should_not_exist_", "__setstate__"):
        hasattr(thing, asked)
    assert "__class__" in dict(inspect.getmembers(thing))
    bare = object.__new__(type(thing))  # as it is while it is being loaded
    assert not hasattr(bare, "__setstate__") and not hasattr(bare, "_nothing")


def test_a_function_that_names_its_stream_runs_where_it_is_loaded() -> None:
    stream = STREAM

    def count(row: Any) -> int:
        return len(stream.columns)

    assert by_value(count)(None) == 2


def test_rows_that_a_stream_does_not_have_are_told_in_their_own_words() -> None:
    for name, said in (
        ("dead_letters", "has no dead letters; declare"),
        ("late_rows", "has no late rows; they"),
    ):
        with pytest.raises(penstock.DeclarationError, match=said):
            getattr(STREAM, name)
        assert not hasattr(STREAM, name)
