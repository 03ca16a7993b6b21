"""The executors of one operator: each is a chain of its own with a share of the operator's shards.

What their chains are named, what each of them reads, and what becomes of two chains when shards pass from one to the
other. Pure: no files, no clock; the live driver, start-up and every check of a log apply the same code. Keys are never
hashed anew: a shard keeps its number, positions, version, digest, snapshot and deltas.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from penstock.dataplane.program import EXECUTOR_MARK, Program, StageSpec, executor_name, operator_of
from penstock.dataplane.standing import merge, without
from penstock.dataplane.state.protocol import U16
from penstock.errors import CorruptFileError

if TYPE_CHECKING:
    from penstock.dataplane.chain import Chain


def begin_shares(spec: StageSpec) -> dict[str, U16]:
    """Return the chains that a stage has on a new checkpoint, with their shards in equal, contiguous shares."""
    count = max(1, min(spec.executors, spec.shards)) if spec.kind == "operator" else 1
    shares = np.array_split(np.arange(spec.shards, dtype=np.uint16), count)
    return {executor_name(spec.name, number): share for number, share in enumerate(shares, 1)}


def number_of(chain: str) -> int:
    """Return which executor of its operator a chain is, from 1 on."""
    return int(chain.partition(EXECUTOR_MARK)[2] or 1)


def in_order(program: Program, chains: Iterable[str]) -> list[str]:
    """Return chains in the declared order of their stages, the executors of one by number."""
    declared = {name: at for at, name in enumerate(program.stages)}
    return sorted(chains, key=lambda name: (declared[operator_of(name)], number_of(name)))


def spread_specs(program: Program, chains: Iterable[str]) -> dict[str, StageSpec]:
    """Return the spec of every chain: its stage's, with an input for every chain of each producer."""
    names = in_order(program, chains)
    if names == [*program.stages]:
        return dict(program.stages)
    of: dict[str, list[str]] = {}
    for name in names:
        of.setdefault(operator_of(name), []).append(name)
    return {name: _spread(program.stages[operator_of(name)], name, of) for name in names}


def _spread(spec: StageSpec, name: str, of: Mapping[str, list[str]]) -> StageSpec:
    inputs = [
        replace(given, producer=chain)
        for given in spec.inputs
        for chain in of.get(given.producer, [given.producer])
    ]
    return replace(spec, name=name, inputs=inputs)


def pass_shards(giver: Chain, taker: Chain, shards: U16) -> None:
    """Let shards, with all that belongs to them, pass from one chain to another of the same operator.

    Both stand at one epoch afterwards, behind all they had: versions of a shard so grow whichever chain it is in. What
    they published before and what they publish after is kept apart by a barrier on their edges.

    Raises:
        CorruptFileError: the giver does not have them, or the two are not of one operator.
    """
    alike = giver is not taker and operator_of(giver.name) == operator_of(taker.name)
    if not alike or not len(shards) or not np.isin(shards, giver.shards()).all():
        raise CorruptFileError(
            f"shards {shards.tolist()} cannot pass from '{giver.name}' to '{taker.name}': they are not the giver's; the "
            "log was put together from others, restore it from a copy."
        )
    barriers = {edge.edge for edge in giver.spec.edges if edge.marked or giver.out[edge.edge]}
    was_empty = not taker.groups
    _pass_positions(giver, taker, shards)
    _pass_times(giver, taker, was_empty)
    _pass_state(giver, taker, shards)
    epoch = 1 + max(giver.epoch, taker.epoch)
    taker.time_us = max(giver.time_us, taker.time_us)
    for chain in (giver, taker):
        chain.pass_barrier(epoch, barriers, [giver.name, taker.name])


def _pass_times(giver: Chain, taker: Chain, was_empty: bool) -> None:
    """The taker says no later event time than both did, until all shards it has now have come as far. The giver may say a
    later one: the shards it waited for may be among those that it has no more."""
    taker.frontier.take_over(giver.frontier)
    for chain in (giver, taker):
        chain.frontier.stand(chain.groups)
    for edge in taker.spec.edges:
        if edge.delay_us is not None:
            taker.times.take_over(giver.times, edge.edge, was_empty)
            taker.times.count(edge.edge, taker.frontier)
            if giver.groups:
                giver.times.count(edge.edge, giver.frontier)


def _pass_positions(giver: Chain, taker: Chain, shards: U16) -> None:
    moved = [replace(group, shards=group.shards[np.isin(group.shards, shards)]) for group in giver.groups]
    giver.groups = [group for group in without(giver.groups, [shards]) if len(group.shards)]
    taker.groups = merge([*taker.groups, *moved])


def _pass_state(giver: Chain, taker: Chain, shards: U16) -> None:
    dirty = giver.dirty_since[shards]
    needed = [
        frame for frame in giver.deltas if (dirty > 0).any() and frame.epoch >= int(dirty[dirty > 0].min())
    ]
    known = {frame.extent for frame in taker.deltas}
    frames = [*taker.deltas, *(frame for frame in needed if frame.extent not in known)]
    taker.deltas = deque(sorted(frames, key=lambda f: (f.epoch, f.task, f.extent.file, f.extent.offset)))
    taker.written_at_dirty[shards] = taker.written
    for mine, theirs in (
        (giver.versions, taker.versions),
        (giver.digests, taker.digests),
        (giver.dirty_since, taker.dirty_since),
        (giver.delta_bytes, taker.delta_bytes),
        (giver.snapshot_bytes, taker.snapshot_bytes),
    ):
        theirs[shards] = mine[shards]
        mine[shards] = 0
    for shard in shards.tolist():
        if shard in giver.snapshots:
            taker.snapshots[shard] = giver.snapshots.pop(shard)
    giver.trim_deltas()
