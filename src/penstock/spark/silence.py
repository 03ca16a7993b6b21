"""Nodes that fell silent: for how long each is avoided, and where a lease is asked for instead.

Facts in, decisions with a reason out: whoever calls says what time it is, and nobody is asked anything here. A silent node
may come back at any moment, so it is tried again, later each time that it fails.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.spark.slots import Node

FIRST_S: Final = 15.0
"""Time for which a node that fell silent is avoided; twice as long each time that it does again soon."""
MOST_S: Final = 240.0
FORGET_S: Final = 600.0
"""Time that a node has to be heard for before its next silence counts as its first."""
LANDED_S: Final = 2.0
"""Time that a lease which came to a silent node all the same has to connect."""
TRIAL_S: Final = 10.0
"""The same on a node that is tried again: it may have to start Python first. Twice as long each time that it fails."""
_MOST_DOUBLINGS: Final = 10


@dataclass(frozen=True)
class Silence:
    """What is known of a node that fell silent."""

    times: int
    until: float
    """It is avoided until then, and on trial after."""
    heard_at: float | None = None
    """Since when it is heard again; None while it is not."""


class SilentNodes:
    """The silent nodes of one session. Any thread may note and read."""

    def __init__(self) -> None:
        self._known: dict[str, Silence] = {}

    def note_silent(self, node: str, now: float) -> float | None:
        """A node is silent; return the seconds for which it is avoided, None where it is avoided already."""
        known = self._known.get(node)
        if known is not None and known.heard_at is None and now < known.until:
            return None
        lasting = known is not None and (known.heard_at is None or now - known.heard_at < FORGET_S)
        times = known.times + 1 if known is not None and lasting else 1
        wait_s = min(_doubled(FIRST_S, times), MOST_S)
        self._known[node] = Silence(times, now + wait_s)
        return wait_s

    def note_heard(self, node: str, now: float) -> bool:
        """A node was heard; return whether it was silent until now."""
        known = self._known.get(node)
        if known is None or known.heard_at is not None:
            return False
        self._known[node] = replace(known, heard_at=now)
        return True

    def times(self, node: str) -> int:
        """Return how often a node fell silent soon after another time."""
        known = self._known.get(node)
        return known.times if known is not None else 0

    def keep(self, nodes: Collection[str]) -> None:
        """Forget all nodes but these: an executor that Spark has lost never comes back under its id."""
        for node in self._known.keys() - set(nodes):
            self._known.pop(node, None)

    def avoided(self, now: float) -> set[str]:
        """Return the nodes that no lease should go to."""
        return {node for node, one in self._known.copy().items() if one.heard_at is None and now < one.until}

    def on_trial(self, now: float) -> set[str]:
        """Return the nodes that were avoided long enough and were not heard yet."""
        return {node for node, one in self._known.copy().items() if one.heard_at is None and now >= one.until}


@dataclass(frozen=True)
class Choice:
    """The node that a lease is asked for on, and why that one."""

    node: Node
    reason: str


def choose_node(
    known: Sequence[Node],
    held: Sequence[str],
    wanted: str | None,
    silent: Collection[str] = (),
    trial: Collection[str] = (),
) -> Choice:
    """Return the wanted node, or else one with a free slot that has the fewest leases for its slots.

    A silent node comes last, whatever else speaks for it, and one that is tried again after those that have room.

    Args:
        known: the registered nodes; at least one.
        held: the node of each lease that is held or asked for.
        wanted: executor id of the node that a plan names, or None.
        silent: executor ids of nodes that are avoided.
        trial: executor ids of nodes that are tried again.
    """

    def rank(node: Node) -> tuple[bool, bool, bool, bool, float, int]:
        name, count = node.executor_id, held.count(node.executor_id)
        load = count / node.cores
        return name in silent, name != wanted, count >= node.cores, name in trial, load, -node.cores

    chosen = min(known, key=rank)
    name = chosen.executor_id
    if name in silent:
        return Choice(chosen, "all nodes are silent")
    if name == wanted:
        return Choice(chosen, "a plan names it")
    if name in trial:
        return Choice(chosen, "it is tried again, as no other node has room")
    return Choice(
        chosen, "it has the fewest leases for its slots" + (" of those that are not silent" if silent else "")
    )


def patience_s(
    node: str, silent: Collection[str], trial: Collection[str], otherwise: float, times: int = 1
) -> float:
    """Return the seconds that a lease which Spark has started on a node has to connect.

    Args:
        node: executor id of the node.
        silent: executor ids of nodes that are avoided.
        trial: executor ids of nodes that are tried again.
        otherwise: what a lease has on any other node; never exceeded.
        times: how often the node fell silent. One that is merely slow passes a trial at last.
    """
    if node in silent:
        return LANDED_S
    return min(_doubled(TRIAL_S, times), otherwise) if node in trial else otherwise


def _doubled(seconds: float, times: int) -> float:
    """Return a time that doubles each time, starting with the first; within what a float can hold."""
    return seconds * float(2 ** min(max(times - 1, 0), _MOST_DOUBLINGS))
