"""What a node uses of what it was given: CPU, memory and I/O of the Spark executor and every process below it, and what one
lease, which is one of these processes, uses of the same.

Runs on the node, in a lease. Reads ``/proc`` and nothing else; about a millisecond. On systems without ``/proc``
there is no reading.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

IO_BUDGET = "PENSTOCK_NODE_IO_BYTES_PER_S"
"""Environment variable of a node: what its disks are good for. Nobody tells a process, so it has to be said."""
DEFAULT_IO_BYTES_PER_S = 200e6
LIST_EVERY_S = 10.0
"""How often the children of the JVM are looked for; it has a hundred threads, and each may have some."""
_OVERHEAD_RATIO, _OVERHEAD_BYTES = 0.1, 384 << 20
"""What Spark adds to an executor's heap when it asks a manager for a container (``spark.executor.memoryOverhead``)."""
_EXECUTOR = "org.apache.spark.executor."
_JAVA = re.compile(r"(^|/)java$")
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True)
class NodeGrant:
    """What a node was given."""

    cores: float
    memory_bytes: float
    io_bytes_per_s: float


@dataclass(frozen=True)
class NodeLoad:
    """What a node used since the reading before, as shares of what it was given; memory as it is now."""

    cpu_ratio: float
    memory_ratio: float
    """Private memory. Pages that forked workers still share count once for each; mapped files do not count."""
    io_ratio: float
    """Bytes from and to storage, of what the budget allows."""


@dataclass(frozen=True)
class Usage:
    """Running totals of a tree of processes, and its memory now."""

    at_s: float
    cpu_s: float
    memory_bytes: int
    io_bytes: int


def derive_load(before: Usage, now: Usage, grant: NodeGrant) -> NodeLoad:
    """Return the load between two readings. Totals that fall, because a process was lost uncounted, count as idle."""
    past_s = max(now.at_s - before.at_s, 1e-6)
    return NodeLoad(
        max(0.0, now.cpu_s - before.cpu_s) / past_s / grant.cores,
        now.memory_bytes / grant.memory_bytes,
        max(0, now.io_bytes - before.io_bytes) / past_s / grant.io_bytes_per_s,
    )


class NodeMeter:
    """Reads the load of the node that this process belongs to. Used by one thread.

    Args:
        root: process at the top of the node; by default the JVM above this process.
        grant: what the node was given; by default what its command line, its control group and its environment say.
    """

    def __init__(
        self,
        root: int | None = None,
        grant: NodeGrant | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._root = root
        self._grant = grant
        self._listed_at = float("-inf")
        self._below_root: list[int] | None = None
        self._unseen_cpu_s, self._unseen_bytes = 0.0, 0
        """What processes had used when they were found, of which nobody knows when."""
        self._before: Usage | None = None
        self._own_before: Usage | None = None

    def read(self) -> NodeLoad | None:
        """Return the load since the call before; None at the first call, and where there is no ``/proc``.

        Never raises: a reading that fails is no reason to lose a lease.
        """
        before, self._before = self._before, _try_read(self._read_usage)
        return self._derive(before, self._before)

    def read_own(self) -> NodeLoad | None:
        """Return what this process and those below it used of the node's grant since the call before; None as `read`."""
        before, self._own_before = self._own_before, _try_read(self._read_own_usage)
        return self._derive(before, self._own_before)

    def _derive(self, before: Usage | None, now: Usage | None) -> NodeLoad | None:
        if before is None or now is None or self._grant is None:
            return None
        return derive_load(before, now, self._grant)

    def _read_own_usage(self) -> Usage:
        self._find_grant()
        return read_usage(list(_tree([os.getpid()])), self._clock())

    def _find_grant(self) -> int:
        """Find out once which process is the node, and what it was given."""
        if self._root is None:
            self._root = find_node_process(os.getpid())
        if self._grant is None:
            self._grant = read_grant(self._root)
        return self._root

    def _read_usage(self) -> Usage:
        root, now = self._find_grant(), self._clock()
        if now - self._listed_at >= LIST_EVERY_S:
            self._listed_at = now
            self._list(root)
        found = read_usage([root, *_tree(self._below_root or [])], now)
        return replace(
            found, cpu_s=found.cpu_s - self._unseen_cpu_s, io_bytes=found.io_bytes - self._unseen_bytes
        )

    def _list(self, root: int) -> None:
        """Look for children of the node's process. What a new one has used by now is no load of the time since the last
        reading: it may have been there for all of the time between two listings."""
        known, self._below_root = self._below_root, list(_children(root))
        if known is not None:
            found = read_usage(list(_tree([pid for pid in self._below_root if pid not in known])), 0.0)
            self._unseen_cpu_s += found.cpu_s
            self._unseen_bytes += found.io_bytes


def _try_read(read: Callable[[], Usage]) -> Usage | None:
    if sys.platform != "linux":
        return None
    try:
        return read()
    except (OSError, ValueError, IndexError):
        return None


def read_usage(pids: list[int], at_s: float) -> Usage:
    """Add up what processes have used, and what their children that ended had; those that are gone count nothing."""
    ticks, pages, moved = 0, 0, 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name stands in parentheses and may hold any character, so count from its end.
            fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # user, system, and both of children that were waited for
            resident, shared = _read(f"/proc/{pid}/statm").split()[1:3]
            pages += int(resident) - int(shared)
            moved += _storage_bytes(_read(f"/proc/{pid}/io"))
    return Usage(at_s, ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"), moved)


def find_node_process(pid: int) -> int:
    """Return the JVM above a process; the topmost ancestor that is no init, where there is none."""
    highest = pid
    while pid > 1:
        highest = pid
        if _JAVA.search(os.fsdecode(_read(f"/proc/{pid}/cmdline").partition(b"\0")[0])):
            return pid
        pid = int(_read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])
    return highest


def read_grant(root: int, environ: Mapping[str, str] | None = None) -> NodeGrant:
    """Read what a node was given.

    Cores and heap stand on an executor's command line; its memory is what Spark would ask a container manager for,
    or the limit of its control group where that is lower. In local mode it has what the machine has.
    """
    env = os.environ if environ is None else environ
    words = os.fsdecode(_read(f"/proc/{root}/cmdline")).split("\0")
    limit = min(_machine_bytes(), _group_bytes(root))
    cores, memory = float(len(os.sched_getaffinity(root))), limit
    if any(word.startswith(_EXECUTOR) for word in words):
        options = dict(pairwise(words))
        cores = float(options.get("--cores", cores))
        heap = next((parse_size(word[4:]) for word in reversed(words) if word.startswith("-Xmx")), limit)
        memory = min(limit, heap + max(_OVERHEAD_RATIO * heap, _OVERHEAD_BYTES))
    try:
        budget = float(env.get(IO_BUDGET, DEFAULT_IO_BYTES_PER_S))
    except ValueError:
        budget = DEFAULT_IO_BYTES_PER_S
    return NodeGrant(max(cores, 1.0), memory, budget if budget > 0 else DEFAULT_IO_BYTES_PER_S)


def parse_size(text: str) -> float:
    """Return the bytes of a JVM's size, such as ``1024M``."""
    found = re.fullmatch(r"(\d+)([kmgt]?)", text.lower())
    if found is None:
        raise ValueError(f"{text} is no size")
    return float(int(found.group(1)) * _SIZES[found.group(2)])


def _tree(pids: list[int]) -> Iterator[int]:
    """Yield processes and all below them, parents first."""
    pending = list(pids)
    while pending:
        pid = pending.pop()
        yield pid
        with contextlib.suppress(OSError):
            pending += _children(pid)


def _children(pid: int) -> Iterator[int]:
    """Yield the children of a process; the kernel lists them by the thread that made them."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            yield from map(int, _read(f"/proc/{pid}/task/{thread}/children").split())


def _storage_bytes(text: bytes) -> int:
    counted = dict(line.split(b": ") for line in text.splitlines())
    moved = int(counted[b"read_bytes"]) + int(counted[b"write_bytes"])
    return moved - int(counted[b"cancelled_write_bytes"])


def _machine_bytes() -> float:
    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _group_bytes(pid: int) -> float:
    """Return the least memory limit of a process's control groups (version 2); infinite where there is none."""
    least = float("inf")
    with contextlib.suppress(OSError, ValueError):
        lines = os.fsdecode(_read(f"/proc/{pid}/cgroup")).splitlines()
        group = next((line[3:] for line in lines if line.startswith("0::")), None)
        mount = Path("/sys/fs/cgroup")
        below = [] if group is None else [mount / group.strip("/"), *(mount / group.strip("/")).parents]
        for directory in below:
            with contextlib.suppress(OSError, ValueError):
                least = min(least, float((directory / "memory.max").read_text()))
    return least


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(descriptor, 65536):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)
