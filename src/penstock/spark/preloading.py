"""Everything that a lease imports sooner or later, imported early: in the process that leases are forked from, or else
before a lease says that it is up. A module that is imported inside an epoch holds up all rows of that epoch.

Opens nothing and starts no thread: whoever calls it may fork afterwards.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys
import zipimport
from typing import Final

PACKAGES: Final = ("penstock.dataplane.logic", "penstock.dataplane.state")
"""Of these all modules."""
MODULES: Final = ("penstock", "lmdb", "xxhash", "google_crc32c", "numpy.ma", "pyarrow.compute")
OPTIONAL: Final = (
    "pandas",
    "pyarrow.pandas_compat",
    "pyarrow.vendored.version",
    "concurrent.futures.thread",
    "lmdb._envid",
)
"""Arrow looks for pandas the first time it is handed an array of numpy's."""
SPARK: Final = ("pyspark.worker", "pyspark.taskcontext")
"""What Spark's own part of a worker imports, from an archive without compiled code."""


def preload() -> None:
    """Import all of it; what is imported already costs nothing."""
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__, f"{name}."):
            importlib.import_module(module.name)
    for name in (*MODULES, *SPARK):
        importlib.import_module(name)
    for name in OPTIONAL:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def forget_archives() -> None:
    """Let go of what is remembered of archives on the path.

    Spark tells every worker to look again at all that is on the path: it reads the list of its own archive once for each
    package imported from there, a quarter of a second in which the worker takes a core from those at work. What is not
    remembered is not read again, and found anew where it is needed.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]
