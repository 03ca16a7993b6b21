"""What the entries of Spark's logs say, and whether they are whole: `offsets/N`, `commits/N`, `sources/<i>/N`. Pure.

Structured Streaming writes an entry once, as a version and lines of JSON, and syncs none: after a power loss any may be
empty, cut off, or missing though a later one is there.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

_ENTRY = re.compile(r"([0-9]+)(\.compact)?")
_NAMED = re.compile(rb"[\w.-]+:(?=[-{\[\"\d])")
_VERSION = re.compile(rb"v\d+\s*")


@dataclass(frozen=True)
class Log:
    """The files of one folder of a source below `sources/`."""

    folder: str
    names: list[str] = field(default_factory=list)

    def live(self) -> list[str]:
        """What Spark still reads: the newest compaction, what came after it, and what is no entry of such a log."""
        last = self.compacted()
        return [name for name in self.names if (at := number_of(name)) is None or at >= last]

    def reaches(self, number: int) -> bool:
        """Whether every entry is there from the newest compaction up to a number."""
        there = {number_of(name) for name in self.names}
        return all(one in there for one in range(max(self.compacted(), 0), number + 1))

    def compacted(self) -> int:
        """Number of the newest compaction, -1 where there is none."""
        return max((number_of(name) or 0 for name in self.names if name.endswith(".compact")), default=-1)


def number_of(name: str) -> int | None:
    if name.isascii() and name.isdigit():  # nearly all are, and there may be thousands
        return int(name)
    found = _ENTRY.fullmatch(name)
    return int(found[1]) if found else None


def is_whole_log(data: bytes) -> bool:
    """Whether the bytes are an entry of a log of Spark's as it writes them: a version, then lines of JSON."""
    first, *lines = data.split(b"\n")
    return _VERSION.fullmatch(first) is not None and all(map(_is_whole_line, lines))


def _is_whole_line(line: bytes) -> bool:
    """Offsets may have the name of their source before them; of a source that gave nothing yet there is a dash."""
    named = _NAMED.match(line)
    rest = line[named.end() :] if named else line
    return rest == b"-" or is_json(rest)


def may_be_whole(number: int | None, data: bytes) -> bool:
    """Whether an entry of a source's own log may be whole: in which format it is, is the source's affair. The last file
    that an entry of a file source names is one of its own, or it is cut off."""
    lines = data.split(b"\n")
    first, last = lines[0], lines[-1]
    if data.startswith(b"v") and (len(lines) == 1 or not _VERSION.fullmatch(first)):
        return False
    if not data.strip(b"\0 \n") or (last.startswith((b"{", b"\0")) and not is_json(last)):
        return False
    told = json.loads(last) if last.startswith(b"{") else {}
    return number is None or told.get("batchId", number) == number


def are_whole_offsets(logs: Mapping[str, Log], like: bytes, data: bytes) -> bool:
    """Whether offsets are as Spark writes them, and the files of a file source are logged up to where they say: what is
    not, it would pass over.

    Args:
        like: offsets of the same query, which have as many lines; none where there are none yet.
    """
    if not has_form_of(like, data):
        return False
    reached = logged_up_to(data).items()
    return all(folder not in logs or logs[folder].reaches(number) for folder, number in reached)


def has_form_of(like: bytes, data: bytes) -> bool:
    """Whether an entry is as Spark writes it, with the lines of another one. A source of somebody else's may write its
    offset in a form that is no JSON: then what it wrote otherwise may be whole, too."""
    lines, models = data.split(b"\n"), like.split(b"\n")
    if len(lines) < len(models) or not is_whole_log(b"\n".join(lines[:2])):
        return False
    foreign = [at >= 2 and not _is_whole_line(model) for at, model in enumerate(models)]
    foreign += [False] * (len(lines) - len(models))
    return all(
        (odd and line.strip(b"\0 ") != b"") or _is_whole_line(line)
        for odd, line in list(zip(foreign, lines, strict=True))[1:]
    )


def logged_up_to(offsets: bytes) -> dict[str, int]:
    """Return the last entry that offsets of file sources name, by the folder of its log."""
    found = {}
    for at, line in enumerate(offsets.split(b"\n")[2:]):
        named = _NAMED.match(line)
        source = line[: named.end()].rpartition(b":")[0].decode() if named else str(at)
        offset = line[named.end() :] if named else line
        told = json.loads(offset) if offset.startswith(b"{") and is_json(offset) else {}
        reached = told.get("logOffset") if len(told) == 1 else None
        if isinstance(reached, int):  # else a source that keeps no log, or a layout that we do not know
            found[f"sources/{source}"] = reached
    return found


def is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):  # nested too deep for Spark as well
        return False
    return True


def sums_match(data: bytes, sums: bytes | None) -> bool:
    """Whether Hadoop would read a file, whose sums stand in a hidden file beside it, or nowhere."""
    if sums is None:
        return True
    step = int.from_bytes(sums[4:8], "big")
    if sums[:4] != b"crc\0" or step <= 0 or len(sums) != 8 + 4 * -(-len(data) // step):
        return False
    wanted = [zlib.crc32(data[at : at + step]).to_bytes(4, "big") for at in range(0, len(data), step)]
    return sums[8:] == b"".join(wanted)
