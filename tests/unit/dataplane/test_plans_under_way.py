"""Plans for several stages at once: all of one is carried out, or none of it is left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.faults.plan_stories import driver_on, finish

from penstock.dataplane.asked_plans import AskedPlans
from penstock.dataplane.placement import Placement
from penstock.dataplane.plans_under_way import PlansUnderWay
from penstock.dataplane.undoing import Before
from penstock.sim.inprocess import Driver
from penstock.sim.timing import Delays

ROWS = 2_000
Tasks = dict[str, tuple[list[int], list[int]]]


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    found = driver_on(tmp_path, 1, nodes=2, capacity=9, rows=ROWS, local=False)
    placing = found.engine.placing
    assert found.run_until(
        lambda: found.engine.runs["fold"].chain.epoch > 10 and all(map(placing.is_settled, found.engine.runs))
    )
    return found


def tasks_of(driver: Driver) -> Tasks:
    """By operator: the tasks that are to stay, and those that its shards are to be with."""
    runs = {name: driver.engine.runs[name] for name in ("fold", "gather")}
    return {
        name: (
            sorted(slot.index for slot in run.slots.values() if not slot.leaving),
            sorted({*run.shards.goal.tolist()}),
        )
        for name, run in runs.items()
    }


def fewer(driver: Driver, task: int = 0) -> Placement:
    """The first operator on one task only."""
    return Placement("fold", {task: None}, np.full_like(driver.engine.runs["fold"].shards.goal, task))


def more(driver: Driver) -> Placement:
    """The second operator on two tasks more."""
    goal = driver.engine.runs["gather"].shards.goal.copy()
    goal[::3], goal[1::3] = 9, 10
    return Placement("gather", dict.fromkeys((0, 1, 9, 10)), goal)


def no_lease_comes(driver: Driver) -> None:
    driver.delays = Delays(lease_start=(200.0, 200.0))


def half_done(driver: Driver, timeout_s: float = 1.0) -> Tasks:
    """Begin a plan of which one operator is done and the other waits; return the tasks before it."""
    before = tasks_of(driver)
    no_lease_comes(driver)
    driver.place([fewer(driver), more(driver)], timeout_s)
    assert driver.run_until(lambda: driver.engine.placing.is_settled("fold"), timeout_s / 2)
    assert tasks_of(driver)["fold"] == ([0], [0])
    return before


def test_a_plan_that_is_given_up_puts_back_the_operators_that_were_done_too(driver: Driver) -> None:
    before, placing = half_done(driver), driver.engine.placing
    driver.delays = Delays(lease_start=(0.005, 0.05))
    assert driver.run_until(lambda: placing.why_not("gather") is not None, 5.0)
    assert tasks_of(driver) == before
    assert "no lease came up in time for task 10 of 'gather'" in (placing.why_not("gather") or "")
    assert placing.why_not("fold") == "'fold' went back with 'gather'"
    finish(driver, ROWS)
    assert tasks_of(driver) == before


def test_an_operator_that_was_given_a_later_plan_stays_as_that_wants_it(driver: Driver) -> None:
    before, placing = half_done(driver), driver.engine.placing
    driver.place([fewer(driver, 0)], 5.0)
    assert driver.run_until(lambda: placing.why_not("gather") is not None, 5.0)
    assert tasks_of(driver) == {"fold": ([0], [0]), "gather": before["gather"]}
    assert placing.why_not("fold") is None
    finish(driver, ROWS)


def test_a_lease_that_is_lost_after_its_operator_was_done_puts_nothing_back(driver: Driver) -> None:
    placing, runs = driver.engine.placing, driver.engine.runs
    driver.place([fewer(driver), Placement("gather", {0: None}, np.zeros_like(runs["gather"].shards.goal))])
    placing.under_way.note_reached(lambda stage: stage == "fold")
    assert placing.is_planned("gather"), "it is slow, and waits for no lease"
    runs["fold"].slots[0].lease = None
    placing.give_up_late_plans(driver.engine.now() + 100.0)
    assert placing.why_not("fold") is None and placing.why_not("gather") is None
    assert tasks_of(driver) == {"fold": ([0], [0]), "gather": ([0], [0])}


def test_where_stages_were_put_is_kept_for_a_restart_when_the_whole_plan_is_done(driver: Driver) -> None:
    half_done(driver)
    driver.engine.placing.note_placed()
    assert "fold" not in driver.engine.chains.placed, "it may be put back yet"


def begun(*stages: str, deadline: float = 9.0) -> tuple[AskedPlans, PlansUnderWay]:
    asked = AskedPlans()
    under_way = PlansUnderWay(asked)
    begin(asked, under_way, *stages, deadline=deadline)
    return asked, under_way


def begin(asked: AskedPlans, under_way: PlansUnderWay, *stages: str, deadline: float = 9.0) -> None:
    for stage in stages:
        asked.begin(stage, settled=True)
    under_way.begin({stage: Before({0: None}, np.zeros(1, np.uint16)) for stage in stages}, deadline)


def test_a_plan_is_under_way_until_each_of_its_stages_was_as_it_wants_them() -> None:
    _, under_way = begun("one", "two")
    assert not under_way.note_reached(lambda stage: stage == "one")
    assert under_way.find("one") is under_way.find("two") is not None
    assert under_way.find_awaited("one") is None and under_way.find_awaited("two") is not None
    assert under_way.note_reached(lambda stage: stage == "two"), "a lease of the other may be lost by now"
    assert under_way.find("one") is under_way.find("two") is None


def test_a_later_plan_takes_its_stages_out_of_earlier_ones() -> None:
    asked, under_way = begun("one", "two")
    begin(asked, under_way, "two", deadline=20.0)
    (late,) = under_way.take_late(9.0)
    assert under_way.stages_of(late) == ["one"]
    (later,) = under_way.take_late(20.0)
    assert under_way.stages_of(later) == ["two"] and under_way.find("two") is None


def test_a_plan_of_which_a_later_one_took_all_is_forgotten() -> None:
    asked, under_way = begun("one")
    begin(asked, under_way, "one", deadline=20.0)
    assert not under_way.note_reached(lambda stage: False)
    assert not under_way.take_late(9.0) and len(under_way.take_late(20.0)) == 1
