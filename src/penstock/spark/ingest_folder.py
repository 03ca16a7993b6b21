"""Spark's own folder of an ingested source: which files a batch is planned in, what is found there, and putting it back.

Knows the layout that Structured Streaming gives its checkpoints: `metadata`, `offsets/N`, `commits/N`, `sources/<i>/...`,
`state/`. Decides nothing (`judging` does); changes the folder only in `put_back` and `clear`, while no query runs on it.
"""

from __future__ import annotations

import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from penstock.dataplane.batch_plans import crc_of
from penstock.dataplane.disk import Disk
from penstock.dataplane.records import BatchPlan, PlannedFile
from penstock.errors import CorruptFileError
from penstock.spark.judging import Found, Likeness

METADATA = "metadata"
_ENTRY = re.compile(r"(\d+)(\.compact)?")
_NUMBER = re.compile(r"\d+")
_NAMED = re.compile(rb"[\w.-]+:\s*(?=[-{\[\"\d])")
_VERSION = re.compile(rb"v\d+\s*")
_PLANNED_IN = ("metadata", "offsets", "sources")


@dataclass(frozen=True)
class Log:
    """The files of one folder of a source below `sources/`."""

    folder: str
    names: list[str] = field(default_factory=list)

    def live(self) -> list[str]:
        """What Spark still reads: the newest compaction, what came after it, and what is no entry of such a log."""
        last = self.compacted()
        return [name for name in self.names if (at := _number_of(name)) is None or at >= last]

    def compacted(self) -> int:
        """Number of the newest compaction, -1 where there is none."""
        return max((_number_of(name) or 0 for name in self.names if name.endswith(".compact")), default=-1)


def _number_of(name: str) -> int | None:
    found = _ENTRY.fullmatch(name)
    return int(found[1]) if found else None


def files_planned(folder: str, batch: int) -> list[str]:
    """Return the files that say what a batch is, and what Spark needs to go on after it; relative to the folder."""
    wanted = [METADATA, *(f"offsets/{number}" for number in (batch - 1, batch))]
    found = [name for name in wanted if _is_file(f"{folder}/{name}")]
    return found + [f"{log.folder}/{name}" for log in _logs(folder) for name in log.live()]


def is_stateful(folder: str) -> bool:
    """Whether the streaming DataFrame has state: once its first batch has run, Spark keeps it there."""
    try:
        return bool(os.listdir(f"{folder}/state"))
    except OSError:
        return False


def read_query_id(folder: str) -> str | None:
    """Return the id of the Spark query whose folder it is, None where it cannot be read."""
    data = _bytes_of(f"{folder}/{METADATA}")
    try:
        return str(json.loads(data)["id"]) if data is not None else None
    except (ValueError, KeyError, TypeError):
        return None


def find(
    folder: str, batch: int | None, plan: BatchPlan | None, kept: Callable[[PlannedFile], bytes]
) -> Found:
    """Look at a folder, beside what was recorded of the last committed batch.

    Args:
        batch: the last committed batch, None where there is none.
        kept: gives the bytes of a file as they were planned; asked for where the folder has other ones.
    """
    offsets, commits = _numbers(f"{folder}/offsets"), _numbers(f"{folder}/commits")
    files = plan.files if plan is not None else []
    logs = {log.folder: log for log in _logs(folder)}
    return Found(
        query=read_query_id(folder),
        has_metadata=_is_file(f"{folder}/{METADATA}"),
        last_offsets=max(offsets, default=-1),
        last_commit=max(commits, default=-1),
        likeness={file.path: _likeness(folder, file, logs, kept) for file in files if _is_judged(file.path)},
        torn=next(_torn(folder, batch, offsets, commits, logs, {file.path for file in files}), None),
    )


def _is_judged(path: str) -> bool:
    """Files in `sources/` that are no entries of a log are the source's own affair: it may rewrite them."""
    return not path.startswith("sources/") or _number_of(os.path.basename(path)) is not None


def _likeness(
    folder: str, file: PlannedFile, logs: dict[str, Log], kept: Callable[[PlannedFile], bytes]
) -> Likeness:
    path = f"{folder}/{file.path}"
    data = _bytes_of(path)
    if data is None:
        above, name = os.path.split(file.path)
        log = logs.get(above)
        return Likeness.SAME if log and log.compacted() >= (_number_of(name) or 0) else Likeness.GONE
    if not _sums_match(path, data):
        return Likeness.TORN
    if (len(data), crc_of(data)) == (file.size, file.crc):
        return Likeness.SAME
    whole = is_json(data) if file.path == METADATA else is_whole_log(data)
    return Likeness.OTHER if whole and not kept(file).startswith(data) else Likeness.TORN


def _torn(
    folder: str,
    batch: int | None,
    offsets: list[int],
    commits: list[int],
    logs: dict[str, Log],
    known: set[str],
) -> Iterator[str]:
    """Files that Spark is going to read, that are not recorded, and that it cannot read."""
    newest = [f"offsets/{number}" for number in offsets if batch is None or number >= batch]
    newest += [f"commits/{max(commits)}"] if commits else []
    newest += [
        f"{log.folder}/{name}" for log in logs.values() for name in log.live() if _number_of(name) is not None
    ]
    if _is_file(f"{folder}/{METADATA}") and METADATA not in known and read_query_id(folder) is None:
        yield METADATA
    least = (_bytes_of(f"{folder}/offsets/{batch}") or b"").count(b"\n")
    for name in (name for name in newest if name not in known):
        data = _bytes_of(f"{folder}/{name}")
        whole = _may_be_whole if name.startswith("sources/") else is_whole_log
        if data is None:
            continue
        cut = name.startswith("offsets/") and data.count(b"\n") < least  # a line for each source
        if cut or not _sums_match(f"{folder}/{name}", data) or not whole(data):
            yield name


# -- what the bytes of a file say ---------------------------------------------------------------------------------


def is_whole_log(data: bytes) -> bool:
    """Whether the bytes are an entry of a log of Spark's as it writes them: a version, then lines of JSON."""
    first, *lines = data.split(b"\n")
    return _VERSION.fullmatch(first) is not None and all(map(_is_whole_line, lines))


def _is_whole_line(line: bytes) -> bool:
    """Offsets may have the name of their source before them; of a source that gave nothing yet there is a dash."""
    named = _NAMED.match(line)
    rest = line[named.end() :] if named else line
    return rest == b"-" or is_json(rest)


def _may_be_whole(data: bytes) -> bool:
    """Whether an entry of a source's own log may be whole: in which format it is, is the source's affair."""
    last = data.rpartition(b"\n")[2]
    return bool(data.strip(b"\0 \n")) and (is_json(last) or not last.startswith((b"{", b"\0")))


def is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def _sums_match(path: str, data: bytes) -> bool:
    """Whether Hadoop would read a file: its sums stand in a hidden file beside it, or nowhere."""
    sums = _bytes_of(sums_of(path))
    if sums is None:
        return True
    step = int.from_bytes(sums[4:8], "big")
    if sums[:4] != b"crc\0" or step <= 0:
        return False
    wanted = [zlib.crc32(data[at : at + step]).to_bytes(4, "big") for at in range(0, len(data), step)]
    return sums[8:] == b"".join(wanted)


def sums_of(path: str) -> str:
    """Return where Hadoop keeps the sums of a file."""
    above, name = os.path.split(path)
    return f"{above}/.{name}.crc"


# -- putting back -------------------------------------------------------------------------------------------------


def put_back(disk: Disk, folder: str, plan: BatchPlan, kept: Callable[[PlannedFile], bytes]) -> None:
    """Make a folder what it was when a batch was planned, without its commit: Spark runs that batch again, then goes on.

    A crash at any point leaves a folder that is found to be torn or stale again. What cannot be read of what is kept is
    found out before anything changes.
    """
    for file in plan.files:
        _check_inside(folder, file.path)
    contents = {file.path: kept(file) for file in plan.files}
    clear(disk, folder, {path for path, data in contents.items() if _bytes_of(f"{folder}/{path}") == data})
    for path in sorted(contents, key=_putting_order):
        disk.make_dirs(os.path.dirname(f"{folder}/{path}"))
        if _bytes_of(f"{folder}/{path}") != contents[path]:
            disk.put(f"{folder}/{path}", contents[path])


def _check_inside(folder: str, path: str) -> None:
    if os.path.normpath(path) != path or path.partition("/")[0] not in _PLANNED_IN:
        raise CorruptFileError(
            f"a record says that Spark planned a batch in '{path}', which is no place in {folder}; the log was put "
            "together from others, restore it from a copy."
        )


def clear(disk: Disk, folder: str, but: Collection[str] = ()) -> None:
    """Remove Spark's logs from a folder, commits first, and the sums of what stays; its state stays."""
    for above in ("commits", "offsets", "sources"):
        for path in _walk(f"{folder}/{above}"):
            if os.path.relpath(path, folder) not in but:
                disk.delete(path)
    for path in (f"{folder}/{METADATA}", sums_of(f"{folder}/{METADATA}")):
        if os.path.relpath(path, folder) not in but and _is_file(path):
            disk.delete(path)


def _putting_order(path: str) -> tuple[int, int]:
    """Offsets come last, and of these the batch's own: they are what makes Spark go on."""
    above, _, name = path.partition("/")
    return (1, int(name)) if above == "offsets" and _NUMBER.fullmatch(name) else (0, 0)


# -- looking ------------------------------------------------------------------------------------------------------


def _logs(folder: str) -> Iterator[Log]:
    for above, _, names in os.walk(f"{folder}/sources"):
        mine = [name for name in sorted(names) if not name.startswith(".") and not name.endswith(".tmp")]
        yield Log(os.path.relpath(above, folder), [name for name in mine if _is_file(f"{above}/{name}")])


def _walk(folder: str) -> Iterator[str]:
    for above, _, names in os.walk(folder):
        yield from (f"{above}/{name}" for name in sorted(names))


def _numbers(folder: str) -> list[int]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [int(name) for name in names if _NUMBER.fullmatch(name) and _is_file(f"{folder}/{name}")]


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def _bytes_of(path: str) -> bytes | None:
    """The bytes of a regular file; None where there is none."""
    if not _is_file(path):
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
