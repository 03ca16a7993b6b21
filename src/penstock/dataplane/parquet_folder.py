"""A folder of Parquet files to which every sink epoch adds its rows once, whatever dies in between.

A file is written in `_penstock/`, which readers of Parquet folders pass over, synced, and only then linked to a name that
follows from query and sink epoch: a repeated sink epoch finds its name taken and adds nothing. The manifest lists what
was added. Knows neither Spark nor where sink epochs come from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import google_crc32c
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.dataplane.disk import Disk, PosixDisk, is_temp
from penstock.dataplane.partitioning import split_by
from penstock.dataplane.small_files import LARGE_BYTES, naming, read_whole
from penstock.errors import CheckpointError, CorruptFileError, PenstockError

HIDDEN = "_penstock"
OWNER = "query.json"
FORMAT = 1
FILES_PER_MANIFEST = 1_000
"""Files that one part of the manifest lists; a part is rewritten with every sink epoch."""
_EPOCH = b"penstock.sink_epoch"


class Owner(msgspec.Struct):
    """Whose folder it is, and how it is laid out."""

    format: int
    query: str
    partition_by: list[str] = []


class ParquetFile(msgspec.Struct, frozen=True):
    """One committed file."""

    name: str
    """Path below the folder."""
    sink_epoch: int
    rows: int
    bytes: int
    crc32c: int


class ManifestPart(msgspec.Struct):
    """What one start of the query has committed, or the next thousand files of it."""

    format: int
    query: str
    files: list[ParquetFile]


_Part = TypeVar("_Part", Owner, ManifestPart)


class ParquetFolder:
    """Adds sink epochs of one query to a folder.

    Args:
        query: id of the query; a folder belongs to one query.
        generation: of the driver; drivers never write to the same part of the manifest.
        partition_by: columns that become folders `column=value`, as Spark lays them out.
        check: raises where a newer driver has taken over, whose files under way must stay.

    Raises:
        CheckpointError: the folder belongs to another query or a newer release, or has other partitions.
        StorageError: it cannot be written.
    """

    def __init__(
        self,
        path: str,
        query: str,
        generation: int,
        *,
        partition_by: Sequence[str] = (),
        compression: str = "snappy",
        disk: Disk | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = path
        self._hidden = os.path.join(path, HIDDEN)
        self._disk = disk or PosixDisk(temps=self._hidden)
        self._query = query
        self._generation = generation
        self._partition_by = tuple(partition_by)
        self._compression = compression
        self._part = 0
        self._listed: list[ParquetFile] = []
        self._made: set[str] = set()
        self._disk.make_dirs(self._hidden)
        self._claim()
        left = [name for name in self._disk.list(self._hidden) if is_temp(name)]
        check()  # after the listing: what a newer driver writes is not in it
        for name in left:
            self._disk.delete(os.path.join(self._hidden, name))

    def add(self, table: pa.Table, sink_epoch: int) -> None:
        """Make the rows of a sink epoch durable and visible; does nothing the second time.

        Raises:
            CorruptFileError: the name of a file is taken by one that does not hold this sink epoch.
            StorageError: a write failed; call again with the same rows, now or after a restart.
        """
        if table.num_rows == 0:
            return
        added = [
            self._add_file(folder, rows, sink_epoch) for folder, rows in split_by(table, self._partition_by)
        ]
        if self._listed and len(self._listed) + len(added) > FILES_PER_MANIFEST:
            self._part, self._listed = self._part + 1, []
        self._listed.extend(added)
        part = ManifestPart(FORMAT, self._query, self._listed)
        name = f"manifest-{self._generation:08d}-{self._part:06d}.json"
        self._disk.put(os.path.join(self._hidden, name), msgspec.json.encode(part))

    def _add_file(self, folder: str, rows: pa.Table, sink_epoch: int) -> ParquetFile:
        name = os.path.join(folder, f"part-{sink_epoch:010d}-{self._query}.parquet")
        path = os.path.join(self.path, name)
        if folder and folder not in self._made:
            self._disk.make_dirs(os.path.dirname(path))
            self._made.add(folder)
        data = _encode(rows, sink_epoch, self._compression)
        if not self._disk.create_exclusive(path, data):
            data = self._disk.read(path)
            _check_same(data, path, rows.num_rows, sink_epoch)
        return ParquetFile(name, sink_epoch, rows.num_rows, len(data), google_crc32c.value(bytes(data)))

    def _claim(self) -> None:
        path = os.path.join(self._hidden, OWNER)
        mine = Owner(FORMAT, self._query, list(self._partition_by))
        if self._disk.create_exclusive(path, msgspec.json.encode(mine)):
            return
        check_folder(self.path, self._query, self._partition_by, self._disk)


def check_folder(
    path: str, query: str | None, partition_by: Sequence[str] = (), disk: Disk | None = None
) -> None:
    """Refuse a folder that a query cannot add to; writes nothing, so that it can be asked before a checkpoint is made.

    Args:
        query: id of the query; None where its checkpoint is new.

    Raises:
        CheckpointError: the folder belongs to another query or a newer release, or has other partitions.
    """
    disk = disk or PosixDisk()
    name = os.path.join(path, HIDDEN, OWNER)
    if disk.size(name) is None:
        return
    owner = _decode(read_whole(disk, name), Owner, name)
    if owner.query != query:
        mine = "is new" if query is None else f"is that of query {query}"
        raise CheckpointError(
            f"The folder {path} holds rows of query {owner.query}, and this checkpoint {mine}, so rows could be there "
            "twice; give another path, or the checkpoint of that query."
        )
    if owner.partition_by != list(partition_by):
        # A sink epoch that is repeated must find the names that it was given.
        raise CheckpointError(
            f"The folder {path} is laid out by {owner.partition_by}, and this query partitions by "
            f"{list(partition_by)}; give the same partitionBy(...), or another path."
        )


def read_manifest(path: str, disk: Disk | None = None) -> list[ParquetFile]:
    """Return the committed files of a folder, by sink epoch and name.

    Raises:
        CorruptFileError: a part of the manifest cannot be read.
    """
    disk = disk or PosixDisk()
    hidden = os.path.join(path, HIDDEN)
    found: dict[str, ParquetFile] = {}
    for name in disk.list(hidden):
        if name.startswith("manifest-") and not is_temp(name):
            listed = os.path.join(hidden, name)
            part = _decode(read_whole(disk, listed, LARGE_BYTES), ManifestPart, listed)
            found.update({file.name: file for file in part.files})
            outside = next((one.name for one in part.files if _leaves(one.name)), None)
            if outside is not None:
                raise CorruptFileError(
                    f"{listed} lists {outside!r}, which is no file of its folder; restore it from a copy."
                )
    return sorted(found.values(), key=lambda file: (file.sink_epoch, file.name))


def _leaves(name: str) -> bool:
    """Whether a name is that of something outside of the folder that it is seen from."""
    return os.path.isabs(name) or ".." in name.split("/") or "\0" in name


def find_damage(path: str, disk: Disk | None = None) -> Iterator[str]:
    """Yield a sentence for every file that is not as the manifest lists it."""
    disk = disk or PosixDisk()
    for file in read_manifest(path, disk):
        try:
            data = disk.read(os.path.join(path, file.name))
        except FileNotFoundError:
            yield f"{file.name} is gone."
            continue
        except PenstockError as error:
            yield str(error)
            continue
        if len(data) != file.bytes or google_crc32c.value(bytes(data)) != file.crc32c:
            yield f"{file.name} is not as it was committed: {len(data)} bytes, listed with {file.bytes}."


def _encode(rows: pa.Table, sink_epoch: int, compression: str) -> pa.Buffer:
    out = pa.BufferOutputStream()
    schema = rows.schema.with_metadata({_EPOCH: str(sink_epoch).encode()})
    with pq.ParquetWriter(out, schema, compression=compression) as writer:
        writer.write(rows.replace_schema_metadata(schema.metadata))
    return out.getvalue()


def _check_same(data: bytes, path: str, rows: int, sink_epoch: int) -> None:
    """Refuse a file that an earlier attempt at this sink epoch cannot have written."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(data))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptFileError(f"{path} is no Parquet file; move it away and start again.") from error
    marked = (metadata.metadata or {}).get(_EPOCH)
    if metadata.num_rows != rows or marked != str(sink_epoch).encode():
        raise CorruptFileError(
            f"{path} has {metadata.num_rows} rows of sink epoch {(marked or b'none').decode()}, and not the {rows} rows of "
            f"sink epoch {sink_epoch}; move it away and start again."
        )


def _decode(data: bytes, kind: type[_Part], path: str) -> _Part:
    with naming(path, kind.__name__):
        found = msgspec.json.decode(data, type=kind)
    if found.format > FORMAT:
        raise CheckpointError(
            f"{path} has format {found.format}, of a newer release; use that, or another path."
        )
    return found
