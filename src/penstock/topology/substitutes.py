"""What stands for methods that PySpark has and Penstock has not: a table for each class, and the error that reads it.

The error is an AttributeError, so that `hasattr` and notebooks' completion go on to work.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final, NoReturn

from penstock.errors import DeclarationError

_BEFORE: Final = "do it on the DataFrame before penstock.from_dataframe(df)"
_STATE: Final = "keep what was seen in the state of groupBy(...).apply_rows(...)"
_ARROW: Final = "compute it with map_arrow(function, schema=...) and pyarrow.compute"
_BATCH: Final = "use foreachBatch(function), whose DataFrame can do it"

STREAM: Final[Mapping[str, str]] = {
    "selectExpr": "SQL text is not taken; use select(...) with penstock.col(...)",
    "distinct": _STATE,
    "dropDuplicates": _STATE,
    "drop_duplicates": _STATE,
    "dropDuplicatesWithinWatermark": _STATE,
    "join": "use a.groupBy(key).cogroup(b.groupBy(key)).apply_rows(function, schema=..., state=...) and keep the rows of "
    "both sides in state: a call has the rows of one epoch, and rows that match come in different ones",
    "crossJoin": "use groupBy(...).with_broadcast(other).apply_rows(...) and keep its rows in state: they match broadcast "
    "rows that come later too",
    "limit": "give a source a limit, as generate(..., limit=n) has",
    "agg": "group by a column first: withColumn('all', penstock.lit(1)).groupBy('all').agg(...)",
    "mapInArrow": "use map_arrow(function, schema=...)",
    "mapInPandas": "use map_arrow(function, schema=...); table.to_pandas() gives the frame",
    "foreach": "use writeStream.foreachBatch(function)",
    "foreachBatch": "use writeStream.foreachBatch(function)",
    "flatMap": "use flat_map(function, schema=...)",
    "write": "use writeStream; a query over bounded sources ends by itself",
    "show": "use writeStream.format('console')",
    "collect": "use writeStream.format('memory') and query.table()",
    "toPandas": "use writeStream.format('memory') and query.table().to_pandas()",
    "count": "use groupBy(...).count()",
    "orderBy": _BATCH,
    "sort": _BATCH,
    "cache": "leave it out; several operators may use one stream",
    "persist": "leave it out; several operators may use one stream",
    "repartition": "leave it out; groupBy(...) deals rows by key, station(...) in turn",
    "dropna": "use filter(penstock.col(...).isNotNull())",
    "na": "use filter(penstock.col(...).isNotNull()) or penstock.coalesce(...)",
    "fillna": "use withColumn(name, penstock.coalesce(name, penstock.lit(value)))",
    "sample": _BEFORE,
    "alias": "leave it out; columns are named by themselves",
    "dtypes": "use schema",
    "isStreaming": "every stream is one",
    "createOrReplaceTempView": "use writeStream.format('memory').queryName(name), which makes a view of that name",
    "intersect": _BEFORE,
    "subtract": _BEFORE,
    "exceptAll": _BEFORE,
    "rollup": _BEFORE,
    "cube": _BEFORE,
    "observe": "read query.lastProgress",
}
GROUPED: Final[Mapping[str, str]] = {
    "pivot": _BEFORE,
    "applyInPandas": "use apply_arrow(function, schema=..., state=...), or applyInPandasWithState",
    "applyInArrow": "use apply_arrow(function, schema=..., state=...)",
    "apply": "use apply_rows(function, schema=..., state=...)",
}
COGROUPED: Final[Mapping[str, str]] = {
    "applyInPandas": "use apply_rows(function, schema=..., state=...) of (key, left rows, right rows, state)",
    "applyInArrow": "use apply_rows(function, schema=..., state=...) of (key, left rows, right rows, state)",
}
WINDOWED: Final[Mapping[str, str]] = {
    "apply_arrow": "use apply_rows(function, schema=...), which is called once per window and key",
    "cogroup": "group both sides by the start of the window and keep their rows in state: cogroup works on groupBy("
    "columns), and a call has the rows of one epoch",
    "with_broadcast": "use groupBy(columns).with_broadcast(...) and group its output by the window",
    "transformWithState": "group by columns alone; a processor keeps its own windows with timers",
    "transformWithStateInPandas": "group by columns alone; a processor keeps its own windows with timers",
    "applyInPandasWithState": "group by columns alone; the function keeps its own windows with time-outs",
    **GROUPED,
}
COLUMN: Final[Mapping[str, str]] = {
    **dict.fromkeys(("like", "ilike", "rlike", "getItem", "bitwiseAND", "bitwiseOR", "bitwiseXOR"), _ARROW),
    "name": "use alias(name)",
    "asc": "streams have no order; sort in foreachBatch(function)",
    "desc": "streams have no order; sort in foreachBatch(function)",
    "over": "use groupBy(...).apply_rows(...) with state, or penstock.window(...)",
    "isNaN": "compare with itself: ~(c == c)",
    "eqNullSafe": "use (a == b) | (a.isNull() & b.isNull())",
    "withField": _ARROW,
    "dropFields": _ARROW,
    "try_cast": _ARROW,
}
WRITER: Final[Mapping[str, str]] = {
    "foreach": "use foreachBatch(function)",
    "toTable": "use foreachBatch(lambda df, sink_epoch: df.write.saveAsTable(name, mode='append'))",
    "clusterBy": "use partitionBy(...)",
    "bucketBy": "use partitionBy(...)",
    "mode": "use outputMode(...)",
    "save": "use start(path)",
    "parquet": "use format('parquet').start(path)",
}


class MissingMethodError(DeclarationError, AttributeError):
    """A method that Penstock does not have; the message names what to use."""


def refuse_missing(owner: object, name: str, table: Mapping[str, str]) -> NoReturn:
    """Raise the error of a method that a class does not have.

    Args:
        table: what stands for the methods that PySpark has.
    """
    what = type(owner).__name__
    if name.startswith("_"):
        raise AttributeError(f"{what!r} object has no attribute {name!r}")
    if name in table:
        raise MissingMethodError(f"{what} has no {name}(...): {table[name]}.")
    known = [one for one in dir(type(owner)) if not one.startswith("_")]
    near = difflib.get_close_matches(name, known, 1)
    raise MissingMethodError(
        f"{what} has no {name!r}; "
        + (f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}.")
    )
