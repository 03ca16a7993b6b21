"""The files that say what a checkpoint is of: read, checked, and made for a new one.

`meta` is made once. A topology that changed is noted in a file of its own, named by the hash of its content; the
newest base carries that hash, so that it is clear which one holds and a lost one is missed by name.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from penstock.dataplane import paths
from penstock.dataplane.arrow_bytes import read_schema
from penstock.dataplane.disk import Disk
from penstock.dataplane.foreign import check_not_sparks
from penstock.dataplane.frames import FrameKind
from penstock.dataplane.identity import Meta, describe, encode_meta, hash_meta
from penstock.dataplane.program import Program
from penstock.dataplane.recordlog import LogTail, frame_bytes
from penstock.dataplane.small_files import LARGE_BYTES, naming, read_framed
from penstock.errors import CheckpointError, CorruptFileError
from penstock.topology.nodes import MAX_SHARDS


class _Head(msgspec.Struct):
    """What every format of a topology has."""

    format: int


@dataclass(frozen=True)
class Metas:
    """All topologies that were noted in a checkpoint, by the hash that bases carry."""

    checkpoint: str
    known: Mapping[bytes, Meta]
    """The first one first."""

    @property
    def first(self) -> Meta:
        return next(iter(self.known.values()))

    def identity_of(self, meta: Meta) -> bytes:
        return next(identity for identity, one in self.known.items() if one is meta)

    def in_force(self, tail: LogTail) -> Meta:
        """Return the topology that the newest base names; the first one while there is no base.

        Raises:
            CheckpointError: the log is of another query, or the file with its topology is gone.
        """
        if tail.base is None or tail.part is None:
            return self.first
        log = paths.log(self.checkpoint, tail.part)
        if tail.base.query != self.first.query:
            raise CheckpointError(
                f"{log} is the log of another query than {paths.meta(self.checkpoint)}; restore both from a copy."
            )
        if tail.base.identity not in self.known:
            raise CheckpointError(
                f"{paths.meta_version(self.checkpoint, tail.base.identity)} is gone, though {log} names it, "
                f"or {paths.meta(self.checkpoint)} was replaced; restore the file from a copy."
            )
        return self.known[tail.base.identity]


def create_meta(disk: Disk, checkpoint: str, program: Program) -> None:
    """Make the first `meta` of a checkpoint, unless it is there.

    Raises:
        CheckpointError: it is gone though there is a log.
    """
    path = paths.meta(checkpoint)
    if disk.size(path) is not None:
        return
    # Looked at again: another start may have made it, and a log behind it, between the two looks.
    if disk.list(paths.logs(checkpoint)) and disk.size(path) is None:
        raise CheckpointError(
            f"{path} is gone though the checkpoint has a log; restore the file from a copy."
        )
    meta = describe(program, paths.FORMAT_VERSION, str(uuid.uuid4()))
    disk.create_exclusive(path, frame_bytes(FrameKind.META, encode_meta(meta)))


def query_of(disk: Disk, checkpoint: str) -> str | None:
    """Return the id of the query that a checkpoint is of; None where there is no checkpoint yet.

    Raises:
        CorruptFileError: names the damaged file.
    """
    if disk.size(paths.meta(checkpoint)) is None:
        return None
    return read_metas(disk, checkpoint).first.query


def read_metas(disk: Disk, checkpoint: str) -> Metas:
    """Read every noted topology.

    Raises:
        CheckpointError: there is no `meta`, or it is of a newer format.
        CorruptFileError: names the damaged file.
    """
    found: dict[bytes, Meta] = {}
    if disk.size(paths.meta(checkpoint)) is None:
        check_not_sparks(disk, checkpoint)
        raise CheckpointError(
            f"{checkpoint} is no Penstock checkpoint: it has no file 'meta'; name the folder given as checkpointLocation."
        )
    names = sorted(name for name in disk.list(checkpoint) if paths.parse_meta_version(name) is not None)
    for name in ["meta", *names]:
        path = f"{checkpoint}/{name}"
        payload = read_framed(disk, path, FrameKind.META, LARGE_BYTES)
        identity = hash_meta(payload)
        if paths.parse_meta_version(name) not in (None, identity):
            raise CorruptFileError(
                f"{path} holds another topology than its name says, so it was swapped; restore the file from a copy."
            )
        found[identity] = _decode(payload, path)
    first = next(iter(found.values()))
    for identity, meta in found.items():
        if meta.query != first.query:
            path = paths.meta_version(checkpoint, identity)
            raise CheckpointError(
                f"{path} is of another query than {paths.meta(checkpoint)}; restore both from a copy."
            )
    return Metas(checkpoint, found)


def _decode(payload: bytes, path: str) -> Meta:
    with naming(path, "topology"):
        head = msgspec.json.decode(payload, type=_Head)
        if head.format > paths.FORMAT_VERSION:
            raise CheckpointError(
                f"{path} has format {head.format}, this release reads up to {paths.FORMAT_VERSION}; use the newer release "
                "or a new checkpointLocation."
            )
        meta = msgspec.json.decode(payload, type=Meta)
    schemas = [stage.arrow for stage in meta.stages.values()]
    for arrow in [*schemas, *(version.arrow for edge in meta.edges for version in edge.schemas)]:
        if arrow:  # early releases noted none
            read_schema(arrow, path)
    for name, stage in meta.stages.items():
        if not 1 <= stage.shards <= MAX_SHARDS:
            raise CorruptFileError(
                f"{path} gives '{name}' {stage.shards} shards, not 1 to {MAX_SHARDS}; restore the file from a copy."
            )
    return meta
