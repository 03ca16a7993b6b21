"""Watches that no Python worker of a local cluster touches the directories of another node.

On one machine they could, and a program that does would fail on real machines. An audit hook in each worker notes and
refuses it (`audit/sitecustomize.py`); what workers have open or mapped is read from ``/proc``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

LOG = "violations"
"""File in the cluster's directory that trespasses are noted in."""
_HOOK = Path(__file__).parent / "audit"


def watch_settings(
    root: Path, log: Path | None = None, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the settings of a session whose Python workers are watched.

    Args:
        root: the cluster's directory.
        log: where trespasses are noted; by default `LOG` in it.
        environ: whose PYTHONPATH the workers keep.
    """
    given = (os.environ if environ is None else environ).get("PYTHONPATH", "")
    parts = [str(_HOOK), *given.split(os.pathsep)]
    return {
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(os.path.abspath(part) for part in parts if part),
        "spark.executorEnv.PENSTOCK_TEST_NODES": str(root),
        "spark.executorEnv.PENSTOCK_TEST_NODES_LOG": str(log or root / LOG),
    }


def read_trespasses(root: Path, worker_pids: Iterable[int]) -> list[str]:
    """Return what Python workers touched of other nodes: what the hook noted, and what they have open and mapped."""
    log = root / LOG
    noted = log.read_text().splitlines() if log.exists() else []
    return noted + [f"open: {line}" for line in _foreign_files(os.path.realpath(root), worker_pids)]


def _foreign_files(root: str, worker_pids: Iterable[int]) -> Iterator[str]:
    for pid in worker_pids:
        try:
            own = os.readlink(f"/proc/{pid}/cwd")
            opened = list(_opened(pid))
            mapped = Path(f"/proc/{pid}/maps").read_text()
        except OSError:
            continue  # it has ended meanwhile
        paths = opened + [line.split(maxsplit=5)[-1] for line in mapped.splitlines() if root in line]
        inside = own.removeprefix(root)
        worker = root + inside.partition("/work/")[0] if inside != own else own
        mine = (f"{own}/", f"{worker}/tmp/", f"{worker}/local/")
        for path in paths:
            if path.startswith(f"{root}/worker-") and not f"{path}/".startswith(mine):
                yield f"{path} by {pid} of {own}"


def _opened(pid: int) -> Iterator[str]:
    for entry in list(Path(f"/proc/{pid}/fd").iterdir()):
        with contextlib.suppress(OSError):  # it may be closed meanwhile
            yield os.readlink(entry)
