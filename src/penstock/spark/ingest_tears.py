"""What is torn in Spark's folder of a source besides the files that a record names, and what of it can be dropped.

Spark plans anew what is not there; so whatever it wrote after the last committed batch can go, and so can marks that a
batch is committed: they only spare Spark from running it again. Reads files, changes none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from penstock.spark.ingest_entries import (
    Log,
    are_whole_offsets,
    is_whole_log,
    logged_up_to,
    may_be_whole,
    number_of,
    sums_match,
)
from penstock.spark.ingest_files import bytes_of, numbers_in


@dataclass
class Tears:
    """Torn files that no record names; paths are relative to the folder."""

    found: list[str] = field(default_factory=list)
    """What Spark is going to read and cannot, or what lacks something."""
    stuck: list[str] = field(default_factory=list)
    """Those that Spark cannot do without."""
    droppable: list[str] = field(default_factory=list)
    """Without these the other ones are as if Spark had not written them."""
    logs: dict[str, Log] = field(default_factory=dict)
    """The logs of the sources without what is droppable."""


def find_tears(folder: str, batch: int, logs: dict[str, Log], recorded: Collection[str] | None) -> Tears:
    """Look for torn files.

    Args:
        batch: the last committed one, -1 where there is none.
        recorded: the files that its record names, None where it names none.
    """
    tears = Tears()
    _look_at_commits(folder, tears)
    like = bytes_of(f"{folder}/offsets/{batch}") or b""
    reached = _reached(like, logs, recorded)
    for log in logs.values():
        tears.logs[log.folder] = _without_torn(folder, log, reached.get(log.folder), recorded or (), tears)
    _look_at_offsets(folder, batch, like, recorded, tears)
    return tears


def _look_at_commits(folder: str, tears: Tears) -> None:
    """Spark reads the newest one only; without it, the one before."""
    for number in sorted(numbers_in(f"{folder}/commits"), reverse=True):
        if is_readable(f"{folder}/commits/{number}", is_whole_log):
            return
        tears.found.append(f"commits/{number}")
        tears.droppable.append(f"commits/{number}")


def _reached(like: bytes, logs: dict[str, Log], recorded: Collection[str] | None) -> dict[str, int]:
    """The last entry of each log that the committed batch has taken in, as far as that is known."""
    if recorded is None:
        return logged_up_to(like)
    found = dict.fromkeys(logs, -1)  # what a source wrote later
    for path in recorded:
        above, _, name = path.rpartition("/")
        if above in found:
            found[above] = max(found[above], number_of(name) or 0)
    return found


def _without_torn(folder: str, log: Log, reached: int | None, recorded: Collection[str], tears: Tears) -> Log:
    """A log up to its first torn entry that is not recorded: what follows one that is dropped would be out of place."""
    while (torn := _first_torn(folder, log, recorded)) is not None:
        tears.found.append(f"{log.folder}/{torn}")
        first = number_of(torn) or 0
        if reached is None or first <= reached:
            tears.stuck.append(f"{log.folder}/{torn}")
            return log
        stays = [name for name in log.names if (at := number_of(name)) is None or at < first]
        tears.droppable += [f"{log.folder}/{name}" for name in log.names if name not in stays]
        log = Log(log.folder, stays)
    return log


def _first_torn(folder: str, log: Log, recorded: Collection[str]) -> str | None:
    numbered = [(at, name) for name in log.live() if (at := number_of(name)) is not None]
    for at, name in sorted(numbered):
        path = f"{log.folder}/{name}"
        if path not in recorded and not is_readable(f"{folder}/{path}", partial(may_be_whole, at)):
            return name
    return None


def _look_at_offsets(
    folder: str, batch: int, like: bytes, recorded: Collection[str] | None, tears: Tears
) -> None:
    """Spark reads the newest ones and those before; of batches that are not committed all are looked at."""
    whole = partial(are_whole_offsets, tears.logs, like)
    last = batch
    for number in sorted(number for number in numbers_in(f"{folder}/offsets") if number > batch):
        name = f"offsets/{number}"
        if is_readable(f"{folder}/{name}", whole) and last == number - 1:
            last = number
        else:
            tears.found.append(name)
            tears.droppable.append(name)
    if recorded is None and batch >= 0:
        _look_at_committed_offsets(folder, batch, last, like, tears)


def _look_at_committed_offsets(folder: str, batch: int, last: int, like: bytes, tears: Tears) -> None:
    """Those that nothing is kept of; of the ones before them neither lines nor logs can be held against others."""
    wanted = [batch] if last > batch or not batch else [batch, batch - 1]
    for number in wanted:
        whole = partial(are_whole_offsets, tears.logs if number == batch else {}, like)
        data = bytes_of(f"{folder}/offsets/{number}")
        if data is None or not is_readable(f"{folder}/offsets/{number}", whole):
            tears.found.append(f"offsets/{number}")
            tears.stuck.append(f"offsets/{number}")


def is_readable(path: str, is_whole: Callable[[bytes], bool]) -> bool:
    """Whether Spark can read a file; one that is not there is no matter."""
    data = bytes_of(path)
    return data is None or (sums_match(data, bytes_of(sums_of(path))) and is_whole(data))


def sums_of(path: str) -> str:
    """Return where Hadoop keeps the sums of a file."""
    above, _, name = path.rpartition("/")
    return f"{above}/.{name}.crc"
