"""What it costs to carry a plan out: how long rows are held up while shards change hands.

Every policy has its proposals priced here, in one measure that the guards weigh against the gain. Predicts no latency.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from penstock.control.measure.estimate import Estimate, ExecutorEstimate
from penstock.control.measure.sample import F64
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.policy.mapping import tail_factor
from penstock.control.policy.protocol import Limits, Proposal
from penstock.control.sla import OPERATOR, SLA

WITHIN_NODE_S = 0.004
"""What a shard that changes its task inside a node is held up for: no state is copied (`penstock bench rescale`)."""
MOVE_S = 0.05
"""What a shard that changes its node is held up for, beside the copying of its state."""
PAUSE_S = 0.1
"""What it takes to stop all rows and to let them go on."""


def derive_held_s(executor: ExecutorEstimate, then: ExecutorPlan, move_bytes_per_s: float) -> F64:
    """Return how long each shard is held up; 0 for those that stay where they are, and for shards of others."""
    before = {task.index: task.node for task in executor.tasks}
    numbers: dict[str, int] = {}
    source = _nodes_of(executor.task_of, before, numbers)
    target = _nodes_of(then.task_of, then.tasks, numbers)
    mine = executor.task_of >= 0
    away = mine & (source != target)
    inside = mine & ~away & (executor.task_of != then.task_of)
    held = np.where(inside, WITHIN_NODE_S, 0.0)
    copied: F64 = MOVE_S + executor.state_bytes / max(move_bytes_per_s, 1.0)
    return np.where(away, copied, held)


def _nodes_of(
    task_of: npt.NDArray[np.int32], tasks: Mapping[int, str], numbers: dict[str, int]
) -> npt.NDArray[np.int64]:
    """Return shard -> number of its node, -1 where it has none; new nodes are numbered on."""
    table = np.full(max([int(task_of.max(initial=0)), *tasks]) + 2, -1, dtype=np.int64)
    for index, node in tasks.items():
        table[index] = numbers.setdefault(node, len(numbers))
    return table[task_of]


def derive_delay(rate_per_s: F64, held_s: F64) -> float:
    """Return the row-seconds of delay: λ h rows come while a shard is held up for h, and wait h / 2 on average."""
    return float((rate_per_s * held_s**2).sum()) / 2


def derive_cost_s(now: Estimate, plan: Plan, sla: SLA, limits: Limits) -> float:
    """Return the row-seconds of delay that a plan causes, for each row a second of what the SLA bounds.

    Rows a second are those of the sources, or of the executors that the plan names where the bound is on operators.
    """
    known = {
        name: (now.executors[name], then) for name, then in plan.executors.items() if name in now.executors
    }
    held = {n: derive_held_s(one, then, limits.move_bytes_per_s) for n, (one, then) in known.items()}
    concerned = [one for one, _ in known.values()]
    if plan.global_pause:
        whole_s = PAUSE_S + sum(float(one.sum()) for one in held.values())
        concerned = list(now.executors.values())
        delay = sum(one.rate_per_s for one in concerned) * whole_s**2 / 2
    else:
        delay = sum(derive_delay(known[name][0].arrival_per_s, one) for name, one in held.items())
    sources = 0.0 if sla.scope == OPERATOR else sum(now.sources_per_s.values())
    rate = sources or sum(one.rate_per_s for one in concerned)
    return delay / rate if rate > 0 else 0.0


def price(proposal: Proposal, now: Estimate, sla: SLA, limits: Limits, *, is_mean: bool = False) -> Proposal:
    """Return a proposal with its cost, the chosen option's included.

    Args:
        is_mean: its latencies are means, whatever the SLA bounds: they are told as what it does bound.
    """
    factor = tail_factor(sla) if is_mean else 1.0
    if proposal.plan is None and factor == 1.0:
        return proposal
    cost_s = 0.0 if proposal.plan is None else derive_cost_s(now, proposal.plan, sla, limits)
    options = tuple(
        replace(
            one,
            predicted_s=one.predicted_s * factor,
            cost_s=cost_s if one.action == proposal.action else one.cost_s,
        )
        for one in proposal.options
    )
    predicted_s = None if proposal.predicted_s is None else proposal.predicted_s * factor
    return replace(proposal, options=options, predicted_s=predicted_s, cost_s=cost_s)
