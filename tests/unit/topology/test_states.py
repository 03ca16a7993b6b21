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


class SparkType:
    """Stands for a DataType of Spark, which is known by this method."""

    def __init__(self, json: object) -> None:
        self._json = json

    def jsonValue(self) -> object:
        return self._json


def test_a_state_takes_what_pyspark_takes() -> None:
    fields = [
        {"name": "a", "type": "long", "nullable": True},
        {"name": "b", "type": "integer", "nullable": True},
    ]
    struct = ValueState("struct<a:bigint,b:int>")
    assert ValueState(SparkType({"type": "struct", "fields": fields})) == struct
    assert ValueState("a long, b int") == ValueState("a: long, `b` int") == struct
    assert ValueState(pa.schema([("a", pa.int64()), ("b", pa.int32())])) == struct
    assert ValueState(SparkType("long")) == ValueState("long")
    assert MapState(SparkType("string"), "a long, b int") == MapState("string", "struct<a:bigint,b:int>")
    assert ListState("n long") == ListState("struct<n:bigint>")


def test_what_is_one_type_is_not_read_as_a_row() -> None:
    for one in ("string collate utf8_binary", "decimal(5,2)", "array<int>", "timestamp_ntz"):
        assert not pa.types.is_struct(ValueState(one).value_type)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (int, "ValueState takes a DDL type such as 'double'.*write 'bigint' for int"),
        (None, "ValueState takes a DDL type"),
        (SparkType, r"not SparkType, write SparkType\(\)"),
        ("a long, a int", "ValueState: column 'a' is named twice"),
        ("a dubble, b int", "column 'a' has unknown type 'dubble'; did you mean 'double'"),
    ],
)
def test_what_is_no_type_is_refused_with_what_is(given: object, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        ValueState(given)


def test_states_without_names_are_refused() -> None:
    with pytest.raises(DeclarationError, match="operator 'op': states are declared by name"):
        check_states(["x"], "op")


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
