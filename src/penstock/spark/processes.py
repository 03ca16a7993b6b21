"""The processes below one process, read from ``/proc`` (Linux) or ``ps`` (macOS), and their orderly end.

Never signals by name: only ids of processes that the caller has started, or that descend from them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """One running process: its id, its parent's, and its command line."""

    pid: int
    parent: int
    command: tuple[str, ...]

    def option(self, name: str) -> str | None:
        """Return the argument after ``name`` on the command line."""
        following = dict(zip(self.command, self.command[1:], strict=False))
        return following.get(name)


def descendants(pid: int) -> list[Process]:
    """Return every running process below ``pid``, parents before children."""
    return derive_descendants(pid, read_processes())


def derive_descendants(pid: int, processes: Iterable[Process]) -> list[Process]:
    """Pick the processes below ``pid`` out of a list of all, parents before children."""
    children: Mapping[int, list[Process]] = defaultdict(list)
    for process in processes:
        children[process.parent].append(process)
    found: list[Process] = []
    pending = [pid]
    while pending:
        below = children.get(pending.pop(0), [])
        found += below
        pending += [process.pid for process in below]
    return found


def derive_ancestors(pid: int, processes: Iterable[Process]) -> list[Process]:
    """Pick a process and those above it out of a list of all, itself first."""
    known = {process.pid: process for process in processes}
    found: list[Process] = []
    while pid in known and known[pid] not in found:
        found.append(known[pid])
        pid = known[pid].parent
    return found


def derive_executor_id(ancestors: Iterable[Process]) -> str | None:
    """Return the id of the Spark executor that a process belongs to, from those above it.

    It stands on the command line of the executor's JVM; in local mode the JVM is the driver's, and so is the id.
    None where there is no JVM.
    """
    for process in ancestors:
        if process.command and process.command[0].rpartition("/")[2] == "java":
            return process.option("--executor-id") or "driver"
    return None


def find_python_workers(pid: int) -> list[Process]:
    """Return the Python workers below a Spark JVM: the forks of its daemon, or single ones without one."""
    below = [process for process in descendants(pid) if _runs(process, ("pyspark.", "penstock.spark."))]
    daemons = {
        process.pid
        for process in below
        if process.parent == pid and _runs(process, ("pyspark.daemon", "penstock.spark.daemon"))
    }
    return [process for process in below if process.pid not in daemons]


def read_processes() -> list[Process]:
    """Read all running processes that this user may see."""
    return _read_proc() if sys.platform == "linux" else _read_ps()


def signal_group(group: int, number: signal.Signals) -> None:
    """Signal a process group that the caller has started; one that is gone is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _runs(process: Process, modules: tuple[str, ...]) -> bool:
    return (process.option("-m") or "").startswith(modules)


def _read_proc() -> list[Process]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # A process may end between the listing and the reading.
            with contextlib.suppress(OSError, IndexError, ValueError):
                status = (entry / "stat").read_text(errors="replace")
                # The name stands in parentheses and may hold any character, so count from its end.
                parent = int(status.rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                found.append(Process(int(entry.name), parent, tuple(command[:-1])))
    return found


def _read_ps() -> list[Process]:
    command = ["ps", "-axww", "-o", "pid=,ppid=,command="]
    listing = subprocess.run(command, check=True, capture_output=True, text=True, errors="replace")
    rows = (line.split() for line in listing.stdout.splitlines())
    return [Process(int(row[0]), int(row[1]), tuple(row[2:])) for row in rows if len(row) >= 2]
