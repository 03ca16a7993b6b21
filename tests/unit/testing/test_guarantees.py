"""What the page on guarantees says of order, dead letters and late rows, in stories in which things die."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock import Stream, col
from penstock.testing import Crash, LoseLease, Pause, run, script

SCHEMA = "part string, k long, n long"
COUNT = 24


def story(part: str, *, every: int, keys: int = 3) -> Stream:
    """Numbered rows of some keys; something dies now and then."""
    items: list[Any] = []
    for n in range(COUNT):
        items.append((part, n % keys, n))
        if n % every == every - 1:
            items += [Crash() if n % 2 else LoseLease(), Pause("10 milliseconds")]
    return script(items, schema=SCHEMA, name=f"part_{part}")


def numbered(key: Any, rows: list[Any], state: Any) -> Iterator[tuple[int, int, str, int]]:
    """Puts every row out with its place among the rows of its key."""
    place = state.place.get() or 0
    for row in rows:
        yield key.k, place, row.part, row.n
        place += 1
    state.place.update(place)


def in_order(stream: Stream, seed: int) -> dict[tuple[int, str], list[int]]:
    """The numbers of the rows that each key took of each part, in the order in which it took them."""
    taken = stream.groupBy("k").apply_rows(
        numbered,
        schema="k long, place long, part string, n long",
        state={"place": penstock.ValueState("long")},
        name="numbered",
    )
    found: dict[tuple[int, str], list[int]] = {}
    for row in sorted(run(taken, seed=seed).to_pylist(), key=lambda row: (row["k"], row["place"])):
        found.setdefault((row["k"], row["part"]), []).append(row["n"])
    return found


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_a_key_keep_the_order_of_each_part_of_a_union(seed: int) -> None:
    found = in_order(story("a", every=7).union(story("b", every=5)), seed)
    assert found == {(k, part): list(range(k, COUNT, 3)) for k in range(3) for part in "ab"}


@pytest.mark.parametrize("seed", range(4))
def test_every_use_of_a_stream_gets_all_its_rows_in_order(seed: int) -> None:
    rows = story("a", every=6)
    found = in_order(rows.union(rows.withColumn("part", penstock.lit("again"))), seed)
    assert found == {(k, part): list(range(k, COUNT, 3)) for k in range(3) for part in ("a", "again")}


@pytest.mark.parametrize("seed", range(4))
def test_every_shard_takes_broadcast_rows_in_the_order_of_their_publication(seed: int) -> None:
    def keep(rows: list[Any], shared: Any) -> None:
        shared.seen.appendList([row.n for row in rows])

    def tell(key: Any, rows: list[Any], state: Any, shared: Any) -> Iterator[tuple[int, list[int]]]:
        yield key.k, list(shared.seen)

    beside = story("a", every=7).groupBy("k").with_broadcast(story("b", every=5).select("n"))
    told = beside.apply_rows(
        tell,
        on_broadcast=keep,
        shared={"seen": penstock.ListState("long")},
        schema="k long, seen array<long>",
        name="told",
        shards=4,
    )
    found = run(told, seed=seed).to_pylist()
    assert {row["k"] for row in found} == {0, 1, 2}
    assert all(row["seen"] == list(range(len(row["seen"]))) for row in found)


@pytest.mark.parametrize("seed", range(4))
def test_a_call_that_raises_is_one_letter_whatever_dies_and_its_rows_do_not_come_again(seed: int) -> None:
    def add(key: Any, rows: list[Any], state: Any) -> Iterator[tuple[int, int]]:
        state.total.update((state.total.get() or 0) + len(rows))
        if key.n % 4 == 3:
            raise ValueError(f"row {key.n}")
        yield key.n, state.total.get()

    added = (
        story("a", every=5)
        .groupBy("n")
        .apply_rows(
            add,
            schema="n long, total long",
            state={"total": penstock.ValueState("long")},
            name="add",
            on_error="dead_letter",
        )
    )
    errors = sorted(letter["error"] for letter in run(added.dead_letters, seed=seed).to_pylist())
    assert errors == sorted(f"ValueError: row {n}" for n in range(3, COUNT, 4))
    made = sorted((row["n"], row["total"]) for row in run(added, seed=seed).to_pylist())
    assert made == [(n, 1) for n in range(COUNT) if n % 4 != 3]


@pytest.mark.parametrize("seed", range(4))
def test_a_row_is_once_in_its_window_or_once_among_the_late_ones(seed: int) -> None:
    begin = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    items: list[Any] = []
    for n in range(COUNT):  # every fourth row is far behind
        items.append((begin + dt.timedelta(seconds=10 * n - (120 if n % 4 == 3 else 0)), n))
        items += [Pause("20 milliseconds"), *([Crash()] if n % 5 == 4 else [])]
    rows = script(items, schema="ts timestamp, n long").withWatermark("ts", "15 seconds")
    windowed = rows.groupBy(penstock.window("ts", "30 seconds")).agg(
        penstock.sum("n").alias("sum"), name="sums"
    )
    late = [row["n"] for row in run(windowed.late_rows, seed=seed).to_pylist()]
    assert late and len(late) == len(set(late))
    closed = run(windowed.select(col("sum")), seed=seed).to_pylist()
    assert sum(row["sum"] for row in closed) + sum(late) == sum(range(COUNT))


@pytest.mark.parametrize("seed", range(4))
def test_the_end_of_bounded_input_is_said_when_all_of_it_has_ended(seed: int) -> None:
    begin = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

    def timed(name: str, *more: Any) -> Stream:
        rows = [(begin, 1), *more, (begin + dt.timedelta(minutes=1), 2)]
        return script(rows, schema="ts timestamp, n long", name=name).withWatermark("ts", "1 hour")

    both = timed("left", Crash()).union(timed("right", Pause("1 minute"), LoseLease()))
    counted = both.groupBy(penstock.window("ts", "1 minute")).agg(penstock.count(), name="counted")
    found = sorted((row["window"]["start"], row["count"]) for row in run(counted, seed=seed).to_pylist())
    assert found == [(begin, 2), (begin + dt.timedelta(minutes=1), 2)]
