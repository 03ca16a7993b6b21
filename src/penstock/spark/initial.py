"""Initial state of a processor: a grouped batch DataFrame, or one as `spark.read.format("statestore")` gives it.

That reader gives the key and the value as structs; a processor gets rows with plain columns, so their fields become
columns here. Nothing is read yet: the rows are a bounded source like any batch DataFrame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import DeclarationError
from penstock.spark.dataframes import stream_of
from penstock.topology.stream import Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

KEY: Final = "key"
"""The column of the key in what the reader gives."""
_PLAIN: Final = ("value", "list_element", "user_map_key", "user_map_value")
"""Its columns that hold the fields of a state's schema."""
_LEFT_OUT: Final = ("partition_id",)


class Flat(NamedTuple):
    """One column of the flattened rows."""

    name: str
    path: tuple[str, ...]


def initial_rows(given: Any, operator: str) -> tuple[Stream, tuple[str, ...]]:
    """Return initial state as a bounded stream, and its key columns.

    Raises:
        DeclarationError: it is neither a grouped batch DataFrame nor one of the state reader, or a field has no name of
            its own.
    """
    from pyspark.sql import DataFrame, GroupedData
    from pyspark.sql import functions as f

    if isinstance(given, GroupedData) and not given._df.isStreaming:
        frame = given._df
        keys = tuple(given.agg(f.count("*")).columns[:-1])
        if all(key in frame.columns for key in keys) and not (keys == (KEY,) and is_state(frame.schema)):
            return stream_of(frame, f"{operator}_initial", None), keys
        if not is_state(frame.schema):
            missing = next(key for key in keys if key not in frame.columns)
            raise DeclarationError(
                f"operator '{operator}': initialState is grouped by {missing}, which is no column of it; select it as "
                "a column first."
            )
        return _from_state(frame, None if keys == (KEY,) else keys, operator)
    if isinstance(given, DataFrame) and not given.isStreaming and is_state(given.schema):
        return _from_state(given, None, operator)
    raise DeclarationError(
        f"operator '{operator}': initialState takes df.groupBy(key) of a batch DataFrame, or a DataFrame of "
        f'spark.read.format("statestore"), not {given!r}.'
    )


def _from_state(
    frame: DataFrame, keys: Sequence[str] | None, operator: str
) -> tuple[Stream, tuple[str, ...]]:
    from pyspark.sql import functions as f

    columns, own = flatten(frame.schema, operator)
    if keys is not None and set(keys) != set(own):
        raise DeclarationError(
            f"operator '{operator}': initialState is grouped by {', '.join(keys)}, its key has {', '.join(own)}; group by "
            "all of these, or give the DataFrame as it is."
        )
    picked = []
    for name, path in columns:
        column = f.col(f"`{path[0]}`")
        for field in path[1:]:
            column = column.getField(field)
        picked.append(column.alias(name))
    return stream_of(frame.select(*picked), f"{operator}_initial", None), tuple(keys or own)


def is_state(schema: StructType) -> bool:
    """Whether these are the columns that the state reader gives: the key as a struct, and what it holds."""
    from pyspark.sql.types import StructType

    return KEY in schema.names and isinstance(schema[KEY].dataType, StructType) and len(schema.names) > 1


def flatten(schema: StructType, operator: str) -> tuple[list[Flat], tuple[str, ...]]:
    """Return the columns of the flattened rows, the key's first, and the names of the key's.

    Fields of the key, of a value and of the key and value of a map's entry become columns under their own names; lists,
    maps and times of expiry stay as they are; the number of the partition is left out.

    Raises:
        DeclarationError: two of them have the same name.
    """
    from pyspark.sql.types import StructType

    found: list[Flat] = []
    for column in (KEY, *(name for name in schema.names if name not in (KEY, *_LEFT_OUT))):
        kind = schema[column].dataType
        if column in (KEY, *_PLAIN) and isinstance(kind, StructType):
            found.extend(Flat(field, (column, field)) for field in kind.names)
        else:
            found.append(Flat(column, (column,)))
    for at, one in enumerate(found):
        twin = next((other for other in found[:at] if other.name == one.name), None)
        if twin is not None:
            raise DeclarationError(
                f"operator '{operator}': initialState has both {'.'.join(twin.path)} and {'.'.join(one.path)}; select each "
                "under a name of its own and give df.groupBy(key)."
            )
    key = schema[KEY].dataType
    assert isinstance(key, StructType)
    return found, tuple(key.names)
