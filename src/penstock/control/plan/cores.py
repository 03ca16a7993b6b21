"""Who needs how many cores, who has which, and what a change costs: the words of core-to-executor assignment.

Rows are executors and columns are nodes, in the order of their names. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.control.measure.sample import F64, I64
from penstock.errors import PlanError


@dataclass(frozen=True)
class CoreDemand:
    """Who needs how many cores, who has which now, and what it costs to move. Rows are executors, columns are nodes."""

    executors: tuple[str, ...]
    nodes: tuple[str, ...]
    demand: I64
    """k_j: cores that each executor needs."""
    capacity: I64
    """c_i: cores that each node may give; 0 for one that is to be emptied."""
    present: I64
    """x̃: cores of each executor on each node."""
    state_bytes: F64
    """s_j: state of each executor."""
    bytes_per_s: F64
    """Data intensity: what one core of each executor would read and write across nodes if it ran away from home."""
    home: I64
    """I(j): number of the node that has most of each executor's state."""
    max_cores: int | None = None
    """Cores that all executors together may hold, where that is less than the nodes have."""

    @property
    def cores_there(self) -> int:
        """Cores that can be held: what the nodes have, within the limit on all."""
        there = int(self.capacity.sum())
        return there if self.max_cores is None else min(there, self.max_cores)

    def __post_init__(self) -> None:
        rows, columns = len(self.executors), len(self.nodes)
        for name in ("demand", "state_bytes", "bytes_per_s", "home"):
            if getattr(self, name).shape != (rows,):
                raise PlanError(f"core demand: {name} must have one number for each of the {rows} executors.")
        if self.capacity.shape != (columns,) or self.present.shape != (rows, columns):
            raise PlanError(
                f"core demand: capacity and present must be for {rows} executors and {columns} nodes."
            )
        if (short := np.flatnonzero(self.demand < 1)).size:
            first = int(short[0])
            raise PlanError(
                f"executor {self.executors[first]!r} is to have {int(self.demand[first])} cores: give it at least 1."
            )


def derive_migration_bytes(demand: CoreDemand, cores: I64) -> float:
    """Return the state that leaves its node: Σ_j Σ_i max(0, s_j x̃_ij / X̃_j - s_j x_ij / X_j) (Elasticutor 4.2, eq. 2).

    X̃_j is the old total and X_j the new one. An executor that had no core has no state to move.
    """
    return derive_migration_of(demand, cores, np.arange(len(demand.executors)))


def derive_migration_of(demand: CoreDemand, cores: I64, rows: I64) -> float:
    """Sum over some executors alone; the others keep what they have."""
    rows = rows[demand.present[rows].any(axis=1)]
    old, new = demand.present[rows].astype(np.float64), cores[rows].astype(np.float64)
    old /= old.sum(axis=1, keepdims=True)
    new /= np.maximum(new.sum(axis=1, keepdims=True), 1)
    return float((demand.state_bytes[rows] * np.maximum(old - new, 0).sum(axis=1)).sum())
