"""Spark's own folder of an ingested source: which files a batch is planned in, what is found there, and putting it back.

Knows the layout that Structured Streaming gives its checkpoints: `metadata`, `offsets/N`, `commits/N`, `sources/<i>/...`,
`state/`. Decides nothing (`judging` does); changes the folder only in `put_back` and `clear`, while no query runs on it.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator
from functools import partial

from penstock.dataplane.batch_plans import crc_of
from penstock.dataplane.disk import Disk
from penstock.dataplane.records import BatchPlan, PlannedFile
from penstock.errors import CorruptFileError
from penstock.spark.ingest_entries import (
    Log,
    are_whole_offsets,
    is_json,
    is_whole_log,
    may_be_whole,
    number_of,
    sums_match,
)
from penstock.spark.judging import Found, Likeness

METADATA = "metadata"
_NUMBER = re.compile(r"[0-9]+")
_SUMS = re.compile(r"\..+\.crc")
_PLANNED_IN = ("metadata", "offsets", "sources")


def files_planned(folder: str, batch: int) -> list[str]:
    """Return the files that say what a batch is, and what Spark needs to go on after it; relative to the folder."""
    wanted = [METADATA, *(f"offsets/{number}" for number in (batch - 1, batch))]
    found = [name for name in wanted if _is_file(f"{folder}/{name}")]
    return found + [f"{log.folder}/{name}" for log in _logs(folder) for name in log.live()]


def is_stateful(folder: str) -> bool:
    """Whether the streaming DataFrame has state: once its first batch has run, Spark keeps it there."""
    return bool(_names(f"{folder}/state"))


def read_query_id(folder: str) -> str | None:
    """Return the id of the Spark query whose folder it is, None where it cannot be read."""
    data = _bytes_of(f"{folder}/{METADATA}")
    return _query_in(data) if data is not None else None


def _query_in(metadata: bytes) -> str | None:
    try:
        return str(json.loads(metadata)["id"])
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
    torn = _torn(
        folder, -1 if batch is None else batch, offsets, commits, logs, {file.path for file in files}
    )
    return Found(
        query=read_query_id(folder),
        has_metadata=_is_file(f"{folder}/{METADATA}"),
        last_offsets=max(offsets, default=-1),
        last_commit=max(commits, default=-1),
        likeness={file.path: _likeness(folder, file, logs, kept) for file in files if _is_judged(file.path)},
        torn=next(torn, None),
    )


def _is_judged(path: str) -> bool:
    """Files in `sources/` that are no entries of a log are the source's own affair: it may rewrite them."""
    return not path.startswith("sources/") or number_of(os.path.basename(path)) is not None


def _likeness(
    folder: str, file: PlannedFile, logs: dict[str, Log], kept: Callable[[PlannedFile], bytes]
) -> Likeness:
    path = f"{folder}/{file.path}"
    data = _bytes_of(path)
    if data is None:
        above, name = os.path.split(file.path)
        log = logs.get(above)
        return Likeness.SAME if log and log.compacted() >= (number_of(name) or 0) else Likeness.GONE
    if not sums_match(data, _bytes_of(sums_of(path))):
        return Likeness.TORN
    if (len(data), crc_of(data)) == (file.size, file.crc):
        return Likeness.SAME
    whole = is_json(data) if file.path == METADATA else is_whole_log(data)
    return Likeness.OTHER if whole and not kept(file).startswith(data) else Likeness.TORN


def _torn(
    folder: str, batch: int, offsets: list[int], commits: list[int], logs: dict[str, Log], known: set[str]
) -> Iterator[str]:
    """Files that Spark is going to read, that are not recorded, and that it cannot read or that lack something."""
    if METADATA not in known and not _is_readable(
        f"{folder}/{METADATA}", lambda data: _query_in(data) is not None
    ):
        yield METADATA
    for name in [f"commits/{max(commits)}"] if commits else []:
        if not _is_readable(f"{folder}/{name}", is_whole_log):
            yield name
    for log in logs.values():
        entries = [f"{log.folder}/{name}" for name in log.live() if number_of(name) is not None]
        for name in (name for name in entries if name not in known):
            if not _is_readable(f"{folder}/{name}", partial(may_be_whole, number_of(os.path.basename(name)))):
                yield name
    lines = (_bytes_of(f"{folder}/offsets/{batch}") or b"").count(b"\n")  # one for each source, and two more
    for name in (f"offsets/{number}" for number in offsets if number >= batch):
        whole = partial(are_whole_offsets, logs, lines)
        if name not in known and not _is_readable(f"{folder}/{name}", whole):
            yield name


def _is_readable(path: str, is_whole: Callable[[bytes], bool]) -> bool:
    data = _bytes_of(path)
    return data is None or (sums_match(data, _bytes_of(sums_of(path))) and is_whole(data))


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
    for path in sorted(contents, reverse=True):  # the metadata last: without it there is no query to go on
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


def stray_sums(folder: str) -> list[str]:
    """Return the sums of files that are gone. Where one lies Hadoop takes a new file of that name for written already."""
    sums = [sums_of(f"{folder}/{METADATA}")] if _is_file(sums_of(f"{folder}/{METADATA}")) else []
    for above in ("commits", "offsets", "sources"):
        sums += [path for path in _walk(f"{folder}/{above}") if _SUMS.fullmatch(os.path.basename(path))]
    return [path for path in sums if not _is_file(_summed(path))]


def _summed(sums: str) -> str:
    above, name = os.path.split(sums)
    return f"{above}/{name[1:-4]}"


# -- looking ------------------------------------------------------------------------------------------------------


def _logs(folder: str) -> Iterator[Log]:
    for above, _, names in os.walk(f"{folder}/sources", onerror=_tell):
        mine = [name for name in sorted(names) if not name.startswith(".") and not name.endswith(".tmp")]
        yield Log(os.path.relpath(above, folder), [name for name in mine if _is_file(f"{above}/{name}")])


def _walk(folder: str) -> Iterator[str]:
    for above, _, names in os.walk(folder, onerror=_tell):
        yield from (f"{above}/{name}" for name in sorted(names))


def _numbers(folder: str) -> list[int]:
    return [int(name) for name in _names(folder) if _NUMBER.fullmatch(name) and _is_file(f"{folder}/{name}")]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        _tell(error)
        return []


def _is_file(path: str) -> bool:
    """Whether there is a regular file; what can only not be looked at is not taken for gone."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError as error:
        _tell(error)
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


def _tell(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
