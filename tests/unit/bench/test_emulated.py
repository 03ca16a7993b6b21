"""The emulated operator: as long as it should take in the mean, and state of the size that is asked for."""

from __future__ import annotations

import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penstock.bench import emulated
from penstock.bench.emulated import Calculate, InTurn, Service, key_bytes_for


class SlowClock:
    """Sleeps take so much longer than asked for."""

    def __init__(self, late_s: float) -> None:
        self.now_s = 0.0
        self.late_s = late_s

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds + self.late_s


def test_the_mean_service_time_holds_though_every_sleep_is_late() -> None:
    time = SlowClock(late_s=0.002)
    service = Service(clock=time.clock, sleep=time.sleep)
    for _ in range(10_000):
        service.serve(0.001)
    assert time.now_s == pytest.approx(10.0, rel=0.002)


def test_a_long_pause_is_not_caught_up_with() -> None:
    time = SlowClock(late_s=10.0)
    service = Service(clock=time.clock, sleep=time.sleep)
    service.serve(0.01)
    time.late_s, began = 0.0, time.now_s
    for _ in range(200):
        service.serve(0.001)
    assert time.now_s - began >= 0.2 - service.max_credit_s - service.at_least_s


class Value:
    def __init__(self) -> None:
        self.value: Any = None

    def get(self) -> Any:
        return self.value

    def update(self, value: Any) -> None:
        self.value = value


def test_a_key_counts_its_rows_and_keeps_what_it_got_first() -> None:
    state = SimpleNamespace(seen=Value(), kept=Value())
    work = Calculate(row_s=0.0, key_bytes=5)
    key = SimpleNamespace(key=7)
    assert work(key, [1, 2], state) == [(7, 2)]
    state.kept.value = b"kept"
    assert work(key, [3], state) == [(7, 3)]
    assert state.kept.value == b"kept"


def test_what_a_key_keeps_is_of_the_size_asked_for_and_the_same_every_time() -> None:
    kept = []
    for number in (7, 7, 8):
        state = SimpleNamespace(seen=Value(), kept=Value())
        Calculate(row_s=0.0, key_bytes=500)(SimpleNamespace(key=number), [1], state)
        kept.append(state.kept.value)
    assert kept[0] == kept[1] != kept[2]
    assert len(kept[0]) == 500
    assert len(zlib.compress(kept[0])) >= 500


def test_rows_that_bring_a_key_take_no_time_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[float] = []
    monkeypatch.setattr(emulated, "serve", served.append)
    state, key = SimpleNamespace(seen=Value(), kept=Value()), SimpleNamespace(key=7)
    work = Calculate(row_s=0.5, key_bytes=5, first_is_free=True)
    work(key, [1, 2], state)
    assert served == []
    work(key, [3], state)
    assert served == [0.5]


def test_shards_come_to_the_size_that_is_asked_for() -> None:
    assert key_bytes_for(32 << 10, shards=256, keys=10_000) * 10_000 == pytest.approx(
        256 * (32 << 10), rel=0.01
    )


def test_keys_in_turn_touch_each_once_before_any_twice() -> None:
    keys = InTurn(50)(0, 50).column("key").to_numpy()
    assert sorted(keys.tolist()) == list(range(50))
    assert np.array_equal(InTurn(50)(30, 40).column("key").to_numpy(), np.arange(30, 70) % 50)
