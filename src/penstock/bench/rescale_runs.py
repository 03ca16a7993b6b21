"""What the parts of `bench rescale` share: a query under load whose shards have a set size, changes made to it one after
the other, and how long each held rows up. Decides nothing about what is compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

import numpy as np

from penstock.bench import emulated
from penstock.bench.changing import (
    Change,
    ChangeError,
    apply_plan,
    ask,
    await_that,
    plan_move,
    shard_sizes,
    watch_change,
)
from penstock.bench.emulated import NAME, Calculate, InTurn
from penstock.bench.ours import await_rows, running
from penstock.bench.result import BenchResult, spread
from penstock.control.apply.actuator import Outcome

KEYS_PER_SHARD: Final = 16
ROWS_PER_S: Final = 600.0
"""Of 1 ms each: a third of what two cores can do, so that a held-up row is not lost in a queue."""
FILL_PER_S: Final = 6_000.0
"""Rows that fill the state take no time, and come so fast: many keys would else take minutes."""
CHANGE_TIMEOUT_S: Final = 90.0
CALM_TIMEOUT_S: Final = 180.0
"""Generous, for a busy machine: with 32 upstream executors and a load of 9 it took 50 s."""
CALM_S: Final = 2.0
CALM_LOOKS: Final = 8
CALM_RATIO: Final = 0.002
"""The size of the state stands still when it has changed by less than this share of it for so long."""


@dataclass(frozen=True)
class Held:
    """State of the operator: shards, the bytes of each, and keys."""

    shards: int
    shard_bytes: int
    keys: int

    @staticmethod
    def of(shards: int, shard_bytes: int, key_bytes: int | None = None) -> Held:
        """State of so many shards, with a set number of keys each, or keys of a set size."""
        return Held(
            shards,
            shard_bytes,
            KEYS_PER_SHARD * shards if key_bytes is None else shards * shard_bytes // key_bytes,
        )

    @property
    def bytes(self) -> int:
        return self.shards * self.shard_bytes

    @property
    def key_bytes(self) -> int:
        return emulated.key_bytes_for(self.shard_bytes, self.shards, self.keys)


@contextmanager
def loaded(held: Held, cores: int, upstream: int = 1, fill: bool = False, **options: object) -> Iterator[Any]:
    """A query whose shards have so much state, under load from so many upstream executors.

    Args:
        fill: let the first row of each key come fast and take no time.
    """
    work = Calculate(1e-3, held.key_bytes, first_is_free=fill)
    rate: Any = ROWS_PER_S / upstream
    if fill:
        rate = [(held.keys / FILL_PER_S, FILL_PER_S / upstream), (0.0, rate)]
    sources = [emulated.source(InTurn(held.keys), rate, f"rows{number}") for number in range(upstream)]
    rows = reduce(lambda one, other: one.union(other), sources)
    with running(emulated.calculate(rows, work, cores, held.shards), **options) as query:
        await_rows(query, NAME, held.keys + 100 * upstream)
        await_calm(query, float(str(options.get("minEpochSeconds", 0.0))))
        yield query


@dataclass
class Calm:
    """Looks at a query, and what of them is not calm yet. `pace_s` is the shortest time between two epochs."""

    pace_s: float = 0.0
    sizes: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)

    @property
    def room(self) -> float:
        """Rows that may wait: those of a quarter second, and those that gather between two epochs at their source and
        again at the operator."""
        return ROWS_PER_S * (0.25 + 2 * self.pace_s)

    def look(self, state_bytes: int, waiting_rows: int) -> None:
        self.sizes.append(state_bytes)
        self.waiting.append(waiting_rows)

    def unrest(self, due_snapshots: int) -> str:
        """Say what is not calm; nothing where all is."""
        if len(self.sizes) <= CALM_LOOKS:
            return "no look was long enough"
        grown, least = abs(self.sizes[-1] - self.sizes[-1 - CALM_LOOKS]), min(self.waiting[-CALM_LOOKS:])
        told = [
            f"state grew by {grown:,} of {self.sizes[-1]:,} bytes in {CALM_S:g} s"
            if grown > CALM_RATIO * self.sizes[-1]
            else "",
            f"{least:,} rows waited where {self.room:,.0f} may" if least > self.room else "",
            f"{due_snapshots} snapshots were due" if due_snapshots else "",
        ]
        return ", ".join(filter(None, told))


def await_calm(query: Any, pace_s: float = 0.0, timeout_s: float = CALM_TIMEOUT_S) -> None:
    """Wait until what filling the state left behind is done: no more rows wait than come to wait at this pace, no shard is
    due for a snapshot, tasks have written all state to their nodes, so that its size stands still, and the disk has
    everything. With much state that takes some seconds, and is no part of any change.

    Raises:
        ChangeError: it was not done in time; names what was not calm.
    """
    calm, deadline = Calm(pace_s), time.monotonic() + timeout_s
    while True:
        time.sleep(CALM_S / CALM_LOOKS)
        if query.exception() is not None:
            raise query.exception()
        facts = query.lastProgress["operators"][NAME]
        calm.look(facts["stateBytes"], facts["waitingRows"])
        unrest = calm.unrest(ask(query, _due_snapshots))
        if not unrest:
            break
        if time.monotonic() > deadline:
            raise ChangeError(f"the query was not calm within {timeout_s:.0f} s: {unrest}.")
    os.sync()


def _due_snapshots(engine: Any) -> int:
    return len(engine.operators._due_snapshots(engine.runs[NAME]))


def move_to_and_fro(query: Any, target_bytes: int, moves: int, pause: bool = False) -> list[Change]:
    """Move the shard whose state is nearest to a size from its task to the other and back, again and again."""
    shard = int(np.abs(shard_sizes(query, NAME) - target_bytes).argmin())
    found = []
    for _ in range(moves):
        now = query.elasticity._actuator.current()[NAME]
        other = next(task for task in now.tasks if task != now.task_of[shard])
        plan = plan_move(query, NAME, shard, other, pause)
        found.append(watch_change(query, NAME, lambda plan=plan: apply_plan(query, plan)))  # type: ignore[misc]
        time.sleep(0.1)
    return found


def undisturbed(query: Any, seconds: float = 2.0) -> tuple[Change, float]:
    """Return what there is to see, and the mean length of an epoch, while nothing changes."""
    before = ask(query, lambda engine: _epochs(engine))
    change = watch_change(query, NAME, lambda: _nothing(seconds))
    epochs, epochs_s = (now - was for was, now in zip(before, ask(query, _epochs), strict=True))
    return change, epochs_s / max(1, epochs)


def usual_ms(quiet: Sequence[Change]) -> float:
    """Return the median time of rows from arrival to commit while nothing changes, of several looks."""
    return float(np.median([one.latency.p50_ms for one in quiet if one.latency is not None]))


def add_quiet(result: BenchResult, name: str, quiet: Sequence[Change]) -> None:
    """Add what rows and commits take while nothing changes."""
    seen = [one.latency for one in quiet if one.latency is not None]
    result.add_figures(
        **{
            f"{name}_undisturbed_p50_ms": spread([one.p50_ms for one in seen]),
            f"{name}_undisturbed_p99_ms": spread([one.p99_ms for one in seen]),
            f"{name}_undisturbed_worst_row_ms": spread([one.max_ms for one in seen]),
            f"{name}_undisturbed_gap_ms": spread([1e3 * one.gap_s for one in quiet]),
        }
    )


def add_changes(result: BenchResult, name: str, changes: Sequence[Change], usual: float) -> list[float]:
    """Add how long changes held rows up, in every sense; return the seconds that rows came later than usual."""
    late = [change.late_s(usual) for change in changes]
    slowest = [max((move.held_up_s for move in change.moves), default=0.0) for change in changes]
    result.add_figures(
        **{
            f"{name}_held_up_ms": spread([1e3 * one for one in late]),
            f"{name}_p99_ms": spread([one.latency.p99_ms for one in changes if one.latency is not None]),
            f"{name}_commit_gap_ms": spread([1e3 * change.gap_s for change in changes]),
            f"{name}_shard_held_up_ms": spread([1e3 * one for one in slowest]),
            f"{name}_took_s": spread([change.outcome.took_s for change in changes]),
        }
    )
    return late


def add_moves(result: BenchResult, name: str, changes: Sequence[Change]) -> None:
    """Add what single moves came to: hold-up of the shard, the wait before it, and the longest gap of the others."""
    moves = [move for change in changes for move in change.moves]
    for what, samples in (
        ("ms", [1e3 * move.held_up_s for move in moves]),
        ("wait_ms", [1e3 * (move.released_at - move.wanted_at) for move in moves]),
        ("commit_gap_ms", [1e3 * change.gap_s for change in changes]),
        ("moved_bytes", [float(move.bytes) for move in moves]),
    ):
        result.add_figures(**{f"{name}_{what}": spread(samples)})


def rescale(query: Any, wanted: int, by_node: dict[str, int] | None = None) -> Outcome:
    """Give the operator so many cores, and wait until it has them."""
    began = time.monotonic()
    query.rescale(NAME, wanted, by_node)
    await_that(
        lambda: ask(query, lambda engine: engine.placing.is_settled(NAME)),
        f"a change to {wanted} cores",
        CHANGE_TIMEOUT_S,
        query,
        every_s=0.005,
    )
    return Outcome(True, took_s=time.monotonic() - began)


def _nothing(seconds: float) -> Outcome:
    time.sleep(seconds)
    return Outcome(True)


def _epochs(engine: Any) -> tuple[float, float]:
    counts = engine.runs[NAME].counts
    return counts.epochs, counts.epochs_s
