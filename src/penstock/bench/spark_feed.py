"""Rows for plain Spark, as files in a folder, and the time at which Spark committed each of them.

Owns the folder that Spark's file source watches, and reads what Spark writes to its own checkpoint (commit
and source logs). Never imports pyspark, so that ingest can be fed from the very same folder.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.workloads.keyed import KEYED_SCHEMA, keyed_rows

PARTS: Final = 2  # files a batch, so that two cores read at the same time
MAX_PREPARED_ROWS: Final = 16_000_000  # past this, prepared files appear again under further names
LUMP_S: Final = 0.05
POOL_FILES: Final = 16

_SHARED_MEMORY: Final = Path("/dev/shm")


@dataclass(frozen=True)
class RowSpec:
    """Which keyed rows to make."""

    keys: int = 10_000
    zipf: float = 0.5
    seed: int = 1

    def rows(self, offset: int, count: int) -> pa.RecordBatch:
        return keyed_rows(offset, count, self.keys, self.zipf, self.seed)


@dataclass(frozen=True)
class Workspace:
    """Where one run keeps its files: `rows` in memory where possible, `checkpoint` on disk."""

    rows: Path
    pool: Path
    checkpoint: Path


@contextmanager
def workspace(disk: Path | None = None, memory: Path | None = None) -> Iterator[Workspace]:
    """Lend folders for one run and remove them after it, however it ends.

    The rows stand in memory so that reading them costs Spark no disk; the checkpoint stays on disk. Spark may
    write to a removed checkpoint once more; `remove_leftovers` is for after its end.
    """
    in_memory = memory or (_SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else disk)
    fast = Path(tempfile.mkdtemp(prefix=_prefix(os.getpid()), dir=in_memory))
    durable = Path(tempfile.mkdtemp(prefix=_prefix(os.getpid()), dir=disk))
    space = Workspace(fast / "rows", fast / "pool", durable / "checkpoint")
    try:
        space.rows.mkdir()
        space.pool.mkdir()
        yield space
    finally:
        shutil.rmtree(fast, ignore_errors=True)
        shutil.rmtree(durable, ignore_errors=True)


def remove_leftovers(pid: int, folders: Sequence[Path] | None = None) -> None:
    """Remove what a process that has ended left of its workspaces.

    Spark's state store keeps its maintenance going after a query stops and writes snapshots into folders that
    are gone; and a process that was killed removed nothing.
    """
    for folder in folders or (Path(tempfile.gettempdir()), _SHARED_MEMORY):
        for left in folder.glob(f"{_prefix(pid)}*"):
            shutil.rmtree(left, ignore_errors=True)


def _prefix(pid: int) -> str:
    return f"penstock-bench-{pid}-"


def write_part(path: Path, rows: pa.RecordBatch) -> None:
    """Write one file in the encoding that is cheapest to read: plain and uncompressed."""
    pq.write_table(pa.Table.from_batches([rows]), path, compression="none", use_dictionary=False)


def prepare_batches(
    space: Workspace, spec: RowSpec, rows_per_batch: int, batches: int, first: int = 0
) -> None:
    """Put the files of `batches` batches of `rows_per_batch` rows each into the watched folder.

    Batches are `PARTS` files each and are read in order. Rows differ from batch to batch up to
    `MAX_PREPARED_ROWS`; after that, earlier batches come again.

    Args:
        first: number of the first batch; its rows and its place in the order follow from it.
    """
    share = rows_per_batch // PARTS
    distinct = max(1, min(batches, MAX_PREPARED_ROWS // rows_per_batch))
    for batch in range(distinct):
        for part in range(PARTS):
            number = (first + batch) * PARTS + part
            write_in_order(space.pool / f"{number:06d}.parquet", spec.rows(number * share, share), number)
    for batch in range(batches):
        for part in range(PARTS):
            source = (first + batch % distinct) * PARTS + part
            name = f"{(first + batch) * PARTS + part:06d}.parquet"
            os.link(space.pool / f"{source:06d}.parquet", space.rows / name)


def prepare_every_key(space: Workspace, keys: int, rows_per_batch: int) -> int:
    """Put files that hold each of `keys` keys once, scattered, into the watched folder; count the batches."""
    share = rows_per_batch // PARTS
    # An odd step far from any power of two visits every key once if it shares no divisor with their number.
    step = next(s for s in range(int(keys * 0.618) | 1, 2 * keys + 2) if np.gcd(s, keys) == 1)
    files = -(-keys // share)
    for number in range(files):
        ids = np.arange(number * share, min(keys, (number + 1) * share), dtype=np.int64)
        columns: list[Any] = [pa.array(ids * step % keys), pa.array(ids & 1023), pa.array(np.zeros_like(ids))]
        rows = pa.RecordBatch.from_arrays(columns, schema=KEYED_SCHEMA)
        write_in_order(space.rows / f"{number:06d}.parquet", rows, number)
    return -(-files // PARTS)


def write_in_order(path: Path, rows: pa.RecordBatch, number: int) -> None:
    """Write a file whose place among those of its folder is `number`, whatever is written when."""
    write_part(path, rows)
    # Spark reads files by time of modification; equal times would leave the order to the file system.
    when_s = 1_700_000_000 + number
    os.utime(path, (when_s, when_s))


class OpenLoopFeed:
    """Drops a file of rows into the watched folder every `LUMP_S`, at set times, whatever Spark does.

    All rows of a file are stamped with the moment the file was *due*, so a late reader is charged and the
    filling of a file is not. Files are written beforehand and linked in, which costs next to no CPU.

    Args:
        stamped: write the stamp into the rows, for a reader whose commits name no files. Files are then written
            when they are due, which is for low rates only.
    """

    def __init__(
        self,
        space: Workspace,
        spec: RowSpec,
        rate_per_s: float,
        lump_s: float = LUMP_S,
        stamped: bool = False,
    ) -> None:
        self.lump_s = lump_s
        self.rows_per_file = max(1, round(rate_per_s * lump_s))
        self._space = space
        self._dropped = 0
        self._removed = 0
        self._start_s = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="open-loop-feed", daemon=True)
        self._spec = spec
        self._stamped = stamped
        for number in range(0 if stamped else POOL_FILES):
            write_part(space.pool / f"{number:06d}.parquet", self._rows(number))

    @property
    def rate_per_s(self) -> float:
        return self.rows_per_file / self.lump_s

    def start(self) -> None:
        self._start_s = time.time()
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def due_s(self, number: int) -> float:
        """Return when file `number` was due, in seconds since 1970: the stamp of all its rows."""
        return self._start_s + (number + 1) * self.lump_s

    def remove_before(self, number: int) -> None:
        """Take files that are committed out of the folder, so that listing it stays cheap for Spark."""
        for old in range(self._removed, min(number, self._dropped)):
            (self._space.rows / file_name(old)).unlink(missing_ok=True)
            self._removed = old + 1

    def _run(self) -> None:
        while not self._end.is_set():
            wait_s = self.due_s(self._dropped) - time.time()
            if wait_s > 0 and self._end.wait(wait_s):
                return
            number = self._dropped % POOL_FILES
            source = self._space.pool / f"{number:06d}.parquet"
            if self._stamped:
                source.unlink(missing_ok=True)
                write_part(source, stamp_rows(self._rows(number), self.due_s(self._dropped)))
            os.link(source, self._space.rows / file_name(self._dropped))
            self._dropped += 1

    def _rows(self, number: int) -> pa.RecordBatch:
        return self._spec.rows(number * self.rows_per_file, self.rows_per_file)


def stamp_rows(rows: pa.RecordBatch, time_s: float) -> pa.RecordBatch:
    """Return the rows with one stamp for all, in microseconds since 1970."""
    stamps = pa.array(np.full(rows.num_rows, round(time_s * 1e6), np.int64))
    return rows.set_column(rows.schema.get_field_index("stamp"), rows.schema.field("stamp"), stamps)


def file_name(number: int) -> str:
    return f"f{number:07d}.parquet"


def file_number(path: str) -> int:
    return int(path.rsplit("/", 1)[-1][1:].split(".", 1)[0])


class CommitWatch:
    """What Spark committed and when, read from the query's checkpoint as it grows.

    A batch counts as committed at the change time of its file in the commit log, which is the moment the
    file was renamed to its final name. Poll often enough: Spark deletes old entries.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._committed_s: dict[int, float] = {}
        self._files: dict[int, list[str]] = {}
        self._read_logs: set[str] = set()

    def poll(self) -> dict[int, float]:
        """Return every commit seen so far: batch id to time in seconds since 1970, in order of batches."""
        for name, entry in self._log("commits"):
            if name.isdigit() and int(name) not in self._committed_s:
                with suppress(FileNotFoundError):
                    self._committed_s[int(name)] = entry.stat().st_ctime
        return dict(sorted(self._committed_s.items()))

    def files(self) -> dict[int, list[str]]:
        """Return the paths that each batch read, uncommitted batches included."""
        for name, entry in self._log("sources/0"):
            if name not in self._read_logs:
                with suppress(FileNotFoundError):
                    self._read_source_log(Path(entry.path))
                    self._read_logs.add(name)
        return dict(sorted(self._files.items()))

    def _log(self, folder: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        try:
            entries = list(os.scandir(self._checkpoint / folder))
        except FileNotFoundError:
            return
        for entry in entries:
            if not entry.name.startswith("."):  # checksums and files still being written
                yield entry.name, entry

    def _read_source_log(self, path: Path) -> None:
        for line in path.read_text().splitlines()[1:]:  # the first line is the log's version
            if line.strip():
                fields = json.loads(line)
                paths = self._files.setdefault(int(fields["batchId"]), [])
                if fields["path"] not in paths:  # a compacted log repeats earlier ones
                    paths.append(fields["path"])

    def waits_ms(self, batches: Sequence[int], feed: OpenLoopFeed) -> list[float]:
        """Return, for each file of these batches, the time from when it was due to its batch's commit."""
        files = self.files()
        return [
            (self._committed_s[batch] - feed.due_s(file_number(path))) * 1000
            for batch in batches
            for path in files.get(batch, ())
        ]
