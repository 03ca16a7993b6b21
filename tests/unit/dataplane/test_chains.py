"""What records add up to: the same through a base as without one, and nothing out of turn."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dataplane import records
from penstock.dataplane.chains import Chains
from penstock.dataplane.positions import ChannelKey
from penstock.dataplane.records import Extent, Group, Position, Range, Record, Segment, Snapshot, TaskPart
from penstock.dataplane.snapshots import complete_snapshots, due_snapshots
from penstock.errors import CorruptFileError
from penstock.sim.programs import memory_program

SHARDS = 4
PROGRAM = memory_program(shards=(SHARDS, 3), tasks=(1, 1, 1))


def extent(number: int, length: int = 100) -> Extent:
    return Extent(f"g000001-a-{number:06d}.seg", 0, length, number)


class Log:
    """Makes legal records and applies them."""

    def __init__(self) -> None:
        self.chains = Chains(PROGRAM)
        self.tail: list[tuple[Record, bytes]] = []
        self.files = 0

    def add(self, chain: str, **fields: object) -> Record:
        at = self.chains[chain]
        epoch = at.epoch + (0 if fields.get("kind") == "done" else 1)
        record = msgspec.structs.replace(Record(chain, epoch, "epoch", 1, at.hash, epoch), **fields)
        encoded = records.encode(record)
        self.chains.apply(record, encoded)
        self.tail.append((record, encoded))
        return record

    def publish(self, counts: list[int]) -> None:
        self.files += 1
        segment = Segment(0, extent(self.files), sum(counts), records.pack_u32(np.array(counts, np.uint32)))
        offset = self.chains["source"].offset
        part = TaskPart(0, "a", b"", sum(counts), sum(counts), [segment])
        self.add("source", parts=[part], offsets=(offset, offset + sum(counts)))

    def consume(
        self, shards: list[int], end: Position, changed: Sequence[int] = (), snapshots: Sequence[int] = ()
    ) -> None:
        self.files += 1
        packed = records.pack_u16(np.array(shards, np.uint16))
        chain = self.chains["fold"]
        start = next(g.at[ChannelKey(0, "source")] for g in chain.groups if shards[0] in g.shards)
        digests = b"".join(bytes([self.files]) * 16 for _ in changed)
        part = TaskPart(
            0, "a", packed, 1, 1, [], extent(self.files) if changed else None,
            records.pack_u16(np.array(changed, np.uint16)), digests, records.pack_u32(np.full(len(changed), 10, np.uint32)),
            [Snapshot(s, 0, b"", extent(900 + self.files), 50) for s in snapshots],
        )  # fmt: skip
        self.add(
            "fold",
            groups=[Group(packed, [Range(0, "source", start, end)])],
            parts=[complete_snapshots(chain, part)],
        )


def story(seed: int, length: int) -> Log:
    rng, log = random.Random(seed), Log()
    for _ in range(length):
        if rng.random() < 0.5:
            log.publish([rng.randrange(1, 4) for _ in range(SHARDS)])
            continue
        group = rng.choice(log.chains["fold"].groups)
        at = group.at[ChannelKey(0, "source")]
        if at.epoch <= log.chains["source"].epoch:
            shards = sorted(rng.sample(group.shards.tolist(), rng.randint(1, len(group.shards))))
            end = rng.choice([Position(at.epoch + 1, 0), Position(at.epoch, at.row + 1)])
            log.consume(
                shards, end, [s for s in shards if rng.random() < 0.8], rng.sample(shards, rng.randint(0, 1))
            )
    return log


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30), st.floats(0, 1))
def test_a_base_and_its_tail_add_up_to_the_same_as_all_records(seed: int, length: int, where: float) -> None:
    log = story(seed, length)
    cut = int(where * len(log.tail))
    before = Chains(PROGRAM)
    for record, encoded in log.tail[:cut]:
        before.apply(record, encoded)
    base = records.decode_base(records.encode(before.to_base("q", 1, 1, b"", 0)))
    loaded = Chains(PROGRAM)
    loaded.load(base, log.tail[cut:])
    assert loaded.to_base("q", 1, 2, b"", 0) == log.chains.to_base("q", 1, 2, b"", 0)
    assert loaded.live_files() == log.chains.live_files()
    assert loaded.waiting_bytes() == log.chains.waiting_bytes()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30))
def test_every_delta_that_a_shard_needs_on_top_of_its_snapshot_is_kept(seed: int, length: int) -> None:
    log = story(seed, length)
    chain = log.chains["fold"]
    kept = {frame.epoch for frame in chain.deltas}
    for shard in range(SHARDS):
        snapshot = chain.snapshot_of(shard)
        covered = snapshot.version if snapshot is not None else 0
        changes = [
            r.epoch
            for r, _ in log.tail
            if r.chain == "fold" and shard in records.unpack_u16(r.parts[0].changed)
        ]
        assert {epoch for epoch in changes if epoch > covered} <= kept
        assert int(chain.versions[shard]) == max(changes, default=0)


def test_what_every_shard_has_consumed_is_let_go_and_no_earlier() -> None:
    log = Log()
    log.publish([1, 1, 1, 1])
    log.consume([0, 1, 2], Position(2, 0))
    assert len(log.chains["source"].out[0]) == 1, "shard 3 still needs it"
    log.consume([3], Position(2, 0))
    assert not log.chains["source"].out[0]
    assert log.chains.waiting_bytes() == 0


@pytest.mark.parametrize("wrong", ["epoch", "previous"])
def test_a_record_out_of_turn_is_refused(wrong: str) -> None:
    log = Log()
    log.publish([1, 1, 1, 1])
    chain = log.chains["source"]
    record = Record(
        "source",
        3 if wrong == "epoch" else 2,
        "epoch",
        1,
        b"x" * 16 if wrong == "previous" else chain.hash,
        1,
    )
    with pytest.raises(CorruptFileError, match="'source' does not follow epoch 1"):
        log.chains.apply(record, records.encode(record))
    assert chain.epoch == 1


def test_a_sink_moves_on_when_its_epoch_is_done_and_not_when_it_is_intended() -> None:
    log = Log()
    ranges = [Range(2, "gather", Position(1, 0), Position(3, 0))]
    log.add("sink", kind="intent", groups=[Group(b"\0\0", ranges)])
    sink, key = log.chains["sink"], ChannelKey(2, "gather")
    assert sink.intent is not None and sink.groups[0].at[key] == Position(1, 0)
    base = log.chains.to_base("q", 1, 1, b"", 0)
    later = Chains(PROGRAM)
    later.load(base, [])
    assert later["sink"].intent == sink.intent, "an open intent survives a restart"
    log.add("sink", kind="done")
    assert sink.intent is None and sink.groups[0].at[key] == Position(3, 0) and sink.epoch == 1


def test_intended_ranges_resolve_to_the_pieces_that_were_published() -> None:
    log = Log()
    for _ in range(3):
        log.publish([2, 2, 2, 2])
    groups = [Group(b"\0\0", [Range(0, "source", Position(1, 1), Position(3, 1))])]
    pieces = log.chains.resolve(log.chains["fold"], groups)
    assert [(p.source.epoch, p.start, p.end) for p in pieces] == [(1, 1, -1), (2, 0, -1), (3, 0, 1)]


def test_a_shard_is_due_for_a_snapshot_when_its_deltas_are_heavy_old_or_pin_too_much() -> None:
    log = Log()
    for _ in range(5):
        log.publish([1, 1, 1, 1])
    for epoch in range(5):
        log.consume([0, 1, 2, 3], Position(epoch + 2, 0), [0] if epoch else [0, 1])
    chain, every = log.chains["fold"], np.arange(SHARDS, dtype=np.uint16)
    assert due_snapshots(chain, every, 1 << 30, 1 << 30, 1 << 30).tolist() == []
    assert due_snapshots(chain, every, 1 << 30, 1 << 30, 30).tolist() == [0], (
        "50 delta bytes outweigh no snapshot"
    )
    assert due_snapshots(chain, every, 1 << 30, 3, 1 << 30).tolist() == [0, 1], "both reach back four epochs"
    assert due_snapshots(chain, every, 100, 1 << 30, 1 << 30).tolist() == [0, 1], "both pin four files"
    assert due_snapshots(chain, every[2:], 0, 0, 0).tolist() == [], "shards that were never written"


def test_the_driver_fills_in_version_and_digest_of_snapshots() -> None:
    log = Log()
    log.publish([1, 1, 1, 1])
    log.consume([0, 1, 2, 3], Position(2, 0), [2])
    log.publish([1, 1, 1, 1])
    log.consume([0, 1, 2, 3], Position(3, 0), [], snapshots=[2])
    snapshot = log.chains["fold"].snapshot_of(2)
    assert snapshot is not None and snapshot.version == 1 and snapshot.digest == log.chains["fold"].digest(2)
    assert not log.chains["fold"].deltas, "the snapshot replaces the delta"
