"""Several executors of one operator: their chains, and shards that pass between them, in pure code and in small runs."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.faults.plan_stories import KEPT, driver_on, finish
from tests.faults.runs import fast_disk

import penstock
from penstock.dataplane import records
from penstock.dataplane.chain import Chain
from penstock.dataplane.chains import Chains
from penstock.dataplane.compile import compile_program
from penstock.dataplane.executors import begin_shares, in_order, pass_shards, spread_specs
from penstock.dataplane.exports import add_exports, stage_name
from penstock.dataplane.inspecting import look, view_stages
from penstock.dataplane.positions import START, ChannelKey, PublishedRows, ShardGroup
from penstock.dataplane.program import Program, executor_name, operator_of
from penstock.dataplane.records import (
    Extent,
    Position,
    Published,
    Reached,
    Redeal,
    Segment,
    pack_u16,
    pack_u32,
)
from penstock.dataplane.splitting import plan_merge, plan_split
from penstock.dataplane.taking import Budget, take_epoch
from penstock.dataplane.verifying import verify
from penstock.errors import CorruptFileError, PlanError
from penstock.sim.inprocess import Driver
from penstock.sim.programs import local_program, memory_program
from penstock.sim.redeals import random_deal
from penstock.testing.replay import replay
from penstock.testing.schedule import check_schedule

ROWS = 300


def test_the_first_executor_of_an_operator_has_its_name_and_others_are_numbered() -> None:
    assert [executor_name("match", number) for number in (1, 2, 3)] == ["match", "match#2", "match#3"]
    assert [operator_of(name) for name in ("match", "match#2", "sink.more")] == [
        "match",
        "match",
        "sink.more",
    ]


def test_a_program_without_further_executors_is_spread_as_it_is() -> None:
    program = memory_program()
    specs = spread_specs(program, program.stages)
    assert all(specs[name] is program.stages[name] for name in program.stages)


def test_every_consumer_reads_every_chain_of_its_producer_over_one_edge() -> None:
    program = memory_program()
    specs = spread_specs(program, [*program.stages, "fold#2", "gather#2"])
    assert [*specs] == ["source", "fold", "fold#2", "gather", "gather#2", "sink"]
    for name in ("gather", "gather#2"):
        assert [(given.edge, given.producer) for given in specs[name].inputs] == [(1, "fold"), (1, "fold#2")]
    assert [given.producer for given in specs["fold#2"].inputs] == ["source"]
    assert in_order(program, ["sink", "fold#10", "fold#9", "source"]) == [
        "source",
        "fold#9",
        "fold#10",
        "sink",
    ]


def test_the_shares_of_a_new_checkpoint_hold_every_shard_once() -> None:
    from dataclasses import replace

    spec = memory_program().stages["fold"]
    for count in (1, 2, 3, 8, 20):
        shares = begin_shares(replace(spec, executors=count))
        assert np.concatenate(list(shares.values())).tolist() == list(range(spec.shards))
        assert len(shares) == min(count, spec.shards)


def _chains(seed: int) -> Chains:
    """Chains of a run that stand somewhere."""
    draw = random.Random(seed)
    chains = Chains(memory_program())
    fold = chains["fold"]
    fold.epoch, fold.time_us = draw.randint(5, 50), 77
    fold.versions[:] = [draw.randint(0, fold.epoch) for _ in range(fold.spec.shards)]
    fold.digests[:] = np.array([[draw.randint(0, 1 << 40)] * 2 for _ in range(fold.spec.shards)], np.uint64)
    at = {ChannelKey(0, "source"): Position(draw.randint(2, 9), 0)}
    behind = {ChannelKey(0, "source"): START}
    cut = draw.randint(1, fold.spec.shards - 1)
    every = np.arange(fold.spec.shards, dtype=np.uint16)
    fold.groups = [ShardGroup(every[:cut], at), ShardGroup(every[cut:], behind)]
    return chains


def _places(chains: Chains) -> dict[int, object]:
    return {
        shard: (int(chain.versions[shard]), chain.digest(shard), tuple(sorted(group.at.items())))
        for chain in chains.of("fold")
        for group in chain.groups
        for shard in group.shards.tolist()
    }


@pytest.mark.parametrize("seed", range(10))
def test_whatever_passes_shards_keep_positions_versions_and_digests_and_have_one_owner(seed: int) -> None:
    chains, draw = _chains(seed), random.Random(seed)
    before = _places(chains)
    for _ in range(12):
        givers = [chain.name for chain in chains.of("fold") if chain.groups]
        giver = draw.choice(givers)
        taker = draw.choice([f"fold#{n}" for n in (2, 3, 4)] + ["fold"])
        if taker == giver:
            continue
        mine = chains[giver].shards().tolist()
        shards = np.array(sorted(draw.sample(mine, draw.randint(1, len(mine)))), np.uint16)
        epochs = [chain.epoch for chain in chains.of("fold")]
        chains.redeal(Redeal(giver, taker, pack_u16(shards)))
        assert chains[giver].epoch == chains[taker].epoch > max(chains[giver].versions.max(), min(epochs))
        owned = sorted(s for chain in chains.of("fold") for s in chain.shards().tolist())
        assert owned == list(range(chains["fold"].spec.shards))
        assert _places(chains) == before
        restored = Chains(memory_program())
        restored.load(records.decode_base(records.encode(chains.to_base("q", 1, 1, b"", 0))), [])
        assert _places(restored) == before


def test_shards_that_a_chain_does_not_have_cannot_be_taken_from_it() -> None:
    chains = _chains(1)
    chains.redeal(Redeal("fold", "fold#2", pack_u16(np.array([0, 1], np.uint16))))
    for giver, taker in (("fold", "fold#2"), ("fold#2", "fold#2"), ("fold#2", "gather")):
        with pytest.raises(CorruptFileError, match="cannot pass"):
            pass_shards(chains[giver], chains[taker], np.array([0, 3], np.uint16))


# -- the order of rows -------------------------------------------------------------------------------------------


def _published(epoch: int, rows: int, barrier: list[str] | None = None) -> PublishedRows:
    if barrier:
        return PublishedRows(Published(epoch, [], None, None, barrier), 1)
    segment = Segment(1, Extent("f", epoch, 10 * rows, 0), rows, pack_u32(np.array([rows], np.uint32)))
    return PublishedRows(Published(epoch, [segment], None), 1)


@pytest.mark.parametrize("seed", range(20))
def test_rows_from_after_a_deal_are_taken_in_a_later_epoch_than_those_from_before_it(seed: int) -> None:
    draw = random.Random(seed)
    a, b = ChannelKey(1, "fold"), ChannelKey(1, "fold#2")
    both = [a.chain, b.chain]
    before = {a: draw.randint(0, 4), b: draw.randint(0, 4)}
    waiting = {
        key: deque(
            [
                *(_published(epoch, draw.randint(1, 5)) for epoch in range(1, 1 + before[key])),
                _published(9, 0, both),
                *(_published(epoch, draw.randint(1, 5)) for epoch in range(10, 13)),
            ]
        )
        for key in (a, b)
    }
    group = ShardGroup(np.zeros(1, np.uint16), {a: START, b: START})
    seen: list[tuple[int, ChannelKey, int]] = []
    for turn in range(40):
        (take,) = take_epoch([group], np.ones(1, np.bool_), waiting, Budget(draw.randint(1, 9)))
        seen += [(turn, piece.key, piece.source.epoch) for piece in take.pieces if piece.source.rows]
        group = ShardGroup(group.shards, take.ends())
    assert group.at == {a: Position(13, 0), b: Position(13, 0)}, "nobody waits for ever"
    last = max((turn for turn, _, epoch in seen if epoch < 9), default=-1)
    assert all(turn > last for turn, _, epoch in seen if epoch > 9)


# -- in a run ----------------------------------------------------------------------------------------------------


def _redeal(driver: Driver, giver: str, taker: str, shards: list[int], tasks: int = 1) -> None:
    made = len(driver.engine.redealing.made)
    driver.redeal(giver, taker, np.array(shards, np.uint16), tasks)
    assert driver.run_until(lambda: len(driver.engine.redealing.made) > made, 10.0), driver.failed


def test_an_executor_is_split_and_merged_while_rows_flow_and_nothing_is_copied_inside_a_node(
    tmp_path: Path,
) -> None:
    driver = driver_on(tmp_path, 1, nodes=1)
    engine = driver.engine
    driver.run_until(lambda: engine.chains["fold"].epoch > 5 and engine.runs["fold"].is_whole)
    found = plan_split(engine, "fold")
    assert (found.giver, found.taker) == ("fold", "fold#2")
    before = len(engine.placing.bringings)
    _redeal(driver, found.giver, found.taker, found.shards.tolist(), found.tasks)
    assert driver.run_until(lambda: engine.runs["fold#2"].is_whole)
    assert len(engine.runs["fold#2"].slots) == found.tasks
    assert driver.run_until(lambda: len(engine.runs["fold"].slots) + found.tasks == 2), "as many as before"
    how = {entry[3] for entry in list(engine.placing.bringings)[before:] if entry[1] == "fold#2"}
    assert how == {"local"}, "environments are handed over"
    assert driver.run_until(lambda: engine.runs["fold#2"].epochs > 2)
    back = plan_merge(engine, "fold")
    assert (back.giver, back.taker) == ("fold#2", "fold")
    _redeal(driver, back.giver, back.taker, back.shards.tolist(), back.tasks)
    assert driver.run_until(lambda: not engine.runs["fold#2"].slots), (
        "an executor without shards has no tasks"
    )
    epochs = engine.runs["fold#2"].epochs
    finish(driver)
    assert engine.runs["fold#2"].epochs == epochs, "and no epochs"


def test_a_checkpoint_begins_with_the_executors_asked_for_and_a_restart_keeps_what_there_was(
    tmp_path: Path,
) -> None:
    from dataclasses import replace

    def with_executors(count: int) -> object:
        made = local_program()
        return replace(made, stages={n: replace(s, executors=count) for n, s in made.stages.items()})

    def start(count: int) -> Driver:
        return Driver(
            fast_disk(),
            str(tmp_path / "cp"),
            with_executors(count),
            KEPT,
            5,
            str(tmp_path / "node"),
            rows=ROWS,
        )  # type: ignore[arg-type]

    first = start(3)
    assert [chain.name for chain in first.engine.chains.of("fold")] == ["fold", "fold#2", "fold#3"]
    first.run_until(lambda: first.engine.chains["gather#2"].epoch > 2)
    first.stop()
    again = start(1)
    assert [chain.name for chain in again.engine.chains.of("fold")] == ["fold", "fold#2", "fold#3"]
    again.sink.calls.extend(first.sink.calls)
    assert again.run_until("drained", 30.0), again.failed
    finish(again)
    assert not verify(fast_disk(), again.checkpoint).damaged
    shown = {stage.name: stage for stage in view_stages(look(fast_disk(), again.checkpoint))}
    assert [one.name for one in shown["fold"].executors] == ["fold", "fold#2", "fold#3"]
    assert shown["fold"].rows_in == ROWS == sum(one.rows_in for one in shown["fold"].executors)
    assert shown["fold"].shards == 8 and not shown["source"].executors


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_that_dies_before_the_base_leaves_the_old_deal_and_after_it_the_new_one(
    tmp_path: Path, when: str
) -> None:
    driver = driver_on(tmp_path, 2, nodes=1)
    driver.run_until(lambda: driver.engine.chains["fold"].epoch > 5 and driver.engine.runs["fold"].is_whole)
    driver.redeal("fold", "fold#2", np.array([0, 3, 5], np.uint16))
    written = lambda: driver.engine.redealing._written  # noqa: E731
    assert driver.run_until(lambda: bool(driver.engine.redealing.made if when == "after" else written()), 5.0)
    if when == "before":
        driver._log_queue.clear()  # the base never gets to the disk
    driver.crash()
    driver.restart()
    owned = {chain.name: chain.shards().tolist() for chain in driver.engine.chains.of("fold")}
    assert owned == (
        {"fold": [1, 2, 4, 6, 7], "fold#2": [0, 3, 5]} if when == "after" else {"fold": [*range(8)]}
    )
    finish(driver)


def test_a_topology_that_grows_goes_on_with_all_executors(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 4, nodes=1)
    driver.run_until(lambda: driver.engine.chains["fold"].epoch > 3 and driver.engine.runs["fold"].is_whole)
    _redeal(driver, "fold", "fold#2", [1, 2, 6])
    driver.run_until(lambda: driver.engine.chains["fold#2"].epoch > 12)
    driver.stop()
    grown = add_exports(local_program(), ["fold"])
    again = Driver(
        fast_disk(), driver.checkpoint, grown, KEPT, 4, str(tmp_path / "node"), rows=ROWS, sink=driver.sink
    )
    names = [*again.engine.chains.by_name]
    assert {"fold", "fold#2", stage_name("fold")} <= set(names)
    export = again.engine.chains[stage_name("fold")]
    assert {key.chain for group in export.groups for key in group.at} == {"fold", "fold#2"}
    assert again.run_until("drained", 30.0), again.failed
    for name in ("fold", "gather"):
        assert sum(chain.rows_in for chain in again.engine.chains.of(name)) == ROWS
    assert not verify(fast_disk(), again.checkpoint).damaged


def test_what_cannot_be_dealt_is_refused_with_the_reason(tmp_path: Path) -> None:
    driver = driver_on(tmp_path, 3)
    driver.run_until(lambda: driver.engine.runs["fold"].is_whole)
    cases = [
        ("source", "source#2", [0], "no executor"),
        ("fold", "fold", [0], "no other executor"),
        ("fold", "fold#4", [0], "no other executor"),
        ("fold", "gather", [0], "no other executor"),
        ("fold", "fold#2", [], "does not have all"),
        ("fold", "fold#2", [99], "does not have all"),
    ]
    for giver, taker, shards, why in cases:
        with pytest.raises(PlanError, match=why):
            driver.engine.redeal(giver, taker, np.array(shards, np.uint16))
    driver.redeal("fold", "fold#2", np.array([0], np.uint16))
    with pytest.raises(PlanError, match="being dealt already"):
        driver.redeal("fold", "fold#2", np.array([1], np.uint16))
    with pytest.raises(PlanError, match="nothing to merge"):
        plan_merge(driver.engine, "gather")
    finish(driver)


@pytest.mark.parametrize("seed", range(2))
def test_any_deal_at_any_time_whatever_dies_loses_nothing(tmp_path: Path, seed: int) -> None:
    draw, driver = random.Random(seed), driver_on(tmp_path, seed, nodes=2)
    for _ in range(25):
        driver.run_until(draw.uniform(0.002, 0.03))
        if draw.random() < 0.7 and (deal := random_deal(driver.engine, draw)) is not None:
            try:
                driver.redeal(deal.giver, deal.taker, deal.shards, deal.tasks)
            except PlanError:
                continue
        elif draw.random() < 0.5 and driver.live_leases():
            driver.kill(draw.choice(driver.live_leases()))
        elif seed % 2:
            driver.crash()
            driver.restart()
    driver.run_until(0.05)
    finish(driver)


def _one_key(start: int, count: int) -> pa.RecordBatch:
    rows = range(start, start + count)
    times = pa.array([1_000_000 * row for row in rows], pa.timestamp("us", tz="UTC"))
    return pa.record_batch({"k": pa.array([7] * count, pa.int64()), "at": times})


def _pass(key: Any, rows: list[Any], state: Any) -> list[tuple[int, Any]]:
    state.seen.update((state.seen.get() or 0) + len(rows))
    return [(key.k, row.at) for row in rows]


def test_an_executor_without_rows_does_not_hold_up_a_watermark_declared_behind_its_operator(
    tmp_path: Path,
) -> None:
    source = penstock.generate(_one_key, schema="k long, at timestamp", rate=1000, name="rows")
    kept = source.groupBy("k").apply_rows(
        _pass,
        schema="k long, at timestamp",
        state={"seen": penstock.ValueState("long")},
        name="kept",
        shards=8,
    )
    late = kept.withWatermark("at", "10 seconds")
    windows = late.groupBy(penstock.window("at", "20 seconds")).agg(penstock.count(), name="windows")
    made = compile_program(windows.node, tasks=2, memory_bytes=1 << 20, executors=3)
    driver = Driver(
        fast_disk(), str(tmp_path / "cp"), made, KEPT, 2, str(tmp_path / "node"), rows=ROWS, rate=1_000.0
    )
    busy = lambda: [chain.name for chain in driver.engine.chains.of("kept") if chain.rows_in]  # noqa: E731
    reached = lambda: (driver.engine.chains["windows"].watermark_us or 0) > 50_000_000  # noqa: E731
    assert driver.run_until(reached, 20.0), "it moves while rows flow"
    assert len(busy()) == 1
    idle = next(chain.name for chain in driver.engine.chains.of("kept") if not chain.rows_in)
    _redeal(driver, busy()[0], idle, driver.engine.runs[busy()[0]].shards.mine().tolist())
    assert driver.run_until("drained", 30.0), driver.failed
    counts = {row["window"]["start"]: row["count"] for row in driver.sink.rows()}
    assert len(counts) >= 12 and set(counts.values()) == {20}
    driver.stop()
    check_schedule(driver.checkpoint, made, complete=True)
    assert replay(driver.checkpoint, made).rows >= 2 * ROWS


def _many_keys(start: int, count: int) -> pa.RecordBatch:
    rows = range(start, start + count)
    times = pa.array([1_000_000 * row for row in rows], pa.timestamp("us", tz="UTC"))
    return pa.record_batch({"k": pa.array([row % 16 for row in rows], pa.int64()), "at": times})


def _timed_behind(tmp_path: Path, executors: int, delay: str, rows: int = ROWS, seed: int = 1) -> Driver:
    """A run whose watermark is declared behind an operator of several executors."""
    source = penstock.generate(_many_keys, schema="k long, at timestamp", rate=1000, name="rows")
    kept = source.groupBy("k").apply_rows(
        _pass,
        schema="k long, at timestamp",
        state={"seen": penstock.ValueState("long")},
        name="kept",
        shards=8,
    )
    window = penstock.window("at", "20 seconds")
    windows = kept.withWatermark("at", delay).groupBy(window).agg(penstock.count(), name="windows")
    made = compile_program(windows.node, tasks=2, memory_bytes=1 << 20, executors=executors)
    return Driver(
        fast_disk(), str(tmp_path / "cp"), made, KEPT, seed, str(tmp_path / "node"), rows=rows, rate=1_000.0
    )


@pytest.mark.parametrize("executors", [1, 2, 3])
def test_rows_of_an_executor_that_is_behind_are_not_late_because_another_is_not(
    tmp_path: Path, executors: int
) -> None:
    driver = _timed_behind(tmp_path, executors, "60 seconds", 600)
    engine = driver.engine
    assert driver.run_until(lambda: engine.chains["rows"].offset > 150, 20.0)
    last, at = engine.chains.of("kept")[-1].name, engine.now()
    engine.pause([last])
    driver.run_until(lambda: engine.now() > at + 0.15, 20.0)
    engine.resume([last])
    assert driver.run_until("drained", 30.0), driver.failed
    assert sum(chain.late_rows for chain in engine.chains.of("windows")) == 0
    counts = {row["window"]["start"]: row["count"] for row in driver.sink.rows()}
    assert len(counts) >= 26 and set(counts.values()) == {20}, "and event time went on"
    driver.stop()
    check_schedule(driver.checkpoint, driver.program, complete=True)
    replay(driver.checkpoint, driver.program)


@pytest.mark.parametrize("seed", range(4))
def test_what_executors_say_of_event_time_follows_from_the_records_whatever_is_paused_dealt_or_dies(
    tmp_path: Path, seed: int
) -> None:
    draw, driver = random.Random(seed), _timed_behind(tmp_path, 3, "10 seconds", 600, seed)
    for _ in range(25):
        driver.run_until(draw.uniform(0.002, 0.03))
        runs = driver.engine.runs
        name = draw.choice([one for one in runs if one.startswith("kept")])
        if draw.random() < 0.5:
            (driver.engine.resume if runs[name].paused else driver.engine.pause)([name])
        elif draw.random() < 0.7 and (deal := random_deal(driver.engine, draw)) is not None:
            try:
                driver.redeal(deal.giver, deal.taker, deal.shards, deal.tasks)
            except PlanError:
                continue
        elif seed % 2:
            driver.crash()
            driver.restart()
    driver.engine.resume([*driver.engine.runs])
    assert driver.run_until("drained", 30.0), driver.failed
    driver.stop()
    check_schedule(driver.checkpoint, driver.program, complete=True)
    replay(driver.checkpoint, driver.program)


def _two_chains(program: Program) -> tuple[Chains, Chain, Chain]:
    chains = Chains(program)
    first, second = chains.of("kept")
    return chains, first, second


def _stand(chain: Chain, epoch: int) -> None:
    """Let all shards of a chain have taken what came before an epoch of the source."""
    chain.groups = [replace(group, at=dict.fromkeys(group.at, Position(epoch, 0))) for group in chain.groups]
    chain.frontier.follow(chain.groups, [group.at for group in chain.groups], {})


def _reach(chain: Chain, event_us: int) -> int:
    edge = chain.spec.edges[0].edge
    chain.times.count(edge, chain.frontier, [Reached(event_us, through=chain.frontier.reach)])
    return edge


def test_an_executor_that_is_always_a_little_behind_says_what_it_has_come_to(tmp_path: Path) -> None:
    driver = _timed_behind(tmp_path, 2, "10 seconds")
    _, front, behind = _two_chains(driver.program)
    driver.stop()
    said = []
    for epoch in range(3, 80):
        _stand(front, epoch)
        edge = _reach(front, 1_000 * epoch)
        _stand(behind, epoch - 1)
        behind.times.count(edge, behind.frontier, [front.times.counted[edge]])
        said.append(behind.times.counted[edge].event_us if edge in behind.times.counted else None)
    assert said[0] is None and said[-1] == 78_000
    assert all(one is None or one <= 1_000 * (epoch - 1) for epoch, one in enumerate(said, 3))


def test_a_chain_that_gets_shards_from_behind_says_what_they_had_come_to_until_they_catch_up(
    tmp_path: Path,
) -> None:
    driver = _timed_behind(tmp_path, 2, "10 seconds")
    chains, giver, taker = _two_chains(driver.program)
    driver.stop()
    _stand(taker, 9)
    edge = _reach(taker, 90_000_000)
    _stand(giver, 4)
    _reach(giver, 40_000_000)
    chains.redeal(Redeal(giver.name, taker.name, pack_u16(giver.shards()[:1])))
    assert taker.said[edge] == 30_000_000
    again = Chains(driver.program)
    again.load(chains.to_base("q", 1, 1, b"", 0), [])
    assert again[taker.name].times.counted == taker.times.counted
    assert again[taker.name].times.pending == taker.times.pending
    _stand(taker, 9)
    taker.times.count(edge, taker.frontier)
    assert taker.times.counted[edge].event_us == 90_000_000
    giver.times.counted.clear()
    giver.times.pending.clear()
    _stand(giver, 4)
    chains.redeal(Redeal(giver.name, taker.name, pack_u16(giver.shards()[:1])))
    assert taker.said[edge] is None, "of the shards it gets nothing is known"
