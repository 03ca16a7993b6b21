"""What a newcomer does wrong, and what is said: the operator or call, the name in question and the fix, no internals.

A table: each line is a mistake as it is written, and what its message must say.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StructType

import penstock
from penstock import ListState, MapState, ValueState, col, lit, when
from penstock.errors import DeclarationError, OperatorError, PenstockError
from penstock.testing import outputs_of

SALES: Any = penstock.from_rows(
    [("a", 1, 2.0)], schema="user string, amount long, price double", name="sales"
)
BY_USER: Any = SALES.groupBy("user")
TIMES: Any = penstock.from_rows([], schema="user string, ts timestamp", name="times")
NESTED: Any = penstock.from_rows([], schema="user string, s struct<a:int,b:struct<c:int>>", name="nested")
STATES = {"total": ValueState("long"), "s": ValueState("c long, t double"), "l": ListState("long"),
          "m": MapState("long", "long"), "deep": ValueState("xs array<struct<a:int>>, m map<string,int>")}  # fmt: skip
INTERNALS = re.compile(
    r"Handle\b|KeyState|ValidationError|zip\(\)|pyarrow\.lib|py4j|\bs\d_|Expected `|object at 0x|MsgspecError|ArrowInvalid|"
    r"ArrowTypeError|<class|penstock\.(topology|dataplane)|AttributeError: '"
)

Mistake = Callable[[], Any]


def called(function: Callable[..., Any], schema: str = "user string, n long") -> Any:
    """Run a row function over one row."""
    stream = BY_USER.apply_rows(function, schema=schema, state=STATES, name="op")
    return outputs_of(stream, [("a", 1, 2.0)])


def does(change: Callable[[Any], Any]) -> Mistake:
    """A row function that does something with its state."""
    return lambda: called(lambda key, rows, state: [change(state)][:0])


def gives(make: Callable[[Any, Any], Any], schema: str = "user string, n long") -> Mistake:
    """A row function that returns something."""
    return lambda: called(lambda key, rows, state: make(key, rows), schema)


def assign(name: str, value: object) -> Callable[[Any], Any]:
    return lambda state: setattr(state, name, value)


async def waits(key: Any, rows: Any, state: Any) -> list[Any]:
    return []


async def awaited() -> int:
    return 1


class AsyncCalled:
    async def __call__(self, key: Any, rows: Any, state: Any) -> list[Any]:
        return []


STATE_MISTAKES: list[tuple[Mistake, str]] = [
    (does(assign("total", 5)), r"state.total = 5 would store nothing; write state.total.update\(value\)"),
    (
        does(assign("sum", 5)),
        r"no state named 'sum'; declare it with state=\{'sum': penstock.ValueState\(...\)\}",
    ),
    (
        does(lambda s: s.total + 1),
        r"state 'total' is a ValueState and no value; read it with state.total.get\(\)",
    ),
    (does(lambda s: s.total > 1), r"read it with state.total.get\(\)"),
    (does(lambda s: int(s.total)), r"read it with state.total.get\(\)"),
    (does(lambda s: s["total"]), r"a state is an attribute: write state.total"),
    (
        does(lambda s: s.totl.get()),
        r"there is no state named 'totl'; did you mean 'total', or else declare it",
    ),
    (
        does(lambda s: s.other.get()),
        r"there is no state named 'other'; declare it with state=\{'other': ...\}",
    ),
    (
        does(lambda s: bool(s.total)),
        r"state 'total' is a ValueState and no value; read it with state.total.get\(\)",
    ),
    (does(lambda s: s.total == 0), r"state 'total' is a ValueState and no value"),
    (does(lambda s: s.total != 0), r"state 'total' is a ValueState and no value"),
    (does(lambda s: s.deep == 0), r"state 'deep' is a ValueState and no value"),
    (does(lambda s: f"{s.total}"), r"state 'total' is a ValueState and no value"),
    (does(lambda s: str(s.total)), r"state 'total' is a ValueState and no value"),
    (does(lambda s: len(s.total)), r"state 'total' is a ValueState and no value"),
    (does(lambda s: s.l == [1]), r"state 'l' is a ListState and no value; read it with list\(state.l\)"),
    (
        does(lambda s: s.m != {}),
        r"state 'm' is a MapState and no value; read it with dict\(state.m.items\(\)\)",
    ),
    (does(lambda s: s.l.__add__([1])), r"state 'l' is a ListState and no value"),
    (
        does(lambda s: delattr(s, "total")),
        r"would delete the state and not what it holds; write state.total.clear\(\)",
    ),
    (does(lambda s: delattr(s, "l")), r"write state.l.clear\(\)"),
    (
        does(assign("m", {})),
        r"state.m = \{\} would store nothing; write state.m\[key\] = value, or state.m.clear\(\)",
    ),
    (does(assign("l", [1])), r"state.l = \[1\] would store nothing; write state.l.put\(values\)"),
    (does(assign("cached", 1)), r"state.cached = 1 would store nothing: cached is a method"),
    (does(lambda s: s.l.__delitem__(0)), r"write state.l.put\(values\) with the list that is left"),
    (does(lambda s: s.l.__iadd__([1])), r"state 'l' is a ListState; write state.l.appendList\(values\)"),
    (
        does(lambda s: s.m.__ior__({1: 2})),
        r"state 'm' is a MapState; write state.m\[key\] = value for each key",
    ),
    (
        does(lambda s: s.l.put(5)),
        r"state 'l' is a ListState and takes a list; 5 is no list .*state.l.appendValue\(value\)",
    ),
    (does(lambda s: s.l.put("ab")), r"'ab' is no list of values"),
    (
        does(lambda s: s.l.put({1})),
        r"\{1\} is a set, whose order differs from run to run; give sorted\(values\)",
    ),
    (does(lambda s: s.l.appendList({1: 2})), r"\{1: 2\} is no list of values"),
    (does(lambda s: setattr(s.total, "value", 5)), r"a ValueState has no 'value'; use get\(\)"),
    (
        does(lambda s: s.get("total")),
        r"there is no 'get' here: a state is an attribute .*write state.total and then",
    ),
    (does(lambda s: s.__delitem__("total")), r"a state is an attribute: write state.total"),
    (does(lambda s: s.total.set(1)), r"a ValueState has no 'set'; use update\(value\)"),
    (does(lambda s: s.total.value), r"a ValueState has no 'value'; use get\(\)"),
    (does(lambda s: s.l.append(1)), r"a ListState has no 'append'; use appendValue\(value\)"),
    (does(lambda s: s.l.update([1])), r"a ListState has no 'update'; use put\(values\)"),
    (does(lambda s: s.m.put(1, 2)), r"a MapState has no 'put'; use state\[key\] = value"),
    (does(lambda s: s.total.update(s.total.get() + 1)), r"write state.total.get\(\) or 0"),
    (does(lambda s: s.total.update(None)), r"None is no value of state 'total'; call clear\(\)"),
    (does(lambda s: s.total.update("x")), r"state 'total' .*a bigint takes an int, not 'x', a str"),
    (does(lambda s: s.total.update(1.5)), r"state 'total' .*a bigint takes an int, not 1.5, a float"),
    (does(lambda s: s.total.update(1 << 70)), r"state 'total' .*is more than the 64 bits of a bigint hold"),
    (
        does(lambda s: s.s.update(5)),
        r"state 's' .*5 \(int\) is no struct<c:bigint,t:double>; give a tuple or a dict of c, t",
    ),
    (does(lambda s: s.s.update((5,))), r"state 's' .*it has 1 value for the 2 fields c, t"),
    (does(lambda s: s.s.update((5, 1.0, 2))), r"it has 3 values for the 2 fields c, t"),
    (does(lambda s: s.s.update(("x", 1.0))), r"in its field 'c', a bigint takes an int, not 'x', a str"),
    (does(lambda s: s.s.update({"cc": 1})), r"the struct has no field 'cc'; it has c, t"),
    (
        does(lambda s: s.deep.update(([(1,), ("x",)], {}))),
        r"state 'deep' .*field 'xs.element.a': 'x' \(str\) is no int",
    ),
    (
        does(lambda s: s.deep.update(([], {"k": "v"}))),
        r"state 'deep' .*field 'm.value': 'v' \(str\) is no int",
    ),
    (
        does(lambda s: s.m.__setitem__(1, "x")),
        r"state 'm' .*'x' \(str\) is no bigint",
    ),
    (
        does(lambda s: s.set_timer(1)),
        r"only where the operator has timers; give apply_rows\(..., on_timer=function\)",
    ),
]

RETURNED: list[tuple[Mistake, str]] = [
    (
        gives(lambda key, rows: (key[0], 1)),
        r"operator 'op' returned \('a', 1\), which is one row and not a list",
    ),
    (
        gives(lambda key, rows: {"user": "a", "n": 1}),
        r"which is one row and not a list of rows; return \[row\]",
    ),
    (gives(lambda key, rows: rows[0]), r"which is one row and not a list of rows"),
    (gives(lambda key, rows: Row(user="a", n=1)), r"which is one row and not a list of rows"),
    (gives(lambda key, rows: "ab"), r"'ab', which is one row"),
    (
        gives(lambda key, rows: 5),
        r"'op' returned 5, which is no list of rows; return one, or None \(key \('a',\)\)",
    ),
    (gives(lambda key, rows: True), r"returned True, which is no list of rows"),
    (
        gives(lambda key, rows: ["a", 1]),
        r"returned 'a' of type str as a row; .*functions return a list of rows",
    ),
    (gives(lambda key, rows: [None]), r"returned None of type NoneType as a row"),
    (gives(lambda key, rows: [[("a", 1)]]), r"it has rows inside, return one list of rows"),
    (gives(lambda key, rows: [("a",)]), r"with 1 value\(s\) for the 2 column\(s\) 'user', 'n'"),
    (
        gives(lambda key, rows: [{"usr": "a"}]),
        r"column\(s\) .*'usr'.* that its schema does not have; it has 'user', 'n'",
    ),
    (
        gives(lambda key, rows: [(key, 1)]),
        r"column 'user' .*this is a tuple with one; take it out, as key\[0\] does",
    ),
    (gives(lambda key, rows: [("a", "x")]), r"column 'n' .*a bigint takes an int, not 'x', a str"),
    (gives(lambda key, rows: [("a", 1.5)]), r"column 'n' .*a bigint takes an int, not 1.5, a float"),
    (
        gives(lambda key, rows: [("a", "2024-01-01")], "user string, d date"),
        r"'d' .*a date takes a datetime.date, not",
    ),
    (
        gives(lambda key, rows: [("a", (1,))], "user string, s struct<a:int,b:int>"),
        r"'s' .*1 value for the 2 fields a, b",
    ),
    (
        gives(lambda key, rows: [("a", 5)], "user string, m map<string,int>"),
        r"'m' .*a map is a dict, not an int",
    ),
    (
        gives(lambda key, rows: [("a", 5)], "user string, xs array<int>"),
        r"'xs' .*an array is a list, not an int",
    ),
    (
        gives(lambda key, rows: [(rows[0].amout, 1)]),
        r"no column 'amout'; did you mean 'amount'\? It has user, amount",
    ),
    (
        gives(lambda key, rows: [(rows[0]["user"], 1)]),
        r"a column of a row is row.amount, and not row\['amount'\]",
    ),
    (
        gives(lambda key, rows: awaited()),
        r"operator 'op' returned a coroutine, which nobody awaits; write it with def",
    ),
    (gives(lambda key, rows: [("a", awaited())]), r"it is a coroutine, which nobody awaits"),
    (
        gives(lambda key, rows: pd.DataFrame({"user": ["a"]})),
        r"returned a pandas.DataFrame and not a list; .*apply_arrow",
    ),
    (gives(lambda key, rows: pa.table({"user": ["a"]})), r"returned a pyarrow.Table and not a list"),
    (
        lambda: called(lambda key, rows, state: [("a", state.total)]),
        r"it is the state itself; take what it holds",
    ),
]

DECLARED: list[tuple[Mistake, str]] = [
    (lambda: BY_USER.apply_rows(waits, schema="n long"), r"waits is an async function, which nobody awaits; write"),
    (lambda: BY_USER.apply_rows(AsyncCalled(), schema="n long"), r"AsyncCalled is an async function"),
    (lambda: SALES.writeStream.foreachBatch(waits), r"foreachBatch\(...\): waits is an async function"),
    (lambda: BY_USER.apply_rows(None, schema="n long"), r"after 'sales' takes a function \(key, rows, state\), not None"),
    (lambda: BY_USER.apply_rows(lambda k, r: [], schema="n long"), r"calls its function with \(key, rows, state\)"),
    (lambda: BY_USER.apply_rows(lambda k, r, s: [], schema="n str"), r"'n' has unknown type 'str'; write string"),
    (lambda: BY_USER.apply_rows(lambda k, r, s: [], schema="n int64"), r"unknown type 'int64'; write bigint"),
    (lambda: BY_USER.apply_rows(lambda k, r, s: [], schema="n datetime"), r"write timestamp"),
    (lambda: BY_USER.apply_rows(lambda k, r, s: [], schema="n strng"), r"unknown type 'strng'; did you mean 'string'\?"),
    (lambda: BY_USER.apply_rows(lambda k, r, s: [], schema="n head"), r"unknown type 'head'; there are boolean, tinyint"),
    (lambda: BY_USER.apply_rows(lambda k, r, s: [], schema={"n": "long"}), r"a dict is no schema; give DDL such as"),
    (lambda: BY_USER.apply_rows(lambda k, r, s: [], schema="n long", state={"x": "long"}), r"declare a ValueState"),
    (lambda: ValueState(int), r"ValueState takes a DDL type .*write 'bigint' for int"),
    (lambda: SALES.groupBy("usr"), r"'sales' has no column 'usr', it has user, amount, price \(did you mean 'user'\?\)"),
    (lambda: SALES.groupBy("str"), r"'sales' has no column 'str', it has user, amount, price\.$"),
    (lambda: SALES.usr, r"Stream has no 'usr'; did you mean 'user'\?$"),
    (lambda: SALES.select("head"), r"no column 'head'; it has user, amount, price"),
    (lambda: SALES.filter(lambda row: row.amount > 1), r"the function <lambda>; Python code goes into map"),
    (lambda: SALES.filter(True), r"write penstock.lit\(True\) for a constant"),
    (lambda: SALES.withColumn("x", 5), r"write penstock.lit\(5\) for a constant"),
    (lambda: SALES.withColumn("x", lit(None)),
     r"'x' is null in every row and has no type; write penstock.lit\(None\).cast\('string'\)"),
    (lambda: SALES.withColumns({"x": when(col("amount") > 1, lit(None))}), r"'x' is null in every row"),
    (lambda: SALES.select(when(col("amount") > 1, None).otherwise(None).alias("x")), r"'x' is null in every row"),
    (lambda: SALES.select(penstock.coalesce(lit(None)).alias("x")), r"'x' is null in every row"),
    (lambda: SALES.select(penstock.sum("amount")), r"an aggregate; give it to groupBy\(...\).agg\(...\)"),
    (lambda: SALES.filter(col("amount") > 1 and col("price") > 1), r"write & for and"),
    (lambda: SALES.select(col("amount")[0]), r"write getField\(name\)"),
    (lambda: list(col("amount")), r"holds no values to go through"),
    (lambda: "x" in col("user"), r"write user.contains\(...\)"),
    (lambda: SALES.select(col("amount").cast("str")), r"cast of amount has unknown type 'str'; write string"),
    (lambda: SALES.union(BY_USER), r"keyed rows; do it before groupBy"),
    (lambda: SALES.union(SALES.writeStream), r"a writer; take the stream, before writeStream"),
    (lambda: BY_USER.agg({"amount": "sum"}), r"agg\(...\) takes aggregates such as penstock.sum\('amount'\)"),
    (lambda: BY_USER.agg(penstock.sum("amout")), r"aggregates column 'amout', which is not among its input's columns"),
    (lambda: TIMES.groupBy(penstock.window("ts", "10 minuts"), "user"), r"'10 minuts' is no duration; write one as"),
    (lambda: BY_USER.agg(penstock.sum("ammount")), r"columns 'user', 'amount', 'price' \(did you mean 'amount'\?\)"),
    (lambda: BY_USER.agg([penstock.count()]), r"not a list of them; give them one by one, as agg\(penstock.count\(\), "),
    (lambda: BY_USER.apply_rows(lambda k, r, s: [], schema="n long", state={"t": ValueState}),
     r"the class ValueState without a type; write penstock.ValueState\('long'\)"),
    (lambda: BY_USER.apply_rows(lambda k, r, s: [], schema="n long", state={"t": MapState}),
     r"write penstock.MapState\('string', 'long'\)"),
    (lambda: NESTED.select("s.a"),
     r"'s.a' \(a field of a struct is penstock.col\('s'\).getField\('a'\).alias\('a'\)\); it has"),
    (lambda: NESTED.filter(col("s.b.c") > 1), r"penstock.col\('s'\).getField\('b'\).getField\('c'\)"),
    (lambda: NESTED.groupBy("s.a"), r"penstock.col\('s'\).getField\('a'\)"),
    (lambda: NESTED.groupBy("user").agg(penstock.sum("s.a")), r"penstock.col\('s'\).getField\('a'\)"),
    (lambda: SALES.select("'m'"), r"there is no column \"'m'\"; it has"),
    (lambda: SALES.groupBy("'m'"), r"has no column \"'m'\", it has"),
    (lambda: BY_USER.apply_rows(lambda k, r, s: [], shema="n long"),
     r"apply_rows\(...\) of GroupedStream takes no 'shema'; did you mean 'schema'\?"),
    (lambda: BY_USER.apply_rows(lambda k, r, s: []), r"apply_rows\(...\) of GroupedStream needs 'schema'"),
    (lambda: BY_USER.cogroup(BY_USER).apply_rows(lambda k, a, b, s: []),
     r"apply_rows\(...\) of CogroupedStream needs 'schema'"),
    (lambda: SALES.map(lambda row: row), r"map\(...\) of Stream needs 'schema'"),
    (lambda: SALES.writeStream.trigger(availablenow=True), r"takes no 'availablenow'; did you mean 'availableNow'\?"),
    (lambda: SALES.writeStream.trigger("5 seconds"),
     r"trigger\(...\) of StreamWriter takes .*by name: processingTime, once"),
    (lambda: SALES.writeStream.options("x"), r"options\(...\) of StreamWriter takes .*by name"),
    (lambda: SALES.writeStream.option("checkpointLocation"), r"option\(...\) of StreamWriter needs 'value'"),
    (lambda: BY_USER.agg(penstock.count(), nme="x"), r"takes no 'nme'; did you mean 'name'\?"),
    (lambda: BY_USER.pivot("x"), r"give each value a column before groupBy"),
    (lambda: SALES.intersect(SALES), r"cogroup\(.*Spark does not compare two streaming ones either"),
    (lambda: SALES.rollup("user"), r"group once for each level"),
    (lambda: SALES.sample(0.1), r"keep some rows by their values"),
    (lambda: SALES.withWatermark("amount", "1 minute"), r"'amount' is of type bigint, and event time is a timestamp"),
    (lambda: SALES.writeStream.declare(), r"'sales' has no sink; call format"),
    (lambda: SALES.writeStream.format("noop").declare(), r"option\('checkpointLocation', ...\) is required"),
    (lambda: SALES.writeStream.option("checkpointLocation", " "), r"must be a path"),
    (lambda: SALES.writeStream.option("checkpoint", "x"), r"did you mean 'checkpointLocation'\?"),
    (lambda: SALES.writeStream.option("head", 1), r"option 'head' is unknown; known options: checkpointLocation, "),
    (lambda: SALES.writeStream.option("maxFilesPerTrigger", 1), r"it belongs to the source; give it to the reader"),
    (lambda: SALES.writeStream.format("kafka"), r"sink format 'kafka' is unknown; use one of console, .*foreachBatch"),
    (lambda: SALES.writeStream.trigger(processingTime="5 sconds"), r"'5 sconds' is no duration"),
    (lambda: SALES.writeStream.sla(1.0), r"takes penstock.SLA\(latency=...\), not 1.0"),
    (lambda: penstock.from_rows([1, 2], schema="n long", name="s"), r"given 1 of type int as a row"),
    (lambda: penstock.from_rows([("x",)], schema="n long", name="s"), r"'x' .*a bigint takes an int"),
    (lambda: penstock.from_dataframe(None), r"is no DataFrame of Spark but NoneType"),
    (lambda: lit([1]), r"lit\(...\) takes a plain value"),
    (lambda: when(col("a"), 1).otherwise(2).show(), r"Column has no 'show'"),
    (lambda: outputs_of(SALES.map(lambda row: awaited(), schema="n long").groupBy("n").count(), [("a", 1, 2.0)]),
     r"map\(...\) after 'sales' returned a coroutine"),
    (lambda: outputs_of(SALES.map(lambda row: None, schema="n long").groupBy("n").count(), [("a", 1, 2.0)]),
     r"returned None, which is no row; return a tuple, dict or named tuple with 'n', use flat_map\(...\) or filter"),
    (lambda: outputs_of(SALES.map(lambda row: 5, schema="n long").groupBy("n").count(), [("a", 1, 2.0)]),
     r"returned 5, which is no row; return a tuple, dict or named tuple with 'n', for each row"),
    (lambda: outputs_of(SALES.map(lambda row: [(1,), (2,)], schema="n long").groupBy("n").count(), [("a", 1, 2.0)]),
     r"which is a list of rows; return one row, or use flat_map"),
    (lambda: outputs_of(SALES.flat_map(lambda row: 5, schema="n long").groupBy("n").count(), [("a", 1, 2.0)]),
     r"flat_map\(...\) after 'sales' returned 5, which is no list of rows"),
]  # fmt: skip


@pytest.mark.parametrize(("mistake", "said"), [*STATE_MISTAKES, *RETURNED])
def test_what_a_function_does_wrong_is_said_with_operator_and_fix(mistake: Mistake, said: str) -> None:
    with pytest.raises(OperatorError, match=said) as raised:
        mistake()
    sentence = str(raised.value).partition("\n")[0]
    assert "'op'" in sentence and "('a',)" in sentence
    assert not INTERNALS.search(sentence), sentence


@pytest.mark.parametrize(("mistake", "said"), DECLARED)
def test_what_is_declared_wrong_is_said_with_the_fix(mistake: Mistake, said: str) -> None:
    with pytest.raises(PenstockError, match=said) as raised:
        mistake()
    assert not INTERNALS.search(str(raised.value)), raised.value


def test_what_a_function_returns_rightly_is_taken() -> None:
    for result in (
        [("a", 1)],
        (("a", 1),),
        {("a", 1)},
        iter([("a", 1)]),
        [Row(user="a", n=1)],
        ({"user": "a", "n": 1},),
    ):
        assert called(lambda key, rows, state: result) == [{"user": "a", "n": 1}]  # noqa: B023
    for nothing in (None, [], (), iter(())):
        assert called(lambda key, rows, state: nothing) == []  # noqa: B023


def test_a_null_with_a_type_is_a_column() -> None:
    stream = SALES.select("user", lit(None).cast("string").alias("s"), when(col("amount") > 1, 5).alias("n"))
    assert [type_ for _, type_ in stream.dtypes] == ["string", "string", "bigint"]
    counted = stream.filter(col("s").isNull() & col("n").isNull()).groupBy("user").count()
    assert outputs_of(counted, [("a", 1, 2.0)]) == [{"user": "a", "count": 1}]


class Totals(StatefulProcessor):
    """A processor that updates its state with whatever it is made with."""

    def __init__(self, value: object) -> None:
        self.value = value

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("c", StructType().add("n", LongType()).add("m", LongType()))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        self.total.update(self.value)
        return iter([])

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (5, r"state 'c': 5 \(int\) is no value; give a tuple of n, m"),
        (
            (5,),
            r"state 'c' .*\(5,\) \(tuple\) is no struct<.*>; it has 1 value\(s\) for the 2 field\(s\) n, m",
        ),
        (("x", 1), r"state 'c' .*field 'n': 'x' \(str\) is no bigint"),
    ],
)
def test_a_processors_state_is_named_as_it_was_declared(value: object, said: str) -> None:
    stream = BY_USER.transformWithState(Totals(value), "n long", "update", "none", name="op")
    with pytest.raises(OperatorError, match=said) as raised:
        outputs_of(stream, [("a", 1, 2.0)])
    assert not INTERNALS.search(str(raised.value).partition("\n")[0]), raised.value


def test_a_vectorised_function_may_not_assign_to_its_state_either() -> None:
    def count(table: pa.Table, state: Any) -> None:
        state.total = pa.array([1])

    stream = BY_USER.apply_arrow(count, schema="n long", state={"total": ValueState("long")}, name="op")
    with pytest.raises(
        OperatorError, match=r"operator 'op'.*state.total = a pyarrow.Int64Array would store nothing"
    ):
        outputs_of(stream, [("a", 1, 2.0)])


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (
            lambda state: state.total == 0,
            r"state 'total' is a column of ValueState .*state.total.lookup\(keys\)",
        ),
        (lambda state: bool(state.total), r"state.total.lookup\(keys\)"),
        (lambda state: state.total.get(), r"a column of ValueState has no 'get'; use lookup\(keys\)"),
        (lambda state: delattr(state, "total"), r"del state.total would delete the state"),
        (lambda state: state["total"], r"write state.total"),
    ],
)
def test_a_column_of_state_is_no_value_either(use: Callable[[Any], Any], said: str) -> None:
    def count(table: pa.Table, state: Any) -> None:
        use(state)

    stream = BY_USER.apply_arrow(count, schema="n long", state={"total": ValueState("long")}, name="op")
    with pytest.raises(OperatorError, match=said):
        outputs_of(stream, [("a", 1, 2.0)])


def test_a_state_can_be_shown_hashed_and_asked_whether_it_holds_anything() -> None:
    def shows(key: Any, rows: Any, state: Any) -> list[Any]:
        state.total.update(5)
        state.l.put(one for one in (1, 2))
        state.m[1] = 2
        assert repr(state.total) == "ValueState(5)" and len({state.total, state.l, state.m}) == 3
        assert bool(state.l) and list(state.l) == [1, 2] and dict(state.m.items()) == {1: 2}
        return [("a", len(state.l))]

    assert called(shows) == [{"user": "a", "n": 2}]


def test_an_assignment_is_a_letter_where_failures_are_letters() -> None:
    def broken(key: Any, rows: Any, state: Any) -> None:
        state.total = 5

    stream = BY_USER.apply_rows(
        broken, schema="n long", state={"total": ValueState("long")}, name="op", on_error="dead_letter"
    )
    assert outputs_of(stream, [("a", 1, 2.0)]) == []


def test_declaration_errors_are_declaration_errors() -> None:
    with pytest.raises(DeclarationError):
        _ = SALES.orderBy
