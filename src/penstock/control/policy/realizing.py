"""From "this executor should have k cores" to a plan: which nodes give or take a core, which shards move.

For policies that decide numbers only (drs, esstream, static). Which shards go where is `plan.placing`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from penstock.control.measure.estimate import Estimate
from penstock.control.plan.balancing import THETA
from penstock.control.plan.placing import Placement, plan_executor
from penstock.control.plan.shards import derive_shards
from penstock.control.policy.negotiation import FreeCores, derive_free_cores
from penstock.control.policy.protocol import Limits


def plan_cores(
    now: Estimate, limits: Limits, cores: Mapping[str, int], theta: float = THETA
) -> dict[str, Placement]:
    """Return the placement of every executor whose number of cores changes.

    Cores are given up first, so that others can have them. Where nodes or limits have fewer cores than asked for,
    executors get what is left in the order of `cores`.
    """
    free = derive_free_cores(now, limits)
    by_node = {name: Counter(task.node for task in now.executors[name].tasks) for name in cores}
    crowd = Counter(task.node for executor in now.executors.values() for task in executor.tasks)
    for name, wanted in cores.items():
        for _ in range(by_node[name].total() - max(wanted, 1)):
            node = min(by_node[name], key=lambda one: (free.speed.get(one, 1.0), crowd[one], one))
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
            found[name] = plan_executor(derive_shards(now.executors[name]), held, speed, theta)
    return found


def _take(held: Counter[str], free: FreeCores) -> bool:
    near = max(sorted(held), key=lambda node: held[node], default="")
    node = free.choose(near)
    if node is None:
        return False
    held[node] += 1
    free.take(node)
    return True
