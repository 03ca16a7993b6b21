"""Which settings of a SparkSession cannot carry leases, and which only make them worse.

Pure decisions over the session's settings: nothing here talks to Spark or changes a setting.
``session.check_session`` reads the settings, asks here, and raises or warns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

OLDEST_SPARK = (4, 1)

SHORTEST_LOCALITY_WAIT_S = 1.0
"""A lease that ends gives its slot back within a tenth of a second; one whose job is cancelled after some seconds."""

_TIME_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Conflict:
    """One setting that stands against leases: its name and value, what it would do, and the fix.

    ``fatal`` conflicts are refused; the others are reported as warnings and left as they are.
    """

    setting: str
    value: str
    effect: str
    fix: str
    fatal: bool

    def __str__(self) -> str:
        return f"{self.setting}={self.value}: {self.effect}; {self.fix}"


def find_conflicts(settings: Mapping[str, str]) -> list[Conflict]:
    """Return every conflict in an application's settings, the fatal ones first.

    Args:
        settings: the application's settings as Spark states them; what is absent has Spark's default.
    """
    found = [conflict for conflict in (rule(settings) for rule in _RULES) if conflict is not None]
    return sorted(found, key=lambda conflict: not conflict.fatal)


def parse_version(version: str) -> tuple[int, int]:
    """Return (major, minor) of a Spark version such as ``4.3.0`` or ``4.2.0.dev1``."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)


def effective_max_failures(settings: Mapping[str, str]) -> int:
    """Return how often Spark tries a task; in local mode the master URL says it, not the setting."""
    local = re.fullmatch(r"local(?:\[\s*[\d*]+\s*(?:,\s*(\d+)\s*)?\])?", settings.get("spark.master", ""))
    if local is not None:
        return int(local.group(1) or 1)
    return int(settings.get("spark.task.maxFailures", "4"))


def _dynamic_allocation(settings: Mapping[str, str]) -> Conflict | None:
    if not _is_true(settings, "spark.dynamicAllocation.enabled"):
        return None
    return Conflict(
        "spark.dynamicAllocation.enabled", "true",
        "Spark would add nodes for leases that wait on purpose and take nodes away by its own clock, "
        "against the plan",
        "set it to false and let Penstock ask for nodes", fatal=True,
    )  # fmt: skip


def _idle_timeout(settings: Mapping[str, str]) -> Conflict | None:
    name = "spark.python.worker.idleTimeoutSeconds"
    value = settings.get(name, "0")
    if _seconds(value) <= 0:
        return None
    return Conflict(
        name, value,
        "a lease tells Spark nothing while it serves epochs, so Spark would take its worker for hung "
        "(and end it under spark.python.worker.killOnIdleTimeout)",
        "unset it", fatal=True,
    )  # fmt: skip


def _address_space(settings: Mapping[str, str]) -> Conflict | None:
    name = "spark.executor.pyspark.memory"
    if name not in settings:
        return None
    return Conflict(
        name, settings[name],
        "it limits the address space of Python workers, and state is mapped into that, resident or not",
        "unset it (limit the container instead)", fatal=True,
    )  # fmt: skip


def _max_failures(settings: Mapping[str, str]) -> Conflict | None:
    tries = effective_max_failures(settings)
    if tries == 1:
        return None
    return Conflict(
        "spark.task.maxFailures", str(tries),
        "Spark starts a lost lease's task again, which ends at once but delays the news of the loss",
        "set it to 1", fatal=False,
    )  # fmt: skip


def _speculation(settings: Mapping[str, str]) -> Conflict | None:
    if not _is_true(settings, "spark.speculation"):
        return None
    return Conflict(
        "spark.speculation", "true",
        "Spark may start second copies of long tasks, which every lease is; a copy takes a slot",
        "set it to false", fatal=False,
    )  # fmt: skip


def _unix_sockets(settings: Mapping[str, str]) -> Conflict | None:
    name = "spark.python.unix.domain.socket.enabled"
    if _is_true(settings, name):
        return None
    return Conflict(
        name, settings.get(name, "false"),
        "starting a Python task takes about 50 ms instead of 10, for leases, ingest and your own jobs",
        "set it to true", fatal=False,
    )  # fmt: skip


def _scheduler_mode(settings: Mapping[str, str]) -> Conflict | None:
    mode = settings.get("spark.scheduler.mode", "FIFO").upper()
    if mode == "FAIR":
        return None
    return Conflict(
        "spark.scheduler.mode", mode,
        "a new lease waits until every task of earlier jobs has been started",
        "set it to FAIR", fatal=False,
    )  # fmt: skip


def _exclusion(settings: Mapping[str, str]) -> Conflict | None:
    names = ("spark.excludeOnFailure.enabled", "spark.excludeOnFailure.application.enabled")
    name = next((name for name in names if _is_true(settings, name)), None)
    if name is None:
        return None
    return Conflict(
        name, "true",
        "lost leases count as failures of their node, and Spark may stop placing leases there",
        "set it to false", fatal=False,
    )  # fmt: skip


def _locality_wait(settings: Mapping[str, str]) -> Conflict | None:
    name = "spark.locality.wait.process"
    name = name if name in settings else "spark.locality.wait"
    value = settings.get(name, "3s")
    if settings.get("spark.master", "").startswith("local[") or _seconds(value) >= SHORTEST_LOCALITY_WAIT_S:
        return None
    return Conflict(
        name, value,
        "a lease whose node has no slot free at that moment starts on another one, and its state has to follow",
        f"leave it at 3s, or set it to {SHORTEST_LOCALITY_WAIT_S:g}s at least", fatal=False,
    )  # fmt: skip


_RULES = (
    _dynamic_allocation,
    _idle_timeout,
    _address_space,
    _max_failures,
    _speculation,
    _unix_sockets,
    _scheduler_mode,
    _exclusion,
    _locality_wait,
)


def _is_true(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "false").strip().lower() == "true"


def _seconds(value: str) -> float:
    """Return a Spark duration (``30``, ``30s``, ``5min``) in seconds; what cannot be read counts as set."""
    match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*([a-z]*)\s*", value.lower())
    if match is None or (match.group(2) or "s") not in _TIME_UNITS_S:
        return 1.0
    return float(match.group(1)) * _TIME_UNITS_S[match.group(2) or "s"]
