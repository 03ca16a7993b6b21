"""The order stream of StreamSwitch 6: four trading hours of one exchange, as orders per second and shard.

The trace of the paper is not public, so a day is made from what the paper prints: how many stocks and orders, how skewed
they are, the two openings, rates that change from hundreds to thousands a second. A day is a pure function of its seed.
The constants were fixed, with the checksums of the fifteen days below, before any policy ran on them; a change made
for a policy's sake would make every comparison worthless, so the checksums are held by a test.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

STOCKS: Final = 1156
SHARDS: Final = 64
SECONDS: Final = 4 * 3600
SESSION_S: Final = 2 * 3600
"""Two sessions, morning and afternoon, one after the other: the pause between them is no part of the day."""
MEAN_PER_S: Final = 1000.0
"""Mean over the whole day, openings included (the paper's day: 14,854,215 orders, 1,031 a second)."""
SERVICE_PER_S: Final = 200.0
"""Orders a second of one task, which the paper does not print: the mean load fills five tasks."""
MAX_TASKS: Final = 20
OPENING_PER_S: Final = 75_000.0
"""During the first second of each session (the paper: 70 to 80 thousand)."""
CEILING_PER_S: Final = 3_600.0
"""Most orders a second outside the openings: 0.9 of what all tasks together can do."""
SKEW: Final = 0.6
"""Popularity of the stock of rank r is r^-0.6: the first holds 2.5 % of orders, the top 1 % (11) hold 11 %; the paper
says more than 2 % and more than 10 %."""
STATE_BYTES_PER_STOCK: Final = 16 * 1024
"""Pending orders of one stock: some hundred of a dozen fields."""

SEEDS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
UNSEEN_SEEDS: Final = (101, 102, 103, 104, 105)
"""Days that nobody looks at before the final table."""

_STREAM: Final = 0x57A7E
_MINUTE: Final = 60


@dataclass(frozen=True)
class OrderDay:
    """One day of orders."""

    seed: int
    rates: F64
    """[second, shard]: expected orders, to a thousandth."""
    orders: I64
    """[second, shard]: orders that come, Poisson around the rates."""
    state_bytes: I64
    """Per shard."""
    stock_share: F64
    """Share of all orders, per stock and most popular first, before bursts and drift."""

    def checksum(self) -> str:
        """Return a short SHA-256 over rates and orders."""
        digest = hashlib.sha256(np.round(self.rates * 1000).astype("<i8").tobytes())
        digest.update(self.orders.astype("<i8").tobytes())
        return digest.hexdigest()[:16]


def make_order_day(seed: int) -> OrderDay:
    """Make the day of a seed; the same seed always gives the same day."""
    rng = np.random.default_rng([_STREAM, seed])
    popularity = np.arange(1, STOCKS + 1, dtype=np.float64) ** -SKEW
    popularity /= popularity.sum()
    shard_of = rng.integers(0, SHARDS, STOCKS)
    weights = _shard_weights(rng, popularity, shard_of)
    market = _market(rng)
    rates = market[:, None] * weights
    opening = np.arange(SECONDS) % SESSION_S == 0
    rates[opening] *= (OPENING_PER_S / rates[opening].sum(axis=1))[:, None]
    rates = np.round(rates, 3)
    return OrderDay(
        seed,
        rates,
        rng.poisson(rates).astype(np.int64),
        np.bincount(shard_of, minlength=SHARDS).astype(np.int64) * STATE_BYTES_PER_STOCK,
        popularity,
    )


def _market(rng: np.random.Generator) -> F64:
    """Orders a second of all stocks: busy after an opening and before the close, with bursts, noisy in between."""
    second = np.arange(SECONDS)
    into = second % SESSION_S
    shape = 0.7 + 1.2 * np.exp(-into / 600.0)
    shape += 1.0 * np.exp(-(SECONDS - second) / 500.0)
    noise = _drift(rng, SECONDS, 1, sigma=0.2, memory=120.0) + _drift(rng, SECONDS, 1, sigma=0.15, memory=4.0)
    raw = shape * np.exp(noise[:, 0]) * (1.0 + _market_bursts(rng))
    opening = into == 0
    wanted = MEAN_PER_S * SECONDS - OPENING_PER_S * opening.sum()
    raw[opening] = 0.0
    # The ceiling takes a little away, so the scale that gives the wanted mean is found by repetition.
    scale = wanted / raw.sum()
    for _ in range(20):
        scale *= wanted / np.minimum(raw * scale, CEILING_PER_S).sum()
    found: F64 = np.minimum(raw * scale, CEILING_PER_S)
    found[opening] = OPENING_PER_S
    return found


def _market_bursts(rng: np.random.Generator) -> F64:
    """News that concerns all stocks: one in six minutes, half to twice the rate on top, gone after a minute or so."""
    extra = np.zeros(SECONDS)
    for start in rng.integers(0, SECONDS, rng.poisson(SECONDS / 360.0)):
        height, length = rng.uniform(0.5, 2.0), rng.uniform(10.0, 60.0)
        after = np.arange(min(SECONDS - start, int(6 * length)))
        extra[start : start + len(after)] += height * np.exp(-after / length)
    return extra


def _shard_weights(rng: np.random.Generator, popularity: F64, shard_of: I64) -> F64:
    """Share of each shard in the orders of each second: popularity that drifts by the minute, and bursts of single
    stocks."""
    minutes = SECONDS // _MINUTE + 1
    drifting = popularity * np.exp(_drift(rng, minutes, STOCKS, sigma=0.5, memory=20.0))
    by_minute = drifting @ (shard_of[:, None] == np.arange(SHARDS)).astype(np.float64)
    at = np.arange(SECONDS) / _MINUTE
    low = at.astype(np.int64)
    part = (at - low)[:, None]
    weights: F64 = by_minute[low] * (1 - part) + by_minute[low + 1] * part
    weights /= weights.sum(axis=1, keepdims=True)
    # One stock in two minutes becomes three to twelve times as busy, for up to a few minutes.
    chance = popularity**0.5 / (popularity**0.5).sum()
    for start in rng.integers(0, SECONDS, rng.poisson(SECONDS / 120.0)):
        stock = rng.choice(STOCKS, p=chance)
        more = min(popularity[stock] * rng.uniform(2.0, 11.0), 0.05)
        length = rng.uniform(20.0, 180.0)
        after = np.arange(min(SECONDS - start, int(5 * length)))
        weights[start : start + len(after), shard_of[stock]] += more * np.exp(-after / length)
    found: F64 = weights / weights.sum(axis=1, keepdims=True)
    return found


def _drift(rng: np.random.Generator, steps: int, width: int, *, sigma: float, memory: float) -> F64:
    """Return autoregressive noise of deviation sigma that forgets with the time constant `memory`, in steps."""
    keep = np.exp(-1.0 / memory)
    shocks = rng.normal(0.0, sigma * np.sqrt(1 - keep * keep), (steps, width))
    found = np.empty((steps, width))
    now = rng.normal(0.0, sigma, width)
    for step in range(steps):
        now = keep * now + shocks[step]
        found[step] = now
    return found
