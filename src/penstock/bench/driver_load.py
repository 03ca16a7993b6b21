"""How many executors one driver carries: the real engine, hub and record log, with leases that do no work.

Operators stand in a row and step every 100 ms; more and more of them, until the driver's own threads take half
a core or an operator falls behind its pace. Starts one process that answers for all leases, and no Spark.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

import penstock
from penstock.bench.driver_leases import Order
from penstock.dataplane import messages, paths, records
from penstock.dataplane.compile import compile_program
from penstock.dataplane.disk import PosixDisk
from penstock.dataplane.engine import Engine
from penstock.dataplane.logthread import LogThread
from penstock.dataplane.opening import open_checkpoint
from penstock.dataplane.program import Program
from penstock.dataplane.recordlog import LogWriter
from penstock.dataplane.run import SinkWork
from penstock.dataplane.settings import Settings
from penstock.dataplane.sourcing import Arrivals
from penstock.errors import PenstockError
from penstock.spark.hub import Hub, Listener

EPOCH_S: Final = 0.1
ROWS_PER_S: Final = 20_000.0
TASKS_EACH: Final = 2
HALF_A_CORE: Final = 0.5
LATE: Final = 1.15
"""An operator whose epochs are further apart than this many times 100 ms has lost its pace."""
FIRST_TRIAL: Final = 16
WINDOW_S: Final = 5.5
"""Longer than the time between two base records, so that one of them is in it."""


@dataclass(frozen=True)
class Trial:
    """What so many executors cost the driver."""

    executors: int
    cores: float
    epoch_s: float
    """From one epoch of an operator to its next, for the slowest operator."""

    @property
    def kept(self) -> bool:
        return self.epoch_s <= LATE * EPOCH_S


def measure_executors(count: int = 3) -> tuple[int, Trial]:
    """Return how many executors a driver carries at 100 ms epochs, and the trial that is nearest to it.

    Args:
        count: of trials, two or more; each takes some seven seconds and comes nearer.
    """
    trials: list[Trial] = []
    for _ in range(count):
        trials.append(run_trial(propose_executors(trials)))
    carried = resolve_carried(trials)
    return carried, min(trials, key=lambda trial: abs(trial.executors - carried))


def propose_executors(trials: Sequence[Trial]) -> int:
    """Say how many to try next: as many as should take half a core."""
    return max(1, _at_half_a_core(trials)) if trials else FIRST_TRIAL


def resolve_carried(trials: Sequence[Trial]) -> int:
    """Say how many executors take half a core, but no more than the fewest that lost their pace.

    Cost grows in proportion between two trials that are near each other, so the last two are joined by a line.
    """
    lost = [trial.executors for trial in trials if not trial.kept]
    kept = [trial.executors for trial in trials if trial.kept]
    most = max((count for count in kept if count < min(lost)), default=0) if lost else _at_half_a_core(trials)
    return min(most, _at_half_a_core(trials))


def _at_half_a_core(trials: Sequence[Trial]) -> int:
    near = sorted(trials[-2:], key=lambda trial: trial.executors)
    last = near[-1]
    if len(near) == 2 and near[0].executors < last.executors and near[0].cores < last.cores:
        per_executor = (last.cores - near[0].cores) / (last.executors - near[0].executors)
    else:
        per_executor = last.cores / last.executors
    return max(1, int(last.executors + (HALF_A_CORE - last.cores) / max(per_executor, 1e-6)))


def run_trial(executors: int, window_s: float = WINDOW_S) -> Trial:
    """Drive so many executors for a while.

    Raises:
        PenstockError: the engine ended with an error, or nothing came through in time.
    """
    folder = tempfile.mkdtemp(prefix="penstock-bench-driver-")
    try:
        driver = Driver(executors, folder)
        try:
            driver.start()
            return driver.measure(window_s)
        finally:
            driver.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def operators_in_a_row(count: int) -> Program:
    rows = penstock.generate(_no_rows, schema="key long, value long", rate=ROWS_PER_S, name="rows")
    for number in range(count):
        rows = rows.groupBy("key").agg(penstock.sum("value").alias("value"), name=f"op{number}")
    return compile_program(rows.node, tasks=TASKS_EACH, memory_bytes=1 << 20)


def _no_rows(offset: int, count: int) -> Any:
    raise NotImplementedError("leases without work make no rows")


class Driver(Listener):
    """The driver's threads as the Spark shell has them, without Spark: hub with engine, and log."""

    def __init__(self, executors: int, folder: str) -> None:
        disk = PosixDisk()
        self._program = operators_in_a_row(executors)
        opened = open_checkpoint(disk, folder, self._program)
        self._hub = Hub("127.0.0.1", self)
        self._engine = Engine(
            self._program,
            opened.chains,
            self,
            # A short sink epoch would only add to the number of epochs that are counted.
            Settings(min_epoch_s=EPOCH_S, sink_epoch_s=EPOCH_S),
            query=opened.query,
            generation=opened.claim.generation,
            identity=opened.identity,
            clock=time.monotonic,
            wall=time.time,
        )
        self._engine.sources.set_arrivals("rows", Arrivals([(1.0, ROWS_PER_S)]))
        self._log = LogThread(
            LogWriter(disk, folder, opened.claim), self._appended, self._part_started, self._note_failure
        )
        self._leases: subprocess.Popen[bytes] | None = None
        self._failure: BaseException | None = None

    def start(self) -> None:
        count = 1 + TASKS_EACH * (len(self._program.stages) - 2)
        tokens = {f"lease{number}": secrets.token_bytes(16) for number in range(count)}
        for lease, token in tokens.items():
            self._hub.expect(lease, token)
        self._hub.start(self._note_failure)
        self._log.start()
        self._hub.ask(lambda: self._engine.start(count))
        edges = {
            name: (stage.edges[0].edge, stage.edges[0].shards)
            for name, stage in self._program.stages.items()
            if stage.edges
        }
        order = msgspec.msgpack.encode(Order(self._hub.address, tokens, edges))
        command = [sys.executable, "-m", "penstock.bench.driver_leases"]
        self._leases = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert self._leases.stdin is not None
        self._leases.stdin.write(order)
        self._leases.stdin.close()

    def measure(self, window_s: float) -> Trial:
        self._await_all(time.monotonic() + 30.0)
        time.sleep(1.0)
        began, cpu_s, before = time.monotonic(), self._cpu_s(), self._epochs()
        time.sleep(window_s)
        spent, used_s, after = time.monotonic() - began, self._cpu_s() - cpu_s, self._epochs()
        slowest = min(after[name] - before[name] for name in after)
        return Trial(len(after), used_s / spent, spent / max(1, slowest))

    def stop(self) -> None:
        self._hub.close()
        self._log.end()
        self._log.close(10.0)
        if self._leases is not None:
            self._leases.kill()
            self._leases.wait()

    def _await_all(self, deadline: float) -> None:
        while min(self._epochs().values()) < 2:
            if time.monotonic() > deadline:
                raise PenstockError("the driver's trial came to no epoch in 30 s; stop other work and retry.")
            time.sleep(0.05)

    def _epochs(self) -> dict[str, int]:
        if self._failure is not None:
            raise PenstockError(f"the driver's trial failed: {self._failure}") from self._failure
        runs = self._engine.runs
        return self._hub.ask(lambda: {name: run.epochs for name, run in runs.items() if run.spec.keys})

    def _cpu_s(self) -> float:
        return self._hub.cpu_s + self._log.cpu_s

    def _note_failure(self, error: BaseException) -> None:
        self._failure = self._failure or error

    # -- Listener and Shell (hub's thread) ------------------------------------------------------------------------

    def lease_up(self, lease: str, hello: messages.Hello) -> None:
        self._engine.on_lease_up(lease, hello.node)

    def lease_down(self, lease: str, reason: str) -> None:
        self._note_failure(PenstockError(f"{lease} ended: {reason}"))

    def message(self, lease: str, message: messages.FromLease) -> None:
        self._engine.on_message(lease, message)

    def step(self) -> float:
        return self._engine.step()

    def send(self, lease: str, message: messages.ToLease) -> None:
        self._hub.send(lease, message)

    def append(self, encoded: Sequence[bytes]) -> None:
        self._log.append(encoded)

    def start_part(self, base: records.Base) -> None:
        self._log.start_part(base)

    def drop_lease(self, lease: str, reason: str) -> None:
        self._note_failure(PenstockError(f"{lease} was given up: {reason}"))

    def run_sink(self, work: SinkWork) -> None:
        self._hub.post(lambda: self._engine.on_sink_done(work.stage, work.epoch))

    def clean_up(self, names: Sequence[str]) -> None:
        """Nothing: leases without work leave no files."""

    def fail(self, error: PenstockError) -> None:
        self._note_failure(error)

    # -- log thread ---------------------------------------------------------------------------------------------------

    def _appended(self, count: int) -> None:
        self._hub.post(lambda: self._engine.on_appended(count))

    def _part_started(self, part: paths.LogPart) -> None:
        self._hub.post(self._engine.on_part_started)
