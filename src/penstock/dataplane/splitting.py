"""Which shards pass when an executor is split or two are merged. Pure decisions over what an engine has counted.

A split gives away whole tasks, the busiest ones in turn to each side, so that as few shards as possible change their
task; an executor of one task gives half of its load. Nothing is carried out here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.dataplane.program import operator_of
from penstock.dataplane.run import Run
from penstock.dataplane.state.protocol import U16
from penstock.errors import PlanError

if TYPE_CHECKING:
    from penstock.dataplane.engine import Engine


@dataclass(frozen=True)
class Pass:
    """Shards of one executor that another one is to have."""

    giver: str
    taker: str
    shards: U16
    tasks: int
    """That the taker gets for them, besides those it has."""


def plan_split(engine: Engine, name: str) -> Pass:
    """Return which shards begin a further executor.

    Args:
        name: an operator, whose busiest executor is split, or one executor of it.

    Raises:
        PlanError: it has no two shards to part.
    """
    found = [run for run in executors_of(engine, name) if len(run.shards.mine()) > 1]
    if not found:
        raise PlanError(f"'{name}' cannot be split: none of its executors has two shards.")
    run = max(found, key=lambda one: (float(one.counts.busy_s.sum()), len(one.shards.mine())))
    goal, busy = run.shards.goal, run.counts.busy_s
    mine = run.shards.mine()
    tasks = sorted({int(task) for task in goal[mine]})
    if len(tasks) > 1:
        loads = [(float(busy[goal == task].sum()), task) for task in tasks]
        given = [task for _, task in sorted(loads, reverse=True)[1::2]]
        shards = mine[np.isin(goal[mine], given)]
        count = len(given)
    else:
        shards, count = _half(mine, busy), 1
    return Pass(run.spec.name, engine.redealing.next_name(operator_of(name)), shards, count)


def _half(mine: U16, busy: npt.NDArray[np.float64]) -> U16:
    """About half of the load: the busiest shards in turn to each side."""
    order = mine[np.argsort(-busy[mine], kind="stable")]
    return np.sort(order[1::2])


def plan_merge(engine: Engine, name: str) -> Pass:
    """Return which shards go back so that there is one executor less.

    Args:
        name: an operator, whose idlest executor ends, or the executor of it that is to end.

    Raises:
        PlanError: there is no other executor.
    """
    operator = operator_of(name)
    every = executors_of(engine, operator)
    if len(every) < 2:
        raise PlanError(f"'{operator}' has one executor; there is nothing to merge.")
    load = {run.spec.name: float(run.counts.busy_s.sum()) for run in every}
    ending = [run for run in executors_of(engine, name) if name != operator or run.spec.name != operator]
    giver = min(ending, key=lambda one: load[one.spec.name])
    others = [run for run in every if run is not giver]
    taker = min(others, key=lambda one: load[one.spec.name])
    tasks = len({*giver.shards.goal[giver.shards.mine()].tolist()})
    return Pass(giver.spec.name, taker.spec.name, giver.shards.mine(), tasks)


def executors_of(engine: Engine, name: str) -> list[Run]:
    """Return the executors with shards that a name stands for: all of an operator, or one.

    Raises:
        PlanError: there is no such one.
    """
    runs = (
        engine.runs_of(name)
        if name in engine.program.stages
        else [engine.runs[name]]
        if name in engine.runs
        else []
    )
    found = [run for run in runs if run.spec.kind == "operator" and len(run.shards.mine())]
    if not found:
        raise PlanError(f"'{name}' is no operator, or an executor that has no shards.")
    return found
