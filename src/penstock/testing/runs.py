"""Runs a whole topology in process, on a virtual clock, and lets die in it what its scripts say.

The engine, the log, the checkpoint and the workers are the real ones; leases are objects and time is the simulation's.
What comes out is what a sink that honours the sink epoch keeps.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.dataplane.disk import Disk, PosixCalls, StepDisk
from penstock.dataplane.program import StageSpec, operator_of
from penstock.dataplane.sourcing import Arrivals
from penstock.errors import DeclarationError, PenstockError
from penstock.raised import noting_ctrl_c
from penstock.testing.clocks import ManualClock, parse_positive
from penstock.testing.declared import compile_stream, with_few_shards
from penstock.testing.scripts import Crash, Fault, Script, ScriptArrivals
from penstock.topology.nodes import Node
from penstock.topology.stream import Stream

if TYPE_CHECKING:
    from penstock.sim.inprocess import Driver

_SHARDS: Final = 8
_EPOCHS: Final = 64
"""A long input is worked off in about so many epochs."""
_SKIP_S: Final = 3.0
"""Time without anything to do that is passed at once; longer than what the engine takes for a held-up process."""
_UNTIL_DEATH_S: Final = 0.08
_DOWN_S: Final = 0.2
"""Bounds, drawn by the seed: from the last row before a death to the death, and from a crash to the restart."""


class DidNotFinish(PenstockError):
    """A run in process did not come to its end within the virtual time it was given."""


def run(
    stream: Stream,
    *,
    seed: int = 0,
    clock: ManualClock | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    within: object = "1 minute",
    outputMode: str | None = None,
) -> pa.Table:
    """Run a topology to its end, in this process and without Spark, and return what reached its sink.

    Two leases on two nodes work for it. Each row is there once, whatever died on the way, in the order of sink epochs.
    The same seed gives the same run; other seeds give other epochs, delays and moments of death.

    Args:
        stream: over sources that end: `script`, `penstock.from_rows`, or `penstock.generate` with a limit.
        clock: where the run begins; it is left where the run ended. 2026-01-01 when not given.
        checkpoint: a folder to begin or go on with, for a story of several runs, each of which returns the rows that
            reached the sink in it; a temporary one when not given. Nothing in it is synced: it is for tests alone.
        within: virtual time that may pass after the last row and pause of every source.
        outputMode: as of `writeStream`.

    Raises:
        DeclarationError: a source has no end or needs Spark, or the topology is wrong.
        DidNotFinish: rows still go round or wait when the time is over.
        PenstockError: the run ended with this error, the one that `exception()` of a query on Spark returns.
    """
    from penstock.sim.inprocess import Driver  # the simulation is built on this package
    from penstock.sim.loop import Loop
    from penstock.sim.timing import SMALL, quick

    nodes, program = compile_stream(stream, "run(...)", outputMode, tasks=2)
    within_s = parse_positive(within, "run(within=...)") / 1e6
    sources = {node.name: node for node in nodes if not node.inputs}
    for node in sources.values():
        _check_source(node)
    scripts = {
        name: ScriptArrivals(node.function)
        for name, node in sources.items()
        if isinstance(node.function, Script)
    }

    def arrivals_of(stage: StageSpec) -> Arrivals:
        return scripts.get(stage.name) or Arrivals(sources[stage.name].rate, sources[stage.name].limit)

    rows = sum(node.limit or 0 for node in sources.values())
    clock = clock or ManualClock()
    with _folder(checkpoint) as (checkpoint_dir, node_dir):
        driver = Driver(
            _unsynced_disk(),
            checkpoint_dir,
            with_few_shards(program, _SHARDS),
            quick(SMALL, max_epoch_rows=max(SMALL.max_epoch_rows, rows // _EPOCHS)),
            node_dir=node_dir,
            loop=Loop(seed, clock.time_us / 1e6),
            arrivals=arrivals_of,
        )
        try:
            with noting_ctrl_c():
                _Story(driver, scripts, _lengths_s(sources, scripts) + within_s, str(within)).tell()
        finally:
            driver.stop()
            driver.loop.run_until(lambda: False, 1.0)  # leases notice, close their state and go
            clock.time_us = max(clock.time_us, round(driver.loop.wall() * 1e6))
        kept = {epoch: table for _, epoch, table in driver.sink.calls}
    tables = [kept[epoch] for epoch in sorted(kept)]
    return pa.concat_tables(tables).combine_chunks() if tables else stream.schema.empty_table()


class _Story:
    """One run from its beginning to its end, deaths and restarts included."""

    def __init__(
        self, driver: Driver, scripts: Mapping[str, ScriptArrivals], limit_s: float, within: str
    ) -> None:
        self._driver = driver
        self._loop = driver.loop
        self._scripts = scripts
        self._deadline_s = driver.loop.now + limit_s
        self._within = within

    def tell(self) -> None:
        """Run until everything has come through and everything that is to die has died."""
        while True:
            self._loop.run_until(self._is_called_for, max(0.0, self._deadline_s - self._loop.now))
            if not self._driver.running:
                raise self._driver.failed or PenstockError("the run ended before its sources did.")
            fault = self._due_fault()
            if fault is not None:
                self._strike(*fault)
            elif self._is_over():
                return
            elif self._loop.now >= self._deadline_s:
                raise DidNotFinish(self._unfinished())
            else:
                self._skip()

    def _is_called_for(self) -> bool:
        return (
            not self._driver.running
            or self._due_fault() is not None
            or self._is_over()
            or self._idle_s() > _SKIP_S
        )

    # -- deaths -------------------------------------------------------------------------------------------------------

    def _due_fault(self) -> tuple[str, Fault] | None:
        for source, script in self._scripts.items():
            fault = script.next_fault
            if fault is None or not script.running or script.elapsed_s(self._loop.wall()) < fault.at_s - 1e-6:
                continue
            at_work = self._driver.engine.runs[source].offsets
            made = max(self._driver.engine.chains[source].offset, at_work[1] if at_work else 0)
            if made >= fault.row:
                return source, fault
        return None

    def _strike(self, source: str, fault: Fault) -> None:
        driver, loop = self._driver, self._loop
        loop.run_until(lambda: not driver.running, loop.between(0.0, _UNTIL_DEATH_S))
        if not driver.running:
            return
        if isinstance(fault.what, Crash):
            for script in self._scripts.values():
                script.stand(loop.wall())
            driver.crash()
            self._scripts[source].pass_fault()
            loop.run_until(lambda: False, loop.between(0.0, _DOWN_S))
            driver.restart()
        elif driver.live_leases():
            driver.kill(loop.rng.choice(driver.live_leases()))
            self._scripts[source].pass_fault()

    # -- time ---------------------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        driver, wall = self._driver, self._loop.wall()
        if not driver.running or not driver.engine.draining.is_drained():
            return False
        if any(s.next_fault or s.elapsed_s(wall) < s.script.length_s - 1e-6 for s in self._scripts.values()):
            return False
        timers = [run.next_timer_us() for run in driver.engine.runs.values()]
        return not any(timer_us is not None and timer_us <= wall * 1e6 for timer_us in timers)

    def _idle_s(self) -> float:
        """Seconds for which nothing can happen; 0 while something is under way."""
        engine, wall = self._driver.engine, self._loop.wall()
        if not engine.draining.is_quiet() or not all(run.is_whole for run in engine.runs.values()):
            return 0.0
        if any(engine.chains[name].offset < due for name, due in engine.sources.due_now().items()):
            return 0.0
        waits = [script.next_in_s(wall) for script in self._scripts.values()]
        for run in engine.runs.values():
            timer_us = run.next_timer_us()
            waits.append(None if timer_us is None else timer_us / 1e6 - wall)
            if run.spec.idle_s is not None and not run.chain.idle and not run.chain.ended:
                waits.append(run.rows_at + run.spec.idle_s - self._loop.now)
            if run.spec.kind == "source" and run.spec.name not in self._scripts:
                waits.append(None if engine.draining.is_drained() else 0.0)
        return min((wait_s for wait_s in waits if wait_s is not None), default=0.0)

    def _skip(self) -> None:
        idle_s = self._idle_s()
        if idle_s > _SKIP_S:
            self._loop.skip_to(min(self._loop.now + idle_s - 0.5, self._deadline_s))

    def _unfinished(self) -> str:
        engine, program = self._driver.engine, self._driver.program
        said = [
            f"source '{name}' has made {engine.chains[name].offset} rows, {due} were due"
            for name, due in engine.sources.due_now().items()
            if engine.chains[name].offset < due
        ]
        waiting = {
            edge.consumer
            for name, chain in engine.chains.by_name.items()
            for edge in program.stages[operator_of(name)].edges
            if chain.out[edge.edge]
        }
        said.extend(f"rows wait in front of '{name}'" for name in sorted(waiting))
        return (
            f"the run did not finish within {self._within} of virtual time after its sources: "
            f"{'; '.join(said) or 'an epoch is under way'}; give it longer with within=, or end its loop."
        )


def _check_source(node: Node) -> None:
    if node.kind == "dataframe":
        raise DeclarationError(
            f"source '{node.name}' is a DataFrame, which needs Spark; declare the topology in a function of its streams, "
            "and give it script([...], schema=...) here."
        )
    if node.limit is None:
        raise DeclarationError(
            f"source '{node.name}' has no end, and run(...) goes on to the end; give generate(...) a limit=."
        )


def _lengths_s(sources: Mapping[str, Node], scripts: Mapping[str, ScriptArrivals]) -> float:
    """The time that the longest source takes by its own schedule."""
    lengths = [script.script.length_s for script in scripts.values()]
    for name, node in sources.items():
        if name not in scripts and node.limit:
            lengths.append(Arrivals(node.rate, node.limit).length_s())
    return max(lengths, default=0.0)


class _UnsyncedCalls(PosixCalls):
    """POSIX without the waiting: processes die in these runs, machines do not."""

    def sync(self, file: int) -> None:
        pass

    def sync_dir(self, path: str) -> None:
        pass


def _unsynced_disk() -> Disk:
    return StepDisk(_UnsyncedCalls(), None, lambda: f"{os.getpid():x}-t")


@contextlib.contextmanager
def _folder(checkpoint: str | os.PathLike[str] | None) -> Iterator[tuple[str, str]]:
    """A checkpoint and a place for local state, in memory where there is such a place; gone afterwards but for a
    checkpoint that was given."""
    home = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(prefix="penstock-test-", dir=home, ignore_cleanup_errors=True) as folder:
        kept = f"{folder}/checkpoint" if checkpoint is None else str(Path(checkpoint).expanduser().absolute())
        yield kept, f"{folder}/nodes"
