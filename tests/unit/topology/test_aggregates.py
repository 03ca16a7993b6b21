"""Constructors, output names and type rules of the built-in aggregates."""

from __future__ import annotations

import pyarrow as pa
import pytest

import penstock.topology.aggregates as agg
from penstock.errors import DeclarationError

SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("amount", pa.int32()),
        ("price", pa.float32()),
        ("money", pa.decimal128(20, 2)),
        ("tags", pa.list_(pa.string())),
        ("open", pa.bool_()),
    ]
)


@pytest.mark.parametrize(
    ("aggregate", "name", "type_"),
    [
        (agg.count(), "count", pa.int64()),
        (agg.count("tags"), "count(tags)", pa.int64()),
        (agg.sum("amount"), "sum(amount)", pa.int64()),
        (agg.sum("price"), "sum(price)", pa.float64()),
        (agg.sum("money"), "sum(money)", pa.decimal128(30, 2)),
        (agg.mean("amount"), "avg(amount)", pa.float64()),
        (agg.avg("price"), "avg(price)", pa.float64()),
        (agg.min("user"), "min(user)", pa.string()),
        (agg.max("price"), "max(price)", pa.float32()),
        (agg.last("open"), "last(open)", pa.bool_()),
        (agg.top_n("amount", 3), "top_n(amount, 3)", pa.list_(pa.int32())),
        (agg.sum("amount").alias("total"), "total", pa.int64()),
    ],
)
def test_names_and_types_are_sparks(aggregate: agg.Aggregate, name: str, type_: pa.DataType) -> None:
    field = aggregate.output_field(SCHEMA, "op")
    assert (field.name, field.type) == (name, type_)
    assert field.nullable == (not name.startswith("count"))


@pytest.mark.parametrize(
    "aggregate", [agg.sum("user"), agg.sum("open"), agg.mean("money"), agg.max("tags"), agg.last("tags")]
)
def test_a_type_that_cannot_be_aggregated_is_refused_with_operator_and_column(
    aggregate: agg.Aggregate,
) -> None:
    with pytest.raises(DeclarationError, match=rf"operator 'op'.*{aggregate.column}"):
        aggregate.output_field(SCHEMA, "op")


def test_an_unknown_column_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DeclarationError, match=r"'nope'.*'user'"):
        agg.output_schema([agg.sum("nope")], ["user"], SCHEMA, "op")


def test_two_output_columns_of_one_name_are_refused() -> None:
    with pytest.raises(DeclarationError, match="alias"):
        agg.output_schema([agg.count(), agg.count()], ["user"], SCHEMA, "op")
    with pytest.raises(DeclarationError, match="'user'"):
        agg.output_schema([agg.count().alias("user")], ["user"], SCHEMA, "op")


def test_no_aggregate_and_a_foreign_aggregate_are_refused() -> None:
    with pytest.raises(DeclarationError, match="no aggregate"):
        agg.output_schema([], ["user"], SCHEMA, "op")
    with pytest.raises(DeclarationError, match="takes aggregates such as"):
        agg.output_schema([max], ["user"], SCHEMA, "op")  # type: ignore[list-item]


@pytest.mark.parametrize("n", [0, -1, True, 2.0, agg.MAX_TOP_N + 1])
def test_top_n_takes_a_positive_number_within_its_limit(n: int) -> None:
    with pytest.raises(DeclarationError, match="top_n"):
        agg.top_n("amount", n)


def test_constructors_take_column_names_alone() -> None:
    with pytest.raises(DeclarationError, match="name of a column"):
        agg.sum(3)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="alias"):
        agg.count().alias("")
