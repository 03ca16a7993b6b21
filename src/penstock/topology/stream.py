"""What a user declares: streams, and the steps between stages. Validated as it is written; no engine here.

A stream is an immutable node of the topology. Every mistake that can be seen without data fails in the call
that makes it, with the operator's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, overload

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.topology.calling import checks_arguments
from penstock.topology.expressions import Column, as_expression, nearest, refuse_expression
from penstock.topology.expressions import col as column
from penstock.topology.functions import check_function
from penstock.topology.keytypes import check_key_columns
from penstock.topology.nodes import (
    DEAD_LETTERS,
    DEFAULT_STATION_SHARDS,
    Node,
    check_name,
    check_size,
    shown,
)
from penstock.topology.schema import parse_schema
from penstock.topology.stateless import (
    FusedStep,
    MapArrow,
    MapRows,
    Watermark,
    filter_step,
    retype_step,
    select_step,
    watermark_step,
)
from penstock.topology.substitutes import NEAR_STREAM, STREAM, MissingMethodError, refuse_missing
from penstock.topology.type_words import schema_words, type_words
from penstock.topology.types import schema_tree
from penstock.topology.windows import Window, split_grouping

if TYPE_CHECKING:
    from penstock.topology.grouped import GroupedStream
    from penstock.topology.windowed import WindowedStream
    from penstock.topology.writer import StreamWriter


@checks_arguments
class Stream:
    """Rows that a source or an operator puts out. Use `groupBy` to key them, `writeStream` to send them to a
    sink."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def node(self) -> Node:
        """The part of the topology that makes these rows."""
        return self._node

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns, as Arrow has them."""
        return self._node.schema

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        """Names and types of the columns, in Spark's words."""
        return [(field.name, type_words(field.type)) for field in self._node.schema]

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return list(self._node.schema.names)

    def printSchema(self) -> None:
        """Print names and types of the columns as Spark does."""
        print(schema_tree(self._node.schema))

    def __getitem__(self, item: Any) -> Any:
        """Return a column by name or position, the selection of a list of columns, or the rows that fulfil a condition, as
        in Spark."""
        if isinstance(item, Column):
            return self.filter(item)
        if isinstance(item, list | tuple):
            return self.select(*item)
        if isinstance(item, int) and -len(self.columns) <= item < len(self.columns):
            return column(self.columns[item])
        if isinstance(item, str) and item in self.columns:
            return column(item)
        raise DeclarationError(
            f"'{self._node.name}' has no column {item!r}{nearest(str(item), self.columns)}; it has "
            f"{', '.join(self.columns)}."
        )

    def __iter__(self) -> NoReturn:
        raise DeclarationError(
            f"'{self._node.name}' is a stream and cannot be iterated over; use writeStream, or columns for its names."
        )

    if not TYPE_CHECKING:  # type checkers are to find what is not there

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # it may not have its own attributes yet: it is being copied or loaded
                refuse_missing(self, name, {})
            if name in ("dead_letters", "late_rows"):  # it has none of these rows
                raise MissingMethodError(self._lacks(name))
            if name in self.columns and name not in STREAM:
                return column(name)
            return refuse_missing(self, name, {**NEAR_STREAM, **STREAM}, self.columns)

    @overload
    def groupBy(self, *columns: str) -> GroupedStream: ...  # type: ignore[overload-overlap]

    @overload
    def groupBy(self, *columns: str | Window) -> WindowedStream: ...

    def groupBy(self, *columns: str | Window) -> GroupedStream | WindowedStream:
        """Key the rows by one or several columns; one of them may be a window, `penstock.window("ts", "5 minutes")`.

        Keys compare as Spark's do: NaN equals NaN, -0.0 equals 0.0, time stamps in UTC. A null in a key
        column ends the query with an error.

        Raises:
            DeclarationError: a column is unknown, or of a type that cannot be a key.
        """
        columns = _flat(columns)
        if any(isinstance(column, Window) for column in columns):
            return self._windowed(columns)
        from penstock.topology.grouped import GroupedStream

        names = check_key_columns(self._node.schema, columns, self._node.name)
        return GroupedStream(self._node, names)

    groupby = groupBy

    def _windowed(self, columns: Sequence[str | Window]) -> WindowedStream:
        from penstock.topology.windowed import WindowedStream

        window, place = split_grouping(columns, self._node.schema, self._node.name)
        plain = [column for column in columns if not isinstance(column, Window)]
        names = check_key_columns(self._node.schema, plain, self._node.name) if plain else ()
        return WindowedStream(self._node, names, window, place)

    def select(self, *columns: object) -> Stream:
        """Compute columns: names, or expressions of `penstock.col`; "*" stands for all there are.

        Raises:
            DeclarationError: a column is unknown, or an expression does not fit the types.
        """
        return self._step(select_step(self._where("select"), columns, self._node.schema))

    def withColumn(self, colName: str, col: object) -> Stream:
        """Add a column, or replace the one of that name."""
        return self._with_columns("withColumn", {colName: col})

    def withColumns(self, colsMap: Mapping[str, object]) -> Stream:
        """Add columns, or replace those of the names; all are computed of the columns there are before."""
        if not isinstance(colsMap, Mapping) or not colsMap:
            raise DeclarationError(
                f"{self._where('withColumns')} takes expressions by name, such as {{'fee': penstock.col('price') * 0.01}}, "
                f"not {colsMap!r}."
            )
        return self._with_columns("withColumns", colsMap)

    def _with_columns(self, what: str, given: Mapping[str, object]) -> Stream:
        where = self._where(what)
        for name in given:
            if not isinstance(name, str) or not name:
                raise DeclarationError(f"{where} takes the name of a column first, not {name!r}.")
        made = {name: as_expression(one, where).alias(name) for name, one in given.items()}
        kept: list[object] = [made.pop(name, name) for name in self.columns]
        return self._step(select_step(where, [*kept, *made.values()], self._node.schema))

    def withColumnRenamed(self, existing: str, new: str) -> Stream:
        """Rename a column; does nothing where there is none of that name, as in Spark."""
        if existing not in self.columns:
            return self
        renamed = [column(name).alias(new) if name == existing else name for name in self.columns]
        return self._step(select_step(self._where("withColumnRenamed"), renamed, self._node.schema))

    def drop(self, *cols: str) -> Stream:
        """Leave columns out; names that are not there are passed over, as in Spark."""
        for one in cols:
            if not isinstance(one, str):
                refuse_expression("drop", one, self._where("drop"))
        kept = [name for name in self.columns if name not in cols]
        return self._step(select_step(self._where("drop"), kept, self._node.schema))

    def filter(self, condition: object) -> Stream:
        """Keep the rows for which a condition holds; null counts as false.

        Raises:
            DeclarationError: it is no condition over these columns.
        """
        return self._step(filter_step(self._where("filter"), condition, self._node.schema))

    where = filter

    def union(self, other: Stream) -> Stream:
        """Put the rows of two streams together; columns go by position, as in Spark, and keep the names of the first.

        Rows of one key keep the order they have in each stream; between the two, the first goes first within an epoch.

        Raises:
            DeclarationError: the streams have different types, or `other` is no stream.
        """
        where = self._where("union")
        theirs = checked_stream(other, where)
        if [field.type for field in theirs.schema] != [field.type for field in self.schema]:
            raise DeclarationError(
                f"{where}: the streams have different columns, {shown(self.schema)} and {shown(theirs.schema)}; "
                "select the same types in the same order first."
            )
        return self._merge(
            theirs, [column(theirs.columns[at]).alias(name) for at, name in enumerate(self.columns)]
        )

    unionAll = union

    def unionByName(self, other: Stream) -> Stream:
        """Put the rows of two streams together; columns go by name.

        Raises:
            DeclarationError: a column is missing on one side, or has another type there.
        """
        where = self._where("unionByName")
        theirs = checked_stream(other, where)
        mine = {field.name: field.type for field in self.schema}
        if mine != {field.name: field.type for field in theirs.schema}:
            raise DeclarationError(
                f"{where}: the streams have different columns, {shown(self.schema)} and {shown(theirs.schema)}; "
                "select the same names and types first."
            )
        return self._merge(theirs, list(self.columns))

    def _merge(self, other: Stream, columns: list[Any]) -> Stream:
        fields = [
            pa.field(mine.name, mine.type, mine.nullable or theirs.nullable)
            for mine, theirs in zip(self.schema, other.select(*columns).schema, strict=True)
        ]
        schema = pa.schema(fields)
        mine = self._step(retype_step(self._where("union"), self.columns, self.schema, schema))
        theirs = other.select(*columns)
        theirs = theirs._step(retype_step(self._where("union"), self.columns, theirs.schema, schema))
        return Stream(
            Node(f"{self._node.name}_union_{other.node.name}", "union", schema, (mine.node, theirs.node))
        )

    def withWatermark(self, eventTime: str, delayThreshold: object, *, idle_after: object = None) -> Stream:
        """Say which column holds the event time, and how long rows may be late.

        The watermark is the latest event time that was put out so far less the delay; over several inputs the least
        one counts. Rows that windows and event-time processors find behind it are late.

        Args:
            eventTime: a column of type timestamp.
            delayThreshold: such as "10 minutes".
            idle_after: after this long without rows the source holds the watermark of others up no more.

        Raises:
            DeclarationError: no such column, or none of type timestamp; no duration, or a negative one.
        """
        where = self._where("withWatermark")
        return self._step(watermark_step(where, eventTime, delayThreshold, idle_after, self.schema))

    def station(
        self,
        name: str,
        *,
        cores: int | None = None,
        shards: int = DEFAULT_STATION_SHARDS,
        keep_local: bool = False,
    ) -> Stream:
        """Run the stateless steps just before this as a station: an operator without keys or state, with a queue,
        cores and rates of its own. Without it they run inside the task that makes the rows.

        Rows are dealt to its tasks in turn, so rows of a key may overtake each other in it.

        Args:
            name: of the station, as of an operator.
            cores: tasks it starts with.
            shards: lanes that rows are dealt to; at least as many as it may ever have tasks.
            keep_local: let rows stay on the node that makes them where the station has a task there.

        Raises:
            DeclarationError: a watermark is declared among the steps; declare it after the station.
        """
        check_name(name, "station")
        steps: list[FusedStep] = []
        node = self._node
        while node.kind == "stateless" and node.step is not None:
            if isinstance(node.step, Watermark):
                raise DeclarationError(
                    f"station '{name}': call withWatermark(...) after station(...), where its rows are put out."
                )
            steps.insert(0, node.step)
            node = node.inputs[0]
        check_size(name, shards, cores)
        made = Node(
            name,
            "station",
            self.schema,
            (node,),
            (),
            shards,
            cores,
            steps=tuple(steps),
            keep_local=keep_local,
        )
        return Stream(made)

    @property
    def dead_letters(self) -> Stream:
        """The dead letters of this operator: calls that raised, with key, traceback and rows.

        Raises:
            DeclarationError: the operator was not declared with on_error="dead_letter".
        """
        if not self._node.dead_letters:
            raise MissingMethodError(self._lacks("dead_letters"))
        made = Node(f"{self._node.name}_dead_letters", "side", DEAD_LETTERS, (self._node,), output="dead")
        return Stream(made)

    @property
    def late_rows(self) -> Stream:
        """The rows that came too late, as they came to this operator: for one of their windows, or for a processor by
        event time.

        Raises:
            DeclarationError: this is no windowed operator and no processor by event time.
        """
        processor = self._node.processor
        if self._node.kind != "windowed" and (processor is None or processor.time_mode != "event"):
            raise MissingMethodError(self._lacks("late_rows"))
        name, schema = f"{self._node.name}_late_rows", self._node.inputs[0].schema
        return Stream(Node(name, "side", schema, (self._node,), output="late"))

    def _lacks(self, name: str) -> str:
        if name == "dead_letters":
            return (
                f"'{self._node.name}' has no dead letters; declare the operator with on_error='dead_letter'."
            )
        return f"'{self._node.name}' has no late rows; they are what a groupBy(penstock.window(...), ...) leaves out."

    def map(self, function: Callable[[Any], Any], *, schema: object) -> Stream:
        """Call `function(row)` for every row; it returns one row (a tuple, dict or named tuple) of `schema`."""
        return self._map_rows("map", function, schema, False)

    def flat_map(self, function: Callable[[Any], Any], *, schema: object) -> Stream:
        """Call `function(row)` for every row; it returns any number of rows of `schema`, or None."""
        return self._map_rows("flat_map", function, schema, True)

    def map_arrow(self, function: Callable[[pa.Table], pa.Table], *, schema: object) -> Stream:
        """Call `function(table)` with Arrow tables of rows; it returns a table of `schema`.

        How rows are cut into tables depends on load: treat each row alone.
        """
        where = self._where("map_arrow")
        parsed = parse_schema(schema, f"schema of {where}")
        return self._step(MapArrow(where, check_function(function, ("table",), where), parsed))

    def _map_rows(self, what: str, function: Callable[[Any], Any], schema: object, flat: bool) -> Stream:
        where = self._where(what)
        parsed = parse_schema(schema, f"schema of {where}")
        checked = check_function(function, ("row",), where)
        return self._step(MapRows(where, checked, flat, self._node.schema, parsed))

    def _step(self, step: FusedStep) -> Stream:
        return Stream(Node(self._node.name, "stateless", step.schema, (self._node,), step=step))

    def _where(self, what: str) -> str:
        return f"{what}(...) after '{self._node.name}'"

    @property
    def writeStream(self) -> StreamWriter:
        """Begin to describe where the rows go."""
        from penstock.topology.writer import StreamWriter

        return StreamWriter(self)

    def __repr__(self) -> str:
        return f"Stream[{self._node.name}: {schema_words(self._node.schema, ': ')}]"


def checked_stream(given: object, where: str) -> Stream:
    """Return a stream, or say that it is none."""
    if not isinstance(given, Stream):
        raise DeclarationError(f"{where} takes a stream, not {_shown(given)}.")
    return given


def _shown(given: object) -> str:
    if type(given).__module__.startswith("pyspark.sql") and hasattr(given, "schema"):
        return "a DataFrame of Spark; write penstock.from_dataframe(df)"
    if type(given).__name__.endswith("edStream") and not isinstance(given, Stream):
        return "keyed rows; do it before groupBy(...), or after agg(...)"
    if type(given).__name__ == "StreamWriter":
        return "a writer; take the stream, before writeStream"
    return repr(given)


def _flat(columns: Sequence[Any]) -> tuple[Any, ...]:
    """Return columns that were given one by one or as one list."""
    if len(columns) == 1 and isinstance(columns[0], list | tuple):
        return tuple(columns[0])
    return tuple(columns)
