"""For how long cores are kept that the model would give back."""

from __future__ import annotations

import pytest

from penstock.control.policy.lingering import HOLD_S, REGRET_S, Holding


def give_and_take(holding: Holding, at_s: float, per_s: float, after_s: float = 5.0) -> None:
    holding.expect("a", 4, 100.0)
    holding.look("a", at_s, 3)
    holding.regret("a", at_s + after_s, per_s)
    holding.forget("a")


@pytest.mark.parametrize(
    ("per_s", "after_s", "kept"),
    [(100.0, 5.0, True), (130.0, 5.0, False), (100.0, REGRET_S + 1, False)],
    ids=["as many rows", "more rows", "long after"],
)
def test_cores_that_are_missed_though_no_more_rows_come_are_kept_then(
    per_s: float, after_s: float, kept: bool
) -> None:
    holding = Holding()
    give_and_take(holding, 0.0, per_s, after_s)
    assert (holding.until_s("a") == after_s + HOLD_S) == kept


def test_each_time_they_are_kept_for_longer() -> None:
    holding, at_s, held_s = Holding(), 0.0, []
    for _ in range(4):
        give_and_take(holding, at_s, 90.0)
        held_s.append(holding.until_s("a") - at_s - 5.0)
        at_s = holding.until_s("a") + 1.0
    assert held_s == [HOLD_S, 2 * HOLD_S, 4 * HOLD_S, 8 * HOLD_S]


def test_more_cores_that_were_never_given_back_teach_nothing() -> None:
    holding = Holding()
    holding.regret("a", 10.0, 0.0)
    assert holding.until_s("a") < 0


def test_cores_that_were_asked_for_and_never_given_back_teach_nothing() -> None:
    holding = Holding()
    holding.expect("a", 4, 100.0)
    holding.look("a", 1.0, 4)
    holding.regret("a", 2.0, 50.0)
    assert holding.until_s("a") < 0
