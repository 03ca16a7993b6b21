"""One simulated machine with driver processes and leases, and the things that happen to it.

Kills, zombies, pauses, leases stopped inside their work, plans, driver crashes, take-overs (between events and
inside any disk step), power losses, I/O errors, crashes at any step, slow syncs, clean-up at odd moments: all
drawn from one seed. After the storm everything heals and must come to its end.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import replace

from penstock.dataplane.disk import Disk, Step
from penstock.dataplane.engine import Engine
from penstock.errors import FencedError, PenstockError, PlanError
from penstock.sim.inprocess import Driver
from penstock.sim.lease import Gate
from penstock.sim.loop import Loop
from penstock.sim.model import require
from penstock.sim.plans import random_plan
from penstock.sim.programs import memory_program
from penstock.sim.promises import Promises, check_owners
from penstock.sim.redeals import random_deal
from penstock.sim.surroundings import SinkLog
from penstock.sim.timing import SMALL, Delays, quick
from penstock.sim.weather import Weather
from penstock.testing.disk import SimDisk
from penstock.testing.faults import SimCrash

CHECKPOINT = "/work/checkpoint"
CALM_S = 40.0
"""Virtual time in which all must be well again."""


class Storm:
    """The `Faults` of one process in a world."""

    def __init__(self, world: World, process: str) -> None:
        self._world = world
        self._process = process
        self.gate: Gate | None = None

    def before(self, step: Step, path: str) -> None:
        if self.gate is not None:
            self.gate.before(step, path)
        self._world.meet(self._process, step, path, "before")

    def after(self, step: Step, path: str) -> None:
        self._world.meet(self._process, step, path, "after")
        if step is Step.SYNC:
            self._world.promises.see_sync(path)


class World:
    """One machine under a storm. Raises `Violation` where a promise is broken.

    Args:
        driver_class: what runs as driver; planted bugs put in their own.
    """

    def __init__(self, seed: int, weather: Weather, driver_class: type[Driver] = Driver) -> None:
        self.weather = weather
        self.loop = Loop(seed)
        self.rng = self.loop.rng
        self.machine = SimDisk(seed, short_write_ratio=0.05, stale_blocks=False)
        self.machine.make_dirs(os.path.dirname(CHECKPOINT))
        self.sink = SinkLog()
        self.drivers: list[Driver] = []
        self.happened: dict[str, int] = {}
        self._driver_class = driver_class
        self._draw_shape(random.Random(seed))
        self.promises = Promises(self.machine, CHECKPOINT, self.program, self.sink, weather.rows)
        self._storms: dict[str, Storm] = {}
        self._started = 0
        self._calm = False
        self._opening = False
        self._nested = False

    def _draw_shape(self, shape: random.Random) -> None:
        """How the query looks: tasks, shards, sizes and paces."""
        tasks = (shape.choice((1, 1, 2)), shape.choice((1, 2, 3)), shape.choice((1, 2)))
        self.program = memory_program(shards=(shape.choice((8, 16)), shape.choice((8, 12))), tasks=tasks)
        rows, epochs = shape.choice((10, 24, 60)), shape.choice((4, 12, 30))
        self.settings = quick(SMALL, max_epoch_rows=rows, retain_epochs=epochs)
        self.roll_bytes = shape.choice((None, 1_500, 6_000))
        self.capacity = shape.choice((1, 2, 3, 5))
        self.delays = Delays(
            append=shape.choice(((0.0005, 0.005), (0.0005, 0.005), (0.01, 0.08))),
            lease_start=shape.choice(((0.01, 0.06), (0.0005, 0.004))),
            office_s=shape.choice((0.05, 0.01)),
            cleanup_s=self.weather.cleanup_s or shape.choice((0.15, 0.05)),
            stall_ratio=self.weather.stall_ratio,
        )
        self.delays = replace(self.delays, copy=shape.choice(((0.001, 0.03), (0.05, 0.3))))
        self.nodes = shape.choice((1, 2, 2, 3))
        if self.weather.short_lived_files:
            self.roll_bytes = 1_000
            self.settings = replace(
                self.settings, retain_epochs=3, snapshot_min_bytes=50, base_interval_s=0.05
            )
            self.delays = replace(self.delays, copy=(0.1, 0.4), cleanup_s=0.03)
        self.uneven = shape.randrange(1 << 30) if shape.random() < 0.5 else None

    # -- processes ----------------------------------------------------------------------------------------------------

    @property
    def current(self) -> Driver | None:
        """The newest driver, while it runs."""
        return self.drivers[-1] if self.drivers and self.drivers[-1].running else None

    def start_driver(self) -> None:
        """Start another driver on the checkpoint, whoever holds it; it may die of the weather while it
        starts."""
        self._started += 1
        driver = self._driver_class(
            self._disk_of, CHECKPOINT, self.program, self.settings, rows=self.weather.rows, capacity=self.capacity,
            loop=self.loop, delays=self.delays, sink=self.sink, name=f"d{self._started}",
            roll_bytes=self.roll_bytes, nodes=self.nodes, start=False, uneven=self.uneven,
        )  # fmt: skip
        self.promises.watch(driver)
        was, self._opening = self._opening, True
        try:
            driver.restart()
        except SimCrash:
            return
        except PenstockError as error:
            self.promises.check_failure(error)
            require(not self._calm, f"a driver could not start on a healthy machine: {error}")
            return
        finally:
            self._opening = was
        self.drivers.append(driver)
        self.promises.check_start(driver)

    def _disk_of(self, process: str) -> Disk:
        self._storms[process] = Storm(self, process)
        return self.machine.another(self._storms[process])

    def meet(self, process: str, step: Step, path: str, when: str) -> None:
        """A process is at one side of a disk step: the weather may strike."""
        if self._calm:
            return
        where = f"{when} {step}"
        drawn, weather = self.rng.random(), self.weather
        if drawn < weather.crash_ratio:
            self.count(f"crash {where}")
            raise SimCrash(f"{process} {where}")
        drawn -= weather.crash_ratio
        if drawn < weather.fail_ratio:
            self.count(f"error {where}")
            if step is Step.SYNC:
                self.promises.see_failed_sync(path)
            number = self.rng.choice((errno.EIO, errno.ENOSPC))
            raise OSError(number, os.strerror(number), path)
        drawn -= weather.fail_ratio
        if drawn < weather.slow_step_ratio:
            self.count(f"stall {where}")
            self.loop.now += self.loop.between(0.005, 0.5)
        drawn -= weather.slow_step_ratio
        if self._nested or drawn < 0:
            return
        if self._opening and drawn < weather.meanwhile_ratio:
            self._meanwhile(where)
        elif not self._opening and drawn < weather.take_over_ratio and self.drivers:
            self.count(f"take-over {where}")
            self._nest(self.start_driver)

    def _meanwhile(self, where: str) -> None:
        """Others go on while a driver that starts is at this step."""
        self.count(f"meanwhile {where}")
        events = self.rng.randint(1, 12)
        self._nest(lambda: self.loop.run_some(events, 0.01))

    def _nest(self, call: Callable[[], None]) -> None:
        self._nested = True
        try:
            call()
        finally:
            self._nested = False

    def count(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1
        self.loop.note(what)

    # -- the storm ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Live through the storm, heal, and hold everything to its promises."""
        self.loop.at(self.rng.expovariate(self.weather.disturbances_per_s), self._disturb)
        self.loop.at(0.0, self._keep_alive)
        self.loop.run_until(lambda: False, self.weather.storm_s)
        self._clear_up()
        self._check_end()

    def _keep_alive(self) -> None:
        if self._calm:
            return
        if self.current is None and not self._opening:
            self.start_driver()
        self.loop.at(self.loop.between(0.005, 0.04), self._keep_alive)

    def _disturb(self) -> None:
        if self._calm:
            return
        if not self._opening:
            action = self.rng.choice(self.weather.actions)
            {
                "kill": self._kill, "pause": self._pause, "cut": self._cut, "gate": self._gate, "clean": self._clean,
                "resize": self._resize, "plan": self._plan, "deal": self._deal,
                "crash": self._crash, "take_over": self._take_over, "power": self.lose_power, "stop": self._stop,
            }[action]()  # fmt: skip
        self.loop.at(self.rng.expovariate(self.weather.disturbances_per_s), self._disturb)

    def _any_lease(self) -> tuple[Driver, str] | None:
        driver = self.current
        names = driver.live_leases() if driver is not None else []
        return (driver, self.rng.choice(names)) if driver is not None and names else None

    def _kill(self) -> None:
        if (found := self._any_lease()) is not None:
            self.count("kill")
            found[0].kill(found[1])

    def _pause(self) -> None:
        if (found := self._any_lease()) is not None and not found[0].leases[found[1]].paused:
            self.count("pause")
            found[0].pause(found[1])
            self._resume_later(*found)

    def _cut(self) -> None:
        if (found := self._any_lease()) is not None:
            self.count("cut")
            found[0].cut(found[1])

    def _gate(self) -> None:
        """Stop a lease inside its next work, at some disk step."""
        if (found := self._any_lease()) is not None and found[0].leases[found[1]].gate is None:
            self.count("gate")
            gate = Gate(self.rng.randint(1, 6))
            self._storms[found[1]].gate = found[0].leases[found[1]].gate = gate
            self._resume_later(*found)

    def _resume_later(self, driver: Driver, name: str) -> None:
        lease = driver.leases[name]
        self.loop.at(self.loop.between(0.02, 0.9), lease.resume)

    def _crash(self) -> None:
        if self.current is not None:
            self.count("driver crash")
            self.current.crash()

    def _take_over(self) -> None:
        self.count("take-over")
        self.start_driver()

    def _stop(self) -> None:
        if self.current is not None:
            self.count("stop")
            self.current.stop()

    def _resize(self) -> None:
        """Cores come and go: tasks are dealt again, and move."""
        if self.current is not None:
            self.count("resize")
            self.capacity = self.rng.choice((1, 2, 3, 4, 6))
            self.current.set_capacity(self.capacity)

    def _plan(self) -> None:
        """Give a running query other tasks and shards; what cannot be carried out is refused whole."""
        if self.current is not None:
            engine = self.current.engine
            plan = random_plan(engine, self.rng)
            before = describe_plan(engine)
            try:
                self.current.place(plan, self.rng.choice((0.05, 0.5, 5.0)))
                self.count("plan")
            except PlanError:
                self.count("plan refused")
                require(describe_plan(engine) == before, "a plan that was refused has changed something")
            check_owners(self.current)

    def _deal(self) -> None:
        """Let shards of an operator pass from one executor to another; what cannot be is refused whole."""
        if self.current is None or (deal := random_deal(self.current.engine, self.rng)) is None:
            return
        before = describe_plan(self.current.engine)
        try:
            self.current.redeal(deal.giver, deal.taker, deal.shards, deal.tasks)
            self.count("deal")
        except PlanError:
            self.count("deal refused")
            same = describe_plan(self.current.engine) == before
            require(same, "a deal that was refused has changed something")
        check_owners(self.current)

    def _clean(self) -> None:
        if self.current is not None:
            self.current.clean_up_soon()

    def lose_power(self) -> None:
        """End all processes; un-synced writes are lost in part."""
        self.count("power loss")
        for driver in self.drivers:
            driver.crash()
            for lease in driver.leases.values():
                lease.kill()
        self.machine.power_loss(self.rng)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _clear_up(self) -> None:
        """No more faults; everything paused goes on; a driver runs until all is drained."""
        self._calm = True
        self.delays = replace(self.delays, stall_ratio=0.0)
        for driver in self.drivers:
            driver.delays = self.delays
            for lease in list(driver.leases.values()):
                if lease.paused:
                    lease.resume()
        for _ in range(2):  # the first may be fenced by one that claimed in the storm and died of it
            if self.current is None:
                self.start_driver()
            driver = self.drivers[-1]
            driver.run_until("drained", CALM_S)
            if driver.running or not isinstance(driver.failed, FencedError):
                break
        require(driver.running, f"the driver ended on a healthy machine: {driver.failed}")
        require(driver.drained(), f"not drained after {CALM_S} s on a healthy machine: {describe(driver)}")

    def _check_end(self) -> None:
        clear = self.weather.fail_ratio == self.weather.crash_ratio == 0
        for driver in self.drivers:
            # On a bad disk one that was overtaken may not even find out who won.
            if driver.failed is not None and (clear or driver is self.drivers[-1]):
                self.promises.check_failure(driver.failed)
        driver = self.drivers[-1]
        self.promises.check_schedule(driver)
        settled = driver.run_until(
            lambda: all(map(driver.engine.placing.is_settled, driver.engine.runs)), CALM_S
        )
        require(settled, f"not settled after {CALM_S} s on a healthy machine: {describe(driver)}")
        check_owners(driver, whole=True)
        for _ in range(2):
            driver.clean_up_soon()
            self.loop.run_until(lambda: False, 4 * self.settings.base_interval_s)
        require(driver.running, f"the driver ended while it idled: {driver.failed}")
        self.promises.check_files(driver)
        if self.rng.random() < 0.5:
            self.lose_power()
        driver.crash()
        self._check_from_disk()

    def _check_from_disk(self) -> None:
        """Everything once more from the disk alone: all shards brought, all digests compared."""
        self.start_driver()
        self.promises.check_leftovers()
        last = self.drivers[-1]
        last.run_until(lambda: all(run.is_whole for run in last.engine.runs.values()), CALM_S)
        up = last.running and last.drained()
        require(up, f"the last restart does not come up: {last.failed or describe(last)}")


def describe_plan(engine: Engine) -> list[object]:
    """What a plan changes, to be compared."""
    return [
        (
            name,
            run.shards.goal.tolist(),
            [(slot.index, slot.node, slot.leaving) for slot in run.slots.values()],
        )
        for name, run in engine.runs.items()
    ]


def describe(driver: Driver) -> str:
    """Say where a driver stands."""
    return f"{sorted((one.name, one.node) for one in driver.engine.leases.values())}; " + "; ".join(
        f"{name} {run.phase} epoch {run.chain.epoch} ready {int(run.ready.sum())}/{len(run.ready)} "
        f"groups {len(run.chain.groups)} tasks {[(s.index, s.lease, s.node, s.leaving) for s in run.slots.values()]}"
        for name, run in driver.engine.runs.items()
    )
