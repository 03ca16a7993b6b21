"""Looks into a checkpoint without touching it: what it is of, who holds it, where every stage stands.

Reads through the disk only and claims nothing, so it may run beside a living driver: a log part that gives way to
a newer one while it is read is looked for again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from penstock.dataplane import paths, recordlog, records
from penstock.dataplane.chain import Chain
from penstock.dataplane.chains import Chains
from penstock.dataplane.disk import Disk
from penstock.dataplane.holding import Onlooker, newest_sign, process_is_running, process_space
from penstock.dataplane.identity import Meta, skeleton
from penstock.dataplane.metas import Metas, read_metas
from penstock.dataplane.positions import ChannelKey, PublishedRows, ShardGroup
from penstock.dataplane.program import operator_of
from penstock.dataplane.recordlog import Claim, LogTail
from penstock.dataplane.small_files import folding
from penstock.errors import CheckpointError, PenstockError, StorageError
from penstock.topology.type_words import in_sparks_words

_TRIES = 5
_DEPTH = 4


@dataclass(frozen=True)
class Holder:
    """The driver that claimed a checkpoint last."""

    generation: int
    claim: Claim | None
    beat: float | None
    """Time of its last heartbeat."""
    released: bool
    alive: bool

    @property
    def is_stopped(self) -> bool:
        """Whether it gave the checkpoint back, and nobody has claimed it since."""
        return self.released and self.claim is not None and self.claim.generation == self.generation

    def __str__(self) -> str:
        if self.claim is None:
            return "nobody"
        state = "alive" if self.alive else "stopped" if self.released else "gone"
        return f"{self.claim}, {state}"


@dataclass(frozen=True)
class Summary:
    """One checkpoint in a line."""

    path: str
    query: str
    holder: Holder
    size_bytes: int
    files: int
    stages: dict[str, int]
    """Epoch of every stage."""
    last_activity: float | None
    problem: str | None = None


@dataclass(frozen=True)
class InputView:
    """One input of a stage."""

    edge: int
    producer: str
    positions: list[tuple[int, str]]
    """How many shards stand where: producer epoch, and rows of it that are taken."""
    waiting_epochs: int
    waiting_rows: int
    waiting_bytes: int


@dataclass(frozen=True)
class StateView:
    """The state of an operator: what it adds up to and what it is rebuilt from."""

    digest: str
    """Sum over its shards."""
    written_shards: int
    snapshots: int
    snapshot_bytes: int
    deltas: int
    delta_bytes: int


@dataclass(frozen=True)
class StageView:
    """Where one stage stands."""

    name: str
    kind: str
    schema: str
    keys: list[str]
    shards: int
    epoch: int
    rows_in: int
    rows_out: int
    inputs: list[InputView]
    state: StateView | None
    offset: int | None
    batch: int | None
    intent: int | None
    """Sink epoch that is intended and not done."""
    watermark: float | None
    executors: list[StageView] = field(default_factory=list)
    """Each executor by itself, named by its chain, where an operator has several; they add up to this."""


@dataclass(frozen=True)
class Look:
    """A checkpoint as it was at one moment."""

    checkpoint: str
    metas: Metas
    meta: Meta
    """The topology that holds."""
    tail: LogTail
    chains: Chains


def find_checkpoints(disk: Disk, folder: str, depth: int = _DEPTH) -> list[str]:
    """Return the checkpoints in a folder and below, or the folder itself when it is one; hidden folders are left out."""
    if is_checkpoint(disk, folder):
        return [folder]
    found: list[str] = []
    for name in _names(disk, folder) or []:
        if depth and not name.startswith((".", "_")):
            found.extend(find_checkpoints(disk, f"{folder}/{name}", depth - 1))
    return found


def is_checkpoint(disk: Disk, folder: str) -> bool:
    try:
        names = disk.list(folder)
    except StorageError:  # a file
        return False
    return {"meta", "drivers", "log"} <= set(names) or {"drivers", "log", "data"} <= set(names)


def read_holder(
    disk: Disk,
    checkpoint: str,
    now: float,
    *,
    boot: str | None = None,
    is_running: Callable[[Claim], bool] = process_is_running,
) -> Holder:
    """Say who claimed a checkpoint last, and whether that driver must be taken as alive."""
    generation = recordlog.newest_generation(disk, checkpoint)
    onlooker = Onlooker(boot or process_space(), lambda: now, is_running, pause=None)
    beat = recordlog.read_heartbeat(disk, checkpoint)
    try:
        sign = newest_sign(disk, checkpoint, generation)
        alive = onlooker.find_holder(disk, checkpoint, generation)
    except PenstockError:  # a claim that cannot be read, which a check of the checkpoint names
        sign, alive = beat, None
    return Holder(
        generation,
        sign.claim if sign is not None else None,
        beat.time if beat is not None else None,
        sign is not None and sign.released,
        alive is not None,
    )


def look(disk: Disk, checkpoint: str) -> Look:
    """Read what is committed, as a start would, and change nothing.

    Raises:
        CheckpointError: no checkpoint, or one that a start would refuse; names the file.
    """
    for again in range(_TRIES):
        try:
            metas = read_metas(disk, checkpoint)
            tail = recordlog.read_tail(disk, checkpoint)
            break
        except FileNotFoundError:  # its driver went on to a newer part
            if again == _TRIES - 1:
                raise
            time.sleep(0.05)
    meta = metas.in_force(tail)
    with folding(paths.meta(checkpoint)):
        chains = Chains(skeleton(meta))
    if tail.base is not None and tail.part is not None:
        with folding(paths.log(checkpoint, tail.part)):
            chains.load(tail.base, tail.records)
    return Look(checkpoint, metas, meta, tail, chains)


def summarise(disk: Disk, checkpoint: str, now: float) -> Summary:
    """Return a checkpoint in a line; one that cannot be read says why."""
    holder = read_holder(disk, checkpoint, now)
    sizes = [size for _, size in walk(disk, checkpoint)]
    found, problem = None, None
    try:
        found = look(disk, checkpoint)
    except (CheckpointError, FileNotFoundError) as error:
        problem = str(error)
    times = [holder.beat] if holder.beat is not None else []
    if found is not None and found.tail.base is not None:
        times.append(max([found.tail.base.time_us, *(r.time_us for r, _ in found.tail.records)]) / 1e6)
    return Summary(
        checkpoint,
        found.metas.first.query if found is not None else "",
        holder,
        sum(sizes),
        len(sizes),
        {name: chain.epoch for name, chain in found.chains.by_name.items()} if found is not None else {},
        max(times, default=None),
        problem,
    )


def walk(disk: Disk, folder: str) -> Iterator[tuple[str, int]]:
    """Yield path and size of every file in a folder and below."""
    for name in disk.list(folder):
        path = f"{folder}/{name}"
        if _names(disk, path) is None:
            size = disk.size(path)
            if size is not None:
                yield path, size
        else:
            yield from walk(disk, path)


def _names(disk: Disk, path: str) -> list[str] | None:
    """The names in a folder; None for a file."""
    try:
        return disk.list(path)
    except StorageError:
        return None


def view_stages(seen: Look) -> list[StageView]:
    """Say where every stage stands.

    Raises:
        CorruptFileError: the records contradict each other.
    """
    with folding(paths.logs(seen.checkpoint)):
        return [_view_stage(seen, seen.chains.of(name)) for name in seen.chains.program.stages]


def _view_stage(seen: Look, chains: Sequence[Chain]) -> StageView:
    """One stage; of an operator with several executors what they add up to, and each of them."""
    each = [_view(seen, chain) for chain in chains]
    if len(each) == 1:
        return each[0]
    states = [one.state for one in each if one.state is not None]
    marks = [chain.watermark_us for chain in chains if chain.groups]
    known = [mark for mark in marks if mark is not None]
    return replace(
        each[0],
        name=operator_of(each[0].name),
        shards=sum(one.shards for one in each),
        epoch=max(one.epoch for one in each),
        rows_in=sum(one.rows_in for one in each),
        rows_out=sum(one.rows_out for one in each),
        inputs=[_input_sum([one.inputs[at] for one in each]) for at in range(len(each[0].inputs))],
        state=_state_sum(chains, states) if states else None,
        watermark=min(known) / 1e6 if known and len(known) == len(marks) else None,
        executors=each,
    )


def _input_sum(each: Sequence[InputView]) -> InputView:
    """What waits for all executors; the channel is one."""
    return replace(
        each[0],
        positions=[place for one in each for place in one.positions],
        waiting_rows=sum(one.waiting_rows for one in each),
    )


def _state_sum(chains: Sequence[Chain], states: Sequence[StateView]) -> StateView:
    digests = np.concatenate([chain.digests for chain in chains]).sum(axis=0, dtype=np.uint64)
    return StateView(
        digest=records.pack_u64(digests).hex(),
        written_shards=sum(one.written_shards for one in states),
        snapshots=sum(one.snapshots for one in states),
        snapshot_bytes=sum(one.snapshot_bytes for one in states),
        deltas=len({frame.extent for chain in chains for frame in chain.deltas}),
        delta_bytes=sum({frame.extent: frame.extent.length for c in chains for frame in c.deltas}.values()),
    )


def _view(seen: Look, chain: Chain) -> StageView:
    was = seen.meta.stages[operator_of(chain.name)]
    waiting = seen.chains.waiting(chain)
    return StageView(
        name=chain.name,
        kind=was.kind,
        schema=in_sparks_words(was.schema),
        keys=was.keys,
        shards=len(chain.shards()),
        epoch=chain.epoch,
        rows_in=chain.rows_in,
        rows_out=chain.rows_out,
        inputs=[_input_view(chain.groups, key, queue) for key, queue in waiting.items()],
        state=state_view(chain) if was.kind == "operator" and was.stateful else None,
        offset=chain.offset if was.kind == "source" and not was.ingested else None,
        batch=chain.batch.number if chain.batch is not None else None,
        intent=chain.intent.epoch if chain.intent is not None else None,
        watermark=chain.watermark_us / 1e6 if chain.watermark_us is not None else None,
    )


def _input_view(groups: Sequence[ShardGroup], key: ChannelKey, queue: Sequence[PublishedRows]) -> InputView:
    return InputView(
        edge=key.edge,
        producer=key.chain,
        positions=[(len(group.shards), f"{group.at[key].epoch}:{group.at[key].row}") for group in groups],
        waiting_epochs=len(queue),
        waiting_rows=sum(waiting_rows(group, key, item) for group in groups for item in queue),
        waiting_bytes=sum(item.bytes for item in queue),
    )


def waiting_rows(group: ShardGroup, key: ChannelKey, item: PublishedRows) -> int:
    """Return how many rows of a producer epoch some shards have not taken."""
    at = group.at[key]
    if item.epoch < at.epoch:
        return 0
    counts = item.counts[group.shards]
    return int(np.maximum(counts - at.row, 0).sum() if item.epoch == at.epoch else counts.sum())


def state_view(chain: Chain) -> StateView:
    stored = [snapshot.extent.length for snapshot in chain.snapshots.values() if snapshot.extent is not None]
    return StateView(
        digest=records.pack_u64(chain.digests.sum(axis=0, dtype=np.uint64)).hex(),
        written_shards=int((chain.versions > 0).sum()),
        snapshots=len(chain.snapshots),
        snapshot_bytes=sum(stored),
        deltas=len(chain.deltas),
        delta_bytes=sum(frame.extent.length for frame in chain.deltas),
    )


def is_known_file(root: str, folder: str, name: str) -> bool:
    """Whether a name in one of the checkpoint's own folders is one that a driver gives."""
    if folder == root:
        return (
            name in ("meta", "drivers", "log", "data", "ingest", "imported", "export", "requests")
            or paths.parse_meta_version(name) is not None
        )
    parsers: dict[str, Callable[[str], object]] = {
        paths.drivers(root): lambda one: one == "heartbeat" or paths.parse_claim(one) is not None or None,
        paths.logs(root): lambda one: one == "newest" or paths.parse_log(one) is not None or None,
        paths.data(root): lambda one: paths.parse_data(one),
    }
    return parsers[folder](name) is not None if folder in parsers else True
