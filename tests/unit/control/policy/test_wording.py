"""How numbers read in the sentences of decisions."""

from __future__ import annotations

import math

import pytest

from penstock.control.policy.wording import in_ms


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0.0 ms"),
        (1e-7, "0.1 µs"),
        (0.00002, "20 µs"),
        (0.0000999, "100 µs"),
        (0.0001, "0.1 ms"),
        (0.0035, "3.5 ms"),
        (0.084, "84 ms"),
        (10.0, "10000 ms"),
        (125.4, "125 s"),
        (5e8, "500,000,000 s"),
        (math.inf, "unbounded"),
    ],
)
def test_a_latency_is_written_in_the_unit_that_shows_it(seconds: float, said: str) -> None:
    assert in_ms(seconds) == said
