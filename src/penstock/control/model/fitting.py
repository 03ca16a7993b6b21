"""The epoch model of every executor, fitted as it runs: what a `Measurer` is given as its `fit`."""

from __future__ import annotations

from penstock.control.measure.estimate import EpochCosts
from penstock.control.measure.sample import ExecutorSample
from penstock.control.model.epoch_fit import EpochFit, derive_observation


class EpochFits:
    """One fit per executor; call it with two samples of one and get its coefficients."""

    def __init__(self, prior: EpochCosts | None = None) -> None:
        self._prior = prior or EpochCosts()
        self.by_executor: dict[str, EpochFit] = {}

    def __call__(
        self, name: str, before: ExecutorSample, after: ExecutorSample, latency_s: float | None
    ) -> EpochCosts | None:
        """Learn from what lies between two samples; None while nothing was learnt, so that the prior stays."""
        fit = self.by_executor.setdefault(name, EpochFit(self._prior))
        seen = derive_observation(before, after, latency_s)
        if seen is not None:
            fit.observe(seen)
        return fit.costs if fit.observations else None
