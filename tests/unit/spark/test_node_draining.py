"""Nodes are drained and used again: never the last one, and nothing is left of a drain that is refused or fails. Cores of
an operator whose node is drained go where slots are free, as many as there are, never none."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.spark.engine_shell import Nodes, shell_of, started, until

from penstock.control.plan.plan import Plan
from penstock.errors import PlanError
from penstock.sim.inprocess import Driver
from penstock.sim.lease import SimLease
from penstock.spark import negotiating, node_draining
from penstock.spark.applying import SparkActuator
from penstock.spark.node_draining import NodeDraining, take_off

NODES = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 4), min_size=1)


@given(NODES, NODES, st.integers(-3, 8))
def test_no_more_cores_than_are_free_and_never_none(
    cores: dict[str, int], free: dict[str, int], left: int
) -> None:
    held = Counter({"gone": 2, **cores})
    before = dict(free)
    kept = take_off(held, "gone", free, left)
    elsewhere = Counter({node: count for node, count in cores.items() if count})
    new = kept - elsewhere
    assert "gone" not in kept and sum(kept.values()) >= 1
    assert all(kept[node] >= count for node, count in elsewhere.items())
    assert {node: before[node] - free[node] for node in free} == {node: new[node] for node in free}
    if sum(new.values()) > (0 if elsewhere else 1):
        assert sum(new.values()) <= max(left, 1) and all(count >= 0 for count in free.values())


def test_what_fits_nowhere_is_given_up() -> None:
    assert take_off(Counter({"1": 1, "2": 2}), "2", {"1": 1, "3": 0}, 5) == Counter({"1": 2})
    assert take_off(Counter({"2": 2}), "2", {"1": 0}, 0) == Counter({"1": 1})


class Story:
    """A run on two nodes, and whoever drains them."""

    def __init__(self, folder: Path) -> None:
        self.driver = started(folder)
        self.shell, self.nodes = shell_of(self.driver), Nodes(self.driver)
        self.serving = self.driver.engine.serving
        self.draining = NodeDraining(self.shell, SparkActuator(self.shell, self.nodes), lambda: ["n0", "n1"])

    def drain(self, node: str, release: bool = False) -> str:
        """Drain while rows flow: the wait is another thread's."""
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self.draining.drain, node, release, 8.0)
            until(self.driver, self.shell, asked.done)
            return asked.result()

    def nodes_of_leases(self) -> set[str]:
        return {lease.node for lease in self.driver.engine.leases.values()}


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


@pytest.mark.parametrize("release", [False, True])
def test_a_drained_node_is_empty_and_may_be_used_again(story: Story, release: bool) -> None:
    said = story.drain("n1", release)
    assert said.startswith("node n1 drained and given back: " if release else "node n1 drained: ")
    assert story.nodes_of_leases() == {"n0"} and story.serving.avoid == {"n1"}
    assert story.nodes.released == ([("n1",)] if release else [])
    assert "may have tasks again" in story.draining.undrain("n1")
    assert story.serving.avoid == set()
    with pytest.raises(PlanError, match="node n1 is not drained; no node is"):
        story.draining.undrain("n1")


def test_the_last_node_that_is_not_drained_stays_and_nothing_is_marked(story: Story) -> None:
    story.drain("n1")
    with pytest.raises(PlanError, match="node n0 is the only one that is not drained; undrain another"):
        story.draining.drain("n0", False, 5.0)
    assert story.serving.avoid == {"n1"}
    with pytest.raises(PlanError, match="node n0 is not drained; drained are: n1"):
        story.draining.undrain("n0")


def test_a_drain_that_cannot_be_planned_marks_nothing(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("nothing to choose from")

    monkeypatch.setattr(node_draining, "take_off", broken)
    with pytest.raises(ValueError, match="nothing to choose"):
        story.draining.drain("n1", False, 5.0)
    assert story.serving.avoid == set()


def test_a_drain_that_fails_takes_its_mark_along(story: Story) -> None:
    story.nodes.problem = "the cluster manager refused the request"
    with pytest.raises(PlanError, match="node n1 was not drained: the cluster manager refused"):
        story.drain("n1", release=True)
    story.shell.hub.pump()
    assert story.serving.avoid == set()


def test_a_node_is_given_back_however_long_its_state_takes_to_move(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(negotiating, "RELEASE_LOOKS", 3)
    monkeypatch.setattr(negotiating, "RELEASE_STEP_S", 0.0001)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(story.draining.drain, "n1", True, 8.0)
        for _ in range(20):  # no virtual time passes: the shards stay where they are
            story.shell.hub.pump()
            time.sleep(0.005)
        assert not asked.done()
        monkeypatch.setattr(negotiating, "RELEASE_STEP_S", 0.1)
        until(story.driver, story.shell, asked.done)
        assert asked.result().startswith("node n1 drained and given back: ")
    assert story.nodes.released == [("n1",)] and story.serving.avoid == {"n1"}


def test_a_drain_that_another_plan_overtakes_goes_on_until_the_node_is_empty(story: Story) -> None:
    actuator = story.draining._actuator
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(story.draining.drain, "n1", True, 8.0)
        until(story.driver, story.shell, lambda: actuator._begun, step_s=0.0)
        actuator.apply(Plan({"fold": actuator.current()["fold"]}))
        until(story.driver, story.shell, asked.done)
        assert asked.result().startswith("node n1 drained and given back: ")
    assert story.nodes_of_leases() == {"n0"} and story.serving.avoid == {"n1"}


def test_a_node_that_is_undrained_meanwhile_is_not_given_back(story: Story) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(story.draining.drain, "n1", True, 8.0)
        until(story.driver, story.shell, lambda: story.draining._actuator._begun, step_s=0.0)
        story.draining.undrain("n1")
        until(story.driver, story.shell, asked.done)
        with pytest.raises(PlanError, match="node n1 was undrained and is kept"):
            asked.result()
    assert story.nodes.released == [] and story.serving.avoid == set()


def test_a_node_that_takes_the_place_of_another_gets_its_leases_though_it_has_no_more_slots(
    tmp_path: Path,
) -> None:
    driver = started(tmp_path, nodes=1, capacity=3)
    engine = driver.engine
    assert len(engine.leases) == 3
    driver.nodes = 2
    engine.serving.set_nodes(["n0", "n1"], {"n0": 4, "n1": 4})
    engine.serving.avoid.add("n0")
    engine.set_capacity(3 + 3)  # three on either node
    engine.serving.assign()
    assert engine.wanted_leases() == 6, "those that are there, and as many in their place"
    driver._start_lease = partial(_start_on_n1, driver)  # type: ignore[method-assign]
    assert driver.run_until(lambda: {one.node for one in engine.leases.values()} == {"n1"}, 20.0)
    engine.set_capacity(3)
    assert engine.wanted_leases() == 3 and len(engine.leases) >= 3


def _start_on_n1(driver: Driver, name: str, wanted: str | None) -> None:
    driver._count += 1
    lease = driver.leases[name] = SimLease(driver, driver._life, name, "n1", driver._disk_of(name))
    driver.loop.at(0.01, lease.connect)


def test_a_drain_that_takes_longer_than_somebody_waits_goes_on_with_its_mark(story: Story) -> None:
    with pytest.raises(
        PlanError, match=r"within 0.05 s: it serves task .*; it goes on, and the node stays drained"
    ):
        story.draining.drain("n1", False, 0.05)  # no virtual time passes
    assert story.serving.avoid == {"n1"}
    until(story.driver, story.shell, lambda: story.nodes_of_leases() == {"n0"})
