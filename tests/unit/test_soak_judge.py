"""The judge of a soak on made-up series: leaks are found, saw-teeth and noise are none."""

from __future__ import annotations

import random

import pytest
from tests.soak.judge import MIB, Verdict, judge

MINUTES = 60


def samples(name: str, value: list[float], every_s: float = 5.0) -> list[dict[str, object]]:
    return [{"at_s": at * every_s, "values": {name: one}} for at, one in enumerate(value)]


def verdict(name: str, value: list[float]) -> Verdict:
    (found,) = judge(samples(name, value))
    return found


def minutes() -> list[float]:
    return [at * 5.0 / 60 for at in range(MINUTES * 12)]


@pytest.mark.parametrize("base", [60 * MIB, 300 * MIB, 1100 * MIB])
def test_a_leak_of_a_mebibyte_a_minute_is_found(base: float) -> None:
    rng = random.Random(1)
    value = [base + at * MIB + rng.gauss(0, 2 * MIB) for at in minutes()]
    assert verdict("resident bytes: driver", value).trend


def test_a_leak_under_a_saw_tooth_of_clean_up_is_found() -> None:
    value = [300 * MIB + at * MIB + (at * 4 % 1) * 12 * MIB for at in minutes()]
    assert verdict("resident bytes: driver", value).trend


def test_a_leak_in_steps_is_found() -> None:
    value = [300 * MIB + (at // 5) * 5 * MIB for at in minutes()]
    assert verdict("resident bytes: jvm", value).trend


def test_one_open_file_every_two_minutes_is_found() -> None:
    assert verdict("open files: driver", [80 + at // 2 for at in minutes()]).trend


def test_epochs_that_take_ever_longer_are_found() -> None:
    rng = random.Random(2)
    value = [10 + at * 0.1 + rng.gauss(0, 0.5) for at in minutes()]
    assert verdict("epoch ms: totals", value).trend


@pytest.mark.parametrize("period", [0.5, 3.0, 11.0])
def test_a_saw_tooth_is_no_trend(period: float) -> None:
    value = [200 * MIB + (at / period % 1) * 100 * MIB for at in minutes()]
    assert not verdict("disk bytes: checkpoint", value).trend


def test_warm_up_is_no_trend() -> None:
    value = [min(300.0, 100 + 15 * at) * MIB for at in minutes()]
    assert not verdict("resident bytes: jvm", value).trend


def test_noise_and_one_step_are_no_trend() -> None:
    rng = random.Random(3)
    noisy = [10 + rng.expovariate(1 / 3) for _ in minutes()]
    assert not verdict("epoch ms: ruled", noisy).trend
    stepped = [(300 if at < 40 else 330) * MIB + rng.gauss(0, MIB) for at in minutes()]
    assert not verdict("resident bytes: lease", stepped).trend


def test_what_shrinks_is_no_trend() -> None:
    assert not verdict("threads: jvm", [200 - at for at in minutes()]).trend


def test_a_process_that_was_there_for_a_while_is_not_judged_alone() -> None:
    here = samples("resident bytes: lease", [1.0 * at * MIB for at in range(60)])
    rest = [{"at_s": at * 5.0, "values": {"threads: all": 3.0}} for at in range(60, 720)]
    assert [one.series for one in judge([*here, *rest])] == ["threads: all"]
