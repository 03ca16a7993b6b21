"""Random plans for a running engine: any tasks, on any nodes, with any shards, several stages at once.

Draws from the generator it is given alone, so that a seed is a plan. What it makes is mostly what the engine can carry
out; what it cannot, the engine has to refuse without a trace.
"""

from __future__ import annotations

import random

import numpy as np

from penstock.dataplane.engine import Engine
from penstock.dataplane.placement import Placement
from penstock.dataplane.state.protocol import U16

INDEXES = 12
"""New tasks get numbers below this one."""
MOST_TASKS = 4


def random_placement(engine: Engine, draw: random.Random, stage: str) -> Placement:
    """Keep some tasks of a stage, add some with free numbers anywhere, and deal its shards at random, or move few."""
    run = engine.runs[stage]
    most = min(MOST_TASKS, engine.serving.capacity if draw.random() < 0.9 else MOST_TASKS)
    most = min(most, run.spec.shards) if run.spec.kind == "operator" else most
    kept = [index for index in sorted(run.slots) if draw.random() < 0.6][:most]
    free = [index for index in range(INDEXES) if index not in run.slots]
    fresh = draw.sample(
        free, min(len(free), draw.randint(0 if kept else 1, max(1, min(2, most - len(kept)))))
    )
    nodes = sorted(engine.serving.known_nodes())
    tasks: dict[int, str | None] = dict.fromkeys(kept)
    tasks.update({index: draw.choice([None, *nodes]) for index in fresh[: max(1, most - len(kept))]})
    return Placement(stage, tasks, _deal(run.shards.goal, list(tasks), draw))


def random_plan(engine: Engine, draw: random.Random, most_stages: int = 3) -> list[Placement]:
    """Return placements for one or several stages that have tasks of their own."""
    stages = [name for name, run in engine.runs.items() if run.spec.kind != "sink" and not run.spec.ingested]
    # Operators have shards to move; sources are only now and then of interest.
    stages = [name for name in stages if engine.runs[name].spec.kind == "operator" or draw.random() < 0.2]
    chosen = draw.sample(stages, min(len(stages), draw.randint(1, most_stages)))
    return [random_placement(engine, draw, stage) for stage in chosen]


def _deal(now: U16, tasks: list[int], draw: random.Random) -> U16:
    few = draw.random() < 0.5
    dealt = [
        int(task) if few and task in tasks and draw.random() < 0.8 else draw.choice(tasks)
        for task in now.tolist()
    ]
    return np.array(dealt, np.uint16)
