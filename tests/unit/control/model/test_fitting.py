"""The fit that a measurer is given learns the coefficients of each executor by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.unit.control.fake_plane import FakePlane

from penstock.control.measure.estimate import EpochCosts
from penstock.control.measure.estimating import Measurer
from penstock.control.model.epoch import epoch_duration_s
from penstock.control.model.fitting import EpochFits


def test_a_measurer_learns_what_epochs_cost() -> None:
    truth, fits = EpochCosts(0.02, 0.003, 0.0004, 1.5), EpochFits()
    measurer, plane, rng = Measurer(fit=fits), FakePlane([50.0, 50.0]), np.random.default_rng(1)
    epochs, spent_s, longest_s, touched = 0, 0.0, 0.0, 0
    for _ in range(60):
        share, shards = float(rng.uniform(0.2, 0.7)), int(rng.integers(1, 200))
        each_s = epoch_duration_s(truth, 2, shards, share)
        epochs, spent_s, touched = epochs + 10, spent_s + 10 * each_s, touched + 10 * shards
        longest_s += 10 * each_s * share
        sample = plane.step()
        match = replace(
            sample.executors["match"], epochs=epochs, epochs_s=spent_s, longest_task_s=longest_s,
            touched_shards=touched, latency_s=truth.c * each_s,
        )  # fmt: skip
        learnt = measurer.measure(replace(sample, executors={"match": match})).executors["match"].epoch
    assert learnt.o2_s == pytest.approx(truth.o2_s, rel=0.1)
    assert learnt.o0_s + 2 * learnt.o1_s == pytest.approx(truth.o0_s + 2 * truth.o1_s, rel=0.1)
    assert learnt.c == pytest.approx(truth.c, rel=0.1)
    assert fits.by_executor["match"].confidence > 0.5
