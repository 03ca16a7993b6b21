"""Core-to-executor assignment: on which node every executor gets the cores that the model gives it (Elasticutor 4.2).

Algorithm 1: start from what is there, give to those that lack cores, most data-intensive first, free cores before any is
taken away, and raise the threshold φ until it comes out. How many cores each needs is not decided here, nor which shards
a core works on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.control.measure.sample import I64
from penstock.control.plan.cores import CoreDemand, derive_migration_bytes, derive_migration_of
from penstock.control.plan.searching import Search, Start
from penstock.errors import PlanError

__all__ = ["PHI_BYTES_PER_S", "Assignment", "CoreDemand", "derive_migration_bytes", "plan_assignment"]

PHI_BYTES_PER_S = 512 * 1024
"""φ at first: below it, where a core runs makes no difference worth having (Elasticutor 4.2)."""


@dataclass(frozen=True)
class Assignment:
    """Cores of each executor on each node, and what it takes to get there."""

    demand: CoreDemand
    cores: I64
    """x: like `present`."""
    phi_bytes_per_s: float
    """φ reached: executors of a higher data intensity got new cores at home only."""
    migration_bytes: float
    """Cost of the transition by equation 2: state that leaves its node."""
    moved_cores: int
    """Cores that an executor has and did not have."""
    reason: str

    def cores_by_node(self, executor: str) -> dict[str, int]:
        """Return the nodes on which one executor has cores, and how many."""
        row = self.cores[self.demand.executors.index(executor)]
        return {self.demand.nodes[node]: int(row[node]) for node in np.flatnonzero(row)}


def plan_assignment(demand: CoreDemand, *, naive: bool = False, give_back: bool = False) -> Assignment:
    """Assign cores to executors so that each has what it needs and little state moves (Elasticutor 4.2, Algorithm 1).

    An executor of a data intensity above φ takes cores on its home node only: one that is free, else one of an executor
    that has too many, else one of an executor below φ, which then looks for another. All others take a core from any
    node, at the least cost. φ doubles until everyone is served. What an executor has beyond its need stays with it until
    somebody needs it, unless `give_back`.

    Args:
        naive: without the two optimisations, neither migration cost nor locality: free cores of the nodes in turn,
            else the first that is found.
        give_back: cores beyond the need are given up, those that cost least.

    Raises:
        PlanError: more cores are needed than there are.
    """
    needed, there = int(demand.demand.sum()), demand.cores_there
    if needed > there:
        raise PlanError(
            f"{needed} cores are needed and {there} can be had on the {len(demand.nodes)} nodes: "
            f"lower the demands by {needed - there}, add nodes or raise the limit."
        )
    start = Start(demand)
    phi = float(np.inf) if naive else float(PHI_BYTES_PER_S)
    while (found := _search(start, phi, naive)) is None:
        phi *= 2
    if give_back:
        found.give_back()
    return _outcome(demand, found, phi, naive)


def _search(start: Start, phi: float, naive: bool) -> Search | None:
    return Search(start, phi, naive).run() if start.may_come_out(phi) else None


def _outcome(demand: CoreDemand, search: Search, phi: float, naive: bool) -> Assignment:
    cores, rows = search.cores, np.array(sorted(search.touched), dtype=np.int64)
    change = cores[rows] - demand.present[rows]
    gained, lost = int(np.maximum(change, 0).sum()), int(np.maximum(-change, 0).sum())
    cost = derive_migration_of(demand, cores, rows)
    if not gained and not lost:
        reason = "every executor has its cores where they are"
    else:
        how = "first found" if naive else f"φ {phi / 1024:,.0f} KB/s"
        reason = f"{gained} cores given, {lost} taken, {cost / 1e6:,.1f} MB of state to move ({how})"
    return Assignment(demand, cores, phi, cost, gained, reason)
