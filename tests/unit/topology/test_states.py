from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import DeclarationError
from penstock.topology.states import ListState, MapState, ValueState, check_states


def test_declarations_compare_by_what_they_mean() -> None:
    assert ValueState("long") == ValueState("bigint") == ValueState(pa.int64())
    assert ValueState("long") != ListState("long")
    assert MapState("int", "double") != MapState("long", "double")
    assert len({ValueState("long"), ValueState("bigint")}) == 1
    assert repr(MapState("long", "struct<a:int>")) == "MapState('bigint', 'struct<a:int>')"


@pytest.mark.parametrize("wrong", [lambda: ValueState("dubble"), lambda: MapState("array<int>", "int")])
def test_a_wrong_type_fails_at_declaration(wrong: object) -> None:
    with pytest.raises(DeclarationError):
        wrong()  # type: ignore[operator]


@pytest.mark.parametrize("name", ["cached", "key", "_x", "class", "two words", "", 3])
def test_names_that_cannot_be_attributes_are_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match="operator 'op'"):
        check_states({name: ValueState("int")}, "op")


def test_a_declaration_that_is_no_state_is_refused() -> None:
    with pytest.raises(DeclarationError, match="state 'n' is 'long'; declare a ValueState"):
        check_states({"n": "long"}, "op")


def test_states_keep_their_order() -> None:
    states = {"b": ValueState("int"), "a": ListState("int")}
    assert list(check_states(states, "op")) == ["b", "a"]
