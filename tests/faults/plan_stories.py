"""Plans in process: random ones at any time while leases die, and one move with somebody killed at each of its steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.runs import KEPT, fast_disk, scratch

from penstock.dataplane.placement import Placement
from penstock.dataplane.shards import Holding
from penstock.errors import PenstockError
from penstock.sim.inprocess import Driver
from penstock.sim.model import Violation
from penstock.sim.plans import random_placement
from penstock.sim.programs import local_program, memory_program
from penstock.sim.promises import check_owners
from penstock.sim.timing import Delays
from penstock.testing.line import CheckFailure
from penstock.testing.replay import replay
from penstock.testing.schedule import check_schedule

ROWS = 300
MOVE_ROWS = 120
PLANS = 8
NEW_TASK = 9
ATTEMPTS = 3

STEPS = ("wanted", "copying", "copied", "releasing", "let go", "bringing", "brought", "held")
"""Of a move, in order: its new task has no lease yet; a copy is under way; the copy is there; its task was asked to let
it go; it has done so, and the driver does not know; its new task was asked to bring it; it has done so, and the driver
does not know; the driver knows."""


@dataclass(frozen=True)
class MoveCase:
    """Who is killed at which step of a move, to another node or inside one."""

    step: str
    victim: str
    far: bool

    def __str__(self) -> str:
        return f"{self.step}, {self.victim}, {'far' if self.far else 'near'}"


CASES = [
    MoveCase(step, victim, far)
    for far in (False, True)
    for step in STEPS
    for victim in ("source", "destination", "driver")
    if not (step in ("copying", "copied") and not far) and (step, victim) != ("wanted", "destination")
]


def driver_on(
    folder: Path, seed: int, *, nodes: int = 2, capacity: int = 6, local: bool = True, rows: int = ROWS
) -> Driver:
    program = local_program() if local else memory_program()
    return Driver(
        fast_disk(), str(folder / "cp"), program, KEPT, seed, str(folder / "node"),
        rows=rows, rate=1_000.0, nodes=nodes, capacity=capacity, delays=Delays(lease_start=(0.005, 0.05)),
    )  # fmt: skip


def finish(driver: Driver, rows: int = ROWS) -> None:
    """Let a run come to its end: all as planned, one owner of each shard, every row once, the replay identical."""
    assert driver.run_until(lambda: all(map(driver.engine.placing.is_settled, driver.engine.runs)), 30.0)
    check_owners(driver, whole=True)
    assert driver.run_until("drained", 30.0), driver.failed
    assert sorted(row["id"] for row in driver.sink.rows()) == list(range(rows))  # type: ignore[type-var]
    driver.stop()
    check_schedule(driver.checkpoint, driver.program, complete=True)
    replay(driver.checkpoint, driver.program)


def story(folder: Path, seed: int) -> None:
    """Throw plans at a run: every third seed on memory state, and every other one while leases die."""
    draw = random.Random(seed)
    driver = driver_on(folder, seed, nodes=2 + seed % 2, local=seed % 3 != 2)
    for _ in range(PLANS):
        driver.run_until(draw.uniform(0.005, 0.06))
        stage = draw.choice(("fold", "fold", "gather"))
        driver.place([random_placement(driver.engine, draw, stage)])
        driver.run_until(draw.uniform(0.0, 0.02))
        check_owners(driver)
        live = driver.live_leases()
        if seed % 2 and live and draw.random() < 0.6:
            driver.kill(draw.choice(live))
    driver.run_until(0.05)  # the news of the last one killed arrive
    finish(driver)


def killed_move(folder: Path, case: MoveCase, seed: int) -> None:
    """Move a shard to a new task and kill somebody when the move is at a step.

    Now and then the new lease lands on another node than it was wanted on, and the move is a near one; then the same is
    tried with other delays.
    """
    for attempt in range(ATTEMPTS):
        if _killed_move(folder / str(attempt), case, seed + 10_000 * attempt):
            return
    raise AssertionError(f"no lease landed where it was wanted in {ATTEMPTS} attempts")


def _killed_move(folder: Path, case: MoveCase, seed: int) -> bool:
    """Return False, with nobody killed, where the new lease landed elsewhere."""
    driver = driver_on(folder, seed, nodes=2 if case.far else 1, rows=MOVE_ROWS)
    run = driver.engine.runs["fold"]
    assert driver.run_until(lambda: run.chain.epoch > 4 and bool(run.ready.all()))
    shard = next(s for s in range(run.spec.shards) if run.chain.versions[s] > 0)
    old = run.slots[int(run.task_of[shard])].lease
    assert old is not None
    here = driver.engine.leases[old].node
    there = "n1" if here == "n0" else "n0"
    goal = run.task_of.copy()
    goal[shard] = NEW_TASK
    tasks = {**dict.fromkeys(run.slots), NEW_TASK: there if case.far else here}
    driver.place([Placement("fold", tasks, goal)])
    reached = _reached(driver, case.step, shard, old)
    assert driver.run_until(lambda: reached() or _landed(driver, tasks[NEW_TASK]) is False, 10.0), (
        driver.failed
    )
    if _landed(driver, tasks[NEW_TASK]) is False:
        return False
    new = run.slots[NEW_TASK].lease
    if case.victim == "driver":
        driver.crash()
        driver.restart()
        finish(driver, MOVE_ROWS)
        return True
    victim = old if case.victim == "source" else new
    assert victim is not None
    driver.kill(victim)
    driver.run_until(lambda: victim not in driver.engine.leases)
    finish(driver, MOVE_ROWS)
    assert run.task_of[shard] == NEW_TASK and run.shards.holding[shard] == Holding.HELD
    return True


def _landed(driver: Driver, node: str) -> bool | None:
    """Whether the new task's lease is on the node wanted; None while it has none."""
    lease = driver.engine.runs["fold"].slots[NEW_TASK].lease
    return None if lease is None else driver.engine.leases[lease].node == node


def _reached(driver: Driver, step: str, shard: int, old: str) -> Callable[[], bool]:
    run, copies = driver.engine.runs["fold"], driver.engine.placing.copies._copies
    holding = run.shards.holding

    def has(lease: str | None) -> bool:
        return lease is not None and ("fold", shard) in {
            (s, n) for s, _, n, _ in driver.leases[lease].owned()
        }

    def new() -> str | None:
        return run.slots[NEW_TASK].lease

    def is_copied() -> bool:
        copy = copies.get(("fold", shard))
        return copy is not None and copy.name is not None

    return {
        "wanted": lambda: new() is None,
        "copying": lambda: ("fold", shard) in copies and not is_copied(),
        "copied": is_copied,
        "releasing": lambda: holding[shard] == Holding.RELEASING and has(old),
        "let go": lambda: holding[shard] == Holding.RELEASING and not has(old),
        "bringing": lambda: holding[shard] == Holding.BRINGING and not has(new()),
        "brought": lambda: holding[shard] == Holding.BRINGING and has(new()),
        "held": lambda: holding[shard] == Holding.HELD and run.task_of[shard] == NEW_TASK,
    }[step]


def check_seed(seed: int) -> str | None:
    """Run one seed: a story, or with every other seed one step of a move killed; return what is wrong afterwards."""
    with scratch() as folder:
        try:
            if seed % 2:
                story(folder, seed // 2)
            else:
                killed_move(folder, CASES[seed // 2 % len(CASES)], seed)
        except (AssertionError, PenstockError, CheckFailure, Violation) as error:
            return f"{type(error).__name__}: {error}"
    return None
