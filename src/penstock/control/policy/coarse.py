"""The coarse step of Elasticutor 4.2: an executor that has outgrown its nodes is split, idle ones are merged.

Looks at every turn and acts every few minutes at most, on what has held all that time, and only where nothing more
pressing is to be done. Proposes; which policy asks it is that policy's business.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from penstock.control.measure.estimate import Estimate, ExecutorEstimate
from penstock.control.plan.plan import Pass, Plan
from penstock.control.policy.protocol import Limits, Option, Proposal
from penstock.control.policy.wording import count

_Due = tuple[str, str]
"""A step that could be taken: giver and taker, as in `Pass`."""


@dataclass
class CoarseStep:
    """Splits and merges.

    Args:
        every_s: how long a reason must have held, and the least time between two steps.
        idle_ratio: share of one node's cores that two executors together may need at most to be merged.
    """

    every_s: float = 180.0
    idle_ratio: float = 0.5
    _since_s: dict[_Due, float] = field(default_factory=dict)
    """Step -> since when it has been due at every turn, whatever the numbers."""
    _acted_s: float = -np.inf
    _undone: tuple[_Due, float, float] | None = None
    """The step proposed last, since when it was due, and when the one before was proposed."""

    def note_failure(self) -> None:
        """The step that was proposed last did not happen: it is still due."""
        if self._undone is not None:
            due, since_s, self._acted_s = self._undone
            self._since_s[due] = since_s
            self._undone = None

    def propose(self, now: Estimate, limits: Limits, calm: bool = True) -> Proposal | None:
        """Look, and return a split or a merge that has been due for long; None where there is none, where something more
        pressing is to be done (not `calm`), or where nobody can carry it out."""
        if not limits.redeals or now.treating or now.invalid is not None:
            return None
        due = {**_find_splits(now), **_find_merges(now, self.idle_ratio)}
        self._since_s = {step: self._since_s.get(step, now.at_s) for step in due}
        self._undone = None
        ripe = [step for step, at_s in self._since_s.items() if now.at_s - at_s >= self.every_s]
        if not calm or not ripe or now.at_s - self._acted_s < self.every_s:
            return None
        self._undone = (ripe[0], self._since_s.pop(ripe[0]), self._acted_s)
        self._acted_s = now.at_s
        found, reason = due[ripe[0]]
        giver = now.executors[found.giver]
        told = f"{count(len(found.shards), 'shard')} to {found.taker or 'a new executor'}"
        action = f"{'merged' if found.taker else 'split'} {found.giver}: {told}"
        return Proposal(
            Plan(passes=(found,)),
            f"{reason} for {self.every_s:g} s",
            action,
            (Option(action, giver.measured_s or 0.0),),
            details={"step": "coarse"},
        )


def _find_splits(now: Estimate) -> dict[_Due, tuple[Pass, str]]:
    """Executors that hold more cores than their home node has: the node with most of their state, then of their tasks."""
    found: dict[_Due, tuple[Pass, str]] = {}
    for name, executor in sorted(now.executors.items()):
        home = _home(executor)
        if home not in now.nodes or executor.k <= now.nodes[home].cores:
            continue
        given = _half(executor)
        if len(given):
            reason = (
                f"{name} holds {count(executor.k, 'core')}, its home node {home} has {now.nodes[home].cores}"
            )
            found[name, ""] = (Pass(name, "", given), reason)
    return found


def _home(executor: ExecutorEstimate) -> str:
    """The node with most of the executor's state (Elasticutor 4.2); of those with equal state the one with most tasks."""
    held: dict[str, tuple[float, int]] = {}
    for task in executor.tasks:
        size = float(executor.state_bytes[executor.task_of == task.index].sum())
        state, tasks = held.get(task.node, (0.0, 0))
        held[task.node] = (state + size, tasks + 1)
    return max(sorted(held), key=lambda node: held[node], default="")


def _half(executor: ExecutorEstimate) -> tuple[int, ...]:
    """The shards of every other task, the busiest first: whole tasks change hands."""
    loads = executor.task_loads()
    order = np.argsort(-loads, kind="stable")
    given = [executor.tasks[int(at)].index for at in order[1::2]]
    return tuple(np.flatnonzero(np.isin(executor.task_of, given)).tolist())


def _find_merges(now: Estimate, idle_ratio: float) -> dict[_Due, tuple[Pass, str]]:
    """Of each operator the two idlest executors, where together they need little of one node."""
    found: dict[_Due, tuple[Pass, str]] = {}
    by_operator: dict[str, list[ExecutorEstimate]] = {}
    for executor in now.executors.values():
        by_operator.setdefault(executor.operator, []).append(executor)
    room = max((node.cores for node in now.nodes.values()), default=0)
    for operator, executors in sorted(by_operator.items()):
        if len(executors) < 2:
            continue
        idle = sorted(executors, key=lambda one: (float(one.load.sum()), one.name != operator, one.name))[:2]
        load = sum(float(one.load.sum()) for one in idle)
        if load > idle_ratio * room or sum(one.k for one in idle) > room:
            continue
        taker, giver = sorted(idle, key=lambda one: (one.name != operator, -float(one.load.sum()), one.name))
        shards = tuple(np.flatnonzero(giver.task_of >= 0).tolist())
        if shards:
            reason = f"{taker.name} and {giver.name} together need less than {idle_ratio:.0%} of a node"
            found[giver.name, taker.name] = (Pass(giver.name, taker.name, shards), reason)
    return found
