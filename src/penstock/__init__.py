"""Penstock: stateful stream processing on Spark, written in Python. The public names, and nothing
else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import (
    CheckpointError,
    CorruptFileError,
    DeclarationError,
    FencedError,
    OperatorError,
    PenstockError,
    PlanError,
    QueryError,
    SessionError,
    StorageError,
)
from penstock.topology import processors as _processors
from penstock.topology import writer as _writer
from penstock.topology.aggregates import count, last, max, mean, min, sum, top_n
from penstock.topology.expressions import Column, coalesce, col, lit, when
from penstock.topology.loops import loop
from penstock.topology.sla import SLA
from penstock.topology.sources import from_rows, generate
from penstock.topology.states import ListState, MapState, ValueState
from penstock.topology.stream import Stream
from penstock.topology.substitute_functions import refuse_name as _refuse_name
from penstock.topology.windows import session_window, window
from penstock.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.streams import streams

avg = mean


def session(app_name: str = "penstock", **settings: Any) -> SparkSession:
    """Return a SparkSession with what leases rely on; see `penstock.spark.session.session`."""
    from penstock.spark.session import session as make

    return make(app_name, **settings)


def from_dataframe(dataframe: Any, *, name: str = "source", stamp: str | None = None) -> Stream:
    """Take a DataFrame as a source: a streaming one, or a batch one, which is bounded.

    A batch DataFrame is taken in once, as a whole; a query whose sources are all bounded ends by itself.

    Args:
        dataframe: any DataFrame of Spark Classic.
        name: of the source; it is part of the checkpoint's identity.
        stamp: column with the producer's time stamp (a timestamp, or microseconds since 1970), for latency
            figures.
    """
    from penstock.spark.dataframes import stream_of

    return stream_of(dataframe, name, stamp)


def read_export(spark: SparkSession, checkpointLocation: str, name: str) -> DataFrame:
    """Return the rows of an exported source or operator as a streaming DataFrame, from the oldest that are kept.

    What `query.to_stream(name)` gives, in any process that reaches the checkpoint; the query need not run.

    Raises:
        CheckpointError: the checkpoint has no such export.
    """
    from penstock.spark.exported import read_export as read

    return read(spark, checkpointLocation, name)


def __getattr__(name: str) -> Any:
    # Late, because what it needs is Spark's, and a topology can be declared without that.
    if name == "streams":
        from penstock.spark.streams import streams

        return streams
    return _refuse_name(name, __all__)


def _start(declared: _writer.Declared, spark: Any) -> Any:
    from penstock.spark.starting import start

    return start(declared, spark)


def _kit() -> Any:
    from penstock.spark.processors import SparkKit

    return SparkKit()


_writer.set_starter(_start)
_processors.set_kit(_kit)

__all__ = [
    "SLA",
    "CheckpointError",
    "Column",
    "CorruptFileError",
    "DeclarationError",
    "FencedError",
    "ListState",
    "MapState",
    "OperatorError",
    "PenstockError",
    "PlanError",
    "QueryError",
    "SessionError",
    "StorageError",
    "Stream",
    "ValueState",
    "__version__",
    "avg",
    "coalesce",
    "col",
    "count",
    "from_dataframe",
    "from_rows",
    "generate",
    "last",
    "lit",
    "loop",
    "max",
    "mean",
    "min",
    "read_export",
    "session",
    "session_window",
    "streams",
    "sum",
    "top_n",
    "when",
    "window",
]
