"""Core-to-executor assignment: on which node every executor gets the cores that the model gives it (Elasticutor 4.2).

Algorithm 1: start from what is there, give to those that lack cores, most data-intensive first, free cores before any is
taken away, and raise the threshold φ until it comes out. How many cores each needs is not decided here, nor which shards
a core works on.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.control.measure.sample import F64, I64
from penstock.errors import PlanError

PHI_BYTES_PER_S = 512 * 1024
"""φ at first: below it, where a core runs makes no difference worth having (Elasticutor 4.2)."""


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


def derive_migration_bytes(demand: CoreDemand, cores: I64) -> float:
    """Return the state that leaves its node: Σ_j Σ_i max(0, s_j x̃_ij / X̃_j - s_j x_ij / X_j) (Elasticutor 4.2, eq. 2).

    X̃_j is the old total and X_j the new one. An executor that had no core has no state to move.
    """
    return _migration_bytes(demand, cores, np.arange(len(demand.executors)))


def _migration_bytes(demand: CoreDemand, cores: I64, rows: I64) -> float:
    """Sum over some executors alone; the others keep what they have."""
    rows = rows[demand.present[rows].any(axis=1)]
    old, new = demand.present[rows].astype(np.float64), cores[rows].astype(np.float64)
    old /= old.sum(axis=1, keepdims=True)
    new /= np.maximum(new.sum(axis=1, keepdims=True), 1)
    return float((demand.state_bytes[rows] * np.maximum(old - new, 0).sum(axis=1)).sum())


def plan_assignment(demand: CoreDemand, *, naive: bool = False, give_back: bool = False) -> Assignment:
    """Assign cores to executors so that each has what it needs and little state moves (Elasticutor 4.2, Algorithm 1).

    An executor of a data intensity above φ takes cores on its home node only: one that is free, else one of an executor
    that has too many, else one of an executor below φ, which then looks for another. All others take a core from any
    node, at the least cost. φ doubles until everyone is served. What an executor has beyond its need stays with it until
    somebody needs it, unless `give_back`.

    Args:
        naive: without the two optimisations, neither migration cost nor locality: the first core that is found.
        give_back: cores beyond the need are given up, those that cost least.

    Raises:
        PlanError: more cores are needed than there are.
    """
    needed, there = int(demand.demand.sum()), int(demand.capacity.sum())
    if needed > there:
        raise PlanError(
            f"{needed} cores are needed and the {len(demand.nodes)} nodes have {there}: "
            f"lower the demands by {needed - there} or add nodes."
        )
    start = _Start(demand)
    phi = float(np.inf) if naive else float(PHI_BYTES_PER_S)
    while (found := _search(start, phi, naive)) is None:
        phi *= 2
    if give_back:
        found.give_back()
    return _outcome(demand, found, phi, naive)


def _search(start: _Start, phi: float, naive: bool) -> _Search | None:
    return _Search(start, phi, naive).run() if start.may_come_out(phi) else None


def _outcome(demand: CoreDemand, search: _Search, phi: float, naive: bool) -> Assignment:
    cores, rows = search.cores, np.array(sorted(search.touched), dtype=np.int64)
    change = cores[rows] - demand.present[rows]
    gained, lost = int(np.maximum(change, 0).sum()), int(np.maximum(-change, 0).sum())
    cost = _migration_bytes(demand, cores, rows)
    if not gained and not lost:
        reason = "every executor has its cores where they are"
    else:
        how = "first found" if naive else f"φ {phi / 1024:,.0f} KB/s"
        reason = f"{gained} cores given, {lost} taken, {cost / 1e6:,.1f} MB of state to move ({how})"
    return Assignment(demand, cores, phi, cost, gained, reason)


class _Start:
    """What every run starts from; taken once, as there may be a million pairs of executor and node."""

    def __init__(self, demand: CoreDemand) -> None:
        self.demand = demand
        self.rows, self.columns = np.nonzero(demand.present)
        self.held = demand.present[self.rows, self.columns]
        nodes, executors = len(demand.nodes), len(demand.executors)
        self.total = np.bincount(self.rows, weights=self.held, minlength=executors).astype(np.int64)
        self.free = demand.capacity - np.bincount(self.columns, weights=self.held, minlength=nodes).astype(
            np.int64
        )

    def may_come_out(self, phi: float) -> bool:
        """Say whether homes are large enough: what executors above φ lack there, beside what such executors hold firmly
        there. Cheap, and spares most runs that would fail."""
        demand = self.demand
        intense = demand.bytes_per_s > phi
        lack = np.where(intense, np.maximum(demand.demand - self.total, 0), 0)
        asked = np.bincount(demand.home, weights=lack, minlength=len(self.free))
        spare = np.maximum(self.total - demand.demand, 0)
        firm = np.where(intense[self.rows], np.maximum(self.held - spare[self.rows], 0), 0)
        kept = np.bincount(self.columns, weights=firm, minlength=len(self.free))
        return bool((asked + kept <= demand.capacity)[asked > 0].all())


class _Search:
    """One run of Algorithm 1 for one φ."""

    def __init__(self, start: _Start, phi: float, naive: bool) -> None:
        self.demand = start.demand
        self.naive = naive
        self.need = self.demand.demand
        self.intense = self.demand.bytes_per_s > phi
        self.cores = self.demand.present.copy()
        self.total = start.total.copy()
        self.free = start.free.copy()
        self.waiting: list[tuple[float, int]] = []
        self.touched: set[int] = set()
        self.surplus: _Surplus | None = None

    def run(self) -> _Search | None:
        """Serve every executor; None where one above φ cannot get its cores at home."""
        self._empty_overfull_nodes()
        for lacking in np.flatnonzero(self.total < self.need):
            self._wait(int(lacking))
        while self.waiting:
            executor = heapq.heappop(self.waiting)[1]
            serve = self._serve_at_home if self.intense[executor] else self._serve_anywhere
            while self.total[executor] < self.need[executor]:
                if not serve(executor):
                    return None
        return self

    def _wait(self, executor: int) -> None:
        heapq.heappush(self.waiting, (-float(self.demand.bytes_per_s[executor]), executor))

    def _move(self, node: int, giver: int | None, taker: int | None) -> None:
        """Pass one core on a node from one executor to another; None is nobody."""
        if giver is None:
            self.free[node] -= 1
        else:
            self.touched.add(giver)
            self.cores[giver, node] -= 1
            self.total[giver] -= 1
            if self.surplus is not None:
                self.surplus.note(self, giver)
        if taker is None:
            self.free[node] += 1
        else:
            self.touched.add(taker)
            self.cores[taker, node] += 1
            self.total[taker] += 1

    # -- costs --------------------------------------------------------------------------------------------------------

    def _taking_costs(self, node: int, givers: I64) -> F64:
        """C⁻: state that leaves the node when each of these gives up a core on it, s (X - x) / (X (X - 1)).

        The last core of an executor takes all of its state along.
        """
        total, held = self.total[givers], self.cores[givers, node]
        share = np.where(total > 1, (total - held) / np.maximum(total * (total - 1), 1), 1.0)
        found: F64 = self.demand.state_bytes[givers] * share
        return found

    def _giving_costs(self, executor: int) -> F64:
        """C⁺ of a core on each node: s (X - x) / (X (X + 1)); nothing for an executor that has no core yet."""
        total = int(self.total[executor])
        if total == 0:
            return np.zeros(len(self.free))
        found: F64 = (total - self.cores[executor]) * (
            self.demand.state_bytes[executor] / (total * (total + 1))
        )
        return found

    # -- serving ------------------------------------------------------------------------------------------------------

    def _serve_at_home(self, executor: int) -> bool:
        node = int(self.demand.home[executor])
        if self.free[node] > 0:
            self._move(node, None, executor)
            return True
        holders = np.flatnonzero(self.cores[:, node] > 0)
        holders = holders[holders != executor]
        spare = holders[self.total[holders] > self.need[holders]]
        givers = spare if spare.size else holders[~self.intense[holders]]
        if not givers.size:
            return False
        giver = int(givers[self._taking_costs(node, givers).argmin()])
        was_served = self.total[giver] >= self.need[giver]
        self._move(node, giver, executor)
        if was_served and self.total[giver] < self.need[giver]:
            self._wait(giver)
        return True

    def _serve_anywhere(self, executor: int) -> bool:
        node = self._free_node(executor)
        if node is not None:
            self._move(node, None, executor)
            return True
        if self.surplus is None:
            self.surplus = _Surplus(self)
        found = self.surplus.first() if self.naive else self.surplus.cheapest(self._giving_costs(executor))
        if found is None:
            return False
        self._move(found[1], found[0], executor)
        return True

    def _free_node(self, executor: int) -> int | None:
        """Return the node with a free core that costs least: where the executor has most, else at home, else the
        emptiest, so that it can grow there."""
        if self.naive:
            return _first(self.free > 0)
        score = self.cores[executor] * 2
        score[self.demand.home[executor]] += 1
        score = np.where(self.free > 0, score * (int(self.free.max()) + 1) + self.free, -1)
        best = int(score.argmax())
        return best if score[best] >= 0 else None

    # -- before and after ---------------------------------------------------------------------------------------------

    def _empty_overfull_nodes(self) -> None:
        """Take cores from nodes that have more in use than they may give: those beyond a need first."""
        for node in np.flatnonzero(self.free < 0):
            while self.free[node] < 0:
                holders = np.flatnonzero(self.cores[:, node] > 0)
                spare = holders[self.total[holders] > self.need[holders]]
                givers = spare if spare.size else holders
                giver = int(givers[self._taking_costs(int(node), givers).argmin()])
                self._move(int(node), giver, None)

    def give_back(self) -> None:
        """Give up what is beyond the need: away from home first where data is moved for it, else what costs least."""
        for executor in np.flatnonzero(self.total > self.need):
            while self.total[executor] > self.need[executor]:
                held = np.flatnonzero(self.cores[executor] > 0)
                remote = held[held != self.demand.home[executor]]
                choice = remote if self.intense[executor] and remote.size else held
                # C⁻ falls with the cores held on the node: most of what moves stays there.
                node = choice[self.cores[executor, choice].argmax()]
                self._move(int(node), int(executor), None)


class _Surplus:
    """Cores of executors that have more than they need, as (giver, node) pairs with C⁻ kept up to date."""

    def __init__(self, search: _Search) -> None:
        over = np.flatnonzero(search.total > search.need)
        rows, self.nodes = np.nonzero(search.cores[over] > 0)
        self.givers = over[rows]
        self.size = search.demand.state_bytes[self.givers]
        self.costs = np.zeros(len(self.givers))
        ends = np.searchsorted(self.givers, over, side="right")
        starts = np.searchsorted(self.givers, over, side="left")
        self.spans = {int(g): (int(a), int(b)) for g, a, b in zip(over, starts, ends, strict=True)}
        self._price(search, 0, len(self.givers))

    def _price(self, search: _Search, start: int, end: int) -> None:
        givers, nodes = self.givers[start:end], self.nodes[start:end]
        total, held = search.total[givers], search.cores[givers, nodes]
        share = (total - held) / np.maximum(total * (total - 1), 1)
        can = (held > 0) & (total > search.need[givers])
        self.costs[start:end] = np.where(can, self.size[start:end] * share, np.inf)

    def note(self, search: _Search, giver: int) -> None:
        """A giver has given up a core: its other cores cost something else now, or are no longer to be had."""
        if giver in self.spans:
            self._price(search, *self.spans[giver])

    def cheapest(self, giving: F64) -> tuple[int, int] | None:
        """Return giver and node of the core that costs least to take, C⁻, and to give, C⁺."""
        if not len(self.costs):
            return None
        costs = self.costs + giving[self.nodes]
        best = int(costs.argmin())
        return (int(self.givers[best]), int(self.nodes[best])) if np.isfinite(costs[best]) else None

    def first(self) -> tuple[int, int] | None:
        found = _first(np.isfinite(self.costs))
        return None if found is None else (int(self.givers[found]), int(self.nodes[found]))


def _first(where: npt.NDArray[np.bool_]) -> int | None:
    found = int(where.argmax()) if where.size else 0
    return found if where.size and where[found] else None
