"""What the machine and its processes are and use: versions, cores, memory, CPU seconds, resident memory.

Reads `/proc` and package metadata only; starts nothing but `java -version`, and imports no engine.
Process readings need Linux: elsewhere they raise `FileNotFoundError`.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

PACKAGES: Final = ("penstock", "pyspark", "pyarrow", "lmdb", "numpy")
PROC: Final = Path("/proc")


@dataclass(frozen=True)
class Process:
    """One process as `/proc/PID/stat` shows it; `cpu_s` includes children it has already waited for."""

    pid: int
    parent: int
    name: str
    cpu_s: float


@dataclass(frozen=True)
class CpuUse:
    """CPU of a set of process trees over a time: `cores` of 1.0 is one core kept busy."""

    seconds: float
    cpu_s: float

    @property
    def cores(self) -> float:
        return self.cpu_s / self.seconds if self.seconds > 0 else 0.0


def versions(java: str | None = None) -> dict[str, str]:
    """Name the versions that a figure depends on; `java` is asked of the program on the path if not given."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    found["java"] = java or _java_version()
    return found


def describe() -> dict[str, str | int | float]:
    """Describe the machine in the words a reader of a result needs."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "cores": usable_cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
    }


def usable_cores() -> int:
    """Count the cores this process may run on, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def hold_to_cores(count: int) -> int:
    """Hold this process and all it starts from now on to so many cores; return how many it may use.

    Call it before anything is started: both sides of a comparison are then held alike, whatever they start.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    return usable_cores()


def tree(roots: Iterable[int], proc: Path = PROC, apart_from: Iterable[int] = ()) -> list[Process]:
    """List the living processes among `roots` and everything below them, each once.

    Args:
        apart_from: roots of trees that are left out, such as a peer's that this process has started.
    """
    alive = {process.pid: process for process in _processes(proc)}
    below: dict[int, list[int]] = {}
    for process in alive.values():
        below.setdefault(process.parent, []).append(process.pid)
    found: dict[int, Process] = {}
    left_out = set(apart_from)
    waiting = [pid for pid in roots if pid in alive]
    while waiting:
        pid = waiting.pop()
        if pid not in found and pid not in left_out:
            found[pid] = alive[pid]
            waiting.extend(below.get(pid, ()))
    return list(found.values())


def cpu_seconds(roots: Iterable[int], proc: Path = PROC, apart_from: Iterable[int] = ()) -> float:
    """Add up the CPU time of whole process trees, of children that ended and were waited for as well."""
    return sum(process.cpu_s for process in tree(roots, proc, apart_from))


class CpuMeter:
    """CPU of process trees since the meter was made."""

    def __init__(
        self,
        roots: Sequence[int] = (),
        clock: Callable[[], float] = time.monotonic,
        apart_from: Sequence[int] = (),
    ) -> None:
        self._roots = tuple(roots) or (os.getpid(),)
        self._apart_from = tuple(apart_from)
        self._clock = clock
        self._start_s = clock()
        self._start_cpu_s = self._cpu_s()

    def read(self) -> CpuUse:
        return CpuUse(self._clock() - self._start_s, max(0.0, self._cpu_s() - self._start_cpu_s))

    def _cpu_s(self) -> float:
        return cpu_seconds(self._roots, apart_from=self._apart_from)


def python_resident_bytes(roots: Iterable[int], proc: Path = PROC, apart_from: Iterable[int] = ()) -> int:
    """Add up the anonymous resident memory of the Python processes in these trees.

    File mappings are left out: mapped state and mapped segments belong to the page cache and can be dropped.
    Pages that forked workers share with their parent count once for each of them, so this never flatters.
    """
    pythons = [process.pid for process in tree(roots, proc, apart_from) if _runs_python(process, proc)]
    return sum(anonymous_bytes(pid, proc) for pid in pythons)


def anonymous_bytes(pid: int, proc: Path = PROC) -> int:
    """Return a process's `RssAnon`; 0 if it has ended meanwhile."""
    try:
        status = (proc / str(pid) / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    match = re.search(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)
    return int(match.group(1)) * 1024 if match else 0


def _runs_python(process: Process, proc: Path) -> bool:
    # A console script's process is named after the script, so the program behind it decides.
    try:
        program = os.readlink(proc / str(process.pid) / "exe")
    except OSError:
        program = process.name
    return Path(program).name.startswith("python")


def _processes(proc: Path) -> list[Process]:
    found = []
    for entry in os.listdir(proc):
        if entry.isdigit():
            try:
                stat = (proc / entry / "stat").read_text(errors="replace")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it ended between the listing and the reading
            found.append(parse_stat(stat))
    return found


def parse_stat(stat: str) -> Process:
    """Parse a line of `/proc/PID/stat`; the name stands in brackets and may hold brackets and spaces."""
    head, _, tail = stat.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = tail.split()
    ticks = sum(int(field) for field in fields[11:15])  # utime, stime, cutime, cstime
    return Process(int(pid), int(fields[1]), name, ticks / os.sysconf("SC_CLK_TCK"))


def _java_version() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not java:
        return "not installed"
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    match = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    return match.group(1) if match else "unknown"
