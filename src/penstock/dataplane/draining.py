"""Whether rows are through: all there are, or, for `processAllAvailable`, those that had arrived when it was called.

A mark follows the latter: a source is past it when it has committed them, a stage when it has taken all that its
producers had published by then and its executors have told each other's event times, a sink when that is done. Rows that
arrive later are nobody's concern, so the wait ends on a source that never does. Looks at the engine and commits nothing;
all it changes is that a sink which lets the last of the marked rows gather takes them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.dataplane.program import operator_of
from penstock.dataplane.run import Phase

if TYPE_CHECKING:
    from penstock.dataplane.chain import Chain
    from penstock.dataplane.chains import Chains
    from penstock.dataplane.engine import Engine
    from penstock.dataplane.sourcing import Arrivals


class DrainMark:
    """Where the rows that had arrived at one moment have got to.

    A bounded source counts as arrived as a whole. A source whose schedule has not begun is waited for.
    """

    def __init__(self, chains: Chains, arrivals: Mapping[str, Arrivals]) -> None:
        self._chains = chains
        self._arrivals = arrivals
        self._goals: dict[str, int] = {}
        self._passed: dict[str, int] = {}
        """Epoch of each chain that holds the last of the rows, or says the last of their event times."""
        self._taken: dict[str, int] = {}
        """Epoch at which each executor was found to lag behind others when all of the operator had taken the rows: its next
        one says what they had reached. What they say of later rows is nobody's concern."""

    def passed(self, wall: float) -> bool:
        """Whether all of them are through, as of this look."""
        for name, chain in self._chains.by_name.items():
            if name not in self._passed and self._is_past(chain, wall):
                self._passed[name] = chain.epoch
        if self._chains.program.loops:
            return self._is_quiet() and not self._chains.lagging()
        return len(self._passed) == len(self._chains.by_name)

    def is_next(self, name: str) -> bool:
        """Whether all marked rows that there will be for a stage wait for it now."""
        inputs = self._chains[name].spec.inputs
        if not self._chains.program.loops:
            return name not in self._passed and all(given.producer in self._passed for given in inputs)
        mine = {(given.producer, given.edge) for given in inputs}
        return self._is_quiet(mine)

    def _is_quiet(self, but: Container[tuple[str, int]] = ()) -> bool:
        """With loops there is no last stage: the sources are past the mark, and in this look nothing waits anywhere, but
        on some edges perhaps."""
        chains = self._chains.by_name.values()
        sources = [chain.name for chain in chains if chain.spec.kind == "source"]
        waiting = any(
            queue and (chain.name, edge) not in but for chain in chains for edge, queue in chain.out.items()
        )
        return not waiting and all(name in self._passed for name in sources)

    def _is_past(self, chain: Chain, wall: float) -> bool:
        arrivals = self._arrivals.get(chain.name)
        if arrivals is not None:
            return self._source_is_past(chain, arrivals, wall)
        if chain.spec.kind == "source":
            return chain.has_said_its_end()
        siblings = self._chains.of(operator_of(chain.name))
        return all(self._has_taken(one) for one in siblings) and self._has_told(chain, siblings)

    def _has_taken(self, chain: Chain) -> bool:
        return all(self._is_taken(given.edge, given.producer) for given in chain.spec.inputs)

    def _has_told(self, chain: Chain, siblings: Sequence[Chain]) -> bool:
        """Whether an executor says all the event times of the rows that others of its operator know and that count for it
        too."""
        for one in siblings if chain.name not in self._taken else ():
            self._taken.setdefault(one.name, one.epoch if self._chains.lags(one) else one.epoch - 1)
        return chain.epoch > self._taken[chain.name]

    def _source_is_past(self, chain: Chain, arrivals: Arrivals, wall: float) -> bool:
        if chain.name not in self._goals:
            if arrivals.limit is not None:
                self._goals[chain.name] = arrivals.limit
            elif arrivals.running:
                self._goals[chain.name] = arrivals.due(wall)
            else:
                return False
        return chain.offset >= self._goals[chain.name] and (
            arrivals.limit is None or chain.has_said_its_end()
        )

    def _is_taken(self, edge: int, producer: str) -> bool:
        """Whether a consumer has taken what its producer had published by its mark; a sink takes rows when they are
        done."""
        if producer not in self._passed:
            return False
        waiting = self._chains[producer].out[edge]
        return not waiting or waiting[0].epoch > self._passed[producer]


class Draining:
    """What one engine still has to do."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def is_quiet(self) -> bool:
        """Whether, in this one look, nothing waits, no epoch is in flight and every sink is done; sources may have
        more."""
        engine = self._engine
        if not engine.line.empty or any(run.phase is not Phase.IDLE for run in engine.runs.values()):
            return False
        chains = engine.chains.by_name.values()
        if any(chain.intent is not None for chain in chains):
            return False
        if any(run.force_empty for run in engine.runs.values() if run.spec.kind == "operator"):
            return False  # an epoch without rows is owed, which may say how far event time is
        return (
            not any(queue for chain in chains for queue in chain.out.values()) and not engine.chains.lagging()
        )

    def is_drained(self) -> bool:
        """Whether, in this one look, sources are drained and all is quiet; never on a source without an end."""
        for name, arrivals in self._engine.sources.arrivals.items():
            chain = self._engine.chains[name]
            if arrivals.limit is None or chain.offset < arrivals.limit:
                return False
            if not chain.has_said_its_end():
                return False
        return self.is_quiet()

    def mark(self) -> DrainMark:
        """Mark the rows that have arrived by now; ask `has_passed` until they are through."""
        return DrainMark(self._engine.chains, self._engine.sources.arrivals)

    def has_passed(self, mark: DrainMark) -> bool:
        """Whether the marked rows are through. Sinks that let rows gather take them when they are the last."""
        if mark.passed(self._engine.wall()):
            return True
        held = [
            run
            for name, run in self._engine.runs.items()
            if run.gathers_since is not None and mark.is_next(name)
        ]
        for run in held:
            run.flush = True
        if held:
            self._engine.step()
        return False
