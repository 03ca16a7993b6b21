"""The record, lease and bring protocol as a deterministic simulation: the real code under a random, seeded
storm.

A world has one machine, any number of driver processes and their leases. Things happen to it (kills, zombies,
pauses, crashes, take-overs, power losses, I/O errors, slow syncs, clean-up at the wrong moment); promises are
checked at every commit, deletion and start, and at the end, after the weather has cleared, against a simple
model of the committed schedule.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from penstock.dataplane import paths, records
from penstock.dataplane.chains import Chains
from penstock.dataplane.disk import Disk, Step
from penstock.dataplane.recordlog import read_tail
from penstock.dataplane.records import Record
from penstock.errors import CheckpointError, FencedError, PenstockError, StorageError
from penstock.sim.inprocess import SMALL, Delays, Driver, SinkLog, quick
from penstock.sim.lease import Gate
from penstock.sim.loop import Loop
from penstock.sim.model import Model, Violation, require
from penstock.sim.programs import memory_program
from penstock.testing_disk import SimCrash, SimDisk

CHECKPOINT = "/work/checkpoint"
CALM_S = 40.0
LEASE_ACTIONS = ("kill", "kill", "kill", "pause", "pause", "cut", "gate", "gate", "clean")
DRIVER_ACTIONS = ("crash", "crash", "take over", "take over", "power", "stop")


@dataclass(frozen=True)
class Weather:
    """How bad it gets. Ratios are per disk step, rates per virtual second."""

    fail_ratio: float = 0.002
    crash_ratio: float = 0.0007
    take_over_ratio: float = 0.001
    stall_ratio: float = 0.02
    disturbances_per_s: float = 25.0
    storm_s: float = 0.4
    rows: int = 300
    actions: tuple[str, ...] = (*LEASE_ACTIONS, *DRIVER_ACTIONS)


def weather_of(seed: int) -> Weather:
    """Seeds take turns: trouble with leases alone, with drivers, with the disk, with everything."""
    match seed % 4:
        case 0:
            return Weather(0.0, 0.0, 0.0, actions=LEASE_ACTIONS, disturbances_per_s=40.0)
        case 1:
            return Weather(0.0, 0.0, 0.004, actions=(*DRIVER_ACTIONS, "kill", "clean"), disturbances_per_s=15.0)
        case 2:
            return Weather(0.004, 0.002, 0.0, actions=("power", "clean", "kill"), disturbances_per_s=6.0)
        case _:
            return Weather()


@dataclass
class Outcome:
    """What came of one seed."""

    seed: int
    violation: str | None
    trace: str
    drivers: int = 0
    commits: int = 0
    happened: dict[str, int] = field(default_factory=dict)
    recent: list[str] = field(default_factory=list)


class Storm:
    """The `Faults` of one process in a world."""

    def __init__(self, world: World, process: str) -> None:
        self._world = world
        self._process = process
        self.gate: Gate | None = None

    def before(self, step: Step, path: str) -> None:
        if self.gate is not None:
            self.gate.before(step, path)
        self._world.weather_at(self._process, step, path, after=False)

    def after(self, step: Step, path: str) -> None:
        self._world.weather_at(self._process, step, path, after=True)


class World:
    """One machine under a storm."""

    def __init__(self, seed: int, weather: Weather, driver_class: type[Driver] = Driver) -> None:
        self.seed = seed
        self.weather = weather
        self.loop = Loop(seed)
        self.rng = self.loop.rng
        shape = random.Random(seed)
        tasks = (shape.choice((1, 1, 2)), shape.choice((1, 2, 3)), shape.choice((1, 2)))
        self.program = memory_program(shards=(shape.choice((8, 16)), shape.choice((8, 12))), tasks=tasks)
        self.settings = quick(
            SMALL, max_epoch_rows=shape.choice((10, 24, 60)), retain_epochs=shape.choice((4, 12, 30))
        )
        self.roll_bytes = shape.choice((None, 1_500, 6_000))
        self.capacity = shape.choice((1, 2, 3))
        self.delays = Delays(
            append=shape.choice(((0.0005, 0.005), (0.0005, 0.005), (0.01, 0.08))),
            lease_start=shape.choice(((0.01, 0.06), (0.0005, 0.004))),
            office_s=shape.choice((0.05, 0.01)),
            cleanup_s=shape.choice((0.15, 0.05)),
            stall_ratio=weather.stall_ratio,
        )
        self.sink = SinkLog()
        self.machine = SimDisk(seed, short_write_ratio=0.05)
        self.machine.make_dirs(os.path.dirname(CHECKPOINT))
        self.drivers: list[Driver] = []
        self.storms: dict[str, Storm] = {}
        self.written: dict[bytes, Record] = {}
        """Every record that anybody ever asked the log for, by its hash."""
        self.acknowledged: dict[bytes, str] = {}
        self.slots: dict[tuple[str, int, str], bytes] = {}
        self.happened: dict[str, int] = {}
        self.calm = False
        self.driver_class = driver_class
        self._inside = False
        self._opening = False

    # -- processes ----------------------------------------------------------------------------------------------------

    def disk_of(self, process: str) -> Disk:
        self.storms[process] = Storm(self, process)
        return self.machine.another(self.storms[process])

    @property
    def current(self) -> Driver | None:
        """The newest driver, while it runs."""
        return self.drivers[-1] if self.drivers and self.drivers[-1].running else None

    def start_driver(self) -> None:
        """Start another driver on the checkpoint, whoever holds it."""
        number = len(self.drivers) + 1
        driver = self.driver_class(
            self.disk_of,
            CHECKPOINT,
            self.program,
            self.settings,
            rows=self.weather.rows,
            capacity=self.capacity,
            loop=self.loop,
            delays=self.delays,
            sink=self.sink,
            name=f"d{number}",
            roll_bytes=self.roll_bytes,
            start=False,
        )
        driver.on_append, driver.on_published, driver.on_deleting = (
            self.see_append,
            self.see_published,
            self.see_deleting,
        )
        was, self._opening = self._opening, True
        try:
            driver.restart()
        except SimCrash:
            driver.disk.crash()  # type: ignore[attr-defined]
            return
        except PenstockError as error:
            self.check_failure(error)
            require(not self.calm, f"a driver could not start on a healthy machine: {error}")
            return
        finally:
            self._opening = was
        self.drivers.append(driver)
        self.check_start(driver)

    def weather_at(self, process: str, step: Step, path: str, *, after: bool) -> None:
        if self.calm or self._inside:
            return
        drawn = self.rng.random()
        weather = self.weather
        if drawn < weather.crash_ratio:
            self.count(f"crash {'after' if after else 'before'} {step}")
            raise SimCrash(f"{process} at {step}")
        drawn -= weather.crash_ratio
        if drawn < weather.fail_ratio:
            self.count(f"error at {step}")
            number = self.rng.choice((errno.EIO, errno.ENOSPC))
            raise OSError(number, os.strerror(number), path)
        drawn -= weather.fail_ratio
        if drawn < weather.take_over_ratio and not self._opening and self.drivers:
            self.count(f"take-over {'after' if after else 'before'} {step}")
            self._inside = True
            try:
                self.start_driver()
            finally:
                self._inside = False

    def count(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1
        self.loop.note(what)

    # -- the storm ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Live through the storm, then check everything."""
        self._disturb_later()
        self.loop.at(0.0, self._keep_alive)
        self.loop.run_until(lambda: False, self.weather.storm_s)
        self.clear_up()
        self.check_end()

    def _keep_alive(self) -> None:
        if self.calm:
            return
        if self.current is None:
            self.start_driver()
        self.loop.at(self.loop.between(0.005, 0.04), self._keep_alive)

    def _disturb_later(self) -> None:
        self.loop.at(self.rng.expovariate(self.weather.disturbances_per_s), self._disturb)

    def _disturb(self) -> None:
        if self.calm:
            return
        action = self.rng.choice(self.weather.actions)
        getattr(self, "do_" + action.replace(" ", "_"))()
        self._disturb_later()

    def _any_lease(self) -> tuple[Driver, str] | None:
        driver = self.current
        names = driver.live_leases() if driver is not None else []
        if driver is None or not names:
            return None
        return driver, self.rng.choice(names)

    def do_kill(self) -> None:
        if (found := self._any_lease()) is not None:
            self.count("kill")
            found[0].kill(found[1])

    def do_pause(self) -> None:
        if (found := self._any_lease()) is not None and not found[0].leases[found[1]].paused:
            self.count("pause")
            found[0].pause(found[1])
            self._resume_later(*found)

    def do_cut(self) -> None:
        if (found := self._any_lease()) is not None:
            self.count("cut")
            found[0].cut(found[1])

    def do_gate(self) -> None:
        """Stop a lease inside its next work, at some disk step."""
        if (found := self._any_lease()) is not None and found[0].leases[found[1]].gate is None:
            self.count("gate")
            gate = Gate(self.rng.randint(1, 6))
            self.storms[found[1]].gate = found[0].leases[found[1]].gate = gate
            self._resume_later(*found)

    def _resume_later(self, driver: Driver, lease: str) -> None:
        self.loop.at(self.loop.between(0.02, 0.9), lambda: self._resume(driver, lease))

    def _resume(self, driver: Driver, lease: str) -> None:
        if lease in driver.leases:
            driver.resume(lease)

    def do_crash(self) -> None:
        if self.current is not None:
            self.count("driver crash")
            self.current.crash()

    def do_take_over(self) -> None:
        self.count("take-over")
        self.start_driver()

    def do_stop(self) -> None:
        if self.current is not None:
            self.count("stop")
            self.current.stop()

    def do_clean(self) -> None:
        if self.current is not None:
            driver = self.current
            driver._soon(0.0, driver.list_for_cleanup)

    def do_power(self) -> None:
        self.count("power loss")
        for driver in self.drivers:
            driver.crash()
            for lease in driver.leases.values():
                lease.kill()
        self.machine.power_loss(self.rng)

    def clear_up(self) -> None:
        """End the storm: no more faults, everything paused goes on, a driver runs until all is drained."""
        self.calm = True
        for driver in self.drivers:
            for lease in driver.leases.values():
                if lease.paused:
                    lease.resume()
        self.delays = replace(self.delays, stall_ratio=0.0)
        for driver in self.drivers:
            driver.delays = self.delays
        self._run_to_the_end()

    def _run_to_the_end(self) -> None:
        for _ in range(2):  # the first one may be fenced by a driver that claimed in the storm and died of it
            if self.current is None:
                self.start_driver()
            driver = self.drivers[-1]
            driver.run_until("drained", CALM_S)
            if driver.running or not isinstance(driver.failed, FencedError):
                break
        require(driver.running, f"the driver ended on a healthy machine: {driver.failed}")
        require(
            driver.drained(), f"not drained after {CALM_S} s on a healthy machine: {self.describe(driver)}"
        )

    def describe(self, driver: Driver) -> str:
        runs = [f"{name} {run.phase} epoch {run.chain.epoch} ready {int(run.ready.sum())}/{len(run.ready)} "
                f"groups {len(run.chain.groups)}" for name, run in driver.engine.runs.items()]  # fmt: skip
        return "; ".join(runs)

    # -- promises, at every step --------------------------------------------------------------------------------------

    def see_append(self, driver: Driver, encoded: bytes) -> None:
        record = records.decode_record(encoded)
        self.written[records.hash_of(encoded)] = record

    def see_published(self, driver: Driver, encoded: bytes) -> None:
        """A record was acknowledged: nobody else ever had its place, and everything it names is there."""
        record = records.decode_record(encoded)
        own = records.hash_of(encoded)
        place = (record.chain, record.epoch, record.kind)
        require(
            self.slots.setdefault(place, own) == own,
            f"two records are {record.kind} {record.epoch} of '{record.chain}'",
        )
        require(own in self.written, f"{place} was published and never appended")
        self.acknowledged[own] = (
            f"{record.kind} {record.epoch} of '{record.chain}' (generation {record.generation})"
        )
        if self.current is driver:
            for part in record.parts:
                for name in records.files_of(part):
                    there = self.machine.size(paths.data_file(CHECKPOINT, name)) is not None
                    require(there or not self._needed(name), f"{name} is gone when {place} was acknowledged")

    def see_deleting(self, driver: Driver, doomed: list[str]) -> None:
        """Files are about to be deleted: none of them is named by what a driver that starts now would
        read."""
        names = {path.rpartition("/")[2] for path in doomed}
        reachable = names & self.read_live()
        require(not reachable, f"generation {driver.generation} deletes reachable files {sorted(reachable)}")

    def _needed(self, name: str) -> bool:
        return name in self.read_live()

    def read_live(self) -> set[str]:
        """Files that a driver needs that starts at this moment: the log part it would read, and what that
        names."""
        was, self._inside = self._inside, True
        try:
            tail = read_tail(self.machine, CHECKPOINT)
        finally:
            self._inside = was
        if tail.base is None or tail.part is None:
            return set()
        chains = Chains(self.program)
        chains.load(tail.base, tail.records)
        return chains.live_files() | {paths.log("", tail.part).rpartition("/")[2]}

    def check_start(self, driver: Driver) -> None:
        """A driver has read the checkpoint: everything ever acknowledged is in what it read."""
        line = self.line_of(driver)
        known = {own for chain in line.values() for own in chain}
        lost = [what for own, what in self.acknowledged.items() if own not in known]
        require(not lost, f"generation {driver.generation} does not know {lost[:3]}")

    def line_of(self, driver: Driver) -> dict[str, list[bytes]]:
        """Hashes of the records of every chain, oldest first, as far as this driver knows them."""
        lines: dict[str, list[bytes]] = {}
        for name, chain in driver.engine.chains.by_name.items():
            line: list[bytes] = []
            at = chain.hash
            while at != records.NO_HASH:
                require(at in self.written, f"'{name}' holds a record that nobody wrote")
                line.append(at)
                at = self.written[at].previous
            lines[name] = line[::-1]
        return lines

    def check_failure(self, error: PenstockError) -> None:
        """Only a fault of the weather or another driver may end one."""
        weather = type(error) in (StorageError, CheckpointError, FencedError)
        require(weather, f"a driver ended with {type(error).__name__}: {error}")

    # -- promises, at the end -----------------------------------------------------------------------------------------

    def check_end(self) -> None:
        for driver in self.drivers:
            if driver.failed is not None:
                self.check_failure(driver.failed)
        driver = self.drivers[-1]
        self.check_schedule(driver)
        self.check_files(driver)
        driver.crash()
        self.start_driver()  # everything once more from the disk alone: all shards brought, all digests compared
        last = self.current
        assert last is not None and last is not driver
        last.run_until(lambda: all(run.ready.all() for run in last.engine.runs.values()), CALM_S)
        require(
            last.running and last.drained(),
            f"the last restart does not come up: {last.failed or self.describe(last)}",
        )

    def check_schedule(self, driver: Driver) -> None:
        self.check_start(driver)
        lines = {name: [self.written[own] for own in line] for name, line in self.line_of(driver).items()}
        model = Model(self.program)
        model.replay(lines)
        model.check_end(self.weather.rows)
        for name, chain in driver.engine.chains.by_name.items():
            if chain.spec.kind == "operator":
                for shard in range(chain.spec.shards):
                    require(
                        chain.digest(shard) == model.digest(name, shard), f"digest of '{name}', shard {shard}"
                    )
        seen: set[int] = set()
        for generation, epoch, table in self.sink.calls:
            rows = [tuple(row.values()) for row in table.to_pylist()]
            require(
                model.sink_rows.get(epoch) == rows,
                f"sink epoch {epoch} of generation {generation} holds other rows",
            )
            seen.add(epoch)
        require(seen == set(model.sink_rows), "a sink epoch was done and never handed over")
        ids = sorted(row[0] for rows in model.sink_rows.values() for row in rows)
        require(ids == list(range(self.weather.rows)), "the sink did not get every row exactly once")

    def check_files(self, driver: Driver) -> None:
        """After two rounds of clean-up, nothing is left that nobody needs."""
        for _ in range(2):
            driver._soon(0.0, driver.list_for_cleanup)
            self.loop.run_until(lambda: False, 4 * self.settings.base_interval_s)
        require(driver.running, f"the driver ended while it idled: {driver.failed}")
        live = driver.engine.chains.live_files()
        orphans = [
            name
            for name in self.machine.list(paths.data(CHECKPOINT))
            if name not in live
            and (file := paths.parse_data(name)) is not None
            and file.writer not in driver.engine.leases
        ]
        require(not orphans, f"orphans after two rounds of clean-up: {orphans}")
        newest = paths.newest_log(CHECKPOINT).rpartition("/")[2]
        logs = [name for name in self.machine.list(paths.logs(CHECKPOINT)) if name != newest]
        require(len(logs) == 1, f"more than the newest log part is left: {logs}")


def files_of(part: records.TaskPart) -> set[str]:
    extents = [segment.extent for segment in part.segments] + [
        s.extent for s in part.snapshots if s.extent is not None
    ]
    return {extent.file for extent in [*extents, *([part.delta] if part.delta else [])]}


def simulate(seed: int, weather: Weather | None = None, driver_class: type[Driver] = Driver) -> Outcome:
    """Run one seed; never raises for a broken promise, which stands in the outcome."""
    world = World(seed, weather or weather_of(seed), driver_class)
    violation = None
    try:
        world.run()
    except Violation as error:
        violation = str(error)
    except Exception as error:
        violation = f"{type(error).__name__}: {error}"
        world.loop.note(f"violation {type(error).__name__}")
    return Outcome(
        seed,
        violation,
        world.loop.trace(),
        len(world.drivers),
        len(world.acknowledged),
        world.happened,
        world.loop.recent[-40:],
    )


def first_violation(seeds: range, simulate_one: Callable[[int], Outcome] = simulate) -> Outcome | None:
    """Return the first outcome that breaks a promise, None when there is none."""
    return next((found for seed in seeds if (found := simulate_one(seed)).violation is not None), None)
