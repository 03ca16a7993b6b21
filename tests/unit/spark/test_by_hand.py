"""Requests by hand on an engine in process: what they say, what they refuse, and what is said when one is given up."""

from __future__ import annotations

import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.unit.spark.engine_shell import Nodes, shell_of, started, until

from penstock.control.plan.shards import Shards
from penstock.errors import PlanError
from penstock.sim.timing import Delays
from penstock.spark import by_hand
from penstock.spark.applying import SparkActuator
from penstock.spark.by_hand import ByHand, spread_executors


class Story:
    """A run on two nodes of a cluster, and somebody who asks for things."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver = started(folder, capacity=7)
        self.engine, self.shell = self.driver.engine, shell_of(self.driver)
        self.nodes = nodes = Nodes(self.driver)
        monkeypatch.setattr(by_hand, "nodes", lambda spark: nodes.nodes())
        monkeypatch.setattr(by_hand, "is_local", lambda spark: False)
        self.noted: list[str] = []
        actuator = SparkActuator(self.shell, nodes)
        self.by_hand = ByHand(self.shell, SimpleNamespace(), actuator, self.noted.append)  # type: ignore[arg-type]


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    return Story(tmp_path, monkeypatch)


def test_a_plan_that_is_given_up_later_is_logged_and_noted(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    story.driver.delays = Delays(lease_start=(200.0, 200.0))
    before = story.engine.runs["fold"].task_of.copy()
    said = story.by_hand.rescale("fold", 3, None)
    assert "goes from 2 to 3 cores" in said and story.noted == [said]
    story.by_hand.follow_up()
    assert story.noted == [said]
    story.engine.placing.under_way.find("fold").deadline = story.engine.now()  # rather than a minute from now
    until(story.driver, story.shell, lambda: story.engine.placing.why_not("fold"))
    with caplog.at_level(logging.WARNING, "penstock"):
        story.by_hand.follow_up()
        story.by_hand.follow_up()
    assert len(story.noted) == 2 and "given up, and what ran before goes on" in story.noted[1]
    assert "no lease came up in time for task 2" in caplog.text
    until(story.driver, story.shell, lambda: story.engine.placing.is_settled("fold"))
    assert (story.engine.runs["fold"].task_of == before).all()


def test_cores_are_neither_offered_nor_taken_on_a_drained_node(story: Story) -> None:
    story.engine.serving.avoid.add("n1")
    assert set(story.by_hand._room("fold")) == {"n0"}
    before = story.engine.runs["fold"].shards.goal.copy()
    with pytest.raises(PlanError, match=r"'fold' cannot have cores on node n1, which is drained; .*undrain"):
        story.by_hand.rescale("fold", 1, {"n1": 1})
    assert (story.engine.runs["fold"].shards.goal == before).all()


def test_cores_of_other_queries_and_leases_of_other_operators_are_no_room_for_one(story: Story) -> None:
    serving = story.engine.serving
    story.engine.serving.set_nodes(["n0", "n1"], {"n0": 2, "n1": 4})  # another query holds two slots of n0
    others = Counter(
        {lease: story.engine.leases[lease].node for slot in serving.slots() if (lease := slot.lease)
         and all(one.stage != "fold" for one in serving.slots() if one.lease == lease)}.values()
    )  # fmt: skip
    assert others.total() >= 1
    assert story.by_hand._room("fold") == {"n0": 2 - others["n0"], "n1": 4 - others["n1"]}


def test_executors_of_an_operator_are_given_no_cores_that_others_of_them_keep() -> None:
    def executor(name: str, first: int, tasks: dict[int, str]) -> Shards:
        task_of = np.full(16, -1, np.int32)
        task_of[first : first + 8] = [at % len(tasks) for at in range(8)]
        return Shards(name, (task_of >= 0) * 1.0, task_of, tasks, np.zeros(16, np.int64))

    pair = [executor("match", 0, {0: "A"}), executor("match#2", 8, {0: "A", 1: "A"})]
    found = spread_executors("match", pair, 6, {"A": 3, "B": 3})
    assert found == [{"A": 1, "B": 2}, {"A": 2, "B": 1}]
    with pytest.raises(PlanError, match="the nodes have"):
        spread_executors("match", pair, 7, {"A": 3, "B": 3})


def test_a_split_that_takes_a_core_more_than_there_is_is_refused_with_how_many_there_are(
    story: Story,
) -> None:
    serving = story.engine.serving
    beside = serving.leases_beside(lambda stage: stage.startswith("fold"))
    serving.set_nodes(["n0", "n1"], {"n0": 1 + beside["n0"], "n1": 2 + beside["n1"]})
    assert story.by_hand._room("fold") == {"n0": 1, "n1": 2}
    assert "pass to 'fold#2' with 1 core" in story.by_hand.split("fold"), (
        "of two tasks one goes: no core more"
    )
    until(story.driver, story.shell, lambda: len(story.engine.redealing.made) == 1)
    assert "pass to 'fold#3' with 1 core" in story.by_hand.split("fold#2")
    refused = r"takes one core more, 4 cores for 'fold': the nodes have 3 for it"
    with pytest.raises(PlanError, match=refused):
        story.by_hand.split("fold")  # while the other is on its way
    until(story.driver, story.shell, lambda: len(story.engine.redealing.made) == 2)
    with pytest.raises(PlanError, match=refused):
        story.by_hand.split("fold#3")
    assert len(story.engine.runs_of("fold")) == 3
    assert "pass to" in story.by_hand.merge("fold")


def test_a_split_takes_no_slot_that_is_kept_free_for_ingest_and_sinks(story: Story) -> None:
    serving = story.engine.serving
    serving.set_nodes(["n0", "n1"], {"n0": 8, "n1": 8})
    story.by_hand.split("fold")
    until(story.driver, story.shell, lambda: len(story.engine.redealing.made) == 1)
    serving.capacity = len(story.engine.leases)
    with pytest.raises(PlanError, match="'fold#2' has one task, and to split it takes one core more"):
        story.by_hand.split("fold#2")


def test_two_splits_of_different_operators_do_not_both_take_the_last_core(story: Story) -> None:
    engine, serving = story.engine, story.engine.serving
    serving.set_nodes(["n0", "n1"], {"n0": 8, "n1": 8})
    serving.capacity = 12
    for operator in ("fold", "gather"):
        while len(engine.runs[operator].slots) > 1:
            made = len(engine.redealing.made)
            story.by_hand.split(operator)
            until(story.driver, story.shell, lambda made=made: len(engine.redealing.made) > made)
            until(story.driver, story.shell, lambda: all(slot.lease for slot in serving.slots()))
    serving.capacity = len(engine.leases) + 1
    assert "with 1 core" in story.by_hand.split("fold")
    with pytest.raises(PlanError, match=r"'gather\S*' has one task, and to split it takes one core more"):
        story.by_hand.split("gather")
    until(story.driver, story.shell, lambda: not engine.redealing.is_under_way("fold"))
    with pytest.raises(PlanError, match=r"'gather\S*' has one task, and to split it takes one core more"):
        story.by_hand.split("gather")  # while the new task waits for its lease
    until(story.driver, story.shell, lambda: all(slot.lease for slot in serving.slots()))
    with pytest.raises(PlanError, match=r"'gather\S*' has one task, and to split it takes one core more"):
        story.by_hand.split("gather")
    serving.capacity += 1
    assert "with 1 core" in story.by_hand.split("gather")


def test_where_no_number_of_cores_would_do_for_its_executors_the_refusal_says_what_does(story: Story) -> None:
    for made, name in enumerate(("fold", "fold", "fold#2"), 1):
        story.by_hand.split(name)
        until(story.driver, story.shell, lambda made=made: len(story.engine.redealing.made) == made)
    serving = story.engine.serving
    beside = serving.leases_beside(lambda stage: stage.startswith("fold"))
    serving.set_nodes(["n0", "n1"], {"n0": 2 + beside["n0"], "n1": 4})
    serving.avoid.add("n1")
    for cores in (2, 3, 4):
        with pytest.raises(
            PlanError, match=r"at least 4 cores for its 4 executors, .* room for 2: merge .* undrain node n1"
        ):
            story.by_hand.rescale("fold", cores, None)


def test_what_came_of_a_drain_that_somebody_no_longer_waits_for_is_noted(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    avoid = story.engine.serving.avoid
    story.nodes.problem = "the cluster manager refused the request"
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(story.by_hand.drain, "n1", True, 0.05)
        until(story.driver, story.shell, asked.done, step_s=0.0)  # no virtual time passes
        with pytest.raises(PlanError, match="it goes on, and the node stays drained"):
            asked.result()
    assert avoid == {"n1"} and story.noted == []

    def noted() -> bool:
        story.by_hand.follow_up()
        return bool(story.noted)

    with caplog.at_level(logging.WARNING, "penstock"):
        until(story.driver, story.shell, noted)
    assert "node n1 is drained and given back: the cluster manager refused the request" in story.noted[0]
    assert story.noted[0] in caplog.text
    story.shell.hub.pump()
    assert avoid == set(), "it is used again"


def test_moved_shards_are_named_and_counted_once_each_and_not_all_in_a_sentence(story: Story) -> None:
    with pytest.raises(PlanError, match="name at least one shard"):
        story.by_hand.move("fold", [], 0)
    assert story.by_hand.move("fold", [0], 1) == "1 shard of 'fold' goes to task 1"
    assert story.by_hand.move("fold", [0, 1, 1, 0], 0) == "2 shards of 'fold' go to task 0"
    story.driver.run_until(0.5)
    assert "pass to 'fold#2' with 1 core" in story.by_hand.split("fold")
    until(story.driver, story.shell, lambda: bool(story.engine.redealing.made))
    with pytest.raises(
        PlanError, match="shards 0, 1, 2, 3, 4, 5, 6, 7 and 8 more are not all in one executor"
    ):
        story.by_hand.move("fold", [*range(8)] * 2, 0)
