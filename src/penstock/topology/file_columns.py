"""Which columns a file sink can write, and which of them can be folders; checked where the sink is declared."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.suggesting import did_you_mean
from penstock.topology.type_words import type_words
from penstock.topology.types import ddl_of


def check_file_columns(schema: pa.Schema) -> None:
    """Refuse columns that Spark could not read back from Parquet files that Arrow writes.

    Raises:
        DeclarationError: names the first one.
    """
    for field in schema:
        text = ddl_of(field.type)
        odd = next(
            (name for name in ("interval day to second", "time") if re.search(rf"\b{name}\b", text)), None
        )
        if odd is not None:
            raise DeclarationError(
                f"format('parquet'): column {field.name!r} has type {text}, and Spark does not read {odd} from files "
                "written here; write it with foreachBatch(function), or leave the column out."
            )


def partition_columns(names: Any, schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that become folders of a Parquet sink, each once.

    Raises:
        DeclarationError: one is unknown or of a type that cannot name folders, or no column is left for the files.
    """
    is_ = pa.types
    for name in names:
        if name not in schema.names:
            hint = did_you_mean(name, schema.names, f"there are {', '.join(schema.names)}.")
            raise DeclarationError(f"partitionBy(...): there is no column {name!r}; {hint}")
        type_ = schema.field(name).type
        if not (
            is_.is_integer(type_) or is_.is_string(type_) or is_.is_boolean(type_) or is_.is_date32(type_)
        ):
            raise DeclarationError(
                f"partitionBy(...): column {name!r} has type {type_words(type_)}, which cannot name folders; use "
                "integers, strings, booleans or dates."
            )
    if len(set(names)) == len(schema.names):
        raise DeclarationError(
            "partitionBy(...) takes all columns, so that files would have none; leave one out."
        )
    return tuple(dict.fromkeys(names))
