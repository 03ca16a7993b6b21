"""The latency bound that users state. Declared here, held by the control plane."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from penstock.errors import DeclarationError

MEAN = "mean"
OPERATOR = "operator"
END_TO_END = "end-to-end"


@dataclass(frozen=True)
class SLA:
    """Hold the latency of rows under a bound in every window.

    Args:
        latency: the bound L, in seconds.
        window: the time T, in seconds, over which latency is taken together.
        quantile: "mean", or a number between 0 and 1 such as 0.99.
        scope: "operator" bounds each operator on its own; "end-to-end" bounds the time from a row's arrival at its
            source until the last row derived from it is committed.

    Raises:
        DeclarationError: a bound that cannot be meant.
    """

    latency: float
    window: float = 1.0
    quantile: float | str = MEAN
    scope: str = END_TO_END

    def __post_init__(self) -> None:
        for name, seconds in (("latency", self.latency), ("window", self.window)):
            number = isinstance(seconds, Real) and not isinstance(seconds, bool)
            if not number or not 0 < seconds < math.inf:
                raise DeclarationError(f"SLA: {name} must be a positive number of seconds, not {seconds!r}.")
        if self.quantile != MEAN and not (isinstance(self.quantile, float) and 0 < self.quantile < 1):
            raise DeclarationError(
                f'SLA: quantile must be "mean" or a number between 0 and 1 such as 0.99, not {self.quantile!r}.'
            )
        if self.scope not in (OPERATOR, END_TO_END):
            raise DeclarationError(f'SLA: scope must be "{OPERATOR}" or "{END_TO_END}", not {self.scope!r}.')

    @property
    def is_mean(self) -> bool:
        return self.quantile == MEAN

    def __str__(self) -> str:
        what = "mean" if self.is_mean else f"p{100 * float(self.quantile):g}"
        return (
            f"{what} latency of at most {self.latency * 1e3:g} ms in every {self.window:g} s ({self.scope})"
        )
