"""Column expressions: what they compute, how they are named, what they refuse."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import coalesce, col, lit, when
from penstock.topology.expressions import Column, as_expression, evaluate, type_of
from penstock.topology.schema import parse_type

ROWS = pa.table(
    {
        "n": pa.array([1, 2, None, -7], pa.int64()),
        "x": pa.array([0.5, None, 2.0, -1.0]),
        "name": pa.array(["ab", None, "", "äbc"]),
        "ok": pa.array([True, None, False, True]),
        "at": pa.array(
            [dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3, 4)], pa.timestamp("us", "UTC")
        ),
    }
)


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        (col("n") + 1, [2, 3, None, -6]),
        (2 - col("n"), [1, 0, None, 9]),
        (col("n") * col("x"), [0.5, None, None, 7.0]),
        (col("n") / 2, [0.5, 1.0, None, -3.5]),
        (col("n") % 3, [1, 2, None, -1]),
        (-col("n"), [-1, -2, None, 7]),
        (col("n") > 1, [False, True, None, False]),
        (col("n") == lit(2), [False, True, None, False]),
        (col("ok") & (col("n") > 0), [True, None, False, False]),
        (col("ok") | (col("n") > 0), [True, True, None, True]),
        (~col("ok"), [False, None, True, False]),
        (col("n").isNull(), [False, False, True, False]),
        (col("n").isNotNull(), [True, True, False, True]),
        (col("n").isin(1, -7), [True, False, None, True]),
        (col("n").between(-10, 1), [True, False, None, True]),
        (col("name").startswith("a"), [True, None, False, False]),
        (col("name").contains("b"), [True, None, False, True]),
        (col("name").substr(1, 2), ["ab", None, "", "äb"]),
        (coalesce("n", lit(0)), [1, 2, 0, -7]),
        (
            when(col("n") > 1, "many").when(col("n") > 0, "one").otherwise("none"),
            ["one", "many", "none", "none"],
        ),
        (when(col("n") > 1, col("n")), [None, 2, None, None]),
        (col("n").cast("string"), ["1", "2", None, "-7"]),
        (lit("k"), ["k"] * 4),
        (col("at") >= dt.datetime(2026, 1, 3, tzinfo=dt.UTC), [False, False, True, True]),
    ],
    ids=repr,
)
def test_an_expression_computes_what_sql_says(expression: Column, wanted: list[object]) -> None:
    assert evaluate(expression, ROWS).to_pylist() == wanted


@given(
    st.lists(st.tuples(st.integers(-(2**31), 2**31), st.integers(-(2**31), 2**31).filter(bool)), min_size=1)
)
def test_division_and_remainder_are_those_of_sql(pairs: list[tuple[int, int]]) -> None:
    table = pa.table({"a": [a for a, _ in pairs], "b": [b for _, b in pairs]})
    assert evaluate(col("a") % col("b"), table).to_pylist() == [
        abs(a) % abs(b) * (1 if a >= 0 else -1) for a, b in pairs
    ]
    assert evaluate(col("a") / col("b"), table).to_pylist() == [a / b for a, b in pairs]


@pytest.mark.parametrize(
    "expression", [col("n") / 0, col("n") % 0, col("n") + (2**63 - 1), col("name").cast("long")]
)
def test_what_cannot_be_computed_is_an_error_and_no_wrong_number(expression: Column) -> None:
    with pytest.raises(pa.ArrowException):
        evaluate(expression, ROWS)


def test_a_name_comes_from_the_column_the_alias_or_the_text() -> None:
    assert col("n").text == "n"
    assert (col("n") + 1).text == "(n + 1)"
    assert (col("n") + 1).alias("more").text == "more"


def test_the_type_is_known_without_rows_and_mistakes_are_named() -> None:
    schema = ROWS.schema
    assert type_of(col("n") / 2, schema, "select") == pa.float64()
    with pytest.raises(
        penstock.DeclarationError, match=r"select: there is no column 'nam' \(did you mean 'name'\?\)"
    ):
        type_of(col("nam"), schema, "select")
    with pytest.raises(
        penstock.DeclarationError,
        match=r"select: \(name > 3\) cannot be computed of string and bigint; convert with \.cast\(\.\.\.\)",
    ):
        type_of(col("name") > 3, schema, "select")


def test_python_words_that_cannot_work_say_what_to_write() -> None:
    with pytest.raises(penstock.DeclarationError, match="write & for and"):
        bool((col("n") > 1) and (col("n") < 3))
    with pytest.raises(penstock.DeclarationError, match="goes with when"):
        col("n").otherwise(1)
    with pytest.raises(penstock.DeclarationError, match="plain value"):
        lit(object())


def test_a_column_of_spark_is_refused_with_the_hint() -> None:
    class Foreign:
        pass

    Foreign.__module__ = "pyspark.sql.classic.column"
    with pytest.raises(penstock.DeclarationError, match=r"penstock\.col"):
        as_expression(Foreign(), "select(...) after 'source'")


@pytest.mark.parametrize(
    ("values", "source", "target", "found"),
    [
        ([3.7, -3.7, None], "double", "int", [3, -3, None]),
        ([decimal.Decimal("3.70"), decimal.Decimal("-3.70")], "decimal(5,2)", "int", [3, -3]),
        (
            [decimal.Decimal("1.25"), decimal.Decimal("-1.25")],
            "decimal(5,2)",
            "decimal(5,1)",
            ["1.3", "-1.3"],
        ),
        ([2**60 + 1], "long", "double", [float(2**60 + 1)]),
        ([" 5 ", "-7"], "string", "int", [5, -7]),
        (
            ["2024-01-01", " 2024-01-01 00:00:00 "],
            "string",
            "timestamp",
            [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)] * 2,
        ),
        (
            ["2024-01-01 02:00:00+02:00", None],
            "string",
            "timestamp",
            [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None],
        ),
        (["2024-01-01T00:00:00Z"], "string", "timestamp", [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]),
        (["2024-01-01 01:00"], "string", "timestamp_ntz", [dt.datetime(2024, 1, 1, 1)]),
        ([1704067200], "long", "timestamp", [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]),
        ([1.5], "double", "timestamp", [dt.datetime(1970, 1, 1, 0, 0, 1, 500000, tzinfo=dt.UTC)]),
        ([dt.datetime(1969, 12, 31, 23, 59, 59, 500000, tzinfo=dt.UTC)], "timestamp", "long", [-1]),
        ([dt.datetime(1970, 1, 1, 0, 0, 1, 500000, tzinfo=dt.UTC)], "timestamp", "double", [1.5]),
    ],
)
def test_a_cast_means_what_it_means_in_spark(
    values: list[Any], source: str, target: str, found: list[Any]
) -> None:
    table = pa.table({"c": pa.array(values, parse_type(source))})
    made = evaluate(col("c").cast(target), table)
    assert made.type == parse_type(target)
    assert [str(one) if isinstance(one, decimal.Decimal) else one for one in made.to_pylist()] == found


@pytest.mark.parametrize(
    ("value", "target"),
    [(1e20, "long"), (float("nan"), "int"), (300.5, "tinyint"), ("3.7", "int"), ("soon", "timestamp")],
)
def test_a_cast_of_a_value_that_does_not_fit_is_an_error(value: object, target: str) -> None:
    with pytest.raises(pa.ArrowInvalid):
        evaluate(col("c").cast(target), pa.table({"c": [value]}))
