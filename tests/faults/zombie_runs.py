"""Leases that go on after they were given up: late answers, and work stopped at some disk step.

Runs on real files and real local state. What was committed before the zombie wakes must be the same bytes
afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.faults.crash_runs import fast_disk

from penstock.dataplane import paths
from penstock.dataplane.disk import Disk, PosixDisk, Step
from penstock.dataplane.program import Program
from penstock.dataplane.records import extents_of
from penstock.errors import PenstockError
from penstock.sim.inprocess import Driver
from penstock.sim.lease import Gate
from penstock.sim.programs import local_program
from penstock.sim.timing import SMALL, quick
from penstock.testing.line import CheckFailure, read_line
from penstock.testing.replay import replay_line
from penstock.testing.schedule import check_schedule

KEPT = quick(SMALL, retain_all=True, base_interval_s=0.05)
ROWS = 160


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory where there is such a thing."""
    home = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with TemporaryDirectory(prefix="penstock-zombie-", dir=home) as folder:
        yield Path(folder)


class Doors:
    """The `Faults` of one lease: a gate can be put in later."""

    def __init__(self) -> None:
        self.gate: Gate | None = None

    def before(self, step: Step, path: str) -> None:
        if self.gate is not None:
            self.gate.before(step, path)

    def after(self, step: Step, path: str) -> None:
        pass


def zombie(seed: int) -> str | None:
    """One lease becomes a zombie, in a way that the seed says; return what is wrong afterwards."""
    with scratch() as folder:
        try:
            _zombie(seed, folder)
        except (AssertionError, PenstockError, CheckFailure) as error:
            return f"{type(error).__name__}: {error}"
    return None


def _zombie(seed: int, folder: Path) -> None:
    rng = random.Random(seed)
    checkpoint, program = str(folder / "checkpoint"), local_program()
    doors: dict[str, Doors] = {}

    def disk_of(name: str) -> Disk:
        doors[name] = Doors()
        return fast_disk(doors[name])

    driver = Driver(
        disk_of, checkpoint, program, KEPT, seed=seed, node_dir=str(folder / "node"), rows=ROWS, rate=600.0
    )
    driver.run_until(lambda: driver.engine.chains["fold"].epoch >= rng.randint(1, 8), 5.0)
    victim = rng.choice(driver.live_leases())
    lease = driver.leases[victim]
    match seed % 3:
        case 0:  # stopped inside its work
            lease.gate = doors[victim].gate = Gate(1 + seed // 3 % 8)
        case 1:  # stopped between two messages
            driver.pause(victim)
        case _:  # given up at once, answers late
            driver.cut(victim)
    assert driver.run_until("drained", 20.0), f"not drained without {victim}: {driver.failed}"
    before = committed_bytes(checkpoint)
    lease.resume()
    driver.run_until(2.0)  # the zombie finishes what it had, and says so
    assert driver.running, f"a zombie ended the query: {driver.failed}"
    after = committed_bytes(checkpoint)
    changed = [name for name, data in before.items() if after.get(name) != data]
    assert not changed, f"committed bytes changed after {victim} woke: {changed}"
    check_run(checkpoint, program, driver)


def committed_bytes(checkpoint: str) -> dict[str, bytes]:
    """Every byte that a record vouches for, and the whole log."""
    disk = PosixDisk()
    found = {name: disk.read(f"{paths.logs(checkpoint)}/{name}") for name in disk.list(paths.logs(checkpoint))
             if name.endswith(".log")}  # fmt: skip
    newest = max(found)
    found.pop(newest)  # the part that still grows
    for record in read_line(checkpoint).records():
        for part in record.parts:
            for extent in extents_of(part):
                data = disk.read(paths.data_file(checkpoint, extent.file), extent.offset, extent.length)
                found[f"{extent.file}@{extent.offset}"] = data
    return found


def check_run(checkpoint: str, program: Program, driver: Driver, disk: Disk | None = None) -> None:
    """The committed schedule has no gap and gives, replayed, what was committed; the sink got exactly its rows."""
    line = check_schedule(checkpoint, program, complete=True, disk=disk)
    replayed = replay_line(line, program)
    assert replayed.rows > 0 and replayed.digests > 0
    ids = sorted(row["id"] for row in driver.sink.rows())
    assert ids == list(range(driver.rows)), "the sink did not get every row exactly once"
    first: dict[int, object] = {}
    for _, epoch, table in driver.sink.calls:
        assert first.setdefault(epoch, table).equals(table), f"sink epoch {epoch} came with other rows"  # type: ignore[attr-defined]
