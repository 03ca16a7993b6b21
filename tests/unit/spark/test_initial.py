"""Initial state as Spark's state reader gives it: fields of key and value become columns."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from penstock.errors import DeclarationError
from penstock.spark.initial import flatten, is_state

TEXT, NUMBER = StringType(), LongType()
KEY = StructType([StructField("user", TEXT), StructField("day", NUMBER)])


def schema(**columns: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])  # type: ignore[arg-type]


def fields(*names: str) -> StructType:
    return StructType([StructField(name, NUMBER) for name in names])


def test_a_value_becomes_columns_behind_those_of_the_key() -> None:
    found, keys = flatten(schema(partition_id=NUMBER, key=KEY, value=fields("count", "sum")), "op")
    assert keys == ("user", "day")
    assert [(one.name, ".".join(one.path)) for one in found] == [
        ("user", "key.user"),
        ("day", "key.day"),
        ("count", "value.count"),
        ("sum", "value.sum"),
    ]


def test_entries_of_a_map_become_columns_and_whole_maps_and_ends_stay() -> None:
    entries = schema(
        key=KEY, user_map_key=fields("item"), user_map_value=fields("n"), expiration_timestamp_ms=NUMBER
    )
    found, _ = flatten(entries, "op")
    assert [one.name for one in found] == ["user", "day", "item", "n", "expiration_timestamp_ms"]
    whole = schema(key=KEY, map_value=MapType(fields("item"), fields("n")), partition_id=NUMBER)
    assert [one.name for one in flatten(whole, "op")[0]] == ["user", "day", "map_value"]


def test_two_fields_of_one_name_are_refused_with_what_to_do() -> None:
    with pytest.raises(
        DeclarationError, match=r"has both key\.user and value\.user; select each under a name"
    ):
        flatten(schema(key=KEY, value=fields("user")), "op")


def test_only_a_struct_named_key_beside_something_else_is_what_the_reader_gives() -> None:
    assert is_state(schema(key=KEY, value=fields("n")))
    assert not is_state(schema(key=TEXT, value=fields("n"))) and not is_state(schema(key=KEY))
