"""What a processor's calls are given and give back: rows one by one, or pandas frames. Neither touches state.

Rows are made column by column, a block of keys at a time; the only Python that runs per row is the processor's.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat
from operator import attrgetter
from typing import Any, Protocol

import pyarrow as pa

from penstock.dataplane.logic.processor_times import Convert, Zone, times_in
from penstock.errors import OperatorError
from penstock.topology.batches import conform_batch, rows_to_batch
from penstock.topology.processors import Processor
from penstock.topology.rows import batch_to_rows
from penstock.topology.type_words import in_sparks_words, type_words

_FIELDS = attrgetter("__fields__")


class Flavour(Protocol):
    """One of the two forms."""

    def split(self, table: pa.Table, bounds: Sequence[int]) -> Iterator[Any]:
        """Return what each key is given: the rows between two bounds."""
        ...

    def initial(self, table: pa.Table, bounds: Sequence[int]) -> Iterator[list[Any]]:
        """Return what `handleInitialState` is called with for each key, call by call."""
        ...

    def key(self, key: Any) -> Any:
        """Return a key as the handlers of rows get it."""
        ...

    def timer_key(self, key: Any) -> Any:
        """Return the values of a key as `handleExpiredTimer` gets it."""
        ...

    def nothing(self) -> Any:
        """Return what stands for no rows."""
        ...

    def batch(self, made: list[Any]) -> pa.RecordBatch:
        """Return everything that was yielded as one batch."""
        ...


class Rows:
    """`pyspark.sql.Row`s."""

    def __init__(
        self,
        declared: Processor,
        schema: pa.Schema,
        output: pa.Schema,
        operator: str,
        keys: Sequence[pa.DataType] = (),
    ) -> None:
        self._row_class = declared.kit.row_class(schema.names)
        self._classes = declared.kit.row_class
        self._output = output
        self._names = output.names
        self._operator = operator
        self._zone = Zone(declared.zone)
        self.key = _key_converter(keys, None if self._zone.is_utc else self._zone.aware)
        # Not of the session: PySpark takes these keys from state, where times are this machine's.
        self.timer_key = _key_converter(keys, Zone(None).wall)

    def split(self, table: pa.Table, bounds: Sequence[int]) -> Iterator[Any]:
        rows = rows_of(table, self._row_class, self._zone)
        return (iter(rows[start:end]) for start, end in pairwise(bounds))

    def initial(self, table: pa.Table, bounds: Sequence[int]) -> Iterator[list[Any]]:
        rows = rows_of(table, self._classes(table.schema.names), self._zone)
        return (rows[start:end] for start, end in pairwise(bounds))

    def nothing(self) -> Any:
        return iter(())

    def batch(self, made: list[Any]) -> pa.RecordBatch:
        try:
            named = list(map(_FIELDS, made))
        except AttributeError:  # plain tuples and dicts, or rows without names
            return rows_to_batch(made, self._output, self._operator)
        names, whole = self._names, tuple(self._names)
        if all(fields in (names, whole) for fields in named):
            return rows_to_batch(list(map(tuple, made)), self._output, self._operator)
        known = set(names)
        return rows_to_batch(
            [
                {name: value for name, value in zip(fields, row, strict=True) if name in known}
                for fields, row in zip(named, made, strict=True)
            ],
            self._output,
            self._operator,
        )


def converters(schema: pa.Schema, convert: Convert) -> dict[str, Convert]:
    """Return what converts the times in columns, by the names of those that may hold any."""
    found = {field.name: times_in(field.type, convert) for field in schema}
    return {name: one for name, one in found.items() if one is not None}


def _key_converter(types: Sequence[pa.DataType], convert: Convert | None) -> Convert:
    """Return what makes of a key what a handler gets."""
    times = [at for at, type_ in enumerate(types) if pa.types.is_timestamp(type_) and type_.tz is not None]
    if not times or convert is None:
        return lambda key: key
    return lambda key: tuple(convert(value) if at in times else value for at, value in enumerate(key))


def rows_of(table: pa.Table, cls: type[tuple[Any, ...]], zone: Zone) -> list[Any]:
    """Return rows as a processor gets them: structs are dicts and maps lists of pairs, and times have the zone, as in
    Spark."""
    nested = [at for at, field in enumerate(table.schema) if pa.types.is_nested(field.type)]
    zoned = {} if zone.is_utc else converters(table.schema, zone.aware)
    if not nested and not zoned:
        return batch_to_rows(table, cls)
    plain = batch_to_rows(table.select([at for at in range(table.num_columns) if at not in nested]))
    flat = iter(zip(*plain, strict=True)) if plain else iter(repeat((), table.num_columns))
    columns = [
        table.column(at).to_pylist() if at in nested else next(flat) for at in range(table.num_columns)
    ]
    for at, name in enumerate(table.schema.names):
        if name in zoned:
            columns[at] = [value if value is None else zoned[name](value) for value in columns[at]]
    return list(map(tuple.__new__, repeat(cls), zip(*columns, strict=True)))


class Frames:
    """`pandas.DataFrame`s: all rows of a key in one."""

    def __init__(
        self,
        declared: Processor,
        schema: pa.Schema,
        output: pa.Schema,
        operator: str,
        keys: Sequence[pa.DataType] = (),
    ) -> None:
        self._wide = declared.wide
        self._schema = schema
        self._output = output
        self._operator = operator
        self._zone = Zone(declared.zone)
        self._convert = converters(output, self._zone.from_wall)
        self.key = _key_converter(keys, self._stamp)
        self.timer_key = _key_converter(keys, self._zone.wall)

    def _stamp(self, value: dt.datetime) -> Any:
        import pandas as pd

        return pd.Timestamp(self._zone.wall(value))

    def split(self, table: pa.Table, bounds: Sequence[int]) -> Iterator[Any]:
        return (iter((frame,)) for frame in self._frames(table, bounds))

    def initial(self, table: pa.Table, bounds: Sequence[int]) -> Iterator[list[Any]]:
        return ([frame] if len(frame) else [] for frame in self._frames(table, bounds))

    def nothing(self) -> Any:
        import pandas as pd

        return iter((pd.DataFrame(columns=self._schema.names, dtype=object),))

    def _frames(self, table: pa.Table, bounds: Sequence[int]) -> Iterator[Any]:
        import pandas as pd

        whole = _to_pandas(table, self._wide, self._zone)
        for start, end in pairwise(bounds):
            frame = whole.iloc[start:end]
            frame.index = pd.RangeIndex(end - start)
            frame._is_copy = None  # a frame of its own for the processor: no warning when it adds columns
            yield frame

    def batch(self, made: list[Any]) -> pa.RecordBatch:
        import pandas as pd

        for frame in made:
            if not isinstance(frame, pd.DataFrame):
                raise OperatorError(
                    f"operator {self._operator!r} yielded a {type(frame).__name__}; yield pandas.DataFrames with the "
                    f"columns {', '.join(map(repr, self._output.names))}"
                )
        filled = [self._named(frame) for frame in made if len(frame)]
        if not filled:
            return pa.RecordBatch.from_pylist([], schema=self._output)
        return self._arrow(filled[0] if len(filled) == 1 else pd.concat(filled, ignore_index=True))

    def _named(self, frame: Any) -> Any:
        """Columns go by name where the labels are texts, else by position, as in Spark."""
        names = self._output.names
        if list(frame.columns) == names:
            return frame
        if any(isinstance(label, str) for label in frame.columns):
            missing = [name for name in names if name not in frame.columns]
            if missing:
                raise OperatorError(
                    f"operator {self._operator!r} yielded a frame with the columns {list(frame.columns)}; it lacks "
                    f"{', '.join(map(repr, missing))}"
                )
            return frame[names]
        if len(frame.columns) != len(names):
            raise OperatorError(
                f"operator {self._operator!r} yielded a frame with {len(frame.columns)} columns; its schema has "
                f"{len(names)}"
            )
        return frame.set_axis(names, axis=1)

    def _arrow(self, frame: Any) -> pa.RecordBatch:
        arrays = []
        for field in self._output:
            series = frame[field.name]
            try:
                if field.name in self._convert:
                    series = self._localized(series, self._convert[field.name])
                array = pa.Array.from_pandas(series, type=field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise OperatorError(
                    f"operator {self._operator!r} yielded column {field.name!r} as {series.dtype}, which does not fit "
                    f"{type_words(field.type)}: {in_sparks_words(str(error))}"
                ) from error
            arrays.append(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)
        return conform_batch(
            pa.RecordBatch.from_arrays(arrays, names=self._output.names), self._output, self._operator
        )

    def _localized(self, series: Any, convert: Convert) -> Any:
        """Return a column with its times without a zone as times of the session, as for Spark."""
        import pandas as pd

        if pd.api.types.is_datetime64_any_dtype(series.dtype):
            zoned = getattr(series.dtype, "tz", None) is not None
            return series if zoned else series.dt.tz_localize(self._zone.for_pandas())
        return series.map(lambda value: convert(value) if _is_there(value) else value)


def _is_there(value: Any) -> bool:
    return not (value is None or isinstance(value, float) or type(value).__name__ in ("NaTType", "NAType"))


def _to_pandas(table: pa.Table, wide: bool, zone: Zone) -> Any:
    """Return a frame as Spark's Python worker makes it: wall times of the zone, whole numbers of one width."""
    columns = []
    for field, column in zip(table.schema, table.columns, strict=True):
        if wide and pa.types.is_integer(field.type) and field.type.bit_width < 64:
            column = column.cast(pa.int64())
        elif wide and pa.types.is_float32(field.type):
            column = column.cast(pa.float64())
        elif pa.types.is_timestamp(field.type) and field.type.tz is not None:
            column = column.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
        columns.append(column)
    frame = pa.Table.from_arrays(columns, names=table.schema.names).to_pandas(
        date_as_object=True, coerce_temporal_nanoseconds=True
    )
    for field in () if zone.is_utc else table.schema:
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            frame[field.name] = (
                frame[field.name].dt.tz_localize("UTC").dt.tz_convert(zone.for_pandas()).dt.tz_localize(None)
            )
    return frame
