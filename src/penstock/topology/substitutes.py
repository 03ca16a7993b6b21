"""What stands for methods that PySpark has and Penstock has not: a table for each class, and the error that reads it.

The error is an AttributeError, so that `hasattr` and notebooks' completion go on to work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NoReturn

from penstock.errors import DeclarationError
from penstock.suggesting import nearest

_BEFORE: Final = "do it on the DataFrame before penstock.from_dataframe(df)"
_STATE: Final = "keep what was seen in the state of groupBy(...).apply_rows(...)"
_ARROW: Final = "compute it with map_arrow(function, schema=...) and pyarrow.compute"
_BATCH: Final = "use foreachBatch(function), whose DataFrame can do it"
_ORDER: Final = "streams have no order; sort in foreachBatch(function)"
_ROWS: Final = "use writeStream.format('memory') and query.table(), which has the rows"
_LEAVE: Final = "leave it out; several operators may use one stream"
_DEALT: Final = "leave it out; groupBy(...) deals rows by key, station(...) in turn"
_VIEW: Final = "use writeStream.format('memory').queryName(name), which makes a view of that name"
_WRITER: Final = "it is the writer's; call writeStream first"
_QUERY: Final = "it is the query's, which start() returns"
_KEYED: Final = "call groupBy(...) first"
_JOIN: Final = (
    "use a.groupBy(key).cogroup(b.groupBy(key)).apply_rows(function, schema=..., state=...) and keep the rows of both "
    "sides in state: a call has the rows of one epoch, and rows that match come in different ones"
)


_SETS: Final = (
    "use a.groupBy(*columns).cogroup(b.groupBy(*columns)).apply_rows(function, schema=..., state=...) and keep in state "
    "which side has had the row: streams have no end at which to compare them, and Spark does not compare two streaming "
    "ones either"
)
_LEVELS: Final = "group once for each level: groupBy('a', 'b').agg(...) and groupBy('a').agg(...)"
_PIVOT: Final = (
    "give each value a column before groupBy(...): withColumn(name, penstock.when(col(...) == value, ...))"
)


def _each(names: str, told: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), told)


STREAM: Final[Mapping[str, str]] = {
    "selectExpr": "SQL text is not taken; use select(...) with penstock.col(...)",
    **_each("distinct dropDuplicates drop_duplicates dropDuplicatesWithinWatermark", _STATE),
    "join": _JOIN,
    **_each("lateralJoin nearestByJoin exists", _JOIN),
    "crossJoin": "use groupBy(...).with_broadcast(other).apply_rows(...) and keep its rows in state: they match broadcast "
    "rows that come later too",
    "limit": "give a source a limit, as generate(..., limit=n) has",
    "agg": "group by a column first: withColumn('all', penstock.lit(1)).groupBy('all').agg(...)",
    "mapInArrow": "use map_arrow(function, schema=...)",
    "mapInPandas": "use map_arrow(function, schema=...); table.to_pandas() gives the frame",
    "flatMap": "use flat_map(function, schema=...)",
    **_each("foreach foreachPartition foreachBatch", "use writeStream.foreachBatch(function)"),
    **_each("write writeTo mergeInto", "use writeStream; a query over bounded sources ends by itself"),
    "show": "use writeStream.format('console')",
    **_each("collect take head first tail toLocalIterator toArrow offset isEmpty scalar", _ROWS),
    **_each("toPandas pandas_api plot", "use writeStream.format('memory') and query.table().to_pandas()"),
    "count": "use groupBy(...).count()",
    **_each("orderBy sort sortWithinPartitions", _BATCH),
    **_each("toJSON rdd transpose executionInfo inputFiles randomSplit zipWithIndex zip", _BATCH),
    **_each("describe summary stat corr cov crosstab freqItems approxQuantile", _BATCH),
    **_each("cache persist unpersist checkpoint localCheckpoint hint isLocal storageLevel", _LEAVE),
    **_each("sameSemantics semanticHash sparkSession", _LEAVE),
    **_each("repartition repartitionByRange repartitionById coalesce", _DEALT),
    **_each("dropna", "use filter(penstock.col(...).isNotNull())"),
    "na": "use filter(penstock.col(...).isNotNull()) or penstock.coalesce(...)",
    "fillna": "use withColumn(name, penstock.coalesce(name, penstock.lit(value)))",
    "replace": "use withColumn(name, penstock.when(penstock.col(name) == old, new).otherwise(penstock.col(name)))",
    **_each("alias asTable", "leave it out; columns are named by themselves"),
    "toDF": "use withColumnRenamed(old, new), or select(penstock.col(old).alias(new), ...)",
    "withColumnsRenamed": "use withColumnRenamed(old, new) for each",
    **_each("to withMetadata metadataColumn", "use select(penstock.col(...).cast(type), ...)"),
    "transform": "call the function itself: function(stream)",
    "colRegex": "name the columns: select(*[c for c in stream.columns if ...])",
    "explain": "use printSchema() for the columns; query.explain() prints what runs",
    "isStreaming": "every stream is one",
    **_each("createOrReplaceTempView createTempView registerTempTable", _VIEW),
    **_each("createGlobalTempView createOrReplaceGlobalTempView", _VIEW),
    **_each("unpivot melt", _BEFORE),
    **_each(
        "sample sampleBy", "keep some rows by their values, as filter(penstock.col('id') % 10 == 0) does"
    ),
    **_each("intersect intersectAll subtract exceptAll", _SETS),
    **_each("rollup cube groupingSets", _LEVELS),
    "observe": "read query.lastProgress",
}
"""What PySpark's DataFrame has; a column of such a name is had by stream["name"] only, as in PySpark."""
NEAR_STREAM: Final[Mapping[str, str]] = {
    **_each("sum avg mean min max", "group by a column first, as in groupBy('user').sum('amount')"),
    **_each(
        "apply map_rows", "use map(function, schema=...) for each row, or groupBy(...).apply_rows(...) by key"
    ),
    **_each("dedup unique", _STATE),
    "merge": "use a.groupBy(key).cogroup(b.groupBy(key)).apply_rows(...)",
    "pivot": _PIVOT,
    "partitionBy": _DEALT,
    "window": "use groupBy(penstock.window(column, duration), ...)",
    **_each("keyBy key_by groupByKey reduceByKey partition_by", "use groupBy(...) with the names of columns"),
    **_each("apply_rows apply_arrow cogroup with_broadcast applyInPandas applyInArrow", _KEYED),
    **_each("transformWithState transformWithStateInPandas applyInPandasWithState", _KEYED),
    **_each("format option options outputMode trigger queryName start sla also toTable", _WRITER),
    **_each("awaitTermination stop isActive lastProgress processAllAvailable table", _QUERY),
}
"""What is looked for on a stream and is elsewhere."""
_GROUPED_ONLY: Final = (
    "keyed rows are waiting for an operator; call it before groupBy(...), or after agg(...)"
)
GROUPED: Final[Mapping[str, str]] = {
    "pivot": _PIVOT,
    "applyInPandas": "use apply_arrow(function, schema=..., state=...), or applyInPandasWithState",
    "applyInArrow": "use apply_arrow(function, schema=..., state=...)",
    **_each(
        "apply map flatMap flat_map map_arrow reduce mapGroups",
        "use apply_rows(function, schema=..., state=...)",
    ),
    **_each("mapGroupsWithState flatMapGroupsWithState", "use apply_rows(function, schema=..., state=...)"),
    **_each("last top_n", "give it to agg(...), as in agg(penstock.last('price'))"),
    **_each(
        "first collect_list collect_set stddev var median nunique", "keep it in the state of apply_rows(...)"
    ),
    "join": "use cogroup(other.groupBy(key)).apply_rows(...), or with_broadcast(...) for a small side",
    "window": "give the window to groupBy: groupBy(penstock.window(column, duration), ...)",
    **_each("filter where select withColumn withColumns drop union withWatermark writeStream", _GROUPED_ONLY),
    **_each("groupBy station orderBy sort show collect columns schema printSchema", _GROUPED_ONLY),
}
COGROUPED: Final[Mapping[str, str]] = {
    "applyInPandas": "use apply_rows(function, schema=..., state=...) of (key, left rows, right rows, state)",
    "applyInArrow": "use apply_rows(function, schema=..., state=...) of (key, left rows, right rows, state)",
    **_each(
        "agg apply_arrow count sum transformWithState", "use apply_rows(function, schema=..., state=...)"
    ),
    **_each("filter select writeStream", _GROUPED_ONLY),
}
WINDOWED: Final[Mapping[str, str]] = {
    **GROUPED,
    "apply_arrow": "use apply_rows(function, schema=...), which is called once per window and key",
    "cogroup": "group both sides by the start of the window and keep their rows in state: cogroup works on "
    "groupBy(columns), and a call has the rows of one epoch",
    "with_broadcast": "use groupBy(columns).with_broadcast(...) and group its output by the window",
    "transformWithState": "group by columns alone; a processor keeps its own windows with timers",
    "transformWithStateInPandas": "group by columns alone; a processor keeps its own windows with timers",
    "applyInPandasWithState": "group by columns alone; the function keeps its own windows with time-outs",
}
COLUMN: Final[Mapping[str, str]] = {
    **_each("like ilike rlike getItem bitwiseAND bitwiseOR bitwiseXOR", _ARROW),
    **_each("withField dropFields try_cast transform outer", _ARROW),
    **_each(
        "lower upper length trim ltrim rtrim replace split substring concat round abs floor ceil sqrt", _ARROW
    ),
    **_each("year month day hour minute second date to_timestamp strftime str dt apply map format", _ARROW),
    "name": "use alias(name)",
    "rename": "use alias(name)",
    **_each("asc desc asc_nulls_first asc_nulls_last desc_nulls_first desc_nulls_last sort", _ORDER),
    "over": "use groupBy(...).apply_rows(...) with state, or penstock.window(...)",
    **_each("sum count avg mean min max first last", "use groupBy(...).agg(...) with penstock's aggregates"),
    **_each("isNaN isnan", "compare with itself: ~(c == c)"),
    **_each("isna", "use isNull()"),
    **_each("notna", "use isNotNull()"),
    "fillna": "use penstock.coalesce(column, penstock.lit(value))",
    "when": "it goes on a penstock.when(...)",
    **_each("eq equals", "use =="),
    "eqNullSafe": "use (a == b) | (a.isNull() & b.isNull())",
}
WRITER: Final[Mapping[str, str]] = {
    "foreach": "use foreachBatch(function)",
    **_each(
        "toTable saveAsTable table insertInto",
        "use format('parquet').start(path), each row once, and spark.read.parquet(path); or "
        "foreachBatch(lambda df, sink_epoch: df.write.saveAsTable(name, mode='append')), which after a crash may append "
        "the last sink epoch again",
    ),
    "clusterBy": "use partitionBy(...)",
    "bucketBy": "use partitionBy(...)",
    "mode": "use outputMode(...)",
    **_each("save run execute", "use start(path)"),
    "parquet": "use format('parquet').start(path)",
    **_each("console memory noop", "give its name to format(...), as in format('console')"),
    **_each(
        "json csv text orc jdbc kafka delta iceberg",
        "use foreachBatch(function), whose DataFrame can go anywhere",
    ),
    **_each("checkpointLocation checkpoint", "use option('checkpointLocation', path)"),
    **_each("awaitTermination stop isActive lastProgress processAllAvailable", _QUERY),
    "collect": _ROWS,
    "name": "use queryName(name)",
    **_each("filter select groupBy withColumn", "call it on the stream, before writeStream"),
}
QUERY: Final[Mapping[str, str]] = {
    **_each("collect show head take rows dataframe toDF toArrow", "table() has the rows of a memory sink"),
    "toPandas": "use table().to_pandas(), of a memory sink",
    **_each("wait join await_termination run", "use awaitTermination()"),
    **_each("close shutdown cancel kill terminate", "use stop()"),
    "start": "it runs; stop() ends it, and writeStream...start() starts another",
    "restart": "use stop(), and start() of the same writer",
    **_each("error failure", "use exception()"),
    "progress": "use lastProgress or recentProgress",
    "metrics": "use lastProgress",
    **_each("scale rescale set_cores", "use rescale(operator, cores)"),
}


class MissingMethodError(DeclarationError, AttributeError):
    """A method that Penstock does not have; the message names what to use."""


def refuse_missing(owner: object, name: str, table: Mapping[str, str], also: Iterable[str] = ()) -> NoReturn:
    """Raise the error of a method that a class does not have.

    Args:
        table: what stands for the methods that PySpark has.
        also: names that may have been meant beside its own, such as those of columns.
    """
    what = {"Case": "Column"}.get(type(owner).__name__, type(owner).__name__)
    if name.startswith("_"):
        raise AttributeError(f"{what!r} object has no attribute {name!r}")
    if name in table:
        raise MissingMethodError(f"{what} has no {name}(...): {table[name]}.")
    known = [one for one in dir(type(owner)) if not one.startswith("_")]
    near = nearest(name, [*known, *also]) or nearest(name, table)
    if near is not None and near in table:
        raise MissingMethodError(f"{what} has no {name!r}; if {near}(...) was meant: {table[near]}.")
    columns = f", and the columns {', '.join(also)}" if also else ""
    raise MissingMethodError(
        f"{what} has no {name!r}; "
        + (f"did you mean {near!r}?" if near else f"it has {', '.join(known)}{columns}.")
    )
