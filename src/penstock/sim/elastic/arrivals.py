"""When rows come and for which shard: the input of a simulation, made piece by piece so that a long day needs little
memory. Seeded; the same pieces give the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from penstock.control.measure.sample import F64, I64


class Arrivals(Protocol):
    """A stream of rows in order of time."""

    shards: int

    def take(self, until_s: float) -> tuple[F64, I64]:
        """Return times and shards of the rows from where the last call ended until `until_s`, in order of time."""


class BinnedArrivals:
    """Rows from counts per bin and shard; inside a bin each row's moment is uniform, as in a Poisson process.

    Args:
        counts: [bin, shard] rows.
        bin_s: length of a bin.
        seed: of the moments inside the bins.
        bins_at_once: how much is made at a time.
    """

    def __init__(self, counts: I64, bin_s: float = 1.0, seed: int = 0, bins_at_once: int = 64) -> None:
        self.shards = int(counts.shape[1])
        self._counts = counts
        self._bin_s = bin_s
        self._rng = np.random.default_rng([0xA221, seed])
        self._at_once = bins_at_once
        self._bin = 0
        self._times: F64 = np.empty(0)
        self._shards: I64 = np.empty(0, np.int64)
        self._from = 0

    def take(self, until_s: float) -> tuple[F64, I64]:
        while self._bin * self._bin_s < until_s and self._bin < len(self._counts):
            self._make()
        to = int(self._times.searchsorted(until_s))
        found = self._times[self._from : to], self._shards[self._from : to]
        self._from = to
        return found

    def _make(self) -> None:
        piece = self._counts[self._bin : self._bin + self._at_once]
        cell = np.repeat(np.arange(piece.size), piece.ravel())
        times = (self._bin + cell // self.shards + self._rng.random(len(cell))) * self._bin_s
        order = np.argsort(times)
        self._times = np.concatenate([self._times[self._from :], times[order]])
        self._shards = np.concatenate([self._shards[self._from :], (cell % self.shards)[order]])
        self._from = 0
        self._bin += len(piece)


class TimedArrivals:
    """Rows at given moments, all of one shard."""

    shards = 1

    def __init__(self, times_s: F64) -> None:
        self._times = times_s
        self._from = 0

    def take(self, until_s: float) -> tuple[F64, I64]:
        to = int(self._times.searchsorted(until_s))
        found = self._times[self._from : to]
        self._from = to
        return found, np.zeros(len(found), np.int64)


class InTurn:
    """The moments of other arrivals, with the rows dealt to so many shards in turn."""

    def __init__(self, moments: Arrivals, shards: int) -> None:
        self.shards = shards
        self._moments = moments
        self._dealt = 0

    def take(self, until_s: float) -> tuple[F64, I64]:
        times, _ = self._moments.take(until_s)
        start, self._dealt = self._dealt, self._dealt + len(times)
        return times, np.arange(start, self._dealt) % self.shards


def poisson_arrivals(rates_per_s: F64, seconds: float, seed: int = 0, bin_s: float = 1.0) -> BinnedArrivals:
    """Rows of a Poisson process for each shard; rates are by shard, or by bin and shard."""
    bins = int(np.ceil(seconds / bin_s))
    rng = np.random.default_rng([0xB055, seed])
    rates = np.broadcast_to(rates_per_s, (bins, np.asarray(rates_per_s).shape[-1]))
    return BinnedArrivals(rng.poisson(rates * bin_s).astype(np.int64), bin_s, seed)


def rates_of(function: Callable[[F64], F64], weights: F64, seconds: float, bin_s: float = 1.0) -> F64:
    """Return rates by bin and shard, from a rate over time and each shard's share of it."""
    middle: F64 = np.arange(0.5, np.ceil(seconds / bin_s)) * bin_s
    found: F64 = function(middle)[:, None] * (weights / weights.sum())[None, :]
    return found
