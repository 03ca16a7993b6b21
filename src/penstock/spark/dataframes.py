"""DataFrames at both ends of a query: one declared as a source, and Arrow rows as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import DeclarationError, SessionError
from penstock.topology.nodes import Node, check_name
from penstock.topology.schema import parse_schema
from penstock.topology.stream import Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
"""What stands for types that Spark does not have."""


def stream_of(dataframe: Any, name: str, stamp: str | None) -> Stream:
    """Declare a DataFrame as a source; a batch DataFrame is a bounded one.

    Raises:
        DeclarationError: not a DataFrame, a column type that Arrow does not carry, or an unknown stamp column.
        SessionError: a DataFrame of Spark Connect.
    """
    check_name(name, "source")
    if type(dataframe).__module__.startswith("pyspark.sql.connect"):
        raise SessionError(
            f"source '{name}' is a Spark Connect DataFrame; leases need the driver's own SparkContext, "
            "so use a classic session."
        )
    streaming = getattr(dataframe, "isStreaming", None)
    if streaming is None:
        raise DeclarationError(
            f"source '{name}' is no DataFrame of Spark but {type(dataframe).__name__}; use penstock.from_rows(...) for "
            "lists, pandas DataFrames and Arrow tables."
        )
    schema = parse_schema(dataframe.schema, f"schema of source '{name}'")
    if stamp is not None and stamp not in schema.names:
        raise DeclarationError(
            f"source '{name}' has no column '{stamp}' to take time stamps from; it has {', '.join(schema.names)}."
        )
    return Stream(Node(name, "dataframe", schema, dataframe=dataframe, stamp=stamp, bounded=not streaming))


def dataframe_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return rows as a DataFrame of a session, with the types they were declared with.

    Time stamps without a zone stay so, whatever the session takes them for; unsigned numbers become the next larger
    type that Spark has.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    table = table.cast(pa.schema([field.with_type(_spark_type(field.type)) for field in table.schema]))
    schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
    # One Arrow chunk becomes one partition, and a sink epoch has as many chunks as epochs it is made of.
    return spark.createDataFrame(table.combine_chunks(), schema)


def _spark_type(type_: pa.DataType) -> pa.DataType:
    is_ = pa.types
    if is_.is_list(type_):
        return pa.list_(type_.value_field.with_type(_spark_type(type_.value_type)))
    if is_.is_map(type_):
        return pa.map_(_spark_type(type_.key_type), _spark_type(type_.item_type))
    if is_.is_struct(type_):
        return pa.struct([field.with_type(_spark_type(field.type)) for field in type_])
    return _SIGNED.get(type_, type_)
