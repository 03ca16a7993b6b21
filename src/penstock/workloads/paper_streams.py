"""The applications of the papers as topologies that run: COMMCount, Top-N, split-count, frequent patterns with its loop,
and the compute-bound chain of logo detection.

They have the stations, links and rates of `paper_topologies`. Every input row is a pure function of its number. Work is
emulated where it is asked for: a station then sleeps its service time for each row, so that few real cores stand for many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.workloads.keyed import row_words
from penstock.workloads.paper_topologies import TOPOLOGIES, PaperTopology

if TYPE_CHECKING:
    from penstock.topology.stream import Stream

Rate = float | Sequence[tuple[float, int]]

COMMODITIES: Final = 1000
CATEGORIES: Final = 20
TOP: Final = 5
RANKERS: Final = 16
WORDS: Final = 500
WORDS_A_SENTENCE: Final = 5
ITEMS: Final = 8
ITEMS_A_TWEET: Final = 3
FREQUENT: Final = 15
"""Tweets that must hold a pattern until it counts as frequent."""
FEATURES: Final = 25
LOGOS: Final = 16

VISIT_DDL: Final = "id long not null, text string not null"
SENTENCE_DDL: Final = "id long not null, text string not null"
TWEET_DDL: Final = "id long not null, items string not null"
FRAME_DDL: Final = "frame long not null, seed long not null"


def _drawn(offset: int, count: int, size: int, seed: int) -> Any:
    """Return numbers below `size`, small ones more often: the smaller of two even draws."""
    words = row_words(offset, count, seed)
    first = words & np.uint64(0xFFFFFFFF)
    second = words >> np.uint64(32)
    return ((np.minimum(first, second) * np.uint64(size)) >> np.uint64(32)).astype(np.int64)


def _batch(columns: dict[str, Any]) -> pa.RecordBatch:
    arrays = [pa.array(column) for column in columns.values()]
    fields = [pa.field(n, a.type, nullable=False) for n, a in zip(columns, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def visits(offset: int, count: int) -> pa.RecordBatch:
    """Log lines of a shop: user, commodity, and what was done with it."""
    commodity = _drawn(offset, count, COMMODITIES, 1)
    bought = _drawn(offset, count, 8, 2) == 0
    number = np.arange(offset, offset + count)
    lines = [
        f"{n % 977},{c},{'buy' if b else 'look'}"
        for n, c, b in zip(number.tolist(), commodity.tolist(), bought.tolist(), strict=True)
    ]
    return _batch({"id": number, "text": lines})


def sentences(offset: int, count: int) -> pa.RecordBatch:
    """Sentences of five words."""
    words = _drawn(offset * WORDS_A_SENTENCE, count * WORDS_A_SENTENCE, WORDS, 3).reshape(count, -1)
    number = np.arange(offset, offset + count)
    return _batch({"id": number, "text": [" ".join(f"w{w}" for w in line) for line in words.tolist()]})


def tweets(offset: int, count: int) -> pa.RecordBatch:
    """Tweets as sets of up to three items."""
    items = _drawn(offset * ITEMS_A_TWEET, count * ITEMS_A_TWEET, ITEMS, 4).reshape(count, -1)
    number = np.arange(offset, offset + count)
    return _batch({"id": number, "items": [",".join(map(str, sorted(set(line)))) for line in items.tolist()]})


def frames(offset: int, count: int) -> pa.RecordBatch:
    """Frames of a video, each with what its features are drawn from."""
    number = np.arange(offset, offset + count)
    return _batch({"frame": number, "seed": _drawn(offset, count, 1 << 30, 5)})


@dataclass(frozen=True)
class Worked:
    """A function of a key, or of a row, that also takes its station's time."""

    function: Callable[..., Any]
    seconds: float

    def __call__(self, *given: Any) -> Any:
        if self.seconds > 0:
            time.sleep(self.seconds * (len(given[1]) if len(given) > 1 else 1))
        return self.function(*given)


class _Work:
    """How long each station works for a row."""

    def __init__(self, topology: PaperTopology, share: float) -> None:
        self._seconds = {one.name: one.service_s * share for one in topology.stations}

    def at(self, station: str, function: Callable[..., Any]) -> Callable[..., Any]:
        seconds = self._seconds[station]
        return Worked(function, seconds) if seconds > 0 else function


def _count_up(total: Any, amounts: Iterable[int]) -> Iterator[int]:
    """Add amounts to a total in the state; yield it after each."""
    now = total.get() or 0
    for amount in amounts:
        now += amount
        yield now
    total.update(now)


# COMMCount and Top-N


def parse(row: Any) -> tuple[int, int, bool]:
    user, commodity, done = row.text.split(",")
    return int(user), int(commodity), done == "buy"


def _parsed_visits(topology: str, do: _Work, rate: Rate | None, limit: int | None) -> Stream:
    """The visits of a shop, parsed: what COMMCount and Top-N begin with."""
    import penstock

    lines = penstock.generate(
        visits, schema=VISIT_DDL, rate=_rate(topology, rate), name="visits", limit=limit
    )
    fields = "user int, commodity int, bought boolean"
    return lines.map(do.at("parse", parse), schema=fields).station("parse")


def count_visits(key: Any, rows: Sequence[Any], state: Any) -> Iterator[tuple[int, int, int]]:
    for seen in _count_up(state.seen, (1 for _ in rows)):
        yield key.commodity, key.commodity % CATEGORIES, seen


def report_category(key: Any, rows: Sequence[Any], state: Any) -> Iterator[tuple[int, int]]:
    for total in _count_up(state.total, (1 for _ in rows)):
        yield key.category, total


def commcount(rate: Rate | None = None, limit: int | None = None, work: float = 0.0) -> Stream:
    """Views of commodities, counted by commodity and summed up by category (Es-Stream II).

    Args:
        rate: rows a second; the paper's stable 1,800 when not given.
        limit: stop after that many rows; by default never.
        work: share of the stations' service times that is slept; 0: none.
    """
    import penstock

    do = _Work(TOPOLOGIES["commcount"], work)
    parsed = _parsed_visits("commcount", do, rate, limit)
    counted = parsed.groupBy("commodity").apply_rows(
        do.at("count", count_visits),
        schema="commodity int, category int, seen long",
        state={"seen": penstock.ValueState("long")},
        name="count",
    )
    return counted.groupBy("category").apply_rows(
        do.at("report", report_category),
        schema="category int, total long",
        state={"total": penstock.ValueState("long")},
        name="report",
    )


def count_bought(key: Any, rows: Sequence[Any], state: Any) -> Iterator[tuple[int, int, int]]:
    for sold in _count_up(state.sold, (row.bought for row in rows)):
        yield key.commodity, key.commodity % RANKERS, sold


def rank(key: Any, rows: Sequence[Any], state: Any) -> Iterator[tuple[int, int, int]]:
    """Pass on what belongs to the best so far, of a part or of all."""
    for row in rows:
        yield from _keep_top(state.best, row.commodity, row.sold, 0)


def _keep_top(best: Any, commodity: int, sold: int, everywhere: int) -> Iterator[tuple[int, int, int]]:
    """Keep the commodities sold most, the smaller number first among equals; pass on one that belongs to them."""
    if sold == 0:
        return
    best[commodity] = sold
    kept = sorted(best.items(), key=lambda one: (-one[1], one[0]))
    for lost, _ in kept[TOP:]:
        del best[lost]
    if commodity in dict(kept[:TOP]):
        yield everywhere, commodity, sold


def top_n(rate: Rate | None = None, limit: int | None = None, work: float = 0.0) -> Stream:
    """The commodities sold most: counted, ranked in 16 parts, merged (Es-Stream II). Arguments as of `commcount`."""
    import penstock

    do = _Work(TOPOLOGIES["top-n"], work)
    parsed = _parsed_visits("top-n", do, rate, limit)
    counted = parsed.groupBy("commodity").apply_rows(
        do.at("count", count_bought),
        schema="commodity int, ranker int, sold long",
        state={"sold": penstock.ValueState("long")},
        name="count",
    )
    ranked = counted.groupBy("ranker").apply_rows(
        do.at("rank", rank),
        schema="everywhere int, commodity int, sold long",
        state={"best": penstock.MapState("int", "long")},
        name="rank",
    )
    return ranked.groupBy("everywhere").apply_rows(
        do.at("merge", rank),
        schema="everywhere int, commodity int, sold long",
        state={"best": penstock.MapState("int", "long")},
        name="merge",
    )


# Split-count


def split(row: Any) -> list[tuple[str]]:
    return [(word,) for word in row.text.split()]


def count_words(key: Any, rows: Sequence[Any], state: Any) -> Iterator[tuple[str, int]]:
    for seen in _count_up(state.seen, (1 for _ in rows)):
        yield key.word, seen


def split_count(rate: Rate | None = None, limit: int | None = None, work: float = 0.0) -> Stream:
    """Words of sentences, counted (StreamSwitch 6.6); 15,000 sentences a second. Arguments as of `commcount`."""
    import penstock

    do = _Work(TOPOLOGIES["split-count"], work)
    lines = penstock.generate(
        sentences, schema=SENTENCE_DDL, rate=_rate("split-count", rate), name="sentences", limit=limit
    )
    words = lines.flat_map(do.at("split", split), schema="word string").station("split")
    return words.groupBy("word").apply_rows(
        do.at("count", count_words),
        schema="word string, seen long",
        state={"seen": penstock.ValueState("long")},
        name="count",
    )


# Frequent patterns


def candidates(row: Any) -> list[tuple[str, bool]]:
    """Return the pairs and the whole of a tweet's items; `back` marks what came round the loop."""
    items = row.items.split(",")
    found = {",".join(pair) for pair in combinations(items, 2)} | {row.items}
    return [(pattern, False) for pattern in sorted(found)]


def detect(key: Any, rows: Sequence[Any], state: Any) -> Iterator[tuple[str, bool, bool]]:
    """Count a pattern. Once it is frequent, its sub-patterns are told, round the loop, that they are not maximal."""
    seen, covered = state.seen.get() or 0, state.covered.get() or False
    for row in rows:
        if row.back:
            if not covered and seen >= FREQUENT:
                yield key.pattern, False, False
            covered = True
            continue
        seen += 1
        if seen == FREQUENT:
            yield key.pattern, not covered, False
            for part in _parts(key.pattern):
                yield part, False, True
    state.seen.update(seen)
    state.covered.update(covered)


def _parts(pattern: str) -> list[str]:
    items = pattern.split(",")
    return [",".join(part) for part in combinations(items, len(items) - 1)] if len(items) > 2 else []


def report_pattern(key: Any, rows: Sequence[Any], state: Any) -> Iterator[tuple[str, bool]]:
    for row in rows:
        state.maximal.update(row.maximal)
        yield key.pattern, row.maximal


def frequent_patterns(rate: Rate | None = None, limit: int | None = None, work: float = 0.0) -> Stream:
    """Maximal frequent patterns: candidates, a detector that tells itself round a loop, a reporter (DRS V-A, figure 5).

    320 tweets a second, without the window's removals. Arguments as of `commcount`.
    """
    import penstock
    from penstock import col

    do = _Work(TOPOLOGIES["frequent-patterns"], work)
    read = penstock.generate(
        tweets, schema=TWEET_DDL, rate=_rate("frequent-patterns", rate), name="tweets", limit=limit
    )
    ring = penstock.loop("covered", schema="pattern string, back boolean")
    made = read.flat_map(do.at("generator", candidates), schema="pattern string, back boolean").station(
        "generator"
    )
    told = (
        made.union(ring)
        .groupBy("pattern")
        .apply_rows(
            do.at("detector", detect),
            schema="pattern string, maximal boolean, back boolean",
            state={"seen": penstock.ValueState("long"), "covered": penstock.ValueState("boolean")},
            name="detector",
        )
    )
    ring.feed(told.filter(col("back")).select("pattern", "back"))
    return (
        told.filter(~col("back"))
        .groupBy("pattern")
        .apply_rows(
            do.at("reporter", report_pattern),
            schema="pattern string, maximal boolean",
            state={"maximal": penstock.ValueState("boolean")},
            name="reporter",
        )
    )


# Logo detection


def extract(row: Any) -> list[tuple[int, int]]:
    return [(row.frame, (row.seed * 31 + number * 7919) % 997) for number in range(FEATURES)]


def match(row: Any) -> list[tuple[int, int]]:
    return [(row.frame, row.feature % LOGOS)] if row.feature % 5 == 0 else []


def aggregate(key: Any, rows: Sequence[Any], state: Any) -> Iterator[tuple[int, int]]:
    found = state.found.get() or 0
    for _ in rows:
        found += 1
    state.found.update(found)
    yield key.frame, found


def logo_detection(rate: Rate | None = None, limit: int | None = None, work: float = 0.0) -> Stream:
    """The compute-bound chain: features of frames, matched with logos, counted by frame (DRS V-A, figure 4).

    13 frames a second. Arguments as of `commcount`.
    """
    import penstock

    do = _Work(TOPOLOGIES["logo-detection"], work)
    shown = penstock.generate(
        frames, schema=FRAME_DDL, rate=_rate("logo-detection", rate), name="frames", limit=limit
    )
    features = shown.flat_map(do.at("extract", extract), schema="frame long, feature long").station("extract")
    matched = features.flat_map(do.at("match", match), schema="frame long, logo long").station("match")
    return matched.groupBy("frame").apply_rows(
        do.at("aggregate", aggregate),
        schema="frame long, found long",
        state={"found": penstock.ValueState("long")},
        name="aggregate",
    )


STABLE_PER_S: Final = {
    "commcount": 1800.0,
    "top-n": 1800.0,
    "split-count": 15_000.0,
    "frequent-patterns": 320.0,
    "logo-detection": 13.0,
}
STREAMS: Final[dict[str, Callable[..., Stream]]] = {
    "commcount": commcount,
    "top-n": top_n,
    "split-count": split_count,
    "frequent-patterns": frequent_patterns,
    "logo-detection": logo_detection,
}
"""Name -> what declares it."""


def _rate(name: str, rate: Rate | None) -> Rate:
    return STABLE_PER_S[name] if rate is None else rate


def rows_of(generator: Callable[[int, int], pa.RecordBatch], count: int) -> Iterable[dict[str, Any]]:
    """Return the first rows of a generator, for oracles."""
    return generator(0, count).to_pylist()  # type: ignore[no-any-return]
