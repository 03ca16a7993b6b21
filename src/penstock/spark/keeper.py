"""A small process that outlives its starter just long enough to end what the starter left behind.

It reads lines from standard input: ``+ID`` (a process group to end), ``-ID`` (ended already), ``/PATH`` (a
directory to delete). When the input ends, because its starter stopped or was killed, it ends those groups,
deletes those directories and exits. It imports the standard library only, and runs as a file, not a module.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time

GRACE_S = 5.0


def main() -> None:
    """Collect groups and directories until the input ends, then clear them away."""
    # A terminal's interrupt is meant for the starter; the end of input follows by itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    groups: list[int] = []
    directories: list[str] = []
    for line in sys.stdin:
        text = line.rstrip("\n")
        if text.startswith("+"):
            groups.append(int(text[1:]))
        elif text.startswith("-"):
            with contextlib.suppress(ValueError):
                groups.remove(int(text[1:]))
        elif text.startswith("/"):
            directories.append(text)
    end_groups(groups)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def end_groups(groups: list[int]) -> None:
    """Ask the groups to end, wait a little, then kill what is left."""
    for group in groups:
        _signal(group, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and any(_signal(group, 0) for group in groups):
        time.sleep(0.05)
    for group in groups:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
