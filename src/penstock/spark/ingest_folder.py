"""Spark's own folder of an ingested source: which files a batch is planned in, what is found there, and putting it back.

Knows the layout that Structured Streaming gives its checkpoints: `metadata`, `offsets/N`, `commits/N`, `sources/<i>/...`,
`state/`. Decides nothing (`judging` does); changes the folder only in `put_back`, `mend` and `clear`, while no query runs
on it, and never through a link.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator

from penstock.dataplane.batch_plans import crc_of
from penstock.dataplane.disk import Disk
from penstock.dataplane.records import BatchPlan, PlannedFile
from penstock.errors import CheckpointError, CorruptFileError
from penstock.spark.ingest_entries import Log, has_form_of, is_json, number_of, sums_match
from penstock.spark.ingest_files import bytes_of, find_link, is_file, names_in, numbers_in, walk
from penstock.spark.ingest_tears import find_tears, is_readable, sums_of
from penstock.spark.judging import METADATA, Found, Likeness

_SUMS = re.compile(r"\..+\.crc")
_SPARKS = re.compile(r"\.{0,2}[0-9]+(\..*)?")
"""Entries of `offsets` and `commits`, their sums, and what Spark left of one that it was writing."""
_LOGS = ("commits", "offsets", "sources")
_PLANNED_IN = ("metadata", "offsets", "sources")


def files_planned(folder: str, batch: int) -> list[str]:
    """Return the files that say what a batch is, and what Spark needs to go on after it; relative to the folder."""
    wanted = [METADATA, *(f"offsets/{number}" for number in (batch - 1, batch))]
    wanted += [f"{log.folder}/{name}" for log in _logs(folder) for name in log.live()]
    return [name for name in wanted if is_file(f"{folder}/{name}")]


def is_stateful(folder: str) -> bool:
    """Whether the streaming DataFrame has state: once its first batch has run, Spark keeps it there."""
    return bool(names_in(f"{folder}/state"))


def read_query_id(folder: str) -> str | None:
    """Return the id of the Spark query whose folder it is, None where it cannot be read."""
    data = bytes_of(f"{folder}/{METADATA}")
    return _query_in(data) if data is not None else None


def _query_in(metadata: bytes) -> str | None:
    try:
        return str(json.loads(metadata)["id"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def find(
    folder: str, batch: int | None, plan: BatchPlan | None, kept: Callable[[PlannedFile], bytes]
) -> Found:
    """Look at a folder, beside what was recorded of the last committed batch.

    Args:
        batch: the last committed batch, None where there is none.
        kept: gives the bytes of a file as they were planned; asked for where the folder has other ones.
    """
    offsets, commits = numbers_in(f"{folder}/offsets"), numbers_in(f"{folder}/commits")
    files = plan.files if plan is not None else []
    recorded = {file.path for file in files} if plan is not None else None
    query, has_metadata = read_query_id(folder), is_file(f"{folder}/{METADATA}")
    logs = {log.folder: log for log in _logs(folder)}
    tears = find_tears(folder, -1 if batch is None else batch, logs, recorded)
    readable = is_readable(f"{folder}/{METADATA}", lambda data: _query_in(data) is not None)
    if not readable and METADATA not in (recorded or ()):
        tears.found.insert(0, METADATA)
        tears.stuck.append(METADATA)
    judged = [file for file in files if _is_judged(file.path)]
    return Found(
        query=query,
        has_metadata=has_metadata,
        last_offsets=max(offsets, default=-1),
        last_commit=max(commits, default=-1),
        likeness={file.path: _likeness(folder, file, tears.logs, kept) for file in judged},
        torn=next(iter(tears.found), None),
        droppable=tuple(tears.droppable) if not tears.stuck else (),
    )


def _is_judged(path: str) -> bool:
    """Files in `sources/` that are no entries of a log are the source's own affair: it may rewrite them."""
    return not path.startswith("sources/") or number_of(os.path.basename(path)) is not None


def _likeness(
    folder: str, file: PlannedFile, logs: dict[str, Log], kept: Callable[[PlannedFile], bytes]
) -> Likeness:
    path = f"{folder}/{file.path}"
    data = bytes_of(path)
    if data is None:
        above, name = os.path.split(file.path)
        log = logs.get(above)
        return Likeness.SAME if log and log.compacted() >= (number_of(name) or 0) else Likeness.GONE
    if not sums_match(data, bytes_of(sums_of(path))):
        return Likeness.TORN
    if (len(data), crc_of(data)) == (file.size, file.crc):
        return Likeness.SAME
    wanted = kept(file)
    whole = is_json(data) if file.path == METADATA else _is_whole_beside(wanted, data)
    return Likeness.OTHER if whole and not wanted.startswith(data) else Likeness.TORN


def _is_whole_beside(wanted: bytes, data: bytes) -> bool:
    """Whether what stands in the place of an entry is one, too: another plan may have more lines or fewer."""
    lines = data.count(b"\n") + 1
    return has_form_of(b"\n".join(wanted.split(b"\n")[:lines]), data)


# -- putting back -------------------------------------------------------------------------------------------------


def put_back(disk: Disk, folder: str, plan: BatchPlan, kept: Callable[[PlannedFile], bytes]) -> None:
    """Make a folder what it was when a batch was planned, without its commit: Spark runs that batch again, then goes on.

    A crash at any point leaves a folder that is found to be torn or stale again. What cannot be read of what is kept is
    found out before anything changes.
    """
    for file in plan.files:
        _check_inside(folder, file.path)
    contents = {file.path: kept(file) for file in plan.files}
    clear(disk, folder, {path for path, data in contents.items() if bytes_of(f"{folder}/{path}") == data})
    for path in sorted(contents, reverse=True):  # the metadata last: without it there is no query to go on
        disk.make_dirs(os.path.dirname(f"{folder}/{path}"))
        if bytes_of(f"{folder}/{path}") != contents[path]:
            disk.put(f"{folder}/{path}", contents[path])


def _check_inside(folder: str, path: str) -> None:
    if os.path.normpath(path) != path or path.partition("/")[0] not in _PLANNED_IN:
        raise CorruptFileError(
            f"a record says that Spark planned a batch in '{path}', which is no place in {folder}; the log was put "
            "together from others, restore it from a copy."
        )


def mend(disk: Disk, folder: str, drop: Collection[str], files: Collection[tuple[str, bytes]]) -> None:
    """Remove files that Spark can do without, and write others again. What is begun is gone on with by the next start.

    Args:
        drop: paths relative to the folder; offsets go before what they name.
    """
    check_no_link(folder)
    for path in sorted(drop, key=lambda path: (path.startswith("sources/"), path)):
        disk.delete(f"{folder}/{path}")
    for path, data in files:
        disk.put(f"{folder}/{path}", data)


def clear(disk: Disk, folder: str, but: Collection[str] = ()) -> None:
    """Remove Spark's logs from a folder, commits first, and the sums of what stays; its state stays.

    Raises:
        CheckpointError: the folder, or one of these logs, is a link to a place that is not Spark's.
    """
    check_no_link(folder)
    for path in [*_sparks_files(folder), f"{folder}/{METADATA}", sums_of(f"{folder}/{METADATA}")]:
        if os.path.relpath(path, folder) not in but and is_file(path):
            disk.delete(path)


def check_no_link(folder: str) -> None:
    """Refuse to change anything where that would be a change of another folder.

    Raises:
        CheckpointError: names the link.
    """
    link = find_link(folder, *(f"{folder}/{above}" for above in _LOGS))
    if link is not None:
        raise CheckpointError(
            f"{link} is a link to {os.path.realpath(link)}, where nothing is deleted for a checkpoint; put the folder "
            "itself in the place of the link."
        )


def stray_sums(folder: str) -> list[str]:
    """Return the sums of files that are gone. Where one lies Hadoop takes a new file of that name for written already."""
    sums = [sums_of(f"{folder}/{METADATA}")] if is_file(sums_of(f"{folder}/{METADATA}")) else []
    sums += [path for path in _sparks_files(folder) if _SUMS.fullmatch(os.path.basename(path))]
    return [path for path in sums if not is_file(_summed(path))]


def _summed(sums: str) -> str:
    above, name = os.path.split(sums)
    return f"{above}/{name[1:-4]}"


# -- looking ------------------------------------------------------------------------------------------------------


def _logs(folder: str) -> Iterator[Log]:
    """The logs of the sources, by name; what a name stands for is looked at where it is used."""
    for above, names in walk(f"{folder}/sources"):
        mine = [name for name in names if name[0] != "." and not name.endswith(".tmp")]
        yield Log(os.path.relpath(above, folder), mine)


def _sparks_files(folder: str) -> Iterator[str]:
    """The files of Spark's logs; below `sources` whatever lies in the folder of a source, which is that source's."""
    for log in _LOGS:
        for above, names in walk(f"{folder}/{log}"):
            if log == "sources":
                mine = names if above != f"{folder}/{log}" else []
            else:
                mine = [name for name in names if above == f"{folder}/{log}" and _SPARKS.fullmatch(name)]
            yield from (f"{above}/{name}" for name in sorted(mine))
