"""Python workers of the test cluster import this when they start: it watches which files they touch.

A node's directory is its own. Whoever opens, lists, makes, moves or deletes a path below another worker's directory gets an
error, and the path is written down, so that the test fails even if the error is swallowed.
"""

import os
import sys

_EVENTS = ("open", "os.", "shutil.", "glob.")


def _install(root: str, log: str) -> None:
    own = os.path.dirname(os.path.realpath(os.environ["TMPDIR"]))
    area = os.path.realpath(root) + os.sep
    notes = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def watch(event: str, args: tuple) -> None:
        if not event.startswith(_EVENTS):
            return
        for value in args[:2]:
            if not isinstance(value, str | bytes):
                continue
            path = os.fsdecode(value)
            if not path.startswith(area) or path.startswith(own + os.sep) or path == own:
                continue
            if not os.path.basename(path[len(area) :].split(os.sep)[0]).startswith("worker-"):
                continue
            os.write(notes, f"{event} {path} by {os.getpid()} of {own}\n".encode())
            raise PermissionError(f"{path} belongs to another node than {own}")

    sys.addaudithook(watch)


if "PENSTOCK_TEST_NODES" in os.environ and "TMPDIR" in os.environ:
    _install(os.environ["PENSTOCK_TEST_NODES"], os.environ["PENSTOCK_TEST_NODES_LOG"])
