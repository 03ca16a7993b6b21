"""How sinks step: an intent, the side effect of exactly those rows, and that it is done; some let rows gather first. A
part of the engine; it does no I/O and decides nothing about other stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.dataplane.records import Record
from penstock.dataplane.run import Phase, Run, SinkWork
from penstock.dataplane.taking import stamp_of

if TYPE_CHECKING:
    from penstock.dataplane.engine import Engine


class SinkSteps:
    """The sinks of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def on_done(self, run: Run, epoch: int) -> None:
        """The side effect of a sink epoch is complete."""
        if run.phase is Phase.WORKING and run.chain.epoch == epoch:
            self._engine.committing.commit(run, epoch, kind="done")

    def step(self, run: Run, now: float) -> float:
        if run.chain.intent is not None:
            self._run_intended(run, run.chain.intent, now)
            return 1.0
        held_s = self._held_s(run, now)
        if held_s > 0:
            return held_s
        takes = [take for take in self._engine.takes(run) if take.pieces]
        if not takes:
            return 1.0
        run.gathers_since, run.flush = None, False
        run.begin(
            run.chain.epoch + 1,
            takes,
            sum(int(t.shard_rows.sum()) for t in takes),
            now,
            self._engine.epoch_time(),
        )
        groups, stamp = run.groups(), stamp_of(takes)
        self._engine.committing.commit(run, run.epoch, kind="intent", groups=groups, stamp=stamp)
        return 1.0

    def _held_s(self, run: Run, now: float) -> float:
        """Return for how long a sink still lets rows gather; 0 when it is to take them."""
        hold_s, hold_bytes = run.intake.hold
        if not hold_s or run.flush or self._engine.chains.waiting_bytes_for(run.chain) >= hold_bytes:
            return 0.0
        if not any(self._engine.chains.waiting(run.chain).values()):
            run.gathers_since = None
            return 1.0
        if run.gathers_since is None:
            run.gathers_since = now
        return min(1.0, run.gathers_since + hold_s - now)

    def _run_intended(self, run: Run, intent: Record, now: float) -> None:
        """Hand over exactly the intended rows, the first time and after any restart."""
        pieces = self._engine.chains.resolve(run.chain, intent.groups)
        run.begin(run.chain.epoch, (), sum(piece.rows() for piece in pieces), now, self._engine.epoch_time())
        run.stamp = intent.stamp
        self._engine.run_sink(SinkWork(run.spec.name, intent.epoch, pieces))
