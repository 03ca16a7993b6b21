"""Whether the Python that runs workers on this machine is fit to: the driver's release of Python, with Penstock in it.

Asked of a session that the user brings, at start, before a lease would fail with pages of Java. On a cluster the nodes
have interpreters of their own, and what is wrong with them is told by `versions` when a lease fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

from penstock.errors import SessionError
from penstock.spark.slots import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ASK = "import sys; print('%d.%d' % sys.version_info[:2]); import penstock; print(penstock.__version__)"
_PATIENCE_S = 30.0


def check_interpreter(spark: SparkSession) -> None:
    """Refuse a local session whose workers would run a Python that cannot run Penstock.

    Raises:
        SessionError: names both interpreters and what to set.
    """
    if not is_local(spark):
        return
    given = str(getattr(spark.sparkContext, "pythonExec", "") or sys.executable)
    path = shutil.which(given)
    if path is not None and _is_ours(path):
        return
    wrong = f"there is no {given} on the PATH" if path is None else ask_interpreter(path)
    if wrong is not None:
        raise SessionError(
            f"the workers of this session would run {given}, but {wrong}; this program runs {sys.executable}. Set "
            "os.environ['PYSPARK_PYTHON'] = sys.executable before the SparkSession is made, activate the environment, or "
            "use penstock.session()."
        )


def _is_ours(path: str) -> bool:
    """Whether it is the very interpreter of this process; links into environments are not followed, for it is the path
    that chooses the environment."""
    return os.path.abspath(path) == os.path.abspath(sys.executable)


@lru_cache(maxsize=16)
def ask_interpreter(path: str) -> str | None:
    """Return what is wrong with an interpreter, None where it can run workers."""
    try:
        done = subprocess.run(
            [path, "-c", _ASK], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not run ({type(error).__name__})"
    release, *_ = [*done.stdout.split(), ""]
    ours = "{}.{}".format(*sys.version_info[:2])
    if release and release != ours:
        return f"that is Python {release} and this program runs {ours}"
    if done.returncode:
        told = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        return f"that cannot import penstock ({told})"
    return None
