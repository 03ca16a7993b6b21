"""The latency bound that users declare, under the name by which the control plane knows it."""

from __future__ import annotations

from penstock.topology.sla import END_TO_END, MEAN, OPERATOR, SLA

__all__ = ["END_TO_END", "MEAN", "OPERATOR", "SLA"]
