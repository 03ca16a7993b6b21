"""When an event time counts: what every shard is past, what is told of it, and what bases of before frontiers say."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec
import numpy as np
import pyarrow as pa

import penstock
from penstock import window
from penstock.dataplane import records
from penstock.dataplane.chains import Chains
from penstock.dataplane.compile import compile_program
from penstock.dataplane.eventtimes import PENDING, EventTimes
from penstock.dataplane.frontier import Frontier, Tracks, derive_tracks
from penstock.dataplane.positions import ChannelKey, PublishedRows, ShardGroup
from penstock.dataplane.program import InputSpec, Program, StageSpec
from penstock.dataplane.records import END_US, EdgeBase, Position, Published, Reached
from penstock.dataplane.taking import Budget, take_epoch
from penstock.sim import timelines

SCHEMA = pa.schema([("k", pa.int64())])
KEY = ChannelKey(0, "rows")
NEXT = ChannelKey(1, "one")


def _group(shards: list[int], at: Mapping[ChannelKey, Position], mark: int | None = None) -> ShardGroup:
    return ShardGroup(np.array(shards, np.uint16), at, dict.fromkeys(at, mark))


def _frontier(key: ChannelKey = KEY, behind: frozenset[str] = frozenset()) -> Frontier:
    spec = StageSpec("op", "operator", SCHEMA, inputs=[InputSpec(key.edge, key.chain, SCHEMA)])
    return Frontier(spec, Tracks({key.edge: behind}))


def _stand(frontier: Frontier, *places: Position) -> None:
    groups = [_group([number], {KEY: at}) for number, at in enumerate(places)]
    frontier.follow(groups, [group.at for group in groups], {})


def _program(way: str, depth: int = 1) -> Program:
    return compile_program(timelines.topology(way, depth, ends=False).node, tasks=2, memory_bytes=1 << 20)


def test_an_event_time_counts_when_the_last_shard_has_passed_what_it_came_from() -> None:
    frontier, times = _frontier(), EventTimes()
    _stand(frontier, Position(4), Position(2))
    times.count(7, frontier, [Reached(100, through=frontier.reach)])
    assert not times.counted and [one.event_us for one in times.pending[7]] == [100]
    _stand(frontier, Position(6), Position(4))
    times.count(7, frontier, [Reached(200, through=frontier.reach)])
    assert times.counted[7].event_us == 100 and [one.event_us for one in times.pending[7]] == [200]
    _stand(frontier, Position(6), Position(6))
    times.count(7, frontier)
    assert times.counted[7].event_us == 200 and not times.pending


def test_a_producer_epoch_that_was_cut_counts_when_all_of_it_is_taken() -> None:
    frontier = _frontier()
    _stand(frontier, Position(4, 3), Position(4, 3))
    assert frontier.reach == {"rows": 5} and frontier.low == {"rows": 4}
    assert not frontier.is_past(frontier.reach)
    _stand(frontier, Position(5), Position(5))
    assert frontier.is_past(frontier.reach)


def test_a_shard_is_as_far_as_its_producer_says_the_rows_further_up_are() -> None:
    frontier = _frontier(NEXT, frozenset({"rows"}))
    said = {"rows": 3}
    items = [
        PublishedRows(Published(1, [], None, through=said, reach={"rows": 9})),
        PublishedRows(Published(4, [], None, through={"rows": 9})),
    ]
    groups = [_group([0, 1], {NEXT: Position(2)})]
    frontier.follow(groups, [groups[0].at], {NEXT: items})
    assert frontier.reach == {"one": 2, "rows": 9} and frontier.low == {"one": 2, "rows": 3}
    groups = [_group([0, 1], {NEXT: Position(5)})]
    frontier.follow(groups, [groups[0].at], {NEXT: items[1:]})
    assert frontier.is_past(frontier.reach)


def test_how_far_all_shards_are_is_the_least_of_what_each_was_told_however_they_move() -> None:
    rng = random.Random(1)
    for _ in range(40):
        frontier = _frontier(NEXT, frozenset({"rows", "more"}))
        deals = rng.random() < 0.3  # behind which less may be said than before
        said = {
            epoch: {
                name: rng.randint(0, 9) if deals else epoch // (1 + at)
                for at, name in enumerate(("rows", "more"))
            }
            for epoch in range(1, 40)
        }
        items = [
            PublishedRows(Published(epoch, [], None, through=through, reach={"rows": 99, "more": 99}))
            for epoch, through in said.items()
        ]
        places = [2] * 6
        for _ in range(30):
            moved = rng.randrange(6)
            places[moved] = rng.choice(
                [max(places), min(40, max(places) + 1), rng.randint(places[moved], 40)]
            )
            groups = [_group([shard], {NEXT: Position(place)}) for shard, place in enumerate(places)]
            frontier.follow(groups, [groups[moved].at], {NEXT: items})
            wanted = {name: min(said[place - 1][name] for place in places) for name in ("more", "rows")}
            assert frontier.low == {"more": wanted["more"], "one": min(places), "rows": wanted["rows"]}


def test_a_shard_that_moves_on_costs_no_look_at_what_all_others_were_told() -> None:
    looks = [0]

    class Looked(dict[str, int]):
        def get(self, name: str, other: int = 0) -> int:  # type: ignore[override]
            looks[0] += 1
            return super().get(name, other)

    frontier = _frontier(NEXT, frozenset({"rows"}))
    items = [PublishedRows(Published(epoch, [], None, through=Looked(rows=epoch))) for epoch in range(1, 403)]
    groups = [_group([shard], {NEXT: Position(2 + shard)}) for shard in range(400)]
    frontier.follow(groups, [groups[-1].at], {NEXT: items})
    looks[0] = 0
    groups[-1] = _group([399], {NEXT: Position(402)})
    frontier.follow(groups, [groups[-1].at], {NEXT: items})
    assert frontier.low["rows"] == 1 and 0 < looks[0] < 10


def test_a_channel_that_has_ended_holds_nobody_up() -> None:
    frontier = _frontier()
    _stand(frontier, Position(4))
    groups = [_group([0], {KEY: Position(4)}), _group([1], {KEY: Position(1)}, END_US)]
    frontier.stand(groups)
    assert frontier.is_past({"rows": 4})


def test_what_no_channel_carries_any_more_holds_nobody_up() -> None:
    assert _frontier().is_past({"gone": 7})
    assert not _frontier().is_past({"rows": 7}), "of which nothing was taken yet"


def test_shards_that_never_stand_together_let_event_times_count_all_the_same() -> None:
    frontier, times, said = _frontier(), EventTimes(), []
    for epoch in range(2, 400):
        _stand(frontier, Position(epoch), Position(max(1, epoch - 60)))
        times.count(7, frontier, [Reached(epoch, through=frontier.reach)])
        assert len(times.pending.get(7, [])) <= PENDING
        said.append(times.counted[7].event_us if 7 in times.counted else 0)
    assert said == sorted(said) and min(e - one for e, one in enumerate(said[100:], 102)) >= 60
    assert max(e - one for e, one in enumerate(said[100:], 102)) < 60 * 3


def test_edges_on_the_way_to_a_declared_watermark_are_tracked_and_no_others() -> None:
    plain = penstock.from_rows([(1, timelines.EPOCH)], schema="k long, at timestamp", name="rows")
    counts = plain.withWatermark("at", "1 second").groupBy(window("at", "1 second")).count()
    assert not derive_tracks(compile_program(counts.node, tasks=1, memory_bytes=1 << 20)).upstream
    tracks = derive_tracks(_program("two operators"))
    assert sorted(sorted(behind) for behind in tracks.upstream.values()) == [[], ["rows"]]
    assert not tracks.meets
    both = derive_tracks(_program("both ways"))
    assert len(both.meets) == 5, "two ways from the source to where they meet"


def test_a_base_restates_frontiers_and_one_of_before_them_is_read_by_where_shards_stand() -> None:
    program = _program("two operators")
    chains = Chains(program)
    base = chains.to_base("q", 1, 1, b"", 0)
    assert records.decode_base(records.encode(base)) == base
    at = [(0, "rows", Position(4, 1))]
    carried = next(one for one in base.chains if one.chain == "carried")
    edge = EdgeBase(carried.edges[0].edge, [], 50, 40, at, Reached(90, at))
    held = [msgspec.structs.replace(one, edges=[edge]) if one is carried else one for one in base.chains]
    old = msgspec.msgpack.decode(records.encode(msgspec.structs.replace(base, chains=held, frontiers={})))
    for chain in old[records.Base.__struct_fields__.index("chains")]:
        for one in chain[records.ChainBase.__struct_fields__.index("edges")]:
            del one[EdgeBase.__struct_fields__.index("event_through") :]
            for reached in [known for known in one[-1:] if known]:
                del reached[2:]
    read = records.decode_base(msgspec.msgpack.encode(old))
    chains.load(read, [])
    loaded = chains["carried"]
    assert loaded.times.counted[edge.edge] == Reached(50, through={"rows": 5})
    assert loaded.times.pending[edge.edge] == [Reached(90, through={"rows": 5})]
    assert loaded.frontier.reach == {"rows": 1} == loaded.frontier.low


def test_absent_shards_are_taken_along_over_ranges_without_rows_for_them() -> None:
    segment = records.Segment(
        0, records.Extent("f", 0, 9, 0), 3, records.pack_u32(np.array([2, 1, 0, 0], np.uint32))
    )
    item = PublishedRows(Published(1, [segment], None), 4)
    ready, absent = np.array([1, 0, 0, 0], np.bool_), np.array([0, 1, 1, 1], np.bool_)
    here, behind = _group([0, 1, 2], {KEY: Position(1)}), _group([3], {KEY: Position(1)})
    (take,) = take_epoch([here], ready, {KEY: [item]}, Budget(100), absent=absent)
    assert take.shards.tolist() == [0, 2] and int(take.shard_rows.sum()) == 2
    more = PublishedRows(Published(2, [], None), 4)
    front = _group([0, 1, 2], {KEY: Position(2)})
    takes = take_epoch([behind, front], ready, {KEY: [item, more]}, Budget(100), absent=absent)
    assert [(one.shards.tolist(), one.ranges[0].end.epoch) for one in takes] == [([0, 1, 2], 3), ([3], 3)]
    alone = take_epoch([behind, front], ready, {KEY: [item, more]}, Budget(100))
    assert [one.shards.tolist() for one in alone] == [[0]]
