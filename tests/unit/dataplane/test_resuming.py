"""What a restart begins with: what plans had made of a stage where it still fits, what the program says where not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults.plan_stories import driver_on, finish

from penstock.dataplane import records
from penstock.dataplane.dealing import TaskSlot
from penstock.dataplane.placement import Placement
from penstock.dataplane.program import StageSpec
from penstock.dataplane.records import Base, ChainBase, Placed, Redeal
from penstock.dataplane.resuming import derive_declared, derive_placed, resolve_first
from penstock.sim.programs import local_program

SPEC = local_program().stages["fold"]
ALL = np.arange(SPEC.shards, dtype=np.uint16)
REDEAL = Redeal("fold", "fold@1", records.pack_u16(ALL[:2]))


@st.composite
def placements(draw: st.DrawFn) -> tuple[dict[int, str | None], list[int]]:
    """Tasks with their nodes, and the task of each shard."""
    indices = draw(st.lists(st.integers(0, 40), min_size=1, max_size=SPEC.shards, unique=True))
    nodes = draw(
        st.lists(st.none() | st.sampled_from(["n1", "n2"]), min_size=len(indices), max_size=len(indices))
    )
    task_of = draw(st.lists(st.sampled_from(indices), min_size=SPEC.shards, max_size=SPEC.shards))
    return dict(zip(indices, nodes, strict=True)), task_of


def kept(spec: StageSpec, tasks: dict[int, str | None], task_of: list[int]) -> Placed | None:
    slots = {index: TaskSlot(spec.name, index, node=node) for index, node in tasks.items()}
    return derive_placed(spec, slots, np.array(task_of, np.uint16), {})


@given(placements())
def test_what_is_kept_of_a_placement_gives_it_back(drawn: tuple[dict[int, str | None], list[int]]) -> None:
    tasks, task_of = drawn
    slots, found = resolve_first(SPEC, kept(SPEC, tasks, task_of), ALL)
    assert found.tolist() == task_of
    assert set(slots) == set(tasks)
    if kept(SPEC, tasks, task_of) is not None:
        assert {index: slot.node for index, slot in slots.items()} == tasks


@given(placements(), st.integers(1, 3))
def test_a_program_that_says_otherwise_by_now_is_heard(
    drawn: tuple[dict[int, str | None], list[int]], more: int
) -> None:
    then = kept(SPEC, *drawn)
    for spec in (replace(SPEC, tasks=SPEC.tasks + more), replace(SPEC, shards=SPEC.shards * 2)):
        share = np.arange(spec.shards, dtype=np.uint16)
        slots, task_of = resolve_first(spec, then, share)
        tasks, declared = derive_declared(spec, share)
        assert list(slots) == list(range(tasks)) and task_of.tolist() == declared.tolist()


def test_a_stage_that_is_as_declared_keeps_nothing() -> None:
    tasks, task_of = derive_declared(SPEC, ALL)
    assert kept(SPEC, dict.fromkeys(range(tasks)), task_of.tolist()) is None


def test_a_base_of_before_placements_were_kept_is_read() -> None:
    base = Base(1, "q", 2, 1, b"id", 9, [ChainBase("fold", 3, bytes(16), [], [])])
    assert len(msgspec.msgpack.decode(records.encode(base))) == 7, "as it was then"
    assert records.decode_base(records.encode(base)) == base


@pytest.mark.parametrize("placed", [{}, {"fold": Placed(2, [0, 1], ["", ""], b"")}])
@pytest.mark.parametrize("redealt", [False, True])
def test_whatever_stands_behind_the_chains_of_a_base_is_kept(
    placed: dict[str, Placed], redealt: bool
) -> None:
    redeals = [REDEAL] if redealt else []
    base = Base(1, "q", 2, 1, b"id", 9, [ChainBase("fold", 3, bytes(16), [], [])], placed, redeals)
    assert records.decode_base(records.encode(base)) == base


@pytest.mark.parametrize("cores", [1, 3])
def test_a_restart_begins_with_the_last_placement(tmp_path: Path, cores: int) -> None:
    driver = driver_on(tmp_path, 3, nodes=1)
    run = driver.engine.runs["fold"]
    driver.run_until(lambda: run.chain.epoch > 5 and bool(run.ready.all()))
    goal = (np.arange(run.spec.shards) % cores).astype(np.uint16)
    driver.engine.place([Placement("fold", dict.fromkeys(range(cores)), goal)])
    assert driver.run_until(lambda: driver.engine.placing.is_settled("fold"), 5.0)
    driver.run_until(1.2)
    driver.crash()
    driver.restart()
    assert sorted(driver.engine.runs["fold"].slots) == list(range(cores))
    assert driver.engine.runs["fold"].task_of.tolist() == goal.tolist()
    finish(driver)


def test_a_restart_with_fewer_cores_than_plans_had_given_begins_as_declared(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 3, nodes=1)
    run = driver.engine.runs["fold"]
    driver.run_until(lambda: run.chain.epoch > 5 and bool(run.ready.all()))
    declared, _ = derive_declared(run.spec, ALL)
    goal = (np.arange(run.spec.shards) % 4).astype(np.uint16)
    driver.engine.place([Placement("fold", dict.fromkeys(range(4)), goal)])
    assert driver.run_until(lambda: driver.engine.placing.is_settled("fold"), 5.0)
    driver.run_until(1.2)
    driver.crash()
    driver.capacity = 3
    driver.restart()
    driver.run_until(0.001)
    assert sorted(driver.engine.runs["fold"].slots) == list(range(declared))
    finish(driver)


def test_shards_of_a_placement_are_packed_as_all_shards_are() -> None:
    found = kept(SPEC, {0: None}, [0] * SPEC.shards)
    assert found is not None and records.unpack_u16(found.task_of).tolist() == [0] * SPEC.shards
