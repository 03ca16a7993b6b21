"""One run of Elasticutor's Algorithm 1 for one threshold φ: who gets which core from whom.

The arrays behind `assignment`, kept up to date core by core. The printed algorithm uses one name for taker and giver, and
takes cores for data-intensive executors from those with too many only; its text lets them take from any executor that is
not data-intensive, which then looks for another core: that is what is done here, after the others.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from penstock.control.measure.sample import F64, I64
from penstock.control.plan.cores import CoreDemand


class Start:
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


class Search:
    """One run of Algorithm 1 for one φ."""

    def __init__(self, start: Start, phi: float, naive: bool) -> None:
        self.demand = start.demand
        self.naive = naive
        self.need = self.demand.demand
        self.intense = self.demand.bytes_per_s > phi
        self.cores = self.demand.present.copy()
        self.total = start.total.copy()
        self.free = start.free.copy()
        self.waiting: list[tuple[float, int]] = []
        self.touched: set[int] = set()
        self._surplus: _Surplus | None = None
        self.last_node = -1
        held = int(self.total.sum())
        self.budget = (
            held + int(self.free.sum()) if start.demand.max_cores is None else start.demand.max_cores
        ) - held
        """Free cores that may still be given before the limit on all is reached."""

    @property
    def surplus(self) -> _Surplus:
        if self._surplus is None:
            self._surplus = _Surplus(self)
        return self._surplus

    def run(self) -> Search | None:
        """Serve every executor; None where one above φ cannot get its cores at home."""
        self._empty_overfull_nodes()
        while self.budget < 0 and self._drop_surplus():
            pass
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
            self.budget -= 1
        else:
            self.touched.add(giver)
            self.cores[giver, node] -= 1
            self.total[giver] -= 1
            if self._surplus is not None:
                self._surplus.note(self, giver)
        if taker is None:
            self.free[node] += 1
            self.budget += 1
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
        if self.free[node] > 0 and (self.budget > 0 or self._drop_surplus()):
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
        node = self._free_node(executor) if self.budget > 0 else None
        if node is not None:
            self._move(node, None, executor)
            return True
        found = self.surplus.first() if self.naive else self.surplus.cheapest(self._giving_costs(executor))
        if found is None:
            return False
        self._move(found[1], found[0], executor)
        return True

    def _drop_surplus(self) -> bool:
        """Give up the core beyond a need that costs least; say whether there was one."""
        found = self.surplus.cheapest(np.zeros(len(self.free)))
        if found is None:
            return False
        self._move(found[1], found[0], None)
        return True

    def _free_node(self, executor: int) -> int | None:
        """Return the node with a free core that costs least: where the executor has most, else at home, else the
        emptiest, so that it can grow there."""
        if self.naive:
            return self._next_node()
        score = self.cores[executor] * 2
        score[self.demand.home[executor]] += 1
        score = np.where(self.free > 0, score * (int(self.free.max()) + 1) + self.free, -1)
        best = int(score.argmax())
        return best if score[best] >= 0 else None

    def _next_node(self) -> int | None:
        """Return the next node in turn that has a free core."""
        free = np.flatnonzero(self.free > 0)
        if not free.size:
            return None
        self.last_node = int(free[np.searchsorted(free, self.last_node, side="right") % len(free)])
        return self.last_node

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

    def __init__(self, search: Search) -> None:
        over = np.flatnonzero(search.total > search.need)
        rows, self.nodes = np.nonzero(search.cores[over] > 0)
        self.givers = over[rows]
        self.size = search.demand.state_bytes[self.givers]
        self.costs = np.zeros(len(self.givers))
        ends = np.searchsorted(self.givers, over, side="right")
        starts = np.searchsorted(self.givers, over, side="left")
        self.spans = {int(g): (int(a), int(b)) for g, a, b in zip(over, starts, ends, strict=True)}
        self._price(search, 0, len(self.givers))

    def _price(self, search: Search, start: int, end: int) -> None:
        givers, nodes = self.givers[start:end], self.nodes[start:end]
        total, held = search.total[givers], search.cores[givers, nodes]
        share = (total - held) / np.maximum(total * (total - 1), 1)
        can = (held > 0) & (total > search.need[givers])
        self.costs[start:end] = np.where(can, self.size[start:end] * share, np.inf)

    def note(self, search: Search, giver: int) -> None:
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
