"""Who goes first: round by round, and from part to part."""

from __future__ import annotations

from penstock.bench.turns import Turns


def played(turns: Turns, rounds: int) -> list[str]:
    order: list[str] = []
    turns.alternate(rounds, lambda: order.append("ours"), lambda: order.append("theirs"))
    return order


def test_the_side_that_goes_first_changes_every_round() -> None:
    assert played(Turns(), 3) == ["theirs", "ours", "ours", "theirs", "theirs", "ours"]


def test_parts_of_one_round_alternate_too() -> None:
    turns = Turns()
    assert [played(turns, 1)[0] for _ in range(4)] == ["theirs", "ours", "theirs", "ours"]


def test_what_was_run_as_a_pair_stands_at_the_same_place() -> None:
    count = iter(range(100))
    mine, other = Turns().alternate(4, lambda: next(count), lambda: next(count))
    assert [abs(one - two) for one, two in zip(mine, other, strict=True)] == [1, 1, 1, 1]
