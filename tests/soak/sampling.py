"""One sample of a running query: processes from ``/proc``, directories, Spark's lists, epochs. Changes nothing but
that it asks the JVM to collect once a minute, so that its heap shows what is in use and not what was not swept yet."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.processes import Process, descendants

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.query import Query

COLLECT_EVERY_S = 60.0
_SPARK_LISTS = {
    "jobs": "org.apache.spark.status.JobDataWrapper",
    "stages": "org.apache.spark.status.StageDataWrapper",
    "tasks": "org.apache.spark.status.TaskDataWrapper",
}


class Sampler:
    """Takes samples of one query of this process."""

    def __init__(self, spark: SparkSession, query: Query, folders: Mapping[str, Path]) -> None:
        self._spark = spark
        self._query = query
        self._folders = dict(folders)
        self._local: set[Path] = set()
        """Where Spark keeps blocks of this node, and leases their state."""
        self._began = time.monotonic()
        self._collected = self._began
        self._names: dict[int, str] = {}
        self._epochs: dict[str, tuple[int, float]] = {}

    def take(self) -> dict[str, Any]:
        """Return one sample: when, and the number of each series."""
        at_s = time.monotonic() - self._began
        progress = self._query.lastProgress or {}
        values = {**self._processes(), **self._directories(), **self._spark_lists(), **self._times(progress)}
        sources = progress.get("inputs", {})
        facts = {
            "rows": {name: one["rows"] for name, one in sources.items()},
            "behind": {name: one["behindRows"] for name, one in sources.items()},
            "waitingBytes": progress.get("waitingBytes"),
            "leases": progress.get("leases"),
        }
        return {"at_s": round(at_s, 3), "wall": round(time.time(), 3), "values": values, "facts": facts}

    def _processes(self) -> dict[str, float]:
        found: dict[str, float] = {}
        totals: dict[str, float] = {"resident bytes: all": 0, "open files: all": 0, "threads: all": 0}
        count = 0
        for pid, name in self._named():
            with contextlib.suppress(OSError, KeyError, ValueError):  # it may end meanwhile
                resident, threads = read_status(pid)
                files = len(os.listdir(f"/proc/{pid}/fd"))
                numbers = {"resident bytes": resident, "open files": files, "threads": threads}
                count += 1
                for kind, number in numbers.items():
                    totals[f"{kind}: all"] += number
                    if name:
                        found[f"{kind}: {name}"] = number
        return {**found, **totals, "processes: all": count}

    def _named(self) -> Iterator[tuple[int, str]]:
        """Yield the process of the driver and all below it, with names; none for Spark's passing workers."""
        leases = self._query._ask(_tasks_by_pid) or {}
        yield os.getpid(), "driver"
        below = descendants(os.getpid())
        daemons = {one.pid for one in below if _is_daemon(one, below)}
        for process in below:
            if process.pid in leases:
                self._names.setdefault(process.pid, f"lease {leases[process.pid]} ({process.pid})")
            elif process.command and os.path.basename(process.command[0]) == "java":
                self._names.setdefault(process.pid, "jvm")
            elif process.pid in daemons:
                self._names.setdefault(process.pid, "daemon")
                self._local |= local_directories(process.pid)
            yield process.pid, self._names.get(process.pid, "")

    def _directories(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for number, folder in enumerate(sorted(self._local)):
            self._folders.setdefault(f"node's local directory {number}", folder)
        for name, folder in self._folders.items():
            files, size = measure(folder)
            found[f"disk files: {name}"] = files
            found[f"disk bytes: {name}"] = size
        return found

    def _spark_lists(self) -> dict[str, float]:
        jvm, java = self._spark._jvm, self._spark.sparkContext._jsc
        store = java.sc().statusStore().store()
        found: dict[str, float] = {
            f"spark list: {name}": store.count(jvm.java.lang.Class.forName(class_))
            for name, class_ in _SPARK_LISTS.items()
        }
        found["spark list: active jobs"] = len(self._spark.sparkContext.statusTracker().getActiveJobsIds())
        found["spark list: sql executions"] = (
            self._spark._jsparkSession.sharedState().statusStore().executionsCount()
        )
        if time.monotonic() - self._collected >= COLLECT_EVERY_S:
            self._collected = time.monotonic()
            jvm.java.lang.System.gc()
            runtime = jvm.java.lang.Runtime.getRuntime()
            found["heap bytes: jvm, after a collection"] = runtime.totalMemory() - runtime.freeMemory()
        return found

    def _times(self, progress: Mapping[str, Any]) -> dict[str, float]:
        """Return the mean time of the epochs since the last sample, by stage."""
        found: dict[str, float] = {}
        for part in ("inputs", "operators", "outputs"):
            for name, stage in progress.get(part, {}).items():
                epochs, seconds = stage["epochs"], stage["epochSeconds"]
                before = self._epochs.get(name, (0, 0.0))
                self._epochs[name] = (epochs, seconds)
                if epochs > before[0] > 0 and seconds > before[1]:
                    found[f"epoch ms: {name}"] = round(1e3 * (seconds - before[1]) / (epochs - before[0]), 4)
        return found


def read_status(pid: int) -> tuple[int, int]:
    """Return resident bytes and threads of a process."""
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["VmRSS"].split()[0]) * 1024, int(fields["Threads"])


def measure(folder: Path) -> tuple[int, int]:
    """Return the number of files below a folder and the bytes they take; what vanishes meanwhile is passed over."""
    files, size = 0, 0
    for above, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(above, name)).st_blocks * 512
                files += 1
    return files, size


def _tasks_by_pid(shell: Any) -> dict[int, str]:
    """Name the process of each lease by the tasks it carries. Runs on the hub's thread."""
    tasks: dict[str, list[str]] = {}
    for stage, run in shell.engine.runs.items():
        for number, slot in enumerate(run.slots.values()):
            if slot.lease is not None:
                tasks.setdefault(slot.lease, []).append(f"{stage}/{number}")
    return {pid: "+".join(tasks.get(lease, ["idle"])) for lease, pid in shell.lease_pids.items()}


def _is_daemon(process: Process, others: list[Process]) -> bool:
    java = {one.pid for one in others if one.command and os.path.basename(one.command[0]) == "java"}
    return process.parent in java and any("daemon" in word for word in process.command)


def local_directories(daemon: int) -> set[Path]:
    """Return the local directories that Spark has told the process its Python workers are forked from."""
    with contextlib.suppress(OSError):
        for setting in Path(f"/proc/{daemon}/environ").read_bytes().decode(errors="replace").split("\0"):
            if setting.startswith("SPARK_LOCAL_DIRS="):
                return {Path(one) for one in setting.partition("=")[2].split(",")}
    return set()
