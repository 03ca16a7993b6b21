"""From "this executor should have k cores" to a plan: which nodes give or take a core, which shards move.

For policies that decide numbers only (drs, esstream, static). Which shards go where is `plan.placing`'s.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from penstock.control.measure.estimate import Estimate
from penstock.control.plan.balancing import THETA
from penstock.control.plan.placing import Placement, plan_executor
from penstock.control.plan.plan import ExecutorPlan
from penstock.control.plan.shards import derive_shards
from penstock.control.policy.mapping import derive_plan, derive_switch
from penstock.control.policy.negotiation import FreeCores, derive_free_cores
from penstock.control.policy.protocol import Limits
from penstock.control.policy.switching import UnitStrategy, find_scale_in, find_scale_out

_FINEST = 1.02
"""δ that is not worth going below: every step takes more moves than the one before."""


def plan_cores(
    now: Estimate, limits: Limits, cores: Mapping[str, int], loads: Mapping[str, float] | None = None
) -> dict[str, Placement]:
    """Return the placement of every executor whose number of cores changes.

    Cores are given up first, so that others can have them, and those of nodes that give more than they have before all.
    Where nodes or limits have fewer cores than asked for, executors get what is left in the order of `cores`.

    Args:
        loads: core-seconds a second of each executor; those that its cores hardly serve are balanced more finely.
    """
    free = derive_free_cores(now, limits)
    by_node = {name: Counter(task.node for task in now.executors[name].tasks) for name in cores}
    crowd = Counter(task.node for executor in now.executors.values() for task in executor.tasks)
    for name, wanted in cores.items():
        for _ in range(by_node[name].total() - max(wanted, 1)):
            node = min(
                by_node[name], key=lambda one: (free.has(one), free.speed.get(one, 1.0), crowd[one], one)
            )
            by_node[name] = +(by_node[name] - Counter([node]))
            crowd[node] -= 1
            free.give_back(node)
    for name, wanted in cores.items():
        for _ in range(wanted - by_node[name].total()):
            if not _take(by_node[name], free):
                break
    speed = {name: node.speed for name, node in now.nodes.items()}
    found = {}
    for name, held in by_node.items():
        if held.total() != now.executors[name].k:
            theta = derive_theta((loads or {}).get(name, 0.0) / max(held.total(), 1))
            found[name] = plan_executor(derive_shards(now.executors[name]), held, speed, theta)
    return found


def derive_theta(fill: float) -> float:
    """Return the δ to balance to where tasks are filled to `fill` on average: θ, and less where the busiest task would be
    filled to more than half way from there to all of its time. What is not served at all is not served by balancing."""
    if not 0 < fill < 1:
        return THETA
    return min(max((1 + fill) / (2 * fill), _FINEST), THETA)


def plan_unit_steps(
    now: Estimate, limits: Limits, cores: Mapping[str, int], margin: float
) -> dict[str, ExecutorPlan]:
    """Return one unit strategy of StreamSwitch towards the wanted cores of each executor (StreamSwitch 3.4, 6).

    One task more or less at a time: how that paper lets DRS carry its numbers out.
    """
    free = derive_free_cores(now, limits)
    found = {}
    for name, wanted in cores.items():
        executor = now.executors[name]
        switch = derive_switch(executor, margin)
        step: UnitStrategy | None = None
        if wanted > executor.k:
            sources = [at for at in range(executor.k) if switch.can_be_relieved(at)]
            source = min(sources, key=lambda at: float(switch.headroom[at]), default=0)
            node = free.choose(switch.nodes[source])
            if node is not None and (step := find_scale_out(switch, source, node)) is not None:
                free.take(node)
        elif wanted < executor.k:
            step = find_scale_in(switch, math.inf)
        if step is not None:
            found[name] = derive_plan(step.after)
    return found


def _take(held: Counter[str], free: FreeCores) -> bool:
    near = max(sorted(held), key=lambda node: held[node], default="")
    node = free.choose(near)
    if node is None:
        return False
    held[node] += 1
    free.take(node)
    return True
