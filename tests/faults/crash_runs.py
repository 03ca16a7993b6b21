"""One small whole run, crashed before or after any of its disk steps, then restarted and held to its promises.

As an exception, on the simulated disk: the process at that step dies, the others go on. As `os._exit`, on a
real one: everything dies in a process of its own; what it had committed and handed to the sink stands in a
journal beside the checkpoint.
"""

from __future__ import annotations

import base64
import json
import os
import random
import traceback
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from penstock.dataplane.disk import Disk, Faults, PosixCalls, PosixDisk, Step, StepDisk
from penstock.errors import PenstockError
from penstock.sim.inprocess import Driver
from penstock.sim.loop import Loop
from penstock.sim.programs import GATHERED, memory_program
from penstock.sim.promises import Promises
from penstock.sim.surroundings import DiskOf, SinkLog
from penstock.sim.timing import SMALL, Delays, quick
from penstock.testing.disk import SimDisk
from penstock.testing.faults import EXIT_CODE, FaultPlan, FaultRule, SimCrash, When, crash_after, crash_before

ROWS = 70
SETTINGS = quick(SMALL, base_interval_s=0.03, retain_epochs=3, max_epoch_rows=16, heartbeat_s=0.03)
DELAYS = Delays(office_s=0.01, cleanup_s=0.02)
CHECKPOINT = "/work/checkpoint"


class Trial:
    """The small run on some disk: opens, works, snapshots, rotates bases, cleans up, stops, starts again."""

    def __init__(self, disk_of: DiskOf, outside: Disk, checkpoint: str, sink: SinkLog | None = None) -> None:
        self.loop = Loop(1)
        self.sink = sink if sink is not None else SinkLog()
        program = memory_program(shards=(8, 8), tasks=(1, 2, 1))
        self.driver = Driver(
            disk_of, checkpoint, program, SETTINGS, rows=ROWS, rate=700.0, loop=self.loop, delays=DELAYS,
            sink=self.sink, roll_bytes=3_000, start=False,
        )  # fmt: skip
        self.promises = Promises(outside, checkpoint, program, self.sink, ROWS)
        self.promises.watch(self.driver)

    def live(self) -> None:
        """The whole run: half of it, a stop in order, a second driver that ends it. Ends early where it crashes."""
        half = lambda: self.driver.engine.chains["source"].offset >= ROWS // 2  # noqa: E731
        if self._start() and self.driver.run_until(half, 5.0):
            self.driver.stop()
            if self._start():
                self.driver.run_until("drained", 5.0)
                self.idle()

    def idle(self) -> None:
        """Let clean-up go round and a base or two be written."""
        self.driver.clean_up_soon()
        self.driver.run_until(0.1)

    def recover(self) -> None:
        """After the crash: restart where the driver is gone, go to the end, and check everything."""
        for _ in range(2):
            if not self.driver.running:
                assert self._start(), "no driver comes up after the crash"
            self.promises.check_start(self.driver)
            self.driver.run_until("drained", 20.0)
        assert self.driver.running, f"the driver ended after the crash: {self.driver.failed}"
        assert self.driver.drained(), "the run is not drained after the crash"
        self.promises.check_schedule(self.driver)
        self.idle()
        self.idle()
        self.promises.check_files(self.driver)

    def _start(self) -> bool:
        try:
            self.driver.restart()
        except SimCrash:
            return False
        return True


class Sides:
    """Writes down the steps of a run as seen from both sides; a step that finds nothing has no after."""

    def __init__(self) -> None:
        self.seen: dict[When, list[Step]] = {When.BEFORE: [], When.AFTER: []}

    def before(self, step: Step, path: str) -> None:
        self.seen[When.BEFORE].append(step)

    def after(self, step: Step, path: str) -> None:
        self.seen[When.AFTER].append(step)


def trace_steps() -> dict[When, list[Step]]:
    """Every step of the undisturbed run, in order."""
    machine, sides = _machine(), Sides()
    trial = Trial(lambda _name: machine.another(sides), machine, CHECKPOINT)
    trial.live()
    seen = {when: list(steps) for when, steps in sides.seen.items()}
    trial.recover()
    return seen


def all_points() -> list[tuple[int, When]]:
    """Every side of every step."""
    return [(nth, when) for when, steps in trace_steps().items() for nth in range(1, len(steps) + 1)]


def some_points(per_step: int) -> list[tuple[int, When]]:
    """For each kind of step and each side, the first one, the last one and some between."""
    points: list[tuple[int, When]] = []
    for when, steps in trace_steps().items():
        for step in Step:
            at = [nth for nth, one in enumerate(steps, 1) if one is step]
            gap = (len(at) - 1) / max(1, per_step - 1)
            points.extend(
                (nth, when) for nth in sorted({at[round(number * gap)] for number in range(per_step) if at})
            )
    return points


def crash_by_exception(nth: int, when: When) -> str | None:
    """Crash the process that takes the nth step; return what is wrong afterwards."""
    machine = _machine()
    plan = FaultPlan([_rule(nth, when)])
    trial = Trial(lambda _name: machine.another(plan), machine, CHECKPOINT)
    return _judge(trial, plan)


def _judge(trial: Trial, plan: FaultPlan) -> str | None:
    try:
        trial.live()
        if not plan.fired:
            return "the crash never happened"
        trial.recover()
    except (AssertionError, PenstockError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def crash_by_exit(nth: int, when: When, folder: Path) -> str | None:
    """End a whole process at the nth step, restart in another one; return what is wrong afterwards."""
    checkpoint, journal = str(folder / "checkpoint"), folder / "journal"

    def first() -> str | None:
        plan = FaultPlan([_rule(nth, when)], exit=True)
        trial = Trial(lambda _name: fast_disk(plan), fast_disk(), checkpoint)
        _write_journal(trial, journal)
        trial.live()
        return "the crash never happened"

    def second() -> str | None:
        trial = Trial(lambda _name: fast_disk(), fast_disk(), checkpoint)
        _read_journal(trial, journal)
        _write_journal(trial, journal)
        trial.loop.now = 100.0
        trial.recover()
        return None

    code, said = in_a_process(first)
    if code != EXIT_CODE:
        return f"the first process ended with {code}: {said}"
    return in_a_process(second)[1]


def in_a_process(call: Callable[[], str | None]) -> tuple[int, str | None]:
    """Run a call in a process of its own; return its exit code and what it said is wrong."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            said = call() or ""
        except BaseException:
            said = traceback.format_exc()
        os.write(writer, said.encode()[-4000:])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said or None


class Unsynced(PosixCalls):
    """POSIX without the waiting: a process that exits loses nothing it has written."""

    def sync(self, file: int) -> None:
        pass

    def sync_dir(self, path: str) -> None:
        pass


def fast_disk(faults: Faults | None = None) -> Disk:
    token = random.SystemRandom().randbytes(4).hex()
    return StepDisk(Unsynced(), faults, lambda: f"{os.getpid():x}-{token}")


def real_disk(faults: Faults | None = None) -> Disk:
    return PosixDisk(faults)


def _machine() -> SimDisk:
    machine = SimDisk(1)
    machine.make_dirs(os.path.dirname(CHECKPOINT))
    return machine


def _rule(nth: int, when: When) -> FaultRule:
    return crash_before(nth=nth) if when is When.BEFORE else crash_after(nth=nth)


def _write_journal(trial: Trial, path: Path) -> None:
    """Let everything that must survive the process go to a file as it happens."""
    journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def line(kind: str, *values: object) -> None:
        os.write(journal, (json.dumps([kind, *values]) + "\n").encode())

    seen_append, seen_published = trial.driver.on_append, trial.driver.on_published
    assert seen_append is not None and seen_published is not None

    def on_append(driver: Driver, encoded: bytes) -> None:
        line("append", base64.b64encode(encoded).decode())
        seen_append(driver, encoded)

    def on_published(driver: Driver, encoded: bytes) -> None:
        line("published", base64.b64encode(encoded).decode())
        seen_published(driver, encoded)

    class Calls(list[tuple[int, int, pa.Table]]):
        def append(self, call: tuple[int, int, pa.Table]) -> None:
            line("sink", call[0], call[1], call[2].to_pylist())
            super().append(call)

    trial.driver.on_append, trial.driver.on_published = on_append, on_published
    trial.sink.calls = Calls(trial.sink.calls)


def _read_journal(trial: Trial, path: Path) -> None:
    for text in path.read_text().splitlines():
        kind, *values = json.loads(text)
        if kind == "sink":
            trial.sink.calls.append((values[0], values[1], pa.Table.from_pylist(values[2], schema=GATHERED)))
        else:
            trial.promises.recall(base64.b64decode(values[0]), published=kind == "published")
