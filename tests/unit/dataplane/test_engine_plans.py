"""Plans given to a running query: any at any time, whoever dies on the way; one owner of every shard, no row lost."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from tests.faults.runs import KEPT, fast_disk

from penstock.dataplane.placement import Placement
from penstock.dataplane.shards import Holding
from penstock.errors import PlanError
from penstock.sim.inprocess import Driver
from penstock.sim.programs import local_program, memory_program
from penstock.sim.timing import Delays
from penstock.testing.replay import replay
from penstock.testing.schedule import check_schedule

ROWS = 600


def driver_on(
    folder: Path, seed: int, *, nodes: int = 2, capacity: int = 6, local: bool = True, rows: int = ROWS
) -> Driver:
    program = local_program() if local else memory_program()
    return Driver(
        fast_disk(), str(folder / "cp"), program, KEPT, seed, str(folder / "node"),
        rows=rows, rate=1_000.0, nodes=nodes, capacity=capacity, delays=Delays(lease_start=(0.005, 0.05)),
    )  # fmt: skip


def finish(driver: Driver, rows: int = ROWS) -> None:
    assert driver.run_until("drained", 30.0), driver.failed
    assert sorted(row["id"] for row in driver.sink.rows()) == list(range(rows))  # type: ignore[type-var]
    driver.stop()
    check_schedule(driver.checkpoint, driver.program, complete=True)
    replay(driver.checkpoint, driver.program)


def random_plan(driver: Driver, draw: random.Random, stage: str = "fold") -> Placement:
    """Keep some tasks, add some with free numbers, anywhere; deal shards at random."""
    run = driver.engine.runs[stage]
    kept = [index for index in run.slots if draw.random() < 0.6][:4]
    free = [index for index in range(12) if index not in run.slots]
    fresh = draw.sample(free, draw.randint(0 if kept else 1, 2))
    nodes = sorted(driver.engine.placing.known_nodes())
    tasks: dict[int, str | None] = dict.fromkeys(kept)
    tasks.update({index: draw.choice([None, *nodes]) for index in fresh})
    dealt = np.array([draw.choice(list(tasks)) for _ in range(run.spec.shards)], np.uint16)
    return Placement(stage, tasks, dealt)


def check_one_owner(driver: Driver) -> None:
    """No two live leases own one shard's environment for writing."""
    for name, run in driver.engine.runs.items():
        owners: dict[int, list[str]] = {}
        for lease in driver.live_leases():
            for (stage, _), task in driver.leases[lease]._worker._tasks.items():
                if stage == name and task.state is not None:
                    for shard in task.locals:
                        owners.setdefault(shard, []).append(lease)
        held = np.flatnonzero(run.shards.holding == Holding.HELD)
        for shard in held.tolist():
            assert len(owners.get(shard, [])) <= 1, (name, shard, owners[shard])


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_any_plan_at_any_time_loses_nothing(tmp_path: Path, seed: int, local: bool) -> None:
    driver = driver_on(tmp_path, seed, local=local)
    draw = random.Random(seed)
    for _ in range(8):
        driver.run_until(draw.uniform(0.005, 0.08))
        driver.engine.place([random_plan(driver, draw)])
    driver.run_until(lambda: driver.engine.placing.is_settled("fold"), 5.0)
    assert driver.engine.placing.is_settled("fold")
    if local:
        check_one_owner(driver)
    finish(driver)


@pytest.mark.parametrize("seed", range(12))
def test_any_plan_with_leases_dying_loses_nothing(tmp_path: Path, seed: int) -> None:
    driver = driver_on(tmp_path, seed, nodes=3)
    draw = random.Random(seed + 100)
    for _ in range(8):
        driver.run_until(draw.uniform(0.005, 0.06))
        driver.engine.place([random_plan(driver, draw)])
        driver.run_until(draw.uniform(0.0, 0.02))
        live = driver.live_leases()
        if live and draw.random() < 0.6:
            driver.kill(draw.choice(live))
    assert driver.run_until(lambda: driver.engine.placing.is_settled("fold"), 5.0)
    check_one_owner(driver)
    finish(driver)


@pytest.mark.parametrize("step", ["copying", "releasing", "released", "bringing"])
@pytest.mark.parametrize("victim", ["source", "destination", "driver"])
@pytest.mark.parametrize("far", [False, True])
def test_each_step_of_a_move_killed_leaves_one_owner(
    tmp_path: Path, step: str, victim: str, far: bool
) -> None:
    if step == "copying" and not far:
        pytest.skip("nothing is copied inside a node")
    driver = driver_on(tmp_path, 3, nodes=2 if far else 1, capacity=6)
    run = driver.engine.runs["fold"]
    driver.run_until(lambda: run.chain.epoch > 20 and bool(run.ready.all()))
    leases = driver.engine.leases
    old = next(slot for slot in run.slots.values() if len(run.shards_of(slot)))
    assert old.lease is not None
    here = leases[old.lease].node
    shard = int(run.shards_of(old)[0])
    there = next((n for n in driver.engine.placing.known_nodes() if n != here), here) if far else here
    goal = run.task_of.copy()
    goal[shard] = 9
    driver.engine.place([Placement("fold", {**dict.fromkeys(run.slots), 9: there}, goal)])
    holding = run.shards.holding
    reached = {
        "copying": lambda: ("fold", shard) in driver.engine.placing.copies,
        "releasing": lambda: holding[shard] == Holding.RELEASING,
        "released": lambda: run.task_of[shard] == 9,
        "bringing": lambda: holding[shard] == Holding.BRINGING and run.task_of[shard] == 9,
    }[step]
    assert driver.run_until(reached, 10.0), driver.failed
    if victim == "driver":
        driver.crash()
        driver.restart()
    else:
        lease = old.lease if victim == "source" else run.slots[9].lease
        assert lease is not None
        driver.kill(lease)
    finish(driver)
    if victim != "driver":
        check_one_owner_of(driver, shard)


def check_one_owner_of(driver: Driver, shard: int) -> None:
    run = driver.engine.runs["fold"]
    assert run.task_of[shard] == 9
    assert run.shards.holding[shard] == Holding.HELD


def test_a_shard_moved_inside_a_node_copies_nothing_and_others_do_not_wait(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 1, nodes=1)
    run = driver.engine.runs["fold"]
    driver.run_until(lambda: run.chain.epoch > 20 and bool(run.ready.all()))
    goal = run.task_of.copy()
    source = int(goal[0])
    goal[0] = next(index for index in run.slots if index != source)
    before = run.chain.epoch
    driver.engine.place([Placement("fold", dict.fromkeys(run.slots), goal)])
    assert driver.run_until(lambda: bool(driver.engine.placing.moves), 5.0)
    move = driver.engine.placing.moves[-1]
    assert (move.shard, move.bytes, move.source) == (0, 0, move.destination)
    assert run.chain.epoch <= before + 2, "it sat out no more than a boundary"
    assert driver.engine.placing.bringings[-1][3] == "local"
    finish(driver)


def test_a_shard_moved_to_another_node_takes_a_copy_and_its_last_deltas(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 2, nodes=2)
    run = driver.engine.runs["fold"]
    driver.run_until(lambda: run.chain.epoch > 20 and bool(run.ready.all()))
    leases = driver.engine.leases
    nodes = {index: leases[slot.lease or ""].node for index, slot in run.slots.items()}
    shard = next(s for s in range(run.spec.shards) if run.chain.versions[s] > 0)
    source = int(run.task_of[shard])
    other = next(n for n in driver.engine.placing.known_nodes() if n != nodes[source])
    goal = run.task_of.copy()
    goal[shard] = 7
    driver.engine.place([Placement("fold", {**dict.fromkeys(run.slots), 7: other}, goal)])
    assert driver.run_until(lambda: bool(driver.engine.placing.moves), 5.0)
    move = driver.engine.placing.moves[-1]
    assert move.destination == other and move.bytes > 0
    how = [how for _, stage, at, how in driver.engine.placing.bringings if (stage, at) == ("fold", shard)]
    assert how[-1] == "local", "the copy that was made beside the work was used"
    finish(driver)


def test_cores_are_added_and_taken_while_rows_flow(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 4, nodes=1)
    run = driver.engine.runs["fold"]
    driver.run_until(lambda: run.chain.epoch > 5 and bool(run.ready.all()))
    at = len(driver.engine.leases)
    shards = run.spec.shards
    four = (np.arange(shards) % 4).astype(np.uint16)
    driver.engine.place([Placement("fold", dict.fromkeys(range(4)), four)])
    assert driver.run_until(lambda: driver.engine.placing.is_settled("fold"), 5.0)
    assert len({slot.lease for slot in run.slots.values()}) == 4
    driver.engine.place([Placement("fold", {0: None}, np.zeros(shards, np.uint16))])
    assert driver.run_until(lambda: driver.engine.placing.is_settled("fold"), 5.0)
    assert list(run.slots) == [0] and len(driver.engine.leases) < at + 2, "cores were given back"
    finish(driver)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (Placement("nobody", {0: None}, np.zeros(8, np.uint16)), "there is no such stage"),
        (Placement("fold", {}, np.zeros(8, np.uint16)), "at least one core"),
        (Placement("fold", dict.fromkeys(range(7)), np.zeros(8, np.uint16)), "room for 6 leases"),
        (Placement("fold", {0: "mars"}, np.zeros(8, np.uint16)), "on node mars"),
        (Placement("fold", {0: None}, np.zeros(3, np.uint16)), "8 shards and the plan places 3"),
        (Placement("fold", {0: None}, np.full(8, 5, np.uint16)), "task 5, which the plan does not have"),
        (Placement("sink", {0: None}, np.zeros(1, np.uint16)), "no tasks of its own"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_changes_nothing(
    tmp_path: Path, plan: Placement, says: str
) -> None:
    driver = driver_on(tmp_path, 1)
    run = driver.engine.runs["fold"]
    driver.run_until(lambda: bool(run.ready.all()))
    before = run.shards.goal.copy()
    with pytest.raises(PlanError, match=says):
        driver.engine.place([plan])
    assert (run.shards.goal == before).all()
    finish(driver)


def test_a_plan_whose_cores_do_not_come_is_given_up_and_the_old_one_goes_on(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 1, nodes=1, rows=3 * ROWS)
    run = driver.engine.runs["fold"]
    driver.run_until(lambda: bool(run.ready.all()))
    driver.delays = Delays(lease_start=(100.0, 100.0))
    goal = run.task_of.copy()
    goal[0] = 5
    driver.engine.place([Placement("fold", {**dict.fromkeys(run.slots), 5: "n0"}, goal)], timeout_s=0.5)
    assert driver.run_until(lambda: driver.engine.placing.why_not("fold") is not None, 5.0)
    assert "task 5" in (driver.engine.placing.why_not("fold") or "")
    assert run.task_of[0] != 5 and run.shards.goal[0] != 5
    finish(driver, 3 * ROWS)


def test_a_paused_stage_begins_nothing_and_goes_on_when_resumed(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 5)
    fold = driver.engine.runs["fold"]
    driver.run_until(lambda: fold.chain.epoch > 3)
    driver.engine.pause(["fold"])
    driver.run_until(0.05)
    epoch = fold.chain.epoch
    driver.run_until(0.2)
    assert fold.chain.epoch == epoch
    driver.engine.resume(["fold"])
    finish(driver)
