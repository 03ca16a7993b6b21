"""Python workers of a watched local cluster import this when they start: it watches which files they touch.

A node is one Spark executor; it has the directory it runs in, the one its daemon made, and shares temporary ones with later
executors of its worker.
Whoever opens, lists, makes, moves or deletes a path of another node gets an error, and the path is written down, so
that a test fails even if the error is swallowed. Imports the standard library only.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_EVENTS = ("open", "os.", "shutil.", "glob.")


def _of_another(path: str, below: str) -> bool:
    """Whether a path lies in a directory that the daemon of another node made, somewhere below a worker's."""
    known = os.environ.get("PENSTOCK_NODE_DIRECTORY")
    inside = f"{os.sep}penstock-" in path[len(below) :]
    return known is not None and inside and not (path + os.sep).startswith(os.path.realpath(known) + os.sep)


def _install(root: str, log: str) -> None:
    own = os.path.realpath(os.getcwd())
    worker = os.path.dirname(os.path.realpath(os.environ["TMPDIR"]))
    mine = (own + os.sep, f"{worker}/tmp/", f"{worker}/local/")
    area = os.path.realpath(root) + os.sep + "worker-"
    notes = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if not event.startswith(_EVENTS):
            return
        for value in args[:2]:
            if not isinstance(value, str | bytes):
                continue
            path = os.fsdecode(value)
            if not path.startswith(area) or (
                (path + os.sep).startswith(mine) and not _of_another(path, area)
            ):
                continue
            os.write(notes, f"{event} {path} by {os.getpid()} of {own}\n".encode())
            raise PermissionError(f"{path} belongs to another node than {own}")

    sys.addaudithook(watch)


if "PENSTOCK_TEST_NODES" in os.environ and "TMPDIR" in os.environ:
    _install(os.environ["PENSTOCK_TEST_NODES"], os.environ["PENSTOCK_TEST_NODES_LOG"])
