"""Operators in a row under the epoch model: portions, chance, and what follows from either."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.measure.estimate import EpochCosts
from penstock.control.model.epoch_chain import EpochLink, expected_most, predict_chain

COSTS = EpochCosts(o0_s=0.01, o1_s=0.001, o2_s=0.0, c=1.5)
FAST = EpochLink("fast", COSTS, 500.0, 0.0005, 64)
SLOW = EpochLink("slow", COSTS, 500.0, 0.004, 64)


def test_one_task_is_the_epoch_model_itself() -> None:
    found = predict_chain([FAST], {"fast": 1})["fast"]
    assert found.duration_s == pytest.approx(0.011 / (1 - 0.25), rel=1e-3)
    assert found.latency_s == pytest.approx(1.5 * found.duration_s)


def test_what_a_row_needs_to_come_in_is_added_once() -> None:
    cores = {"fast": 1, "slow": 4}
    without, within = (predict_chain([FAST, SLOW], cores, intake_s) for intake_s in (0.0, 0.02))
    assert within["fast"].latency_s == pytest.approx(without["fast"].latency_s + 0.02)
    assert within["slow"] == without["slow"]


def test_a_short_epoch_behind_a_long_one_takes_each_portion_whole_and_rows_do_not_wait() -> None:
    chain = predict_chain([SLOW, FAST], {"slow": 3, "fast": 1})
    alone = predict_chain([FAST], {"fast": 1})["fast"]
    behind = chain["fast"]
    assert alone.duration_s < behind.duration_s < chain["slow"].duration_s
    assert behind.duration_s == pytest.approx(0.011 + 500 * 0.0005 * chain["slow"].duration_s)
    assert behind.latency_s == behind.duration_s


def test_a_load_that_is_not_served_has_no_latency() -> None:
    found = predict_chain([SLOW, FAST], {"slow": 2, "fast": 1})
    assert found["slow"].latency_s == math.inf and found["fast"].latency_s == math.inf


@pytest.mark.parametrize("k", [2, 3, 5, 8, 16])
def test_the_busiest_of_many_is_as_far_above_the_mean_as_draws_say(k: int) -> None:
    draws = np.random.default_rng(1).normal(size=(40_000, k)).max(axis=1).mean()
    assert expected_most(k) == pytest.approx(draws, rel=0.06)
    assert expected_most(1) == 0.0


@given(st.integers(2, 16), st.floats(100.0, 800.0))
def test_more_load_never_means_less_latency(k: int, rate_per_s: float) -> None:
    def latency_s(rate: float) -> float:
        return predict_chain([replace(SLOW, rate_per_s=rate)], {"slow": k})["slow"].latency_s

    assert latency_s(rate_per_s) <= latency_s(rate_per_s * 1.1) * (1 + 1e-4)


def test_chance_makes_epochs_longer_than_an_even_split_would() -> None:
    even_s = 0.014 / (1 - 500 * 0.004 / 4)
    assert predict_chain([SLOW], {"slow": 4})["slow"].duration_s > 1.2 * even_s
