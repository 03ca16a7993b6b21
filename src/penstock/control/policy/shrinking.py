"""What to do when more cores are held than may be, because a node is gone or a limit was lowered: go there at once.

Cores are given up by load, whatever it costs and whatever latency it leads to; policies ask this before anything else.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.control.measure.estimate import Estimate
from penstock.control.plan.plan import Plan
from penstock.control.policy.allocating import spread_by_load
from penstock.control.policy.negotiation import derive_usable_cores
from penstock.control.policy.protocol import Limits, Proposal
from penstock.control.policy.realizing import plan_cores
from penstock.control.policy.wording import count, propose_waiting


def propose_within(now: Estimate, limits: Limits) -> Proposal | None:
    """Return the plan that holds no more cores than may be held; None where that is so, or where nobody may decide."""
    held = {name: one.k for name, one in sorted(now.executors.items()) if one.k}
    usable = derive_usable_cores(now, limits) if now.nodes else limits.max_cores
    if sum(held.values()) <= usable or propose_waiting(now) is not None:
        return None
    loads = {name: float(now.executors[name].load.sum()) for name in held}
    cores = _deal(held, loads, usable)
    placed = {name: one.plan for name, one in plan_cores(now, limits, cores).items()}
    if not placed:
        return None
    symptom = f"{count(sum(held.values()), 'core')} are held and {usable} may be"
    fewer = [f"{name} {held[name]} -> {count(one.k, 'core')}" for name, one in placed.items()]
    return Proposal(Plan(placed), symptom, f"gave up cores: {', '.join(fewer)}", urgent=True)


def _deal(held: Mapping[str, int], loads: Mapping[str, float], usable: int) -> dict[str, int]:
    """Return the cores of each executor by load, none more than it has, and none without one."""
    found: dict[str, int] = {}
    while True:
        open_ones = {name: load for name, load in loads.items() if name not in found}
        dealt = spread_by_load(open_ones, usable - sum(found.values())) if open_ones else {}
        full = {name: held[name] for name, k in dealt.items() if k >= held[name]}
        if not full:
            return {**found, **dealt}
        found |= full
