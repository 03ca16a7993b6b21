from __future__ import annotations

import numpy as np
import pytest

from penstock.workloads.order_stream import (
    MAX_TASKS,
    MEAN_PER_S,
    OPENING_PER_S,
    SECONDS,
    SEEDS,
    SERVICE_PER_S,
    SESSION_S,
    SHARDS,
    UNSEEN_SEEDS,
    make_order_day,
)

CHECKSUMS = {
    1: "159ba16439434efb",
    2: "b700acd556d931b6",
    3: "f61d85f639e5f974",
    4: "38c5f85c4ddb4824",
    5: "b14ec51e10c4d1af",
    6: "4175776cf60c47f3",
    7: "3493d37a265ad0ff",
    8: "465154334d40f57a",
    9: "de3e07a38af1c3f6",
    10: "d73c943803445608",
    101: "8193c7c57e098086",
    102: "bdefc88131dd0774",
    103: "882ebef046aa5756",
    104: "2671171bbd364ea1",
    105: "ea8dfa30b8012847",
}
"""Of rates and orders. A change here voids every published comparison; see the module's docstring."""


@pytest.mark.parametrize("seed", SEEDS + UNSEEN_SEEDS)
def test_the_days_of_the_comparison_are_the_ones_that_were_fixed_before_any_policy_ran(seed: int) -> None:
    assert make_order_day(seed).checksum() == CHECKSUMS[seed]


def test_a_checksum_sees_one_order_more() -> None:
    day = make_order_day(1)
    before = day.checksum()
    day.orders[100, 3] += 1
    assert day.checksum() != before


def test_a_day_has_the_numbers_that_the_paper_prints() -> None:
    day = make_order_day(1)
    assert day.orders.shape == (SECONDS, SHARDS) == (14_400, 64)
    total = day.rates.sum(axis=1)
    assert total.mean() == pytest.approx(MEAN_PER_S, rel=1e-4)
    assert MEAN_PER_S / SERVICE_PER_S == 5
    assert day.orders.sum() == pytest.approx(MEAN_PER_S * SECONDS, rel=0.01)
    assert total[[0, SESSION_S]] == pytest.approx([OPENING_PER_S] * 2, rel=1e-4)
    assert 70 <= OPENING_PER_S / MEAN_PER_S <= 80
    assert day.stock_share[0] > 0.02
    assert day.stock_share[:11].sum() > 0.10


def test_outside_the_openings_all_tasks_together_can_serve_the_load() -> None:
    for seed in SEEDS[:3]:
        total = np.delete(make_order_day(seed).rates.sum(axis=1), [0, SESSION_S])
        assert total.max() <= 0.9 * MAX_TASKS * SERVICE_PER_S + 1
        assert np.quantile(total, 0.01) < 500 < 1500 < np.quantile(total, 0.95)
