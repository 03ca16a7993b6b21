"""Random deals for a running engine: shards of an operator pass between its executors, split and merged at random.

Draws from the generator it is given alone, so that a seed is a deal. What the engine cannot carry out it has to refuse
without a trace.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from penstock.dataplane.engine import Engine
from penstock.dataplane.program import operator_of
from penstock.dataplane.state.protocol import U16

MOST_EXECUTORS = 4


@dataclass(frozen=True)
class RandomDeal:
    """What to ask of the engine."""

    giver: str
    taker: str
    shards: U16
    tasks: int


def random_deal(engine: Engine, draw: random.Random) -> RandomDeal | None:
    """Let some or all shards of an executor pass to another one, which may be new; None where nobody has shards."""
    givers = [
        name for name, run in engine.runs.items() if run.spec.kind == "operator" and len(run.shards.mine())
    ]
    if not givers:
        return None
    giver = draw.choice(givers)
    mine = engine.runs[giver].shards.mine()
    operator = operator_of(giver)
    others = [chain.name for chain in engine.chains.of(operator) if chain.name != giver]
    if len(others) < MOST_EXECUTORS - 1:
        others.append(engine.redealing.next_name(operator))
    taker = draw.choice(others)
    count = len(mine) if draw.random() < 0.3 else draw.randint(1, len(mine))
    return RandomDeal(
        giver, taker, np.array(sorted(draw.sample(mine.tolist(), count)), np.uint16), draw.randint(1, 3)
    )
