"""Hosts that fall silent, on a cluster of three in a process of its own: what its stories told."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.faults import links

WORKERS = 3
APP = Path(__file__).parent / "silent_app.py"


class SilentHosts:
    """The process with driver and cluster; a context manager.

    Args:
        by_link: cut links where namespaces can be had; otherwise all processes of a node are stopped.
    """

    def __init__(self, folder: Path, by_link: bool, workers: int = WORKERS) -> None:
        self._folder, self._by_link, self._workers = folder, by_link, workers
        self._process: subprocess.Popen[str] | None = None
        self._log = folder / "log"
        self._told = 0
        self._open = ExitStack()
        self.said = ""
        """Which of the two ways it is."""

    def __enter__(self) -> Self:
        name = self._open.enter_context(links.namespaces(self._workers)) if self._by_link else None
        self.said = links.StoppedProcesses.said if name is None else links.CutLinks.said
        given = json.dumps({"name": name, "workers": self._workers})
        before = links.inside(name) if name is not None else []
        self._process = subprocess.Popen(
            [*before, sys.executable, str(APP), given],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log.open("w"), text=True,
            start_new_session=True,
        )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
        finally:
            self._open.close()

    def tell(self, cuts: Sequence[float], seed: int) -> dict[str, Any]:
        """Run a query through these cuts, each so many seconds long; return its rows, its cuts and what is wrong."""
        assert (
            self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        )
        self._told += 1
        story = {"folder": str(self._folder / f"story-{self._told}"), "cuts": list(cuts), "seed": seed}
        try:
            self._process.stdin.write(json.dumps(story) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._ended()
        for line in self._process.stdout:
            if line.startswith("TOLD "):
                found: dict[str, Any] = json.loads(line.removeprefix("TOLD "))
                return found
        return self._ended()

    def _ended(self) -> dict[str, Any]:
        return {"rows": 0, "cuts": [], "wrong": [f"its process has ended: {self.log()[-2000:]}"]}

    def log(self) -> str:
        """Return what the process has said on its standard error."""
        return self._log.read_text(errors="replace")
