from __future__ import annotations

import pytest

from penstock.dataplane.emulation import SLOW, Slowness, read_slowness


class Sleeper:
    """A clock on which every sleep takes longer than asked for."""

    def __init__(self, late_s: float) -> None:
        self.now, self.late_s = 0.0, late_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds + self.late_s

    def clock(self) -> float:
        return self.now


def test_work_takes_the_factor_as_long_however_short_it_is_and_however_late_a_sleep_returns() -> None:
    time = Sleeper(late_s=0.004)
    slow = Slowness(2.5, time.clock, time.sleep)
    waited = sum(slow.stretch(0.001) for _ in range(10_000))
    assert waited == pytest.approx(15.0, rel=0.01)


def test_a_node_of_normal_speed_never_sleeps() -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError("slept")

    assert Slowness(1.0, sleep=sleep).stretch(3.0) == 0.0


@pytest.mark.parametrize(
    ("text", "factor"),
    [("2.0", 2.0), ("1", 1.0), ("0.5", 1.0), ("quick", 1.0), ("inf", 1.0), ("nan", 1.0), ("-3", 1.0)],
)
def test_the_factor_comes_from_the_environment_and_nonsense_changes_nothing(text: str, factor: float) -> None:
    assert read_slowness({SLOW: text}).factor == factor
    assert read_slowness({}).factor == 1.0
