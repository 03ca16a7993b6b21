"""A model of Structured Streaming's file source on a checkpoint folder: the same files in the same order, no Spark.

It writes what Spark writes and reads what Spark reads, compacts and drops as Spark does, and dies where it cannot read.
"""

from __future__ import annotations

import json
import os
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path

Take = Callable[[int, list[str]], None]
"""`foreachBatch`: the number of a batch, and the input files whose rows it holds."""


class SparkError(Exception):
    """What Spark would fail with, in a long trace of its own."""


class Streaming:
    """One run of a Structured Streaming query over a folder of input files.

    Args:
        compact: every so many entries of the source's log are one compaction.
        retain: batches whose offsets are kept.
        per_batch: input files that a batch takes.
    """

    def __init__(
        self,
        folder: Path,
        listed: Callable[[], list[str]],
        *,
        compact: int = 3,
        retain: int = 3,
        per_batch: int = 1,
    ) -> None:
        self.folder = folder
        self.listed = listed
        self.compact, self.retain, self.per_batch = compact, retain, per_batch
        if not (folder / "metadata").exists():
            write(folder / "metadata", json.dumps({"id": str(uuid.uuid4())}))
        self.query = json.loads(read(folder / "metadata"))["id"]
        self.seen = {entry["path"] for entry in self._restored()}
        self._begin()

    def _begin(self) -> None:
        planned, committed = self._last("offsets"), self._last("commits")
        if planned is None:
            self.number, self.reached, self.goal = 0, -1, None
            return
        goal = self._offset(planned)
        before = self._offset(planned - 1) if planned else -1
        if committed is not None:
            entry(self.folder / "commits" / str(committed))
        if committed == planned:
            self.number, self.reached, self.goal = planned + 1, goal, None
        else:
            self.number, self.reached, self.goal = planned, before, goal

    def run(self, take: Take, batches: int = 1_000) -> None:
        """Run batches until nothing is available, or so many."""
        for _ in range(batches):
            if self.goal is None and not self.plan():
                return
            assert self.goal is not None
            take(self.number, self._files(self.reached, self.goal))
            write(self.folder / "commits" / str(self.number), 'v1\n{"nextBatchWatermarkMs":0}')
            self.number, self.reached, self.goal = self.number + 1, self.goal, None

    def plan(self) -> bool:
        """Plan the next batch, as Spark does before it runs it; False where there is nothing new."""
        self.log_source()
        last = max((number for number, _ in self._entries()), default=-1)
        if last <= self.reached:
            return False
        conf = {"batchWatermarkMs": 0, "batchTimestampMs": 1_000 + self.number, "conf": {"a": "b"}}
        write(self.folder / "offsets" / str(self.number), f'v1\n{json.dumps(conf)}\n{{"logOffset":{last}}}')
        self.goal = last
        for name in os.listdir(self.folder / "offsets"):
            if name.isdigit() and int(name) < self.number - self.retain:
                drop(self.folder / "offsets" / name)
        return True

    def log_source(self) -> None:
        """Write the entry of the source's own log for the files that are new."""
        fresh = [path for path in self.listed() if path not in self.seen][: self.per_batch]
        if not fresh:
            return
        self.seen.update(fresh)
        number = max((number for number, _ in self._entries()), default=-1) + 1
        mine = [{"path": path, "timestamp": 1, "batchId": number} for path in fresh]
        compacts = (number + 1) % self.compact == 0
        lines = [json.dumps(one) for one in (self._restored() if compacts else []) + mine]
        name = f"{number}.compact" if compacts else str(number)
        write(self.folder / "sources" / "0" / name, "\n".join(["v1", *lines]))
        for old, path in self._entries() if compacts else []:
            if old < number - self.retain * self.compact:
                drop(path)

    def _files(self, after: int, to: int) -> list[str]:
        """Input files of the entries after one, up to another; what is not logged is passed over."""
        return sorted(one["path"] for one in self._restored() if after < one["batchId"] <= to)

    def _restored(self) -> list[dict[str, object]]:
        entries = self._entries()
        start = max((number for number, path in entries if path.suffix == ".compact"), default=-1)
        return [
            json.loads(line)
            for number, path in entries
            if number >= start
            for line in entry(path).split("\n")[1:]
        ]

    def _entries(self) -> list[tuple[int, Path]]:
        folder = self.folder / "sources" / "0"
        names = [path for path in folder.iterdir() if path.name[0].isdigit()] if folder.exists() else []
        return sorted((int(path.name.partition(".")[0]), path) for path in names)

    def _offset(self, number: int) -> int:
        lines = entry(self.folder / "offsets" / str(number)).split("\n")
        if len(lines) != 3:
            raise SparkError("[INCOMPLETE_LOG]")
        return int(json.loads(lines[2])["logOffset"])

    def _last(self, log: str) -> int | None:
        folder = self.folder / log
        names = os.listdir(folder) if folder.exists() else []
        return max((int(name) for name in names if name.isdigit()), default=None)


def write(path: Path, text: str) -> None:
    """Write a file as Hadoop's local file system does: whole, with its sums in a hidden file beside it."""
    data = text.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    if sums_of(path).exists() and not path.exists():
        raise SparkError(f"Multiple streaming queries are concurrently using {path.parent}")
    sums = b"".join(zlib.crc32(data[at : at + 512]).to_bytes(4, "big") for at in range(0, len(data), 512))
    sums_of(path).write_bytes(b"crc\0" + (512).to_bytes(4, "big") + sums)
    path.with_name(f".{path.name}.tmp").write_bytes(data)
    os.replace(path.with_name(f".{path.name}.tmp"), path)


def read(path: Path) -> str:
    """Read a file as Hadoop does: one that its sums do not fit cannot be read."""
    if not path.exists():
        raise SparkError(f"{path} does not exist")
    data, sums = path.read_bytes(), sums_of(path)
    if sums.exists():
        wanted = b"".join(
            zlib.crc32(data[at : at + 512]).to_bytes(4, "big") for at in range(0, len(data), 512)
        )
        if sums.read_bytes() != b"crc\0" + (512).to_bytes(4, "big") + wanted:
            raise SparkError(f"checksum error: {path}")
    return data.decode()


def entry(path: Path) -> str:
    """Read an entry of a log."""
    text = read(path)
    try:
        version, *lines = text.split("\n")
        assert version == "v1"
        for line in lines:
            json.loads(line)
    except (ValueError, AssertionError) as error:
        raise SparkError(f"malformed log file {path}: {text!r}") from error
    return text


def drop(path: Path) -> None:
    path.unlink()
    sums_of(path).unlink(missing_ok=True)


def sums_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")
