"""Opens the SparkSession that leases rely on, and checks one that the user brings.

A session opened here has settings chosen for leases; one that the user brings is checked and never changed.
pyspark is imported inside the functions, so that this module loads without it and can say what to install.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import SessionError
from penstock.spark.conflicts import OLDEST_SPARK, Conflict, find_conflicts, parse_version
from penstock.spark.ctrl_c import take_over
from penstock.spark.java import java_for_launch
from penstock.spark.slots import (
    CORES_SETTING,
    Node,
    is_local,
    is_local_master,
    machine_cores,
    nodes,
    real_cores,
    slots,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "session",
    "check_session",
    "slots",
    "nodes",
    "real_cores",
    "Node",
    "PenstockWarning",
    "LEASE_POOL",
    "SPARE_SLOTS",
]

SPARE_SLOTS = 16
"""Slots that a local session has beyond its cores: leases hold theirs for good, and ingest needs some."""

LEASE_POOL = "penstock"
"""The scheduler pool for leases; in a session opened here it goes before the waiting tasks of other jobs."""

_HERE = Path(__file__).parent
_LAUNCH_PREFIXES = ("spark.driver.", "spark.jars", "spark.submit.", "spark.archives", "spark.files")
"""Settings that the JVM must know when it starts. All others follow later: on the command line every user of
the machine could read them (``spark.authenticate.secret``), and they would outlive the session."""


class PenstockWarning(UserWarning):
    """A setting works against leases but does not break them; the text names it, its effect and the fix."""


def session(
    app_name: str = "penstock",
    *,
    cores: int | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a SparkSession with what the runtime relies on; the active one, if there is one and it is alive.

    Workers run the interpreter that runs this program, whether its environment is activated or not. Without
    Java, the runtime that PyPI ships is used. On this machine Spark is told of ``SPARE_SLOTS`` more slots
    than there are cores.

    Args:
        app_name: the application's name.
        cores: cores to work with in local mode; all that this process may use unless given.
        master: a Spark master URL; this machine (embedded) unless given.
        conf: more Spark settings, which win over those chosen here.

    Raises:
        SessionError: not Linux or macOS, no PySpark, no Java, or Spark does not start.
    """
    _require_platform(sys.platform)
    _require_pyspark()
    asked = {name: _as_setting(value) for name, value in (conf or {}).items()}
    if cores is not None and cores < 1:
        raise SessionError(f"cores={cores} leaves nothing to work with; give at least 1.")
    alive = _alive_session()
    if alive is not None:
        _warn_of_ignored(alive, asked, cores, master)
        return alive
    if "SPARK_REMOTE" in os.environ:
        raise SessionError(f"SPARK_REMOTE is set, which asks for Spark Connect; unset it: {_CONNECT_REASON}.")
    chosen_master = _resolve_master(master or asked.get("spark.master"))
    settings = derive_settings(app_name, chosen_master, cores or machine_cores(), asked)
    _choose_interpreter(settings["spark.master"])
    take_over()
    return _start(settings)


def check_session(spark: SparkSession) -> None:
    """Refuse a session that cannot carry leases; warn once of the settings that work against them. Changes no setting.

    Raises:
        SessionError: Spark Connect, a stopped session, a Spark older than 4.1, a single local slot, or a
            setting that leases cannot live with (dynamic allocation, worker idle time-outs, a limit on Python
            address space).
    """
    if type(spark).__module__.startswith("pyspark") and type(spark).__name__ != "SparkSession":
        raise SessionError(
            f"start(spark) takes a SparkSession, not a {type(spark).__name__}; leave it out, or call penstock.session()."
        )
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise SessionError(f"Penstock cannot run on a Spark Connect session: {_CONNECT_REASON}.")
    if not is_alive(spark):
        raise SessionError("This SparkSession is stopped; open another, such as penstock.session().")
    if parse_version(spark.version) < OLDEST_SPARK:
        oldest = ".".join(map(str, OLDEST_SPARK))
        raise SessionError(f"Penstock needs Spark {oldest} or newer; this session runs {spark.version}.")
    if is_local(spark) and slots(spark) < 2:
        raise SessionError(
            f"master {spark.sparkContext.master} has a single slot, which one lease would hold for good, "
            "with none left for ingest; use penstock.session(), or local[n] with n of at least 4."
        )
    conflicts = find_conflicts(read_settings(spark))
    for conflict in conflicts:
        if conflict.fatal:
            raise SessionError(f"Penstock cannot run with {conflict}.")
    if conflicts:
        warnings.warn(tell_conflicts(conflicts), PenstockWarning, stacklevel=_callers_level())
    hide_progress_bar(spark)


def tell_conflicts(conflicts: Sequence[Conflict]) -> str:
    """Say in one warning what works against leases and what to set."""
    if len(conflicts) == 1:
        return str(conflicts[0])
    told = "; ".join(str(one) for one in conflicts)
    return (
        f"{len(conflicts)} settings of this SparkSession work against leases; penstock.session() opens one without them: "
        f"{told}"
    )


def hide_progress_bar(spark: SparkSession) -> None:
    """Switch off the bar that Spark draws for stages that run: a lease is one that runs as long as its query."""
    with contextlib.suppress(
        Exception
    ):  # no public way leads to it; where Spark changes that one, the bar stays
        bar = spark.sparkContext._jsc.sc().progressBar()
        if bar.isDefined():
            bar.get().finishAll()
            bar.get().stop()


def _callers_level() -> int:
    """Return the level at which a warning from the calling function names a line of the user's program."""
    package, level, frame = f"{_HERE.parent}{os.sep}", 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        level, frame = level + 1, frame.f_back
    return level


def is_alive(spark: SparkSession) -> bool:
    """Return whether the session's SparkContext still runs."""
    java_context = spark.sparkContext._jsc
    if java_context is None:
        return False
    try:
        return not java_context.sc().isStopped()
    except Exception:  # the JVM itself is gone; py4j has several errors for that
        return False


def read_settings(spark: SparkSession) -> dict[str, str]:
    """Read the application-wide settings as they are in force."""
    settings = dict(spark.sparkContext.getConf().getAll())
    if os.environ.get("PYSPARK_UDS_MODE") == "true":
        settings.setdefault("spark.python.unix.domain.socket.enabled", "true")
    return settings


def derive_settings(
    app_name: str, master: str | None, cores: int, asked: Mapping[str, str]
) -> dict[str, str]:
    """Derive all settings of a new session: what leases need, what this machine needs, what the user asked.

    Args:
        app_name: the application's name.
        master: a master URL, or None for this machine.
        cores: real cores to work with in local mode.
        asked: the user's settings; they win, but for JVM options, which are added.
    """
    embedded = master is None
    chosen = {
        "spark.app.name": app_name,
        "spark.master": f"local[{cores + SPARE_SLOTS}]" if master is None else master,
        "spark.api.mode": "classic",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.daemon.module": "penstock.spark.daemon",
        "spark.task.maxFailures": "1",
        "spark.speculation": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": (_HERE / "fairscheduler.xml").as_uri(),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if embedded or is_local_master(str(master)):
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if embedded:
        chosen |= {
            CORES_SETTING: str(cores),
            "spark.default.parallelism": str(cores),
            "spark.sql.shuffle.partitions": str(cores),
        }
    chosen |= asked
    logging = f"-Dlog4j2.configurationFile={(_HERE / 'log4j2.properties').as_uri()}"
    options = asked.get("spark.driver.extraJavaOptions", "")
    if "log4j" not in options:
        chosen["spark.driver.extraJavaOptions"] = f"{options} {logging}".strip()
    return chosen


def launch_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that must stand on the command line of the JVM; never a secret."""
    return {
        name: value
        for name, value in settings.items()
        if name.startswith(_LAUNCH_PREFIXES) and "secret" not in name and "password" not in name
    }


_CONNECT_REASON = (
    "leases connect back to the driver and are placed through its SparkContext, which Connect keeps on a "
    "server; use a classic session, for instance penstock.session()"
)


def _start(settings: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        with java_for_launch():
            launch = SparkConf(loadDefaults=False).setAll(list(launch_settings(settings).items()))
            SparkContext._ensure_initialized(conf=launch)
    except PySparkRuntimeError as error:
        raise SessionError(f"Spark's JVM did not start; its own message stands above ({error}).") from error
    builder: Any = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    take_over()  # from the handler that Spark has just set
    return spark


def _alive_session() -> SparkSession | None:
    from pyspark.sql import SparkSession

    for found in (SparkSession.getActiveSession(), SparkSession._instantiatedSession):
        if found is not None and is_alive(found):
            return found
    return None


def _warn_of_ignored(
    spark: SparkSession, asked: Mapping[str, str], cores: int | None, master: str | None
) -> None:
    in_force = read_settings(spark)
    differing = [f"{name}={value}" for name, value in asked.items() if in_force.get(name) != value]
    if cores is not None and cores != real_cores(spark):
        differing.append(f"cores={cores}")
    if master is not None and master != spark.sparkContext.master:
        differing.append(f"master={master}")
    if differing:
        warnings.warn(
            f"the SparkSession that is already open is used as it is, without {', '.join(differing)}; "
            "stop it first to have them.",
            PenstockWarning,
            stacklevel=3,
        )


def _resolve_master(asked: str | None) -> str | None:
    """Return the master to use; under spark-submit the submitter's, unless it is Spark's default, local."""
    if asked is not None or "PYSPARK_GATEWAY_PORT" not in os.environ:
        return asked
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    submitted = SparkConf().get("spark.master")
    return None if submitted in (None, "local[*]") else submitted


def _choose_interpreter(master: str) -> None:
    """Have workers run this interpreter; on a cluster, a path that the user has set for its nodes stays."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if is_local_master(master) or not os.environ.get(name):
            os.environ[name] = sys.executable


def _require_platform(platform: str) -> None:
    if platform not in ("linux", "darwin"):
        raise SessionError(
            f"Penstock runs on Linux and macOS, not on {platform}: it needs unix-domain sockets and fork; "
            "on Windows use WSL."
        )


def _require_pyspark() -> None:
    try:
        import pyspark
    except ImportError as error:
        raise SessionError("PySpark is not installed; run: pip install 'penstock[spark]'") from error
    if parse_version(pyspark.__version__) < OLDEST_SPARK:
        oldest = ".".join(map(str, OLDEST_SPARK))
        raise SessionError(
            f"Penstock needs PySpark {oldest} or newer, not {pyspark.__version__}; "
            "run: pip install 'penstock[spark]'"
        )


def _as_setting(value: object) -> str:
    """Write a setting as Spark reads it: Python's True is ``true``."""
    return str(value).lower() if isinstance(value, bool) else str(value)
