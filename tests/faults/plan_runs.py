"""Random plans thrown at a topology of every shape on a real cluster, with workers killed and a node drained under load."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.spark_runs import CORES, Driver, Run, driver, violations

from penstock.spark.localcluster import LocalCluster

WORKERS = 3
RATE = 60.0
"""Rows a second of each of three sources; half of them have one of three keys."""


@contextmanager
def cluster() -> Iterator[LocalCluster]:
    """One cluster of three workers; its Python workers are watched."""
    with LocalCluster(workers=WORKERS, cores=CORES, memory="640m") as found:
        yield found


def throw_plans(
    on: LocalCluster, folder: Path, count: int, seed: int, *, kill_every: int = 5, drain: bool = True
) -> Iterator[str]:
    """Throw `count` random plans at a running query, about half of them as requests to its handle (cores, moves, splits,
    merges), every other one before the one before is done; kill a worker during every fifth; in the end drain a node and
    give it back. Then output and digests equal the undisturbed replay."""
    draw = random.Random(seed)
    run = Run(folder, rate=RATE, topology="shapes")
    with driver(on, run, nodes=WORKERS) as one:
        one.wait(lambda: one.rows > 0 and one.last["settled"], 120)
        for number in range(count):
            said = _throw(one, draw)
            if number % kill_every == kill_every - 1:
                said += f"; {_kill_worker(on, one, draw)}"
            if number % 2 or number == count - 1:
                _await_settled(one)
            else:
                _await_rows(one, draw.randint(1, 60))
            assert not violations(on)
            yield said
        if drain:
            yield _drain(on, one)
        one.finish()
    run.check()
    assert not violations(on)


def _throw(one: Driver, draw: random.Random) -> str:
    """Throw a plan; one that cannot be carried out is refused, and another one is thrown."""
    for _ in range(20):
        answer = one.tell({"plan": draw.randrange(1 << 30)})
        if "said" in answer:
            return str(answer["said"])
    raise AssertionError(f"no plan is taken: {answer['refused']}")


def _kill_worker(on: LocalCluster, one: Driver, draw: random.Random) -> str:
    """Kill a worker with its node while the plan is under way, and let another one join."""
    before = one.last["nodes"]
    victim = draw.choice(on.workers)
    node = on.node_of(victim)
    on.kill_worker(victim)
    on.add_worker()
    one.wait(lambda: node not in one.last["nodes"], 60)
    return f"worker {victim} with node {node} of {before} killed"


def _await_rows(one: Driver, more: int) -> None:
    goal = one.rows + more
    one.wait(lambda: one.rows >= goal, 120)


def _await_settled(one: Driver) -> None:
    """Wait until everything is as the last plan wants it, or as it was where the plan was given up."""
    one.wait(lambda: bool(one.last["settled"]), 120)
    _await_rows(one, 1)


def _drain(on: LocalCluster, one: Driver) -> str:
    """Drain a node that has leases, give it back, and go on without it."""
    one.wait(lambda: len(one.last["nodes"]) > 1 and one.last["settled"], 120)
    node = one.last["nodes"][-1]
    before = one.rows
    answer = one.tell({"drain": node, "seconds": 90.0}, 120)
    assert "said" in answer, answer
    one.wait(lambda: node not in one.last["nodes"] and one.rows > before, 60)
    assert node not in {found.executor_id for found in on.executors()}
    return str(answer["said"])
