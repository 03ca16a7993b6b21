"""Cores that are free, the node a new task should go to, and when to ask for or give back a whole node.

The negotiator of DRS IV-B, as far as it decides: it counts and remembers what was asked for; whoever carries a plan out
talks to the resource manager.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.control.measure.estimate import Estimate
from penstock.control.policy.protocol import Limits

ABOUT_AS_FAST = 0.8
"""Share of the fastest node's speed from which on a node will do: a task stays long, a copy of its shards is made once."""


@dataclass
class FreeCores:
    """Cores that tasks may still be given, by node, under one limit for all."""

    left: int
    by_node: dict[str, int]
    speed: Mapping[str, float]

    def choose(self, near: str) -> str | None:
        """Return the node for one more task, of those that are about as fast as the fastest with a core: the near one,
        where shards need not be copied, else the roomiest."""
        if self.left <= 0:
            return None
        open_nodes = [name for name, cores in self.by_node.items() if cores > 0]
        fastest = max((self.speed[name] for name in open_nodes), default=0.0)
        fast = [name for name in open_nodes if self.speed[name] >= ABOUT_AS_FAST * fastest]
        if near in fast:
            return near
        return max(fast, key=lambda name: (self.by_node[name] * self.speed[name], name), default=None)

    def fastest_s(self, service_per_s: float) -> float:
        """Return the time of a row on the fastest core that is free; infinite where none is.

        Args:
            service_per_s: rows a second on a node of speed 1.
        """
        open_nodes = [name for name, cores in self.by_node.items() if cores > 0] if self.left > 0 else []
        fastest = max((self.speed[name] for name in open_nodes), default=0.0)
        return 1.0 / (service_per_s * fastest) if service_per_s * fastest > 0 else math.inf

    def offer(self, wanted: int, others: int) -> FreeCores:
        """Return what one of several may take: all that the others do not want, or its share where cores are short.

        Args:
            wanted: tasks that this one lacks.
            others: tasks that those lack who are asked after it.
        """
        usable = self.usable
        mine = usable - others
        if usable and wanted and mine < wanted:
            mine = max(round(usable * wanted / (wanted + others)), 1)
        return FreeCores(max(mine, 0), dict(self.by_node), self.speed)

    def take(self, node: str) -> None:
        """Count one core of a node as given."""
        self.left -= 1
        self.by_node[node] -= 1

    def give_back(self, node: str) -> None:
        """Count one core of a node as free again."""
        self.left += 1
        if node in self.by_node:  # not where the node is gone
            self.by_node[node] += 1

    def has(self, node: str) -> bool:
        """Return whether a node is there and gives no more cores than it has."""
        return self.by_node.get(node, -1) >= 0

    @property
    def usable(self) -> int:
        """How many tasks could be added."""
        return max(min(self.left, sum(cores for cores in self.by_node.values() if cores > 0)), 0)


def derive_free_cores(now: Estimate, limits: Limits) -> FreeCores:
    """Return what is free on the nodes there are, within the limit on all cores together."""
    held = Counter(task.node for executor in now.executors.values() for task in executor.tasks)
    by_node = {name: node.cores - held[name] for name, node in sorted(now.nodes.items())}
    speed = {name: node.speed for name, node in now.nodes.items()}
    return FreeCores(limits.max_cores - sum(held.values()), by_node, speed)


def derive_usable_cores(now: Estimate, limits: Limits) -> int:
    """Return the cores that all executors together may hold on the nodes there are."""
    return min(limits.max_cores, sum(node.cores for node in now.nodes.values()))


@dataclass
class Negotiator:
    """Remembers which nodes were asked for, so that one shortage leads to one request."""

    idle_s: float = 60.0
    """How long a node must have been without a task before it is given back."""
    preempted: list[str] = field(default_factory=list)
    """Nodes that came after the first look, oldest first: the ones to release first."""
    _asked_at_s: float | None = None
    _asked: int = 0
    _idle_since_s: dict[str, float] = field(default_factory=dict)
    _known: set[str] | None = None
    _looked_at_s: float = 0.0

    def look(self, now: Estimate) -> None:
        """Take note of nodes that came or went. Call at each turn, before the others."""
        self._looked_at_s = now.at_s
        names = set(now.nodes)
        if self._known is not None:
            self.preempted = [name for name in self.preempted if name in names]
            self.preempted += sorted(names - self._known)
            if names - self._known:
                self._asked_at_s, self._asked = None, 0
        self._known = names
        used = {task.node for executor in now.executors.values() for task in executor.tasks}
        idle = sorted(names - used)
        self._idle_since_s = {name: self._idle_since_s.get(name, now.at_s) for name in idle}

    def ask(self, now: Estimate, limits: Limits, missing_cores: int) -> int:
        """Return how many nodes to add for so many missing cores; 0 while an earlier request may still be answered."""
        waiting = self._asked_at_s is not None and now.at_s < self._asked_at_s + 2 * limits.node_start_s
        room = limits.max_nodes - len(now.nodes)
        if missing_cores <= 0 or waiting or room <= 0:
            return 0
        count = min(-(-missing_cores // max(limits.cores_per_node, 1)), room)
        self._asked_at_s, self._asked = now.at_s, count
        return count

    @property
    def asked(self) -> int:
        """Nodes that were asked for and have not come."""
        return self._asked

    def may_ask(self, now: Estimate, limits: Limits) -> bool:
        """Return whether more nodes are allowed at all."""
        return len(now.nodes) < limits.max_nodes

    def release(self, now: Estimate, limits: Limits, kept: Iterable[str] = ()) -> tuple[str, ...]:
        """Return nodes that have been idle long enough, preempted ones first, never going below the least number."""
        spare = len(now.nodes) - limits.min_nodes
        keep = set(kept)
        ready = [
            name
            for name, since in self._idle_since_s.items()
            if now.at_s - since >= self.idle_s and name not in keep
        ]
        ready.sort(key=lambda name: (name not in self.preempted, name))
        return tuple(ready[: max(spare, 0)])

    def forget(self) -> None:
        """A plan did not happen: forget what the last turn asked for. What was asked for before may still come."""
        if self._asked_at_s == self._looked_at_s:
            self._asked_at_s, self._asked = None, 0
