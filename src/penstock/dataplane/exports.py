"""Exports: the rows of a stage, kept for readers outside the query, by epochs that always mean the same rows.

An export is a sink whose side effect is a **manifest**: it names the segments of one sink epoch, which stay where their
producer wrote them. Readers take manifests in order; an offset is an epoch of the export's chain. Files that a manifest
names are kept from clean-up until the manifest goes, oldest first, when more is kept than was asked for.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from penstock.dataplane import paths
from penstock.dataplane.arrow_bytes import read_schema
from penstock.dataplane.channel import EdgeSpec, OlderSchema, read_segment
from penstock.dataplane.disk import Disk
from penstock.dataplane.foreign import check_not_sparks
from penstock.dataplane.frames import FrameKind
from penstock.dataplane.program import InputSpec, Program, StageSpec
from penstock.dataplane.recordlog import frame_bytes
from penstock.dataplane.records import Extent
from penstock.dataplane.run import SinkWork
from penstock.dataplane.slices import slice_pieces
from penstock.dataplane.small_files import LARGE_BYTES, decode, read_framed
from penstock.errors import CheckpointError, CorruptFileError, DeclarationError
from penstock.suggesting import did_you_mean

EXPORT_EPOCH_S = 1.0
"""Shortest time from the start of one epoch of an export to the next: bounds the number of manifests."""
KEEP_EPOCHS = 86_400
"""Manifests of one export that are kept at most: a day of them."""
_PREFIX = "export."
"""No operator can be named so: names have no dots."""
_SHARD: Final = np.zeros(1, np.uint16)


class Head(msgspec.Struct, array_like=True, frozen=True):
    """What readers must know of an export before they read."""

    query: str
    """Id of the query; epochs of another one are other rows."""
    schema: bytes
    """Of its rows, as Arrow encodes it."""

    def arrow_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema))  # `read_head` has read it before


class ManifestPiece(msgspec.Struct, array_like=True, frozen=True):
    """Rows [start, end) of one producer epoch, whose segments these are; end -1 for all."""

    start: int
    end: int
    segments: list[Extent]


class Manifest(msgspec.Struct, array_like=True, frozen=True):
    """What one epoch of an export holds."""

    operator: str
    epoch: int
    schema: bytes
    """Of its rows, as Arrow encodes it."""
    pieces: list[ManifestPiece]
    older: list[tuple[int, bytes]] = []
    """Driver generations before which rows were written with another schema, and that schema; oldest first."""

    @property
    def row_bytes(self) -> int:
        return sum(extent.length for piece in self.pieces for extent in piece.segments)

    def files(self) -> set[str]:
        return {extent.file for piece in self.pieces for extent in piece.segments}


@dataclass(frozen=True)
class Kept:
    """What a driver remembers of a manifest."""

    epoch: int
    row_bytes: int
    files: frozenset[str]


_head = msgspec.msgpack.Decoder(Head)
_manifest = msgspec.msgpack.Decoder(Manifest)


def stage_name(operator: str) -> str:
    """Return the name of the stage that exports an operator."""
    return f"{_PREFIX}{operator}"


def exported_by(stage: str) -> str | None:
    """Return what a stage exports, None when it is no export."""
    return stage.removeprefix(_PREFIX) if stage.startswith(_PREFIX) else None


def add_exports(program: Program, operators: Sequence[str]) -> Program:
    """Return a program that also exports these sources and operators; "*" stands for all.

    Raises:
        DeclarationError: there is no such stage; the nearest name is given.
    """
    known = [name for name, spec in program.stages.items() if spec.kind != "sink"]
    for name in operators:
        if name != "*" and name not in known:
            hint = did_you_mean(name, known, f"there are {', '.join(known)}.")
            raise DeclarationError(f"option 'export': there is no source or operator {name!r}; {hint}")
    # In the order of the program, whatever the order of the option: edges are known by number.
    chosen = [name for name in known if name in operators or "*" in operators]
    edge = 1 + max((one.edge for spec in program.stages.values() for one in spec.edges), default=-1)
    stages = dict(program.stages)
    for number, name in enumerate(chosen, edge):
        spec = stages[name]
        export = stage_name(name)
        out = EdgeSpec(edge=number, keys=(), shards=1, consumer=export)
        stages[name] = replace(spec, edges=[*spec.edges, out])
        given = InputSpec(edge=number, producer=name, schema=spec.schema)
        stages[export] = StageSpec(
            export, "sink", spec.schema, inputs=[given], min_epoch_s=EXPORT_EPOCH_S, hold_s=0.0
        )
    return replace(program, stages=stages)


class ExportFolder:
    """The manifests of one export, as its driver writes them. Methods may be called from different threads.

    Args:
        keep_bytes: of rows that are kept for readers; the newest epoch always is.
        older: schemas that rows had before the topology gained fields.
    """

    def __init__(
        self,
        disk: Disk,
        checkpoint: str,
        operator: str,
        schema: pa.Schema,
        keep_bytes: int,
        older: Sequence[OlderSchema] = (),
    ) -> None:
        self._disk = disk
        self._checkpoint = checkpoint
        self._operator = operator
        self._schema = schema.serialize().to_pybytes()
        self._older = [(was.until, was.schema.serialize().to_pybytes()) for was in older]
        self._keep_bytes = keep_bytes
        self._guard = threading.Lock()
        self._kept: deque[Kept] = deque()
        self._kept_bytes = 0
        self._pins: Counter[str] = Counter()

    def open(self, query: str) -> None:
        """Note for readers whose export it is, and take up what earlier drivers have exported."""
        self._disk.make_dirs(paths.export(self._checkpoint, self._operator))
        head = frame_bytes(FrameKind.EXPORT, msgspec.msgpack.encode(Head(query, self._schema)))
        self._disk.put(paths.export_head(self._checkpoint, self._operator), head)
        for epoch in list_epochs(self._disk, self._checkpoint, self._operator):
            self._pin(read_manifest(self._disk, self._checkpoint, self._operator, epoch))

    def take(self, work: SinkWork) -> None:
        """Write the manifest of a sink epoch; the files it names are kept from now on.

        Raises:
            CorruptFileError: there is another manifest of this number.
        """
        pieces = [
            ManifestPiece(piece.start, piece.end, [one.extent for one in piece.source.published.segments])
            for piece in work.pieces
        ]
        manifest = Manifest(self._operator, work.epoch, self._schema, pieces, self._older)
        with self._guard:
            repeated = bool(self._kept) and self._kept[-1].epoch >= work.epoch
        if not repeated:
            self._pin(manifest)
        path = paths.export_manifest(self._checkpoint, self._operator, work.epoch)
        created = self._disk.create_exclusive(
            path, frame_bytes(FrameKind.EXPORT, msgspec.msgpack.encode(manifest))
        )
        if (
            not created
            and read_manifest(self._disk, self._checkpoint, self._operator, work.epoch).pieces != pieces
        ):
            raise CorruptFileError(
                f"{path} names other rows than the record of its epoch; move it away and start again."
            )
        self._trim()

    def pinned(self) -> set[str]:
        """Return the names of data files that readers may need."""
        with self._guard:
            return set(self._pins)

    def _pin(self, manifest: Manifest) -> None:
        with self._guard:
            kept = Kept(manifest.epoch, manifest.row_bytes, frozenset(manifest.files()))
            self._kept.append(kept)
            self._kept_bytes += kept.row_bytes
            self._pins.update(kept.files)

    def _trim(self) -> None:
        """Let the oldest epochs go: first the manifest, then its hold on the files."""
        while (oldest := self._surplus()) is not None:
            self._disk.delete(paths.export_manifest(self._checkpoint, self._operator, oldest.epoch))
            with self._guard:
                self._kept.popleft()
                self._kept_bytes -= oldest.row_bytes
                self._pins.subtract(oldest.files)
                self._pins = +self._pins

    def _surplus(self) -> Kept | None:
        with self._guard:
            over = self._kept_bytes > self._keep_bytes or len(self._kept) > KEEP_EPOCHS
            return self._kept[0] if over and len(self._kept) > 1 else None


# -- for readers, in any process ----------------------------------------------------------------------------------------


def read_head(disk: Disk, checkpoint: str, operator: str) -> Head:
    """Return whose export it is and what its rows look like.

    Raises:
        CheckpointError: there is no such export, or it is the checkpoint of a Spark query.
        CorruptFileError: the file is damaged.
    """
    path = paths.export_head(checkpoint, operator)
    try:
        data = read_framed(disk, path, FrameKind.EXPORT, LARGE_BYTES)
    except FileNotFoundError as error:
        check_not_sparks(disk, checkpoint)
        hint = did_you_mean(operator, disk.list(paths.exports(checkpoint)))
        hint += " Else " if hint else ""
        raise CheckpointError(
            f"the checkpoint {checkpoint} has no export of '{operator}'; {hint}start its query with "
            f"option('export', '{operator}')."
        ) from error
    head = decode(_head, data, path, "head of an export")
    read_schema(head.schema, path)
    return head


def list_epochs(disk: Disk, checkpoint: str, operator: str) -> list[int]:
    """Return the epochs of an export that are kept, in order."""
    names = disk.list(paths.export(checkpoint, operator))
    return sorted(epoch for epoch in map(paths.parse_manifest, names) if epoch is not None)


def held_files(disk: Disk, checkpoint: str) -> set[str]:
    """Return the names of all data files that the manifests of a checkpoint's exports name.

    Raises:
        CorruptFileError: a manifest is damaged, so that it cannot be said what it holds.
    """
    return {
        name
        for operator in disk.list(paths.exports(checkpoint))
        for epoch in list_epochs(disk, checkpoint, operator)
        for name in read_manifest(disk, checkpoint, operator, epoch).files()
    }


def read_manifest(disk: Disk, checkpoint: str, operator: str, epoch: int) -> Manifest:
    """Return what one epoch of an export holds.

    Raises:
        CheckpointError: it was let go.
        CorruptFileError: the file is damaged.
    """
    path = paths.export_manifest(checkpoint, operator, epoch)
    try:
        data = read_framed(disk, path, FrameKind.EXPORT, LARGE_BYTES)
    except FileNotFoundError as error:
        raise lost(operator, epoch, epoch) from error
    manifest = decode(_manifest, data, path, "manifest of an export")
    for schema in (manifest.schema, *(was for _, was in manifest.older)):
        read_schema(schema, path)
    return manifest


def check_kept(kept: Sequence[int], operator: str, first: int, last: int) -> None:
    """Refuse a range of epochs of which some are gone.

    Raises:
        CheckpointError: names the range that was lost.
    """
    gone = sorted(set(range(first, last + 1)) - set(kept))
    if gone:
        raise lost(operator, gone[0], gone[-1])


def lost(operator: str, first: int, last: int) -> CheckpointError:
    """The error that says that a range of epochs is gone."""
    return CheckpointError(
        f"epochs {first} to {last} of the export of '{operator}' are gone: they were let go before this reader took them; "
        "raise option('exportBytes', ...) of the query that exports, and start the reader with a new checkpoint from what "
        "there is."
    )


def read_rows(disk: Disk, checkpoint: str, manifest: Manifest, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one epoch in the one fixed order; columns that they lack are null.

    Raises:
        CheckpointError: the epoch was let go meanwhile.
        CorruptFileError: a file is damaged.
    """
    written = pa.ipc.read_schema(pa.py_buffer(manifest.schema))
    older = [OlderSchema(until, pa.ipc.read_schema(pa.py_buffer(was))) for until, was in manifest.older]
    for piece in manifest.pieces:
        try:
            found = [read_segment(disk, checkpoint, extent, written, older) for extent in piece.segments]
        except CorruptFileError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise lost(manifest.operator, manifest.epoch, manifest.epoch) from error
            raise
        for part in slice_pieces(found, _SHARD, piece.start, piece.end):
            yield from _fit(part.rows, schema).to_batches()


def _fit(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    if rows.schema.equals(schema):
        return rows
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
