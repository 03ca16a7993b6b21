"""What a PySpark user tries first: it works, or it is refused in the call that makes the mistake, with what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock.errors import DeclarationError
from penstock.testing import run
from penstock.topology.functions import check_function

Declare = Callable[[Any], Any]
WHAT = penstock.col("id") + 1


def rows() -> Any:
    return penstock.from_rows(
        [(1, 2.5, "a"), (2, 4.5, "b")], schema="id long, price double, s string", name="rows"
    )


class SparkColumn:
    """Stands for a Column of Spark."""

    __module__ = "pyspark.sql.classic.column"

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Column<'{self.text}'>"


class DataFrame:
    """Stands for a DataFrame of Spark."""

    __module__ = "pyspark.sql.classic.dataframe"
    schema = ()


class GroupedData:
    """Stands for what groupBy of a DataFrame gives."""

    __module__ = "pyspark.sql.group"


def found(stream: penstock.Stream) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = run(stream).sort_by("id").to_pylist()
    return result


@pytest.mark.parametrize(
    ("make", "last"),
    [
        (lambda s: s.groupby("id").count(), {"id": 2, "count": 1}),
        (lambda s: s.groupBy(["id"]).agg(penstock.count("*")), {"id": 2, "count": 1}),
        (lambda s: s.groupBy("id").sum("price"), {"id": 2, "sum(price)": 4.5}),
        (lambda s: s.groupBy("id").avg(), {"id": 2, "avg(price)": 4.5}),
        (lambda s: s.groupBy("id").mean("price"), {"id": 2, "avg(price)": 4.5}),
        (lambda s: s.groupBy("id").max("price", "s"), {"id": 2, "max(price)": 4.5, "max(s)": "b"}),
        (lambda s: s.groupBy("id").min(), {"id": 2, "min(price)": 4.5}),
        (
            lambda s: s.withColumns({"id": WHAT, "old": penstock.col("id")}).select("id", "old"),
            {"id": 3, "old": 2},
        ),
        (lambda s: s.select(s["id"], s.price, s[2]), {"id": 2, "price": 4.5, "s": "b"}),
        (lambda s: s[["id", "s"]], {"id": 2, "s": "b"}),
        (lambda s: s[s.price > 3].select("id"), {"id": 2}),
    ],
)
def test_what_pyspark_has_works_under_its_name(make: Declare, last: dict[str, Any]) -> None:
    assert found(make(rows()))[-1] == last


def test_windows_have_the_short_aggregates_too() -> None:
    stream = penstock.from_rows([], schema="id long, ts timestamp, v int").withWatermark("ts", "1 second")
    assert stream.groupBy(penstock.window("ts", "1 hour")).sum("v").columns == ["window", "sum(v)"]


def test_print_schema_prints_sparks_tree(capsys: pytest.CaptureFixture[str]) -> None:
    penstock.from_rows(
        [], schema="a long not null, m map<string,struct<x:int>>, l array<double>"
    ).printSchema()
    assert capsys.readouterr().out.splitlines() == [
        "root",
        " |-- a: long (nullable = false)",
        " |-- m: map (nullable = true)",
        " |    |-- key: string",
        " |    |-- value: struct (valueContainsNull = true)",
        " |    |    |-- x: integer (nullable = true)",
        " |-- l: array (nullable = true)",
        " |    |-- element: double (containsNull = true)",
        "",
    ]


WINDOW = penstock.window("ts", "1 hour")


def windowed(stream: Any) -> Any:
    return stream.withColumn("ts", penstock.col("id").cast("timestamp")).groupBy(WINDOW)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda s: s.selectExpr("id + 1"), r"Stream has no selectExpr\(...\): SQL text is not taken"),
        (lambda s: s.distinct(), "keep what was seen in the state"),
        (lambda s: s.dropDuplicates(["id"]), "keep what was seen in the state"),
        (lambda s: s.join(s, "id"), r"cogroup\(b.groupBy\(key\)\)"),
        (lambda s: s.limit(3), "give a source a limit"),
        (lambda s: s.sample(0.1), "keep some rows by their values"),
        (lambda s: s.groupBy("id").pivot("s"), "give each value a column before groupBy"),
        (lambda s: penstock.col("s").like("a%"), "Column has no like.*map_arrow"),
        (lambda s: penstock.col("s").rlike("a"), "Column has no rlike"),
        (lambda s: penstock.col("s").getItem(0), "Column has no getItem"),
        (
            lambda s: s.writeStream.foreach(print),
            r"StreamWriter has no foreach\(...\): use foreachBatch\(function\)",
        ),
        (
            lambda s: s.writeStream.toTable("t"),
            r"use format\('parquet'\).*foreachBatch.*may append the last sink epoch again",
        ),
        (lambda s: windowed(s).apply_arrow(print), "WindowedStream has no apply_arrow.*use apply_rows"),
        (lambda s: windowed(s).cogroup(s), "WindowedStream has no cogroup"),
        (lambda s: windowed(s).transformWithState(), "group by columns alone"),
        (
            lambda s: s.groupBy("id").cogroup(s.groupBy("id")).applyInPandas(print),
            "CogroupedStream has no applyInPandas",
        ),
        (lambda s: s.fliter("id"), "Stream has no 'fliter'; did you mean 'filter'?"),
        (lambda s: s.nothing_like_it, "Stream has no 'nothing_like_it'; it has"),
    ],
)
def test_what_is_missing_names_its_substitute(use: Declare, said: str) -> None:
    with pytest.raises(DeclarationError, match=said) as raised:
        use(rows())
    assert isinstance(raised.value, AttributeError), "hasattr must go on to work"


def test_what_is_not_there_is_not_there() -> None:
    stream = rows()
    assert not hasattr(stream, "selectExpr") and not hasattr(stream, "_repr_html_")
    assert not hasattr(penstock.col("id"), "like") and not hasattr(stream.writeStream, "toTable")
    assert not hasattr(stream.groupBy("id"), "pivot")


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (
            lambda s: s.filter("id > 3"),
            r"no column 'id > 3'.*SQL text is not taken, write penstock.col\(...\)",
        ),
        (lambda s: s.select("id + 1"), "SQL text is not taken"),
        (lambda s: s.groupBy(penstock.col("id")), r'not Column<id>; write groupBy\("id"\)'),
        (lambda s: s.groupBy(SparkColumn("id")), r'write groupBy\("id"\)'),
        (
            lambda s: s.groupBy(WHAT),
            r'compute it first with withColumn\("name", ...\) and write groupBy\("name"\)',
        ),
        (
            lambda s: s.groupBy(SparkColumn("window(ts, 60000000)")),
            r'write penstock.window\("ts", "5 minutes"\)',
        ),
        (lambda s: penstock.sum(penstock.col("price")), r'write penstock.sum\("price"\)'),
        (lambda s: penstock.sum(SparkColumn("price")), r'write penstock.sum\("price"\)'),
        (lambda s: s.union(DataFrame()), r"not a DataFrame of Spark; write penstock.from_dataframe\(df\)"),
        (lambda s: s.groupBy("id").with_broadcast(DataFrame()), r"write penstock.from_dataframe\(df\)"),
        (
            lambda s: s.groupBy("id").cogroup(GroupedData()),
            r"write penstock.from_dataframe\(df\).groupBy\(...\)",
        ),
        (lambda s: s.groupBy("id").cogroup(s), r"a stream without keys; call groupBy\(...\) on it"),
        (
            lambda s: s.drop(penstock.col("id")),
            r'drop\(...\) after \'rows\' takes the name.*write drop\("id"\)',
        ),
        (lambda s: s["idd"], r"'rows' has no column 'idd' \(did you mean 'id'\?\)"),
        (lambda s: list(s), "is a stream and cannot be iterated over"),
        (lambda s: s.withColumns(["id"]), "withColumns.* takes expressions by name"),
        (lambda s: s.withColumn(3, WHAT), "takes the name of a column first, not 3"),
        (lambda s: s.select("s").groupBy("s").sum(), r"sum\(\) after groupBy.*name the columns"),
        (lambda s: s.select(penstock.lit(10**30)), "lit.* is outside what a column holds"),
        (lambda s: s.select(penstock.col("id") / 0), "divides by zero"),
        (
            lambda s: s.select(penstock.col("s") + 1),
            r"cannot be computed of string and bigint; convert with .cast",
        ),
        (lambda s: s.select(penstock.col("s").cast("array<int>")), "no cast from string to"),
        (lambda s: s.select(penstock.col("id").cast(int)), "cast of id takes a DDL type"),
        (
            lambda s: s.select(penstock.lit("x").cast("int")),
            "cannot be computed: Failed to parse string: 'x'",
        ),
    ],
)
def test_mistakes_are_refused_with_what_to_write(declare: Declare, said: str) -> None:
    with pytest.raises(DeclarationError, match=said) as raised:
        declare(rows())
    for kernel in ("checked", "kernel", "cast_", "does not fit the types"):
        assert kernel not in str(raised.value)


@pytest.mark.parametrize("rate", ["fast", [5], None, [], [(1, 2, 3)], float("nan"), -1, [(0, "x")], True])
def test_a_rate_that_is_none_is_refused(rate: Any) -> None:
    with pytest.raises(
        DeclarationError, match="source 'numbers': rate must be rows per second, or a list of"
    ):
        penstock.generate(lambda first, count: None, schema="k long", rate=rate, name="numbers")  # type: ignore[arg-type, return-value]


def test_rows_that_do_not_fit_were_given_and_not_returned() -> None:
    for given in ([("x",)], [(1, 2)], [3]):
        with pytest.raises(DeclarationError, match=r"source 'given': .*from_rows\(...\) was given") as raised:
            penstock.from_rows(given, schema="id long", name="given")
        assert "returned" not in str(raised.value) and "operator" not in str(raised.value)


OUT = "id long"


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (
            lambda s: s.groupBy("id").apply_rows(lambda k, r: None, schema=OUT, name="x"),
            r"operator 'x': apply_rows\(...\) calls its function with \(key, rows, state\), and <lambda> takes \(k, r\)",
        ),
        (
            lambda s: s.groupBy("id").apply_rows(lambda k, r: None, schema=OUT),
            r"apply_rows\(...\) after 'rows'",
        ),
        (lambda s: s.groupBy("id").apply_arrow(lambda t: t, schema=OUT), r"with \(table, state\)"),
        (
            lambda s: s.groupBy("id").cogroup(s.groupBy("id")).apply_rows(lambda k, r, s: None, schema=OUT),
            "left rows",
        ),
        (
            lambda s: (
                s.groupBy("id")
                .with_broadcast(s)
                .apply_rows(
                    lambda k, r, s, b: None, on_broadcast=lambda r: None, shared={}, schema=OUT, name="x"
                )
            ),
            r"operator 'x': on_broadcast calls its function with \(rows, shared\)",
        ),
        (
            lambda s: s.map(lambda a, b: a, schema=OUT),
            r"map\(...\) after 'rows' calls its function with \(row\)",
        ),
        (lambda s: s.flat_map(lambda: None, schema=OUT), r"flat_map\(...\) after 'rows' calls"),
        (lambda s: s.map_arrow(lambda: None, schema=OUT), r"with \(table\)"),
        (
            lambda s: s.groupBy("id").apply_rows(lambda k, r, s: None, schema=OUT, on_timer=lambda k: None),
            r"operator 'lambda__by_id': on_timer calls its function with \(key, time, state\)",
        ),
        (
            lambda s: s.groupBy("id").apply_rows(print, schema=OUT, on_timer=3),
            r"operator 'print_by_id': on_timer takes a function \(key, time, state\), not 3",
        ),
        (lambda s: windowed(s).apply_rows(lambda k: None, schema=OUT), r"with \(key, rows, state\)"),
        (
            lambda s: s.writeStream.foreachBatch(lambda df: None),
            r"foreachBatch\(...\) calls its function with \(DataF",
        ),
        (
            lambda s: penstock.generate(lambda n: None, schema=OUT, rate=1, name="g"),
            r"source 'g'.*\(offset, count\)",
        ),
    ],
)
def test_a_function_of_other_parameters_is_refused_where_it_is_given(declare: Declare, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        declare(rows())


def test_a_function_without_a_signature_is_taken_as_it_is() -> None:
    for taken in (dict.fromkeys, max, print, lambda *given: None, lambda a, b, c=3: None):
        assert check_function(taken, ("key", "rows"), "here") is taken
