"""Is a folder that is no checkpoint of ours free to become one, and if not, whose is it? Reads names only, changes nothing.

A start looks here before its first write, and whoever is asked to look into a folder says by this what it is instead.
"""

from __future__ import annotations

import os
from typing import Final

from penstock.dataplane import paths
from penstock.dataplane.disk import PROBE, Disk, is_temp
from penstock.errors import CheckpointError, StorageError

SPARKS: Final[tuple[str, ...]] = ("metadata", "offsets", "commits", "sources", "state")
"""What Structured Streaming keeps at the top of a checkpoint."""
_LEAST: Final = 2
"""So many of them make it one: a folder of another kind may well have a `state` or a `sources`."""
OURS: Final = ("meta", "drivers", "log", "data", "ingest", "imported", "export", "requests")
_ALLOWED: Final = ("lost+found",)
"""Of the file system, where a checkpoint is a volume of its own."""
_SHOWN: Final = 3
_FEW: Final = 3
"""So many files beside each other are notes, or a journal; more are what somebody else keeps there."""
_ROWS: Final = (".parquet", ".csv", ".orc", ".avro", ".json", ".delta", ".gz", ".crc")
"""Ends of names of rows: a folder with one such file may soon have many, and is not one to put a checkpoint into."""
_OF_ROWS: Final = ("part-", "_SUCCESS", "_temporary", "_spark_metadata", "_delta_log")


def sparks_part(names: list[str]) -> list[str]:
    """Return the names that make a folder the checkpoint of a Spark query; none where it is not one."""
    if "meta" in names:
        return []
    found = [name for name in SPARKS if name in names]
    return found if len(found) >= _LEAST else []


def check_not_foreign(disk: Disk, checkpoint: str, beside: str = "") -> None:
    """Refuse a folder that something else than a query of ours has filled, before anything is written to it.

    A folder that is not there, is empty, or holds what a start or `penstock import` left there, is free. So is one with a
    few files that are no rows, such as a README.

    Args:
        beside: a file that the query itself keeps there, such as its journal.

    Raises:
        CheckpointError: it is the checkpoint of a Spark query, or holds files that are not ours.
    """
    names = _names(disk, checkpoint)
    if "meta" in names:
        return
    check_not_sparks(disk, checkpoint)
    own = os.path.relpath(beside, checkpoint).partition("/")[0] if beside else ""
    strange = [name for name in names if name != own and not _is_ours(name)]
    if len(strange) > _FEW or not all(_is_note(disk, checkpoint, name) for name in strange):
        more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        raise CheckpointError(
            f"{checkpoint} is no checkpoint and not empty: it has {', '.join(strange[:_SHOWN])}{more}; give a new or empty "
            "folder as checkpointLocation."
        )


def _is_note(disk: Disk, checkpoint: str, name: str) -> bool:
    """Whether a name is that of a file which nobody takes for rows."""
    if name.startswith(_OF_ROWS) or name.endswith(_ROWS) or name in SPARKS:
        return False
    try:
        disk.list(f"{checkpoint}/{name}")
    except StorageError:
        return True  # no folder
    return False


def check_not_sparks(disk: Disk, checkpoint: str) -> None:
    """Refuse the checkpoint of a Spark query, and name the way to bring it here.

    Raises:
        CheckpointError: it is one.
    """
    found = sparks_part(_names(disk, checkpoint))
    if found:
        raise CheckpointError(
            f"{checkpoint} is the checkpoint of a Spark query (it has {', '.join(found)}), whose state and place in the "
            f"source would not count; bring them into a new one with `penstock import {checkpoint} NEW --operator NAME "
            "--source NAME` and give that as checkpointLocation, or give a folder that is new."
        )


def _names(disk: Disk, folder: str) -> list[str]:
    try:
        return disk.list(folder)
    except StorageError:  # a file, or one that may not be read; whoever opens it says so
        return []


def _is_ours(name: str) -> bool:
    known = name in OURS or name in _ALLOWED or paths.parse_meta_version(name) is not None
    return known or is_temp(name) or name.startswith((PROBE, "."))
