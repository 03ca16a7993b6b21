"""Cores of an operator whose node is drained: where slots are free, as many as there are, never none."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.by_hand import take_off

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
