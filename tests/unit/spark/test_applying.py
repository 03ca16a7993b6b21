"""Plans on an engine in process: refused whole or begun whole, paused in their own name, nodes on a ticket of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.spark.engine_shell import Nodes, shell_of, started, until

from penstock.control.apply.actuator import Outcome, Ticket
from penstock.control.plan.plan import ExecutorPlan, Pass, Plan
from penstock.errors import PlanError
from penstock.sim.timing import Delays
from penstock.spark import negotiating
from penstock.spark.applying import SparkActuator


class Story:
    """A run, and the actuator that carries out plans on it."""

    def __init__(self, folder: Path, comes: bool = False, capacity: int = 6) -> None:
        self.driver = started(folder, capacity=capacity)
        self.engine, self.shell = self.driver.engine, shell_of(self.driver)
        self.nodes = Nodes(self.driver, comes)
        self.actuator = SparkActuator(self.shell, self.nodes)

    def outcome(self, ticket: Ticket | None, step_s: float = 0.02) -> Outcome:
        assert ticket is not None
        found: Outcome = until(self.driver, self.shell, lambda: self.actuator.status(ticket), step_s)
        return found

    def look(self) -> dict[str, Any]:
        return {
            name: (run.shards.goal.tolist(), sorted(run.slots), sorted(run.pausers))
            for name, run in self.engine.runs.items()
        }


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def one_core_more(actuator: SparkActuator, node: str = "n0") -> dict[str, ExecutorPlan]:
    now = actuator.current()["fold"]
    task_of, fresh = now.task_of.copy(), max(now.tasks) + 1
    task_of[np.flatnonzero(task_of >= 0)[0]] = fresh
    return {"fold": ExecutorPlan({**now.tasks, fresh: node}, task_of)}


def test_a_plan_that_is_refused_for_its_placement_passes_no_shard_on(story: Story) -> None:
    before = story.look()
    too_many = ExecutorPlan(dict.fromkeys(range(8), "n0"), story.actuator.current()["gather"].task_of)
    with pytest.raises(PlanError, match="cannot have 8 cores: the session has room for 6 leases"):
        story.actuator.apply(Plan({"gather": too_many}, passes=(Pass("fold", "", (0, 2)),)))
    story.driver.run_until(0.5)
    assert story.look() == before and not story.engine.redealing.made


def test_a_pass_that_cannot_be_made_is_refused_in_a_sentence(story: Story) -> None:
    before = story.look()
    for passes, says in (
        ((Pass("nosuch", "", (0,)),), "'nosuch' has no shards to deal"),
        ((Pass("fold", "", (0, 9_000)),), "does not have all of the shards 0, 9000"),
        ((Pass("fold", "", (-1,)),), "'fold' has no shard -1"),
        ((Pass("fold", "", (0,)), Pass("fold", "", (1,))), "are being dealt already"),
        ((Pass("fold", "gather", (0,)),), "no other executor of 'fold'"),
    ):
        with pytest.raises(PlanError, match=says):
            story.actuator.apply(Plan(passes=passes))
    story.driver.run_until(0.2)
    assert story.look() == before


def test_a_plan_does_not_place_an_executor_and_deal_its_shards_at_once(story: Story) -> None:
    with pytest.raises(PlanError, match="one after the other"):
        story.actuator.apply(Plan(one_core_more(story.actuator), passes=(Pass("fold", "", (0,)),)))


def test_cores_are_done_when_they_are_there_and_nodes_have_an_outcome_of_their_own(story: Story) -> None:
    ticket = story.actuator.apply(Plan(one_core_more(story.actuator), add_nodes=1))
    assert story.outcome(ticket).ok
    nodes = story.outcome(ticket.nodes)
    assert not nodes.ok and "did not come" in nodes.reason
    assert story.actuator.moves_in_flight() == 0


def test_a_plan_of_nodes_alone_has_one_ticket(tmp_path: Path) -> None:
    story = Story(tmp_path, comes=True)
    ticket = story.actuator.apply(Plan(add_nodes=1))
    assert ticket.nodes is None and story.outcome(ticket).ok


def test_a_pause_by_hand_outlasts_a_plan_that_stops_all_rows(story: Story) -> None:
    engine = story.engine
    engine.pause(list(engine.runs))
    story.driver.run_until(0.2)
    epochs = {name: run.chain.epoch for name, run in engine.runs.items()}
    now = story.actuator.current()["fold"]
    task_of = now.task_of.copy()
    task_of[0] = next(task for task in now.tasks if task != task_of[0])
    ticket = story.actuator.apply(Plan({"fold": ExecutorPlan(now.tasks, task_of)}, global_pause=True))
    assert story.outcome(ticket).ok
    story.driver.run_until(0.3)
    assert all(run.paused for run in engine.runs.values()), "a person paused it"
    assert {name: run.chain.epoch for name, run in engine.runs.items()} == epochs
    engine.resume(list(engine.runs))
    assert not any(run.paused for run in engine.runs.values()), "and nobody else does any more"


def test_a_plan_that_stops_all_rows_lets_them_go_on(story: Story) -> None:
    ticket = story.actuator.apply(Plan(one_core_more(story.actuator), global_pause=True))
    assert story.engine.runs["source"].paused and not story.engine.is_paused_by_hand()
    assert story.outcome(ticket).ok and not any(run.paused for run in story.engine.runs.values())


def test_a_plan_that_a_later_one_overtakes_is_not_taken_for_it(story: Story) -> None:
    before = story.actuator.current()["fold"]
    story.driver.delays = Delays(lease_start=(200.0, 200.0))
    first = story.actuator.apply(Plan(one_core_more(story.actuator)))
    assert story.actuator.status(first) is None
    second = story.actuator.apply(Plan({"fold": before}))
    found = story.outcome(first)
    assert not found.ok and found.reason == "superseded by a later plan for 'fold'"
    assert story.outcome(second).ok
    task_of = before.task_of.copy()
    task_of[0] = next(task for task in before.tasks if task != task_of[0])
    third = story.actuator.apply(Plan({"fold": ExecutorPlan(before.tasks, task_of)}))
    until(story.driver, story.shell, lambda: story.engine.placing.is_settled("fold"))
    story.actuator.apply(Plan({"fold": before}))
    assert story.outcome(third).ok, "it was carried out before the next began"


def test_a_plan_that_was_given_up_stays_so_when_a_later_one_is_carried_out(story: Story) -> None:
    before = story.actuator.current()["fold"]
    story.driver.delays = Delays(lease_start=(200.0, 200.0))
    first = story.actuator.apply(Plan(one_core_more(story.actuator)))
    story.engine.placing.under_way.find("fold").deadline = story.engine.now()
    until(story.driver, story.shell, lambda: story.engine.placing.why_not("fold"))
    second = story.actuator.apply(Plan({"fold": before}))
    assert story.outcome(second).ok
    assert "no lease came up in time" in story.outcome(first).reason


@pytest.mark.parametrize("paused", [False, True])
def test_a_plan_of_which_one_operator_waits_in_vain_leaves_nothing_of_the_other(
    tmp_path: Path, paused: bool
) -> None:
    story = Story(tmp_path, capacity=9)
    before, placing = story.look(), story.engine.placing
    task_of = story.actuator.current()["fold"].task_of
    fewer = ExecutorPlan({0: ""}, np.where(task_of < 0, task_of, 0).astype(np.int32))
    gather = story.actuator.current()["gather"]
    task_of = gather.task_of.copy()
    task_of[:2] = 8, 9
    more = ExecutorPlan({**gather.tasks, 8: "", 9: ""}, task_of)
    story.driver.delays = Delays(lease_start=(200.0, 200.0))
    ticket = story.actuator.apply(Plan({"fold": fewer, "gather": more}, global_pause=paused))
    until(story.driver, story.shell, lambda: placing.under_way.find("gather") and placing.is_settled("fold"))
    assert story.actuator.status(ticket) is None
    placing.under_way.find("gather").deadline = story.engine.now()
    story.driver.delays = Delays(lease_start=(0.005, 0.05))
    found = story.outcome(ticket)
    assert not found.ok and "'fold' went back with 'gather'" in found.reason
    assert "no lease came up in time for task" in found.reason
    until(story.driver, story.shell, lambda: all(map(placing.is_settled, story.engine.runs)))
    story.driver.run_until(0.2)
    assert story.look() == before and not any(run.paused for run in story.engine.runs.values())


def test_shards_that_passed_stay_where_they_are_when_the_cores_of_the_same_plan_are_given_up(
    tmp_path: Path,
) -> None:
    story = Story(tmp_path, capacity=9)
    engine = story.engine
    gather = story.actuator.current()["gather"]
    task_of = gather.task_of.copy()
    task_of[0] = 9
    story.driver.delays = Delays(lease_start=(200.0, 200.0))
    more = {"gather": ExecutorPlan({**gather.tasks, 8: "", 9: ""}, np.where(task_of == 1, 8, task_of))}
    ticket = story.actuator.apply(Plan(more, passes=(Pass("fold", "", (0, 2)),)))
    until(story.driver, story.shell, lambda: engine.redealing.made)
    engine.placing.under_way.find("gather").deadline = engine.now()
    story.driver.delays = Delays(lease_start=(0.005, 0.05))
    found = story.outcome(ticket)
    assert not found.ok and "no lease came up in time for task" in found.reason
    until(story.driver, story.shell, lambda: engine.placing.is_settled("gather"))
    assert engine.runs["fold#2"].shards.mine().tolist() == [0, 2]
    assert np.array_equal(story.actuator.current()["gather"].task_of, gather.task_of)


def test_a_node_that_a_plan_gives_back_gets_no_task_any_more_and_every_task_leaves_it(story: Story) -> None:
    engine = story.engine
    source = next(iter(engine.runs["source"].slots.values()))
    node = engine.leases[source.lease or ""].node
    other = ({"n0", "n1"} - {node}).pop()
    plans = {
        name: ExecutorPlan({9: other}, np.full(engine.runs[name].spec.shards, 9, np.int32))
        for name in ("fold", "gather")
    }
    ticket = story.actuator.apply(Plan(plans, release_nodes=(node,)))
    assert engine.serving.avoid == {node}
    assert story.outcome(ticket).ok and story.outcome(ticket.nodes).ok
    assert story.nodes.released == [(node,)]
    assert engine.leases[source.lease or ""].node == other, "the source, which no plan names, has left too"


def test_a_node_that_does_not_go_is_used_again_and_it_is_said_who_holds_it(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(negotiating, "RELEASE_LOOKS", 3)
    monkeypatch.setattr(negotiating, "RELEASE_STEP_S", 0.001)
    ticket = story.actuator.apply(Plan(release_nodes=("n1",)))
    found = story.outcome(ticket, step_s=0.0)  # no virtual time passes: nothing can leave the node
    assert not found.ok and "n1 was not drained in time and is kept: it serves task" in found.reason
    story.shell.hub.pump()
    assert story.engine.serving.avoid == set()


def test_the_last_node_that_is_not_drained_is_not_given_back(story: Story) -> None:
    avoid = story.engine.serving.avoid
    avoid.add("n0")
    with pytest.raises(PlanError, match="no other node is there that is not drained"):
        story.actuator.apply(Plan(release_nodes=("n1",)))
    assert avoid == {"n0"}


def test_a_plan_puts_no_task_on_a_drained_node(story: Story) -> None:
    story.engine.serving.avoid.add("n1")
    story.driver.run_until(0.5)
    before = story.look()
    with pytest.raises(PlanError, match=r"node n1, which is drained; name another node, or undrain it"):
        story.actuator.apply(Plan(one_core_more(story.actuator, "n1")))
    assert story.look() == before
