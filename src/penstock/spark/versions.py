"""Whether a node has the Penstock that the driver has; if not, a sentence that names it and the command that ships it.

Pure: takes what a lease or a failed job has said, asks nobody.
"""

from __future__ import annotations

import os
import re
import sys

from penstock.version import __version__

_WHERE = re.compile(r"\(TID \d+\) \((\S+) executor (\S+?)\)")
"""How Spark names the executor of a failed task: `Lost task 0.0 in stage 0.0 (TID 0) (10.0.0.7 executor 3)`."""

_MODULE = re.compile(r"No module named '([^']+)'")


def check_version(node: str, host: str, version: str, ours: str = __version__) -> str | None:
    """Return what is wrong with the Penstock of a node, and the fix; None where it is the driver's.

    Args:
        node: executor id.
        host: name of its machine.
        version: what its lease has said of itself.
        ours: the driver's.
    """
    if version == ours:
        return None
    return f"node {node} on {host} has Penstock {version or 'of an unknown version'}, the driver {ours}; {fix(ours)}"


def missing_on(text: str, told: str, ours: str = __version__) -> str:
    """Return a sentence about a node that cannot import Penstock, or a module that a function needs.

    Args:
        text: the whole failure of the job, in which Spark names host and executor.
        told: the line of it that says most.
    """
    found = node_in(text)
    where = f"node {found[0]} on {found[1]}" if found else "a node"
    module = _MODULE.search(told)
    if module is not None and not module.group(1).startswith("penstock"):
        name = module.group(1)
        beside = beside_program(name.partition(".")[0])
        if beside is not None:
            return (
                f"{where} cannot import '{name}', which stands beside the program, where workers do not look; ship it: "
                f"spark.sparkContext.addPyFile({beside!r}) before start(), or spark-submit --py-files {beside}"
                f"{'' if beside.endswith('.py') else ' (as a zip file of that folder)'}"
            )
        return (
            f"{where} cannot import '{name}' ({told}); install it in the Python that runs on every node, or "
            "ship it with the program, by spark-submit --archives or --py-files (docs/nodes.md)"
        )
    return f"{where} has no Penstock that its Python can import ({told}); {fix(ours)}"


def beside_program(module: str) -> str | None:
    """Return the file or folder of a module of the user's own, which is installed nowhere; None where it is no such."""
    found = getattr(sys.modules.get(module), "__spec__", None)
    origin = getattr(found, "origin", None)
    if found is None or not origin or not os.path.exists(origin):
        return None
    installed = any(
        os.path.abspath(origin).startswith(path) for path in {*_sites(), sys.base_prefix, sys.prefix}
    )
    if installed:
        return None
    return os.path.dirname(str(origin)) if found.submodule_search_locations else str(origin)


def _sites() -> list[str]:
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]


def node_in(text: str) -> tuple[str, str] | None:
    """Return (executor id, host) of the task that a job's failure is about, where Spark names it."""
    found = _WHERE.search(text)
    return (found.group(2), found.group(1)) if found else None


def fix(ours: str = __version__) -> str:
    """Return what to do, as the end of a sentence."""
    return (
        f"install Penstock in the Python that runs on every node (pip install 'penstock=={ours}'), or ship it with the "
        "program: spark-submit --archives env.tar.gz#env with PYSPARK_PYTHON=./env/bin/python (docs/nodes.md)"
    )
