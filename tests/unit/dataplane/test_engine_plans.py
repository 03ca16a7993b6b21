"""Plans given to a running query: any at any time, whoever dies on the way; one owner of every shard, no row lost."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults.plan_stories import CASES, MoveCase, driver_on, finish, killed_move, story

from penstock.dataplane import handing
from penstock.dataplane.placement import NodeRoom, Placement, check_room
from penstock.dataplane.shards import Holding
from penstock.errors import PlanError
from penstock.sim.inprocess import Driver
from penstock.sim.timing import Delays

ROWS = 300


@pytest.mark.parametrize("seed", range(4))
def test_any_plan_at_any_time_whatever_dies_loses_nothing(tmp_path: Path, seed: int) -> None:
    story(tmp_path, seed)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_step_of_a_move_killed_leaves_one_owner(tmp_path: Path, case: MoveCase) -> None:
    killed_move(tmp_path, case, 3)


def test_a_shard_moved_inside_a_node_copies_nothing_and_others_do_not_wait(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 1, nodes=1)
    run = driver.engine.runs["fold"]
    driver.run_until(lambda: run.chain.epoch > 20 and bool(run.ready.all()))
    goal = run.task_of.copy()
    source = int(goal[0])
    goal[0] = next(index for index in run.slots if index != source)
    before = run.chain.epoch
    driver.engine.place([Placement("fold", dict.fromkeys(run.slots), goal)])
    assert driver.run_until(lambda: bool(driver.engine.placing.moves.last), 5.0)
    move = driver.engine.placing.moves.last[-1]
    assert (move.shard, move.bytes, move.source) == (0, 0, move.destination)
    assert run.chain.epoch <= before + 2, "it sat out no more than a boundary"
    assert driver.engine.placing.bringings[-1][3] == "local"
    finish(driver)


def test_no_task_hands_on_more_shards_at_one_boundary_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handing, "HANDED_AT_MOST", 1)
    driver = driver_on(tmp_path, 1, nodes=1, rows=4 * ROWS)
    run = driver.engine.runs["fold"]
    driver.run_until(lambda: run.chain.epoch > 20 and bool(run.ready.all()))
    source = int(run.task_of[0])
    other = next(index for index in run.slots if index != source)
    moved = int((run.task_of == source).sum())
    seen: list[tuple[int, int]] = []

    def settled() -> bool:
        seen.append((run.chain.epoch, driver.engine.placing.moves.made))
        return driver.engine.placing.is_settled("fold")

    before = run.chain.epoch
    driver.engine.place([Placement("fold", dict.fromkeys(run.slots), np.full_like(run.task_of, other))])
    assert driver.run_until(settled, 10.0)
    by_epoch = [max(made for at, made in seen if at == epoch) for epoch in sorted({at for at, _ in seen})]
    assert moved >= 3 and driver.engine.placing.moves.made == moved
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise([0, *by_epoch]))
    assert run.chain.epoch <= before + 3 * moved
    finish(driver, 4 * ROWS)


def test_a_shard_moved_to_another_node_takes_a_copy_and_its_last_deltas(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 2, nodes=2)
    run = driver.engine.runs["fold"]
    driver.run_until(lambda: run.chain.epoch > 20 and bool(run.ready.all()))
    leases = driver.engine.leases
    nodes = {index: leases[slot.lease or ""].node for index, slot in run.slots.items()}
    shard = next(s for s in range(run.spec.shards) if run.chain.versions[s] > 0)
    source = int(run.task_of[shard])
    other = next(n for n in driver.engine.serving.known_nodes() if n != nodes[source])
    goal = run.task_of.copy()
    goal[shard] = 7
    driver.engine.place([Placement("fold", {**dict.fromkeys(run.slots), 7: other}, goal)])
    assert driver.run_until(lambda: bool(driver.engine.placing.moves.last), 5.0)
    move = driver.engine.placing.moves.last[-1]
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
    driver = driver_on(tmp_path, 1, rows=40)
    run = driver.engine.runs["fold"]
    driver.run_until(lambda: bool(run.ready.all()))
    before = run.shards.goal.copy()
    with pytest.raises(PlanError, match=says):
        driver.engine.place([plan])
    assert (run.shards.goal == before).all()
    finish(driver, 40)


def test_a_plan_whose_cores_do_not_come_is_given_up_and_the_old_one_goes_on(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 1, nodes=1, rows=2 * ROWS)
    run = driver.engine.runs["fold"]
    driver.run_until(lambda: bool(run.ready.all()))
    driver.delays = Delays(lease_start=(100.0, 100.0))
    goal = run.task_of.copy()
    goal[0] = 5
    driver.engine.place([Placement("fold", {**dict.fromkeys(run.slots), 5: "n0"}, goal)], timeout_s=0.5)
    assert driver.run_until(lambda: driver.engine.placing.why_not("fold") is not None, 5.0)
    assert "task 5" in (driver.engine.placing.why_not("fold") or "")
    assert run.task_of[0] != 5 and run.shards.goal[0] != 5
    finish(driver, 2 * ROWS)


def test_a_plan_that_is_given_up_puts_back_every_shard_and_not_only_those_of_the_missing_task(
    tmp_path: Path,
) -> None:
    driver = driver_on(tmp_path, 2, nodes=1, rows=2 * ROWS)
    run, placing = driver.engine.runs["fold"], driver.engine.placing
    driver.run_until(lambda: run.chain.epoch > 20 and bool(run.ready.all()))
    before, tasks = run.task_of.copy(), set(run.slots)
    driver.delays = Delays(lease_start=(100.0, 100.0))
    goal = np.where(before == 0, 1, 5).astype(np.uint16)
    goal[np.flatnonzero(before == 0)[0]] = 0
    driver.place([Placement("fold", {0: None, 1: None, 5: None}, goal)], timeout_s=0.3)
    assert driver.run_until(lambda: placing.why_not("fold") is not None, 5.0)
    assert driver.run_until(lambda: placing.is_settled("fold"), 5.0)
    assert (run.task_of == before).all() and set(run.slots) == tasks
    finish(driver, 2 * ROWS)


def test_a_plan_on_top_of_one_whose_cores_never_came_goes_back_to_what_ran(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 2, nodes=1, capacity=9, rows=2 * ROWS)
    run, placing = driver.engine.runs["fold"], driver.engine.placing
    driver.run_until(lambda: run.chain.epoch > 20 and bool(run.ready.all()))
    before, tasks = run.task_of.copy(), set(run.slots)
    driver.delays = Delays(lease_start=(100.0, 100.0))
    for task in (5, 6):
        goal = before.copy()
        goal[before == 1] = task
        goal[np.flatnonzero(before == 0)[0]] = 1
        driver.place([Placement("fold", {0: None, 1: None, task: None}, goal)], timeout_s=0.3)
        driver.run_until(0.05)
    assert driver.run_until(lambda: placing.why_not("fold") is not None, 5.0)
    assert driver.run_until(lambda: placing.is_settled("fold"), 5.0)
    assert (run.task_of == before).all() and set(run.slots) == tasks
    finish(driver, 2 * ROWS)


def test_cores_that_a_plan_ended_come_back_when_it_is_given_up_or_shards_stay_where_they_are(
    tmp_path: Path,
) -> None:
    driver = driver_on(tmp_path, 2, nodes=1, rows=2 * ROWS)
    run, placing = driver.engine.runs["fold"], driver.engine.placing
    driver.run_until(lambda: run.chain.epoch > 20 and bool(run.ready.all()))
    before = run.task_of.copy()
    driver.delays = Delays(lease_start=(100.0, 100.0))
    goal = np.where(before == 1, 5, 1).astype(np.uint16)
    driver.engine.serving.set_nodes(["n0", "n9"], {})
    driver.place([Placement("fold", {1: None, 5: "n9"}, goal)], timeout_s=0.3)
    assert driver.run_until(lambda: placing.why_not("fold") is not None, 5.0)
    assert sorted(index for index, slot in run.slots.items() if not slot.leaving) == [0, 1]
    assert (run.shards.goal == before).all()
    assert driver.run_until(lambda: placing.is_settled("fold"), 90.0)
    assert all(slot.lease is not None for slot in run.slots.values())
    finish(driver, 2 * ROWS)


def test_tasks_of_a_silent_node_may_run_anywhere_and_no_plan_puts_others_there(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 3, nodes=2)
    serving, run = driver.engine.serving, driver.engine.runs["fold"]
    driver.run_until(lambda: run.chain.epoch > 3 and bool(run.ready.all()))
    slot = next(iter(run.slots.values()))
    slot.node = "n1"
    serving.set_nodes(["n0", "n1"], {}, silent=["n1"])
    assert slot.node is None and serving.usable_nodes() == {"n0"}
    with pytest.raises(PlanError, match="cannot be placed on node n1: the nodes there are: n0"):
        driver.place([Placement("fold", {9: "n1"}, np.full(run.spec.shards, 9, np.uint16))])
    serving.set_nodes(["n0", "n1"], {})
    assert serving.usable_nodes() == {"n0", "n1"}
    finish(driver)


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


def test_a_node_is_drained_while_every_lease_that_may_be_held_is(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 6, nodes=2, capacity=4)
    driver.run_until(lambda: len(driver.engine.leases) == 4 and all(map(settled(driver), driver.engine.runs)))
    nodes = {lease.node for lease in driver.engine.leases.values()}
    assert nodes == {"n0", "n1"}
    driver.engine.serving.avoid.add("n0")
    plan = []
    for name in ("fold", "gather"):
        run = driver.engine.runs[name]
        tasks: dict[int, str | None] = dict.fromkeys(range(5, 9), "n1")
        plan.append(Placement(name, tasks, (5 + np.arange(run.spec.shards) % 4).astype(np.uint16)))
    driver.place(plan)
    assert driver.run_until(lambda: all(map(settled(driver), driver.engine.runs)), 5.0)
    driver.run_until(0.2)
    assert {lease.node for lease in driver.engine.leases.values()} == {"n1"}
    finish(driver)


def settled(driver: Driver) -> Callable[[str], bool]:
    return driver.engine.placing.is_settled


def test_a_source_keeps_a_task_until_the_new_one_has_a_lease_and_when_it_never_has(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 1, nodes=1)
    source = driver.engine.runs["source"]
    driver.run_until(lambda: source.chain.epoch > 1)
    driver.delays = Delays(lease_start=(100.0, 100.0))
    driver.place([Placement("source", {5: "n0"}, np.zeros(1, np.uint16))], 0.1)
    epoch = source.chain.epoch
    driver.run_until(0.05)
    assert source.chain.epoch > epoch, "rows flow while the new task waits"
    assert driver.run_until(lambda: driver.engine.placing.why_not("source") is not None, 5.0)
    assert driver.run_until(lambda: list(source.slots) == [0], 5.0) and not source.slots[0].leaving
    finish(driver)


def test_the_rows_of_a_source_stay_in_order_whatever_numbers_its_tasks_have(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 2, nodes=1, local=False)
    source = driver.engine.runs["source"]
    driver.run_until(lambda: source.chain.epoch > 1)
    nowhere = np.zeros(1, np.uint16)
    driver.place([Placement("source", {7: None}, nowhere)])
    assert driver.run_until(lambda: driver.engine.placing.is_settled("source"), 5.0)
    driver.place([Placement("source", {7: None, 3: None}, nowhere)])
    assert driver.run_until(lambda: driver.engine.placing.is_settled("source"), 5.0)
    assert list(source.slots) == [7, 3]
    finish(driver)


def test_a_task_whose_node_has_no_lease_left_runs_elsewhere(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 3, nodes=2, capacity=4)
    run = driver.engine.runs["fold"]
    driver.run_until(lambda: bool(run.ready.all()))
    driver.place([Placement("fold", {5: "n1"}, np.full(run.spec.shards, 5, np.uint16))])
    assert driver.run_until(lambda: driver.engine.placing.is_settled("fold"), 5.0)
    driver.nodes = 1
    driver.set_capacity(1)
    driver.run_until(0.3)
    for name in driver.live_leases():
        if driver.engine.leases[name].node == "n1":
            driver.kill(name)
    assert driver.run_until("drained", 30.0), "a shard waits for a node that will never have a lease"


def test_a_task_on_a_node_without_a_free_slot_is_refused_at_once_and_says_what_would_do(
    tmp_path: Path,
) -> None:
    driver = driver_on(tmp_path, 5, nodes=2)
    run = driver.engine.runs["fold"]
    driver.run_until(lambda: run.chain.epoch > 5 and bool(run.ready.all()))
    held = Counter(lease.node for lease in driver.engine.leases.values())
    full, other = sorted(held, key=lambda node: -held[node])[:2]
    driver.engine.serving.set_nodes(held, {full: held[full], other: held[other] + 1})
    more = {**dict.fromkeys(run.slots), 7: full}
    before = driver.engine.serving.wanted_leases()
    with pytest.raises(
        PlanError, match=f"'fold' cannot have 1 more on node {full}: of its {held[full]} slots"
    ):
        driver.engine.place([Placement("fold", more, run.task_of.copy())])
    assert 7 not in run.slots and driver.engine.serving.wanted_leases() == before, "nothing has changed"
    driver.engine.place([Placement("fold", {**more, 7: other}, run.task_of.copy())])
    assert driver.run_until(lambda: driver.engine.placing.is_settled("fold"), 5.0)
    finish(driver)


def test_a_slot_that_the_same_plan_gives_back_is_free(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 6, nodes=2)
    run = driver.engine.runs["fold"]
    driver.run_until(lambda: run.chain.epoch > 5 and bool(run.ready.all()))
    leases = driver.engine.leases
    held = Counter(lease.node for lease in leases.values())
    driver.engine.serving.set_nodes(held, held)
    alone = Counter(slot.lease for slot in driver.engine.serving.slots())
    gone = next(index for index, slot in run.slots.items() if alone[slot.lease] == 1)
    tasks = {index: None for index in run.slots if index != gone}
    goal = np.where(run.task_of == gone, 7, run.task_of).astype(np.uint16)
    driver.engine.place([Placement("fold", {**tasks, 7: leases[run.slots[gone].lease or ""].node}, goal)])
    assert driver.run_until(lambda: driver.engine.placing.is_settled("fold"), 5.0)
    finish(driver)


@given(slots=st.integers(0, 8), kept=st.integers(0, 8), new=st.integers(0, 8), shares=st.booleans())
def test_a_node_is_asked_for_no_more_than_it_has(slots: int, kept: int, new: int, shares: bool) -> None:
    room = NodeRoom("n1", slots, kept, new, shares)
    fits = new == 0 or kept + new <= slots
    if fits or (shares and kept):
        check_room("'fold'", room)
    else:
        with pytest.raises(PlanError, match=r"node n1.*add nodes"):
            check_room("'fold'", room)


def test_an_epoch_waits_for_shards_passed_on_in_its_node_and_not_for_those_on_their_way_to_another(
    tmp_path: Path,
) -> None:
    driver = driver_on(tmp_path, 2, nodes=2)
    run, passing = driver.engine.runs["fold"], driver.engine.placing.handing
    driver.run_until(lambda: run.chain.epoch > 20 and bool(run.ready.all()))
    near, far = np.array([0, 1], np.uint16), np.array([2], np.uint16)
    now = driver.engine.now()
    passing.begin(run, near, now)
    run.shards.to(far, Holding.RELEASING)
    assert not passing.is_awaited(run, now), "the one that is away is of another kind"
    passing.begin(run, near, now)
    run.shards.to(near, Holding.RELEASING)
    assert passing.is_awaited(run, now)
    assert not passing.is_awaited(run, now + handing.HANDOVER_S), "not for ever"
