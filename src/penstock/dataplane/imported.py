"""State that was brought from elsewhere before the first start: written once beside the log, read as a bounded source.

The columns are the key's (k0, k1, ...), for each state variable what it holds (v0, v1, ...; m1 the key of an element of
a map), and `timer_ms`; a row fills in the key and what it brings. Parts are framed, so that damage is found and named.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Annotated, Final

import msgspec
import pyarrow as pa

from penstock.dataplane import paths
from penstock.dataplane.arrow_bytes import check_whole, read_stream
from penstock.dataplane.disk import Disk, PosixDisk
from penstock.dataplane.frames import FrameKind, decode_frame
from penstock.dataplane.recordlog import frame_bytes
from penstock.dataplane.small_files import LARGE_BYTES, decode, read_framed
from penstock.errors import CheckpointError, CorruptFileError, StorageError

PART_ROWS: Final = 200_000
TIMER: Final = "timer_ms"


class ImportedVariable(msgspec.Struct, frozen=True):
    """One state variable of the old query."""

    name: str
    kind: str
    ttl: bool
    value: str
    """DDL of its values."""
    key: str | None = None


class Manifest(msgspec.Struct, frozen=True):
    """What was brought for one operator."""

    operator: str
    origin: str
    batch: int
    keys: list[str]
    variables: list[ImportedVariable]
    timers: bool
    part_rows: list[Annotated[int, msgspec.Meta(ge=0, le=PART_ROWS)]] = []


_manifest = msgspec.json.Decoder(Manifest)


def write_imported(disk: Disk, checkpoint: str, manifest: Manifest, table: pa.Table) -> Manifest:
    """Write the parts and then the manifest, which makes them count.

    Raises:
        CheckpointError: something was imported for this operator before.
    """
    path = paths.imported_manifest(checkpoint, manifest.operator)
    if disk.size(path) is not None:
        raise CheckpointError(
            f"{path} exists: state was imported for this operator before; use a new checkpointLocation."
        )
    disk.make_dirs(path.rpartition("/")[0])
    rows: list[int] = []
    for start in range(0, max(1, table.num_rows), PART_ROWS):
        part = table.slice(start, PART_ROWS).combine_chunks()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            for batch in part.to_batches():
                writer.write_batch(batch)
        data = frame_bytes(FrameKind.EXPORT, sink.getvalue().to_pybytes())
        disk.put(paths.imported_part(checkpoint, manifest.operator, len(rows)), data)
        rows.append(part.num_rows)
    written = msgspec.structs.replace(manifest, part_rows=rows)
    disk.create_exclusive(path, frame_bytes(FrameKind.META, msgspec.json.encode(written)))
    return written


def read_manifests(disk: Disk, checkpoint: str) -> list[Manifest]:
    """Return what was imported into a checkpoint, by operator."""
    try:
        names = sorted(disk.list(paths.imported(checkpoint)))
    except (FileNotFoundError, StorageError):  # a place that is no checkpoint; opening it says so
        names = []
    found = (read_imported_manifest(disk, checkpoint, name) for name in names)
    return [manifest for manifest in found if manifest is not None]


def read_imported_manifest(disk: Disk, checkpoint: str, operator: str) -> Manifest | None:
    """Return what was imported for an operator, None when nothing was.

    Raises:
        CorruptFileError: the manifest is damaged.
    """
    path = paths.imported_manifest(checkpoint, operator)
    if disk.size(path) is None:
        return None
    payload = read_framed(disk, path, FrameKind.META, LARGE_BYTES)
    return decode(_manifest, payload, path, "manifest of an import")


def read_imported_part(
    disk: Disk, checkpoint: str, operator: str, number: int, *, whole: bool = False
) -> pa.Table:
    """Return one part of what was imported for an operator.

    Args:
        whole: look at every value, which takes longer than reading them.

    Raises:
        CorruptFileError: the part is damaged.
    """
    path = paths.imported_part(checkpoint, operator, number)
    table = read_stream(decode_frame(disk.view(path), FrameKind.EXPORT, path), path)
    if whole:
        check_whole(table, path, 0)
    return table


def check_part_rows(checkpoint: str, operator: str, number: int, rows: int, listed: int) -> None:
    """Refuse a part of another number of rows than its manifest says: offsets count them.

    Raises:
        CorruptFileError: names the part.
    """
    if rows != listed:
        raise CorruptFileError(
            f"{paths.imported_part(checkpoint, operator, number)} has {rows} rows, its manifest says {listed}; restore it "
            "from a copy."
        )


@dataclass
class ImportedRows:
    """The imported rows as a native source: the same offset always gives the same rows."""

    checkpoint: str
    operator: str
    part_rows: Sequence[int]
    _held: tuple[int, pa.Table] | None = field(default=None, repr=False)

    def __call__(self, offset: int, count: int) -> pa.RecordBatch:
        ends = list(accumulate(self.part_rows))
        wanted, tables = count, []
        while wanted > 0:
            number = bisect.bisect_right(ends, offset)
            start = ends[number] - self.part_rows[number]
            taken = self._part(number).slice(offset - start, wanted)
            tables.append(taken)
            offset, wanted = offset + taken.num_rows, wanted - taken.num_rows
        batches = pa.concat_tables(tables).combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=tables[0].schema)

    def schema(self) -> pa.Schema:
        return self._part(0).schema

    def _part(self, number: int) -> pa.Table:
        if number >= len(self.part_rows):
            manifest = paths.imported_manifest(self.checkpoint, self.operator)
            raise CorruptFileError(f"{manifest} lists no part {number}; restore it from a copy.")
        if self._held is None or self._held[0] != number:
            part = read_imported_part(PosixDisk(), self.checkpoint, self.operator, number)
            check_part_rows(self.checkpoint, self.operator, number, part.num_rows, self.part_rows[number])
            self._held = (number, part)
        return self._held[1]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_held": None}
