"""Balancing inside one elastic executor: which shards should change their task, and no more of them than it takes.

The rounds of Elasticutor 3.1: from the most to the least loaded task, the shard that lowers the imbalance factor δ most,
until δ <= θ. Knows nothing of rates, latencies or other executors, and never adds or removes a task.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.control.measure.sample import F64
from penstock.control.plan.shards import TINY, Balance, Shards, Table

THETA = 1.2
"""θ: up to this δ an executor counts as balanced (Elasticutor 3.1)."""

NEAR_RATIO = 0.02
"""Results that differ by less than this share of the mean load count as equal; the cheaper move is taken."""

ROUNDS_PER_SHARD = 4
"""Rounds after which balancing without a cap gives up; a shard may move more than once before all lie well."""


def plan_balance(
    shards: Shards, theta: float = THETA, max_moves: int | None = None, fine: float | None = None
) -> Balance:
    """Move shards from the most to the least loaded task until δ <= θ or no move helps (Elasticutor 3.1).

    Each round takes the move after which the larger of the two loads is lowest. Of moves that come to the same, one
    inside a node is taken, then the one of fewest state bytes. What is balanced stays as it is; where no move helps, the
    reason says which shard is in the way.

    Args:
        fine: δ to go on to by moves inside nodes, which copy no state, where what is out of balance is moved at all.
    """
    table = Table(shards, shards.tasks, shards.speed)
    before = table.delta()
    limit = ROUNDS_PER_SHARD * len(shards.load) if max_moves is None else max_moves
    moved = run_rounds(table, theta, limit)
    if moved and fine is not None:
        moved += run_rounds(table, fine, limit - moved, inside=True)
    return table.result(before, explain(table, before, theta, capped=moved >= limit))


def run_rounds(table: Table, theta: float, limit: int, *, inside: bool = False) -> int:
    """Relieve tasks loaded above θ of the mean, the most loaded first, at most `limit` times; return the moves made, only
    `inside` nodes where that is asked for.

    A task that no move can relieve (one shard is all of its load, say) is set aside: it fixes δ, but the tasks after it
    need not wait for what cannot be had. What takes a shard never ends up as loaded as what gave it, so this ends.
    """
    relievable = np.ones(len(table.names), dtype=bool)
    moves = 0
    while moves < limit and relievable.any():
        times = np.where(relievable, table.times, -np.inf)
        source = int(times.argmax())
        if times[source] <= theta * table.mean * (1 + TINY):
            break
        found = find_move(table, source, theta, inside=inside)
        if found is None:
            relievable[source] = False
        else:
            table.move(*found)
            moves += 1
            if len(table.speeds) > 1:
                # A fast task that has lost load may take now what no task could before.
                relievable[:] = True
    return moves


def find_move(
    table: Table, source: int, theta: float, target: int | None = None, *, inside: bool = False
) -> tuple[int, int] | None:
    """Return the best (shard, destination) away from one task, or None where no move makes its load and the other's
    lower than its load is now.

    Args:
        target: the only destination to look at; every task where it is not given.
        inside: look at shards and tasks on one node only.
    """
    shards = np.flatnonzero((table.at == source) & (table.load > 0))
    if inside:
        shards = shards[table.home[shards] == table.node[source]]
    times = table.times
    targets = _least_loaded(table, source, times, inside) if target is None else np.array([target])
    weight = table.load[shards][:, None]
    left = (table.loads[source] - weight) / table.speed[source]
    after = np.maximum(left, (table.loads[targets] + weight) / table.speed[targets])
    # What does not lower the larger load is no choice at all, however cheap: rounds end because every move does.
    after = np.where(after < times[source] * (1 - TINY), after, np.inf)
    lowest = float(after.min(initial=np.inf))
    if lowest == np.inf:
        return None
    crosses = table.node[targets] != table.home[shards][:, None]
    row, column = _cheapest(after, crosses, _bytes(table, shards), lowest, table.mean, theta)
    return int(shards[row]), int(targets[column])


def _bytes(table: Table, shards: npt.NDArray[np.int64]) -> F64:
    size = table.shards.state_bytes
    return np.zeros(len(shards)) if size is None else size[shards].astype(np.float64)


def _least_loaded(table: Table, source: int, times: F64, inside: bool) -> npt.NDArray[np.int64]:
    """Return the least loaded task of each kind (same speed, same node or not): no other of its kind can do better."""
    here = table.node == table.node[source]
    others = times.copy()
    others[source] = np.inf
    found = []
    for speed in table.speeds:
        of_kind = table.speed == speed
        for where in (here,) if inside else (here, ~here):
            best = int(np.where(of_kind & where, others, np.inf).argmin())
            if of_kind[best] and where[best] and best != source:
                found.append(best)
    return np.array(found, dtype=np.int64)


def _cheapest(
    after: F64, crosses: npt.NDArray[np.bool_], size: F64, lowest: float, mean: float, theta: float
) -> tuple[int, int]:
    """Return row and column of the move to make.

    One that copies no state is taken where it is nearly as good as the best, or leaves both tasks within θ; else the one
    of fewest bytes among the nearly best.
    """
    near = lowest + NEAR_RATIO * mean
    inside = np.where(crosses, np.inf, after)
    if float(inside.min()) <= max(near, theta * mean):
        row, column = np.unravel_index(int(inside.argmin()), after.shape)
        return int(row), int(column)
    rows, columns = np.nonzero(after <= near)
    first = np.lexsort((after[rows, columns], size[rows]))[0]
    return int(rows[first]), int(columns[first])


def explain(table: Table, before: float, theta: float, capped: bool) -> str:
    """Say in one sentence what came of it, with numbers."""
    after = table.delta()
    if len(table.names) == 1:
        return "one task has every shard"
    if before <= theta and after <= theta:
        return f"balanced: δ {after:.2f} is within {theta:g}"
    change = f"δ stays at {after:.2f}" if after == before else f"δ from {before:.2f} to {after:.2f}"
    if after <= theta:
        return f"{change}, within {theta:g}"
    if capped:
        return f"{change}: as many moves as are allowed at once"
    busiest = int(table.times.argmax())
    held = np.where(table.at == busiest, table.load, 0.0)
    hottest = int(held.argmax())
    if held[hottest] / table.speed[busiest] > theta * table.mean:
        return (
            f"{change}: shard {hottest} alone is {held[hottest] / table.total:.0%} of the load, no move helps"
        )
    return f"{change}: no move of one shard lowers it further"
