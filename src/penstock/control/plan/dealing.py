"""Dealing an executor's shards to another set of tasks, when cores come or go: the rule of `balancing`, few moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from penstock.control.plan.balancing import ROUNDS_PER_SHARD, THETA, explain, find_move, run_rounds
from penstock.control.plan.shards import Balance, Shards, Table, derive_imbalance

IDLE_RATIO = 0.01
"""What a shard without load counts when it is given away, in mean shard loads, so that idle shards are spread too."""


def deal_shards(
    shards: Shards,
    tasks: Mapping[int, str],
    speed: Mapping[int, float] | None = None,
    theta: float = THETA,
    fine: float | None = None,
) -> Balance:
    """Deal the shards to these tasks with as few moves as it takes; with the tasks they have, it is `plan_balance`.

    Shards of tasks that go are given away, the heaviest first, each to a task of the node its state is on as long as
    that stays within θ, else to the task that ends up least loaded. New tasks are filled from the most loaded ones to
    2 - θ of the mean at least, where shards allow it, and get their part of the shards without load; then the whole is
    balanced. Where nothing has load, shards count.

    Args:
        tasks: every task there will be, index -> node.
        speed: index of a task -> its speed; as `shards` says where it is not given.
        fine: δ to go on to by moves inside nodes, where anything moves.
    """
    load = shards.load if float(shards.load.sum()) > 0 else np.ones(len(shards.load))
    table = Table(shards, tasks, shards.speed if speed is None else speed, load)
    before = derive_imbalance(shards)
    _give_away(table, theta)
    new = [int(p) for p, name in enumerate(table.names) if int(name) not in shards.tasks]
    _fill(table, new, theta)
    _share_idle(table, new)
    limit = ROUNDS_PER_SHARD * len(load)
    moved = run_rounds(table, theta, limit)
    if fine is not None and (moved or tasks != shards.tasks):
        run_rounds(table, fine, limit, inside=True)
    return table.result(before, explain(table, before, theta, capped=False))


def _give_away(table: Table, theta: float) -> None:
    """Give every shard whose task goes to another, first fit, the heaviest first."""
    homeless = np.flatnonzero(table.mine & (table.at < 0))
    idle = IDLE_RATIO * table.total / max(int(table.mine.sum()), 1)
    counted = table.loads + idle * np.bincount(table.at[table.at >= 0], minlength=len(table.names))
    for shard in homeless[np.argsort(-table.load[homeless], kind="stable")]:
        weight = table.load[shard] + idle
        after = (counted + weight) / table.speed
        inside = np.where(table.node == table.home[shard], after, np.inf)
        chosen = inside if inside.min() <= theta * table.mean else after
        place = int(chosen.argmin())
        counted[place] += weight
        table.move(int(shard), place)


def _fill(table: Table, new: Sequence[int], theta: float) -> None:
    """Fill new tasks, the emptiest first, until each has 2 - θ of the mean or no task can give it a shard."""
    hungry = set(new)
    for _ in range(2 * len(table.load) + len(new)):
        if not hungry:
            return
        times = table.times
        place = min(hungry, key=lambda one: (times[one], one))
        if times[place] >= (2 - theta) * table.mean or not _feed(table, place, theta):
            hungry.discard(place)


def _share_idle(table: Table, new: Sequence[int]) -> None:
    """Give new tasks their part of the shards without load, those of their own node first: rows may come to them yet, and
    the old tasks would have them all."""
    idle = np.flatnonzero(table.mine & (table.load <= 0))
    each = len(idle) // max(len(table.names), 1)
    count = np.bincount(table.at[idle], minlength=len(table.names))
    for place in new:
        while count[place] < each:
            over = idle[count[table.at[idle]] > each]
            far = table.home[over] != table.node[place]
            given = over[np.lexsort((-count[table.at[over]], far))[0]]
            count[table.at[given]] -= 1
            count[place] += 1
            table.move(int(given), place)


def _feed(table: Table, place: int, theta: float) -> bool:
    """Move one shard to a task, from the most loaded one that can give one; say whether there was any."""
    for source in np.argsort(-table.times, kind="stable"):
        if source != place and (found := find_move(table, int(source), theta, place)) is not None:
            table.move(*found)
            return True
    return False
