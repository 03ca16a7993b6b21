"""Answers what `penstock query` asks of a running query: each verb is a call of its handle. Decides nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from penstock.dataplane.requests import Answer, Request
from penstock.errors import PlanError
from penstock.spark.asking import DRAIN_S
from penstock.spark.node_draining import NotDrained
from penstock.topology.sla import END_TO_END, MEAN, SLA

if TYPE_CHECKING:
    from penstock.spark.query import Query


def carry_out(query: Query, request: Request) -> Answer:
    """Do what was asked and say what came of it.

    Raises:
        PenstockError: it cannot be done, and why.
    """
    verb = VERBS.get(request.verb)
    if verb is None:
        raise PlanError(f"there is no request '{request.verb}'; there are {', '.join(VERBS)}.")
    return verb(query, request)


def _rescale(query: Query, asked: Request) -> Answer:
    return Answer(True, query.rescale(asked.operator, asked.cores, asked.nodes or None))


def _move(query: Query, asked: Request) -> Answer:
    return Answer(True, query.move(asked.operator, asked.shards, asked.task))


def _split(query: Query, asked: Request) -> Answer:
    return Answer(True, query.split(asked.operator))


def _merge(query: Query, asked: Request) -> Answer:
    return Answer(True, query.merge(asked.operator))


def _drain(query: Query, asked: Request) -> Answer:
    try:
        return Answer(True, query.drain(asked.node, asked.release, asked.wait_s or DRAIN_S))
    except NotDrained as error:
        return Answer(False, str(error))


def _undrain(query: Query, asked: Request) -> Answer:
    return Answer(True, query.undrain(asked.node))


def _pause(query: Query, asked: Request) -> Answer:
    query.pause()
    return Answer(True, "paused; epochs in flight are committed, leases are kept")


def _resume(query: Query, asked: Request) -> Answer:
    query.resume()
    return Answer(True, "resumed")


def _hold(query: Query, asked: Request) -> Answer:
    quantile = MEAN if asked.quantile is None else asked.quantile
    sla = SLA(asked.latency_s, asked.window_s, quantile, asked.scope or END_TO_END)
    query.elasticity.hold(sla, asked.policy or "penstock")
    return Answer(True, f"holds a {sla} by policy {asked.policy or 'penstock'}")


def _decisions(query: Query, asked: Request) -> Answer:
    found = [str(decision) for decision in query.decisions()]
    return Answer(True, f"{len(found)} decisions" if found else "no decision so far", found)


def _tasks(query: Query, asked: Request) -> Answer:
    return Answer(True, "tasks by operator and node", query.elasticity.describe())


def _rates(query: Query, asked: Request) -> Answer:
    rates, confidence = query.elasticity.rates()
    return Answer(True, confidence, [json.dumps(asdict(one)) for one in rates])


VERBS: dict[str, Callable[[Query, Request], Answer]] = {
    "rescale": _rescale,
    "move": _move,
    "split": _split,
    "merge": _merge,
    "drain": _drain,
    "undrain": _undrain,
    "pause": _pause,
    "resume": _resume,
    "hold": _hold,
    "decisions": _decisions,
    "tasks": _tasks,
    "rates": _rates,
}
SLOW = ("drain", "rates")
"""Verbs that wait for something to happen."""
