"""Two ways to make a node silent: its link is cut, in network namespaces of our own, or all its processes are stopped.

A namespace for the driver and the master with a bridge in it, one for each worker, and a cable between: no packet leaves
them. Needs root and iproute2; where there is neither, processes are stopped.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from penstock.spark.localcluster import LocalCluster

NETWORK = "10.213.71"
"""Inside the namespaces; nobody outside sees it."""


class Way(Protocol):
    """How the nodes of a cluster are made silent."""

    said: str

    def cut(self, worker: int) -> None:
        """Let nothing be heard of a worker and its node from now on."""

    def mend(self, worker: int) -> None:
        """Take that back."""


class StoppedProcesses:
    """Every process of a worker stands still."""

    said = "processes stopped"

    def __init__(self, on: LocalCluster) -> None:
        self._on = on

    def cut(self, worker: int) -> None:
        self._on.signal_worker(worker, signal.SIGSTOP)

    def mend(self, worker: int) -> None:
        self._on.signal_worker(worker, signal.SIGCONT)


class CutLinks:
    """The cable between a worker's namespace and the driver's is cut; its processes go on."""

    said = "links cut"

    def __init__(self, name: str) -> None:
        self._name = name

    def cut(self, worker: int) -> None:
        _ip("-n", f"{self._name}h", "link", "set", f"w{worker}", "down")

    def mend(self, worker: int) -> None:
        _ip("-n", f"{self._name}h", "link", "set", f"w{worker}", "up")


class LinkedCluster(LocalCluster):
    """A cluster whose workers run in namespaces that were laid before; it is started inside the driver's."""

    def __init__(self, name: str, workers: int, cores: int, memory: str) -> None:
        super().__init__(workers, cores, memory)
        self._name = name

    def _address(self, worker: int | None) -> str:
        return f"{NETWORK}.{1 if worker is None else 10 + worker}"

    def _inside(self, worker: int | None) -> list[str]:
        return [] if worker is None else ["ip", "netns", "exec", f"{self._name}w{worker}"]


@contextmanager
def namespaces(workers: int) -> Iterator[str | None]:
    """Lay a namespace for the driver and one for each worker, and cables between them; take all away afterwards.

    Yields:
        What their names begin with; None where that cannot be had here.
    """
    name = f"pns{os.getpid():x}"
    try:
        yield name if _lay(name, workers) else None
    finally:
        for part in ("h", *(f"w{worker}" for worker in range(workers))):
            with suppress(OSError, subprocess.CalledProcessError):
                _ip("netns", "del", f"{name}{part}")


def can_cut() -> bool:
    """Whether links can be cut here: namespaces and cables are to be had."""
    with namespaces(1) as name:
        return name is not None


def inside(name: str) -> list[str]:
    """Return what stands before a command that runs beside the master."""
    return ["ip", "netns", "exec", f"{name}h"]


def _lay(name: str, workers: int) -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    try:
        hub = f"{name}h"
        _ip("netns", "add", hub)
        _ip("-n", hub, "link", "set", "lo", "up")
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "address", "add", f"{NETWORK}.1/24", "dev", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        for worker in range(workers):
            _lay_cable(hub, f"{name}w{worker}", worker)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _lay_cable(hub: str, far: str, worker: int) -> None:
    _ip("netns", "add", far)
    _ip("-n", hub, "link", "add", f"w{worker}", "type", "veth", "peer", "name", "eth0", "netns", far)
    _ip("-n", hub, "link", "set", f"w{worker}", "master", "bridge")
    _ip("-n", hub, "link", "set", f"w{worker}", "up")
    _ip("-n", far, "link", "set", "lo", "up")
    _ip("-n", far, "address", "add", f"{NETWORK}.{10 + worker}/24", "dev", "eth0")
    _ip("-n", far, "link", "set", "eth0", "up")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)
