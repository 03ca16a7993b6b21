"""A topology of every shape, with windows, sessions and timers, under every fault of a run in process.

One seed is one story: leases are killed, paused past their time-out, cut off and heard late; drivers crash, stop, or
lose power; plans move tasks and shards. In the end the sinks' rows equal a plain model, the committed schedule has no
gap, and its replay gives the same bytes and digests.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
from tests.faults.runs import fast_disk
from tests.faults.zombie_runs import scratch
from tests.scenario import shapes

import penstock
from penstock.dataplane.compile import compile_program
from penstock.dataplane.disk import Disk
from penstock.dataplane.program import Program
from penstock.errors import PenstockError
from penstock.sim import timelines
from penstock.sim.inprocess import Driver
from penstock.sim.timing import SMALL, quick
from penstock.testing.disk import SimDisk
from penstock.testing.line import CheckFailure
from penstock.testing.replay import replay_line
from penstock.testing.schedule import check_schedule

ROWS = 160
KEPT = quick(SMALL, retain_all=True)


@lru_cache
def program(depth: int) -> Program:
    """All shapes, with so many watermarks in a row among them."""
    orders = penstock.from_rows(pa.Table.from_batches([shapes.make_orders(0, ROWS)]), name="orders")
    payments = penstock.from_rows(pa.Table.from_batches([shapes.make_payments(0, ROWS)]), name="payments")
    rules = penstock.from_rows(pa.Table.from_batches([shapes.make_rules(0, ROWS)]), name="rules")
    stream = shapes.everything(orders, payments, rules, depth)
    return compile_program(stream.node, tasks=2, memory_bytes=1 << 20)


ACTIONS = ("kill", "pause", "cut", "crash", "stop", "capacity", "power", "plan", "plan", "plan")
DEALS = ("kill", "cut", "crash", "capacity", "plan", *("deal",) * 8)


def story(seed: int, actions: tuple[str, ...] = ACTIONS) -> str | None:
    """Run one seed; return what is wrong afterwards."""
    with scratch() as folder:
        try:
            _tell(seed, folder, actions)
        except (AssertionError, PenstockError, CheckFailure) as error:
            return f"{type(error).__name__}: {error}"
    return None


def lateness(seed: int) -> str | None:
    """Run one seed of watermarks in a row; its schedule and replay are checked as well."""

    def look(driver: Driver) -> None:
        line = check_schedule(driver.checkpoint, driver.program, complete=True, disk=driver.disk)
        replay_line(line, driver.program)

    return timelines.storm(seed, look=look)


def _depth(seed: int) -> int:
    """Watermarks in a row; each depth comes with every kind of disk."""
    return 1 + seed // 3 % 3


def _tell(seed: int, folder: Path, actions: tuple[str, ...]) -> None:
    rng = random.Random(seed)
    machine = SimDisk(seed, short_write_ratio=0.05) if seed % 3 == 2 else None
    if machine is not None:
        machine.make_dirs("/work")
    disk: Disk = machine if machine is not None else fast_disk()
    checkpoint = "/work/checkpoint" if machine is not None else str(folder / "checkpoint")
    driver = Driver(
        disk,
        checkpoint,
        program(_depth(seed)),
        KEPT,
        seed,
        str(folder / "node"),
        rows=ROWS,
        rate=600.0,
        roll_bytes=20_000,
        uneven=seed if seed % 2 else None,
    )
    for _ in range(rng.randint(4, 9) if "deal" not in actions else rng.randint(8, 20)):
        driver.run_until(rng.choice([0.01, 0.03, 0.08]))
        _disturb(driver, rng, machine, actions)
    if not driver.running:
        driver.restart()
    assert driver.run_until("drained", 120.0), f"not drained: {driver.failed}"
    _check(driver, disk, _depth(seed))


def _disturb(driver: Driver, rng: random.Random, machine: SimDisk | None, actions: tuple[str, ...]) -> None:
    action = rng.choice(actions)
    if action == "power" and machine is not None:
        driver.crash()
        for lease in driver.leases.values():
            lease.kill()
        machine.power_loss(rng)
        driver.restart()
        return
    timelines.disturb(driver, rng, action)


def _check(driver: Driver, disk: Disk, depth: int) -> None:
    found: dict[tuple[str, int], tuple[int, int]] = {}
    in_a_row: Counter[timelines.Result] = Counter()
    first: dict[int, pa.Table] = {}
    for _, epoch, table in driver.sink.calls:
        assert first.setdefault(epoch, table).equals(table), f"sink epoch {epoch} came with other rows"
    for row in driver.sink.rows():
        kind, user, count, amount = (
            str(row["kind"]),
            *(int(str(row[name])) for name in ("user", "count", "amount")),
        )
        if kind in shapes.KINDS_IN_A_ROW:
            in_a_row[shapes.in_a_row_result(kind, user, count, amount)] += 1
        else:
            found[kind, user] = count, amount
    wrong = timelines.differences(in_a_row, shapes.in_a_row_model(ROWS, depth))
    assert not wrong, f"{depth} watermarks in a row, {len(wrong)} differences: {wrong[:4]}"
    _check_tardy(found)
    settled = {key: value for key, value in found.items() if key[0] not in ("late", "tardy")}
    expected = {**shapes.model(ROWS, ROWS), **shapes.timed_model(ROWS)}
    unlike = {key for key in {*settled, *expected} if settled.get(key) != expected.get(key)}
    assert not unlike, f"{[(key, settled.get(key), expected.get(key)) for key in sorted(unlike)[:5]]}"
    driver.stop()
    line = check_schedule(driver.checkpoint, program(depth), complete=True, disk=disk)
    replayed = replay_line(line, program(depth))
    assert replayed.rows > ROWS and replayed.digests > 0


def _check_tardy(found: dict[tuple[str, int], tuple[int, int]]) -> None:
    """No row is late that is in time at the source, and each is either late or in its window."""
    tardy = {order: amount for (kind, order), (_, amount) in found.items() if kind == "tardy"}
    wrong = set(tardy) - shapes.late_at_best(ROWS)
    assert not wrong, f"orders {sorted(wrong)[:5]} came late, and are in time at their source"
    rows = [shapes.order(number) for number in range(ROWS)]
    for user in {user for _, user, _ in rows}:
        whole = sum(amount for _, one, amount in rows if one == user)
        late = sum(amount for number, one, amount in rows if one == user and number in tardy)
        held = found.get(("late", user), (0, 0))[1]
        assert held + late == whole, f"user {user}: {held} in windows and {late} late, of {whole}"
