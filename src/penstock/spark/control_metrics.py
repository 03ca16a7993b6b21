"""Metrics of the control loop of a query, in the form of those of the data plane. Reads the loop, changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.control.loop import ControlLoop
from penstock.dataplane.metrics import Metric


def _errors(loop: ControlLoop) -> dict[str, dict[str, Any]]:
    return {
        model: {
            "predictions": one.count,
            "meanAbsoluteRatio": round(one.mean_absolute_ratio, 4),
            "meanRatio": round(one.mean_ratio, 4),
        }
        for model, one in loop.journal.model_errors().items()
    }


CONTROL: Sequence[Metric[ControlLoop]] = (
    Metric("policy", "gauge", "", "by which the bound is held", lambda loop: loop.policy.name),
    Metric("sla", "gauge", "", "the bound, in words", lambda loop: str(loop.sla)),
    Metric(
        "decisions", "gauge", "decisions", "decisions in the journal; equal ones in a row are one",
        lambda loop: len(loop.journal.decisions()),
    ),
    Metric(
        "actions", "gauge", "decisions", "those of them that were acted on",
        lambda loop: sum(one.acted for one in loop.journal.decisions()),
    ),
    Metric(
        "modelErrors", "gauge", "",
        "by model: predictions that were checked against what was measured later, the mean of how far they were off, as a "
        "share of what was measured, and the same with its sign, above zero where latency is predicted too high", _errors,
    ),
)  # fmt: skip
