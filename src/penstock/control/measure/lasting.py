"""What shards with few rows weigh: by rows of minutes, not by those of one short window, in which most may have had none.

A shard without a row in the last moment is not one without load: dealt by such loads, shards end up in a heap. What all
of them together had lately is known well enough and stays as it was measured. Numbers only.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from penstock.control.measure.sample import F64

FEW_ROWS = 8.0
"""Rows within what rates are smoothed over below which chance makes most of a shard's rate."""

LASTS_S = 120.0
"""Time over which shards with few rows are looked at."""

_PRIOR_ROWS = 1.0
"""Of every shard in all that time, beside those it had: that none came so far does not say that none will."""


class LastingRates:
    """Rows a second of each shard over `LASTS_S`, later ones counting for more."""

    def __init__(self, shards: int) -> None:
        self._per_s = np.zeros(shards)
        self._seen_s = 0.0

    def add(self, per_s: F64, elapsed_s: float) -> None:
        """Take the rates of one interval."""
        self._seen_s += elapsed_s
        newest = max(-math.expm1(-elapsed_s / LASTS_S), elapsed_s / self._seen_s)
        self._per_s += newest * (per_s - self._per_s)

    def put(self, where: npt.NDArray[np.bool_], per_s: F64) -> None:
        """Replace what is known of some shards."""
        self._per_s[where] = per_s[where]

    def derive_load(
        self, per_s: F64, load: F64, row_s: F64, held: npt.NDArray[np.bool_], span_s: float
    ) -> F64 | None:
        """Return the load of each shard as it lasts: shards with few rows share what they have together by their rates over
        a longer time; all others keep theirs, to the last bit. None where that changes nothing.

        Args:
            per_s: rates of the last `span_s`.
            load: by those rates.
            row_s: useful time of a row of each shard.
            held: the shards of the executor.
        """
        few = held & (per_s * span_s < FEW_ROWS)
        total = float(load[few].sum())
        if total <= 0:
            return None
        prior = _PRIOR_ROWS / min(self._seen_s, LASTS_S) if self._seen_s > 0 else 1.0
        # One that had many rows until a moment ago is one of few now: it cannot have more than few have.
        rate = np.minimum(self._per_s[few], FEW_ROWS / span_s) + prior
        weight = rate * row_s[few]
        found = load.copy()
        found[few] = total / float(weight.sum()) * weight
        return found
