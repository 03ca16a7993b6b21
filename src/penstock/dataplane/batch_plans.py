"""Keeps what Spark planned for a batch: makes it durable before the batch's record, and reads it back.

Small files are copied into frames, all new ones with one sync; a large file gets a second name beside the data, or is
copied where the file system has no hard links. What the last committed batch has kept already is not kept again. Knows
nothing of what the files mean, and never writes into Spark's folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import google_crc32c

from penstock.dataplane import paths
from penstock.dataplane.channel import DataWriter, read_frame
from penstock.dataplane.disk import Disk
from penstock.dataplane.findings import Report, attempt, count
from penstock.dataplane.frames import FrameKind
from penstock.dataplane.records import Batch, BatchPlan, Extent, PlannedFile
from penstock.errors import CorruptFileError

LINK_FROM_BYTES = 1 << 20
"""Size from which on a file gets a second name instead of being copied."""
_CHUNK_BYTES = 8 << 20
_SUFFIX = ".src"


def crc_of(data: bytes | memoryview) -> int:
    """Return the CRC by which records name the bytes of a file of Spark's."""
    return int(google_crc32c.value(bytes(data)))


def is_linked(file: PlannedFile) -> bool:
    """Whether what is kept is a second name of Spark's own file."""
    return file.kept.file.endswith(_SUFFIX)


class PlanKeeper:
    """Keeps the plans of the batches of one source, of one driver.

    Args:
        folder: Spark's own folder of the source.
        link_from: size from which on a file is linked.
        look: tells whether a file is the one that was seen before, without reading it.
    """

    def __init__(
        self,
        disk: Disk,
        checkpoint: str,
        generation: int,
        folder: str,
        link_from: int = LINK_FROM_BYTES,
        look: Callable[[str], tuple[int, ...]] | None = None,
    ) -> None:
        self._disk = disk
        self._checkpoint = checkpoint
        self._generation = generation
        self._folder = folder
        self._link_from = link_from
        self._look = look or look_at
        self._seen: dict[str, tuple[tuple[int, ...], PlannedFile]] = {}
        """By path: what the file was when it was kept, so that it is not read again."""

    def keep(self, names: Iterable[str], writer: str, known: BatchPlan | None) -> list[PlannedFile]:
        """Make the bytes of files durable; return how a record names them.

        Args:
            names: of the files, relative to Spark's folder.
            writer: begins the names of what is written; clean-up spares them.
            known: of the last committed batch. Only what that names is used again: clean-up spares it until the record
                that this plan is for is committed.

        Raises:
            FileNotFoundError: a file is gone.
        """
        before = {file.path: file for file in known.files} if known is not None else {}
        data = DataWriter(self._disk, self._checkpoint, self._generation, f"{writer}_plan", "pln")
        kept = [self._keep(name, before.get(name), data, at) for at, name in enumerate(sorted(names))]
        data.sync()
        data.close()
        self._seen = {file.path: (what, file) for file, what in kept}
        return [file for file, _ in kept]

    def _keep(
        self, name: str, before: PlannedFile | None, data: DataWriter, at: int
    ) -> tuple[PlannedFile, tuple[int, ...]]:
        path = f"{self._folder}/{name}"
        what = self._look(path)
        seen = self._seen.get(name)
        if before is not None and seen is not None and seen == (what, before):
            return before, what
        size, crc = sum_up(self._disk, path)
        if before is not None and (before.size, before.crc) == (size, crc):
            return before, what
        linked = self._link(path, data, at) if size >= self._link_from else None
        if linked is not None:
            return PlannedFile(name, size, crc, Extent(linked, 0, size, crc)), what
        read = self._disk.read(path)
        return PlannedFile(name, len(read), crc_of(read), data.append(FrameKind.PLAN, read)), what

    def _link(self, path: str, data: DataWriter, at: int) -> str | None:
        name = paths.data_name(paths.DataFile(self._generation, data.writer, at + 1, "src"))
        return name if self._disk.link(path, paths.data_file(self._checkpoint, name)) else None


def look_at(path: str) -> tuple[int, ...]:
    """Return what a file is to the file system; it changes when the file is replaced or written to."""
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def sum_up(disk: Disk, path: str) -> tuple[int, int]:
    """Return size and CRC of a file, however large. Raises ``FileNotFoundError``."""
    size, crc = 0, 0
    for chunk in _chunks(disk, path):
        size, crc = size + len(chunk), google_crc32c.extend(crc, chunk)
    return size, crc


def _chunks(disk: Disk, path: str) -> Iterator[bytes]:
    at = 0
    while chunk := disk.read(path, at, _CHUNK_BYTES):
        yield chunk
        at += len(chunk)


def check_kept(disk: Disk, checkpoint: str, file: PlannedFile) -> None:
    """Check what is kept of a file, without holding it.

    Raises:
        CorruptFileError: names the file that is gone, damaged or another one.
    """
    if not is_linked(file):
        read_kept(disk, checkpoint, file)
        return
    path = paths.data_file(checkpoint, file.kept.file)
    try:
        found = sum_up(disk, path)
    except FileNotFoundError as error:
        raise CorruptFileError(f"{path} is gone though a record names it; restore it from a copy.") from error
    if found != (file.size, file.crc):
        raise CorruptFileError(
            f"{path} does not hold what '{file.path}' held when it was kept ({file.size} bytes); restore it from a copy."
        )


def read_kept(disk: Disk, checkpoint: str, file: PlannedFile) -> bytes:
    """Return the bytes of a file as they were planned.

    Raises:
        CorruptFileError: names the file that is gone, damaged or another one.
    """
    if is_linked(file):
        check_kept(disk, checkpoint, file)
        return disk.read(paths.data_file(checkpoint, file.kept.file))
    data = bytes(read_frame(disk, checkpoint, file.kept, FrameKind.PLAN))
    if (len(data), crc_of(data)) != (file.size, file.crc):
        raise CorruptFileError(
            f"{paths.data_file(checkpoint, file.kept.file)} holds other bytes of '{file.path}' than its record says; "
            "restore it from a copy."
        )
    return data


def verify_plans(disk: Disk, report: Report, batches: Iterable[Batch | None]) -> None:
    """Check what is kept of the last batch of every source."""
    for file in (file for batch in batches if batch is not None and batch.plan for file in batch.plan.files):
        path = paths.data_file(report.checkpoint, file.kept.file)
        attempt(report, path, partial(check_kept, disk, report.checkpoint, file))
        count(report, file.kept.length)
