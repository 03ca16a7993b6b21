"""A streaming DataFrame as a declared source: checks it, and carries its schema over."""

from __future__ import annotations

from typing import Any

from penstock.errors import DeclarationError, SessionError
from penstock.topology.schema import parse_schema
from penstock.topology.stream import Node, Stream, check_name


def stream_of(dataframe: Any, name: str, stamp: str | None) -> Stream:
    """Declare a streaming DataFrame as a source.

    Raises:
        DeclarationError: not a streaming DataFrame, a column type that Arrow does not carry, or an unknown
            stamp column.
        SessionError: a DataFrame of Spark Connect.
    """
    check_name(name, "source")
    if type(dataframe).__module__.startswith("pyspark.sql.connect"):
        raise SessionError(
            f"source '{name}' is a Spark Connect DataFrame; leases need the driver's own SparkContext, "
            "so use a classic session."
        )
    if not getattr(dataframe, "isStreaming", False):
        raise DeclarationError(
            f"source '{name}' is not a streaming DataFrame; read it with spark.readStream."
        )
    schema = parse_schema(dataframe.schema, f"schema of source '{name}'")
    if stamp is not None and stamp not in schema.names:
        raise DeclarationError(
            f"source '{name}' has no column '{stamp}' to take time stamps from; it has {', '.join(schema.names)}."
        )
    return Stream(Node(name, "dataframe", schema, dataframe=dataframe, stamp=stamp))
