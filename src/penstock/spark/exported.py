"""Exports as streaming DataFrames: a Python data source that Spark reads with its own checkpoint.

An offset is {operator: epoch}, the last epoch that was taken. Spark's executors read the rows straight from the
segments in our checkpoint; nothing here talks to the query that exports, which need not even run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from penstock.dataplane import exports
from penstock.dataplane.disk import PosixDisk, check_scheme
from penstock.dataplane.program import Program
from penstock.errors import CheckpointError, DeclarationError
from penstock.suggesting import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT = "penstock"
QUERY_KEY = "query.id"
"""Beside {operator: epoch} in an offset: whose epochs these are. No operator can be named so."""
PARTITION_BYTES = 32 << 20
"""Bytes of rows that one Spark task reads, unless one epoch has more."""


def check_exported(program: Program, operator: str) -> None:
    """Refuse what a query does not export.

    Raises:
        DeclarationError: there is no such stage, or it is not exported; says what to do.
    """
    if exports.stage_name(operator) in program.stages:
        return
    known = [name for name, spec in program.stages.items() if spec.kind != "sink"]
    if operator in known:
        raise DeclarationError(
            f"'{operator}' is not exported; start the query with option('export', '{operator}') to read its rows with "
            "to_stream(...)."
        )
    hint = did_you_mean(operator, known, f"there are {', '.join(known)}.")
    raise DeclarationError(f"there is no source or operator {operator!r} in this query; {hint}")


def read_export(spark: SparkSession, checkpointLocation: str, name: str) -> DataFrame:
    """Return an export as a streaming DataFrame; in any process that reaches the checkpoint.

    Raises:
        CheckpointError: the checkpoint has no such export. Spark would only say that its worker failed.
    """
    checkpoint = check_scheme(checkpointLocation)
    exports.read_head(PosixDisk(), checkpoint, name)
    register(spark)
    reader = spark.readStream.format(FORMAT).option("checkpoint", checkpoint).option("operator", name)
    return reader.load()


class ExportSource(DataSource):
    """`spark.readStream.format("penstock")` with the options `checkpoint` and `operator`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        checkpoint, operator = self._where()
        head = exports.read_head(PosixDisk(), checkpoint, operator)
        return from_arrow_schema(head.arrow_schema(), prefer_timestamp_ntz=True)

    def streamReader(self, schema: StructType) -> ExportReader:
        return ExportReader(*self._where())

    def _where(self) -> tuple[str, str]:
        for name in ("checkpoint", "operator"):
            if name not in self.options:
                raise DeclarationError(
                    f"format('{FORMAT}') needs option('{name}', ...); query.to_stream(...) gives both."
                )
        return check_scheme(self.options["checkpoint"]), self.options["operator"]


@dataclass
class Epochs(InputPartition):
    """Epochs that one Spark task reads."""

    first: int
    last: int


class ExportReader(DataSourceStreamReader):
    """Plans on the driver, reads on executors; both see nothing but files."""

    def __init__(self, checkpoint: str, operator: str) -> None:
        self._checkpoint = checkpoint
        self._operator = operator

    def initialOffset(self) -> dict[str, Any]:
        kept = self._kept()
        return self._offset(kept[0] - 1 if kept else 0)

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        kept = self._kept()
        return self._offset(kept[-1] if kept else 0)

    def _offset(self, epoch: int) -> dict[str, Any]:
        return {self._operator: epoch, QUERY_KEY: self._head().query}

    def _head(self) -> exports.Head:
        return exports.read_head(PosixDisk(), self._checkpoint, self._operator)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        query = self._head().query
        for offset in (start, end):
            if offset[QUERY_KEY] != query:
                raise CheckpointError(
                    f"the export of '{self._operator}' in {self._checkpoint} is that of query {query}, and this reader has "
                    f"read that of query {offset[QUERY_KEY]}; start the reader with a new checkpoint."
                )
        first, last = start[self._operator] + 1, end[self._operator]
        exports.check_kept(self._kept(), self._operator, first, last)
        return self._split(first, last)

    def _split(self, first: int, last: int) -> list[InputPartition]:
        found: list[InputPartition] = []
        size = 0
        for epoch in range(first, last + 1):
            size += exports.read_manifest(PosixDisk(), self._checkpoint, self._operator, epoch).row_bytes
            if size >= PARTITION_BYTES or epoch == last:
                found.append(Epochs(first, epoch))
                first, size = epoch + 1, 0
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Epochs)
        disk = PosixDisk()
        schema = self._head().arrow_schema()
        for epoch in range(partition.first, partition.last + 1):
            manifest = exports.read_manifest(disk, self._checkpoint, self._operator, epoch)
            yield from exports.read_rows(disk, self._checkpoint, manifest, schema)

    def _kept(self) -> list[int]:
        return exports.list_epochs(PosixDisk(), self._checkpoint, self._operator)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: what is kept is bounded by its size, not by who has read it."""

    def stop(self) -> None:
        """Nothing to give back."""


def register(spark: Any) -> None:
    """Make `spark.readStream.format("penstock")` known to a session."""
    spark.dataSource.register(ExportSource)
