"""Every public name of PySpark's that ours have not says what to use; none is taken for a slip of another name."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, GroupedData, functions
from pyspark.sql.streaming import DataStreamWriter

import penstock
from penstock.errors import DeclarationError
from penstock.topology.substitutes import MissingMethodError

STREAM = penstock.from_rows([("a", 1)], schema="user string, amount long", name="rows")
OURS = [
    (STREAM, DataFrame),
    (STREAM.groupBy("user"), GroupedData),
    (penstock.col("user"), Column),
    (STREAM.writeStream, DataStreamWriter),
]


@pytest.mark.parametrize(("ours", "theirs"), OURS)
def test_every_method_of_pyspark_is_there_or_says_what_stands_for_it(ours: Any, theirs: type) -> None:
    missing = [name for name in dir(theirs) if not name.startswith("_") and not hasattr(ours, name)]
    assert missing or theirs is GroupedData
    for name in missing:
        with pytest.raises(MissingMethodError, match=rf"has no {name}\(\.\.\.\): .{{10}}"):
            getattr(ours, name)


def test_every_function_of_pyspark_is_there_or_says_what_stands_for_it() -> None:
    for name in functions.__all__:
        if not hasattr(penstock, name):
            with pytest.raises(MissingMethodError) as raised:
                getattr(penstock, name)
            assert "did you mean" not in str(raised.value) and "it has" not in str(raised.value), raised.value


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("count_distinct", r"penstock has no 'count_distinct'; .*len\(state.seen\)"),
        ("udf", r"use stream.map\(function, schema=...\)"),
        ("upper", r"pyarrow.compute.utf8_upper\.$"),
        ("row_number", "streams have no order"),
        ("collect_list", r"no aggregate of ours; keep it in the state"),
        ("cot", "compute it with stream.map_arrow"),
        ("readStream", r"penstock.from_dataframe\(df\)"),
        ("SparkSession", r"use penstock.session\(\)"),
        ("from_row", r"did you mean 'from_rows'\?$"),
        ("Session", r"use penstock.session\(\)"),
        ("nothing_like_it", "it has SLA, "),
    ],
)
def test_a_name_that_the_module_has_not_says_what_to_use(name: str, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        getattr(penstock, name)


def test_modules_are_still_imported_and_asked_for() -> None:
    from penstock import testing  # the import asks for the attribute first

    assert testing.run and not hasattr(penstock, "udf") and not hasattr(penstock, "__wrapped__")


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: STREAM.usr, r"Stream has no 'usr'; did you mean 'user'\?$"),
        (lambda: STREAM.head(), r"Stream has no head\(...\): use writeStream.format\('memory'\)"),
        (lambda: STREAM.apply_rows(print), r"call groupBy\(...\) first"),
        (lambda: STREAM.start(), "it is the writer's; call writeStream first"),
        (lambda: STREAM.groupBy("user").filter("x"), r"call it before groupBy\(...\), or after agg"),
        (lambda: STREAM.groupBy("user").map(print), r"use apply_rows"),
        (lambda: STREAM.writeStream.awaitTermination(), r"it is the query's, which start\(\) returns"),
        (lambda: STREAM.writeStream.kafka, r"use foreachBatch"),
        (lambda: penstock.col("user").str, r"pyarrow.compute"),
        (
            lambda: penstock.col("user").uper(),
            r"Column has no 'uper'; if upper\(...\) was meant: compute it with",
        ),
    ],
)
def test_what_is_looked_for_in_the_wrong_place_says_where_it_is(ask: Any, said: str) -> None:
    with pytest.raises(MissingMethodError, match=said):
        ask()


def test_a_column_with_the_name_of_something_that_is_elsewhere_is_the_column() -> None:
    stream = penstock.from_rows([], schema="window long, start long, format string", name="rows")
    assert [repr(one) for one in (stream.window, stream.start, stream.format)] == [
        "Column<window>",
        "Column<start>",
        "Column<format>",
    ]
