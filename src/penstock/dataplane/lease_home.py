"""The folder of one lease in a node's local directory: made when it is first needed, swept, left behind.

Owns its name, which says whose it is, and whether it may be deleted: never while an environment in it may belong to another
lease. What is in the environments is the business of `state`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass

HANDED_OVER = "handed-over"
"""Folder in a lease's folder that says: environments in here belong to others by now."""


@dataclass(frozen=True)
class LeaseIdentity:
    """Who a worker is and where it may write."""

    lease: str
    generation: int
    checkpoint: str
    node_dir: str


class LeaseHome:
    """Where one lease keeps the environments that it makes."""

    def __init__(self, identity: LeaseIdentity) -> None:
        self._identity = identity

    @property
    def path(self) -> str:
        """Its place, which names the process that asks."""
        return f"{self._identity.node_dir}/{_home_name(self._identity)}"

    def enter(self) -> str:
        """Return this lease's own folder on the node; the first call removes those of leases that are gone."""
        home = self.path
        if not os.path.isdir(home):
            os.makedirs(self._identity.node_dir, mode=0o700, exist_ok=True)
            for name in os.listdir(self._identity.node_dir):
                kept = not _is_left(f"{self._identity.node_dir}/{name}")
                if _is_deserted(name, self._identity, kept):
                    shutil.rmtree(f"{self._identity.node_dir}/{name}", ignore_errors=True)
            os.makedirs(home, mode=0o700, exist_ok=True)
        return home

    def mark_handed_over(self) -> None:
        """Say in the folder that environments in it belong to others from now on."""
        os.makedirs(f"{self.enter()}/{HANDED_OVER}", exist_ok=True)

    def leave(self, owned: Iterable[str], handed_over: bool) -> None:
        """Delete the environments this lease owns, and its folder, unless others own some in there by now.

        Args:
            owned: names of environments, relative to the node's directory.
            handed_over: whether others may own some.
        """
        for name in owned:
            shutil.rmtree(f"{self._identity.node_dir}/{name}", ignore_errors=True)
        if not handed_over or _is_left(self.path):
            shutil.rmtree(self.path, ignore_errors=True)


def _home_name(identity: LeaseIdentity) -> str:
    """Name a lease's folder: checkpoint, generation, lease, and the process that must live for it to be kept."""
    query = hashlib.blake2b(identity.checkpoint.encode(), digest_size=4).hexdigest()
    return f"q{query}-g{identity.generation:06d}-{identity.lease}-{os.getpid()}"


def _is_left(home: str) -> bool:
    """Whether nothing that others own is in a lease's folder."""
    try:
        names = os.listdir(home)
    except OSError:
        return True
    return HANDED_OVER not in names or names == [HANDED_OVER]


def _is_deserted(name: str, identity: LeaseIdentity, kept: bool) -> bool:
    """Whether a folder belongs to this query and to an older driver, or to a process that is gone and handed nothing
    over."""
    query, _, rest = name.partition("-g")
    if query != _home_name(identity).partition("-g")[0] or not rest[:6].isdigit():
        return False
    if int(rest[:6]) < identity.generation or kept:
        return int(rest[:6]) < identity.generation
    pid = rest.rpartition("-")[2]
    return pid.isdigit() and not os.path.exists(f"/proc/{pid}") and os.path.isdir("/proc/self")
