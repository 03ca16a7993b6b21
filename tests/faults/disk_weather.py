"""Bad disks: power losses at any step, errors and stalls, clean-up racing with recovery. Each function runs one seed.

Memory state and the simple model for most seeds; every fifth power loss runs row functions on real local
state and is checked by replay.
"""

from __future__ import annotations

import random

from tests.faults.zombie_runs import check_run, scratch

from penstock.dataplane.disk import Disk, Step
from penstock.errors import CorruptFileError, PenstockError
from penstock.sim.inprocess import Driver
from penstock.sim.loop import Loop
from penstock.sim.model import Violation
from penstock.sim.programs import local_program, memory_program
from penstock.sim.promises import Promises
from penstock.sim.protocol import simulate
from penstock.sim.timing import SMALL, quick
from penstock.sim.weather import Weather
from penstock.testing.disk import SimDisk
from penstock.testing.faults import SimCrash
from penstock.testing.line import CheckFailure

CHECKPOINT = "/work/checkpoint"
LOSSES = 4
BAD_DISK = Weather(
    fail_ratio=0.0175, crash_ratio=0.0, take_over_ratio=0.0, slow_step_ratio=0.0075, storm_s=1.2,
    disturbances_per_s=4.0, actions=("kill", "clean", "power"),
)  # fmt: skip
"""Both sides of a step draw, so that 5 % of the calls meet an error or a stall."""
RACING = Weather(
    fail_ratio=0.0, crash_ratio=0.001, take_over_ratio=0.004, meanwhile_ratio=0.05, cleanup_s=0.008, storm_s=0.5,
    disturbances_per_s=30.0, actions=("clean", "clean", "crash", "take_over", "kill", "cut", "gate", "power"),
)  # fmt: skip


def bad_disk(seed: int) -> str | None:
    """Errors and stalls at 5 % of the calls, power losses between."""
    return simulate(seed, BAD_DISK).violation


def clean_up_race(seed: int) -> str | None:
    """Clean-up every few milliseconds while drivers come and go."""
    return simulate(seed, RACING).violation


class Outage:
    """The `Faults` of all processes: at the nth step of any of them the power fails."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._left = -1
        self.struck = False

    def arm(self) -> None:
        self._left, self.struck = self._rng.randint(1, 400), False

    def before(self, step: Step, path: str) -> None:
        self._count()

    def after(self, step: Step, path: str) -> None:
        self._count()

    def _count(self) -> None:
        if self.struck:
            raise SimCrash("no power")
        self._left -= 1
        if self._left == 0:
            self.struck = True
            raise SimCrash("power failed")


def power_loss(seed: int) -> str | None:
    """Lose power four times, each at some step; every acknowledged epoch must be there and everything come to its end."""
    try:
        if seed % 5:
            _lose_power(seed, None)
        else:
            with scratch() as folder:
                _lose_power(seed, str(folder))
    except (Violation, AssertionError, PenstockError, CheckFailure) as error:
        return f"{type(error).__name__}: {error}"
    return None


def power_loss_with_stale_blocks(seed: int) -> str | None:
    """On a file system that shows old bytes in lost blocks, a start may refuse the log by name; it never loses an epoch."""
    try:
        _lose_power(5 * seed + 1, None, stale_blocks=True)
    except CorruptFileError as error:
        return (
            None if "a cut-off write does not look like that" in str(error) else f"CorruptFileError: {error}"
        )
    except (Violation, AssertionError, PenstockError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _lose_power(seed: int, node_dir: str | None, stale_blocks: bool = False) -> None:
    rng = random.Random(seed)
    real = seed % 5 == 0
    machine = SimDisk(seed, short_write_ratio=0.05, stale_blocks=stale_blocks)
    machine.make_dirs("/work")
    outage, loop = Outage(rng), Loop(seed)

    def disk_of(_name: str) -> Disk:
        return machine.another(outage)

    program = local_program() if real else memory_program()
    settings = quick(SMALL, retain_all=real)
    driver = Driver(
        disk_of,
        CHECKPOINT,
        program,
        settings,
        node_dir=node_dir,
        rows=240,
        loop=loop,
        roll_bytes=2_000,
        start=False,
    )
    promises = Promises(machine, CHECKPOINT, program, driver.sink, 240)
    promises.watch(driver)
    for _ in range(LOSSES):
        outage.arm()
        _start(driver, promises)
        driver.run_until(lambda: outage.struck or driver.drained(), 10.0)
        driver.crash()
        for lease in driver.leases.values():
            lease.kill()
        machine.power_loss(rng)
        outage.struck = False
    outage._left = -1
    assert _start(driver, promises), "no driver comes up after the last power loss"
    assert driver.run_until("drained", 20.0), f"not drained after the last power loss: {driver.failed}"
    if real:
        check_run(CHECKPOINT, program, driver, machine)
    else:
        promises.check_schedule(driver)


def _start(driver: Driver, promises: Promises) -> bool:
    try:
        driver.restart()
    except SimCrash:
        return False
    promises.check_start(driver)
    return True
