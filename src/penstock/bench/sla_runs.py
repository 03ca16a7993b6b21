"""Runs of `bench sla`: one policy on one simulated day, and the file that remembers those that are done.

A run is kept as one line of JSON beside the result. It counts again only while the code that made it, the day and the
bound are the same, so that a bench that was cut off goes on where it was and never mixes two versions.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import penstock
from penstock.control.policy.drs import UNIT
from penstock.control.policy.registry import make_policy
from penstock.control.sla import OPERATOR, SLA
from penstock.sim.elastic.cases import Case, order_stream_case
from penstock.sim.elastic.compare import ORACLE, Contender, Result, make_guards, run, run_oracle, static
from penstock.sim.elastic.setting import Costs
from penstock.workloads import order_stream

EPSILON = 0.2
"""ε that a plain name stands for."""
STATIC = "static_"
MEASURED: Final = Costs(within_node_s=0.0036, move_fixed_s=0.037, move_bytes_per_s=370e6)
"""What a move holds a shard up for, as measured by `penstock bench rescale`: 3.6 ms inside a node; to another one 37 ms
with 32 KB of state and 123 ms with 32 MB, so 37 ms and one more for every 370 kB."""
DRS_OPTIONS: Final = {"migration": UNIT, "reallocation_s": 60.0}
"""drs and drs-lb carry their numbers out by the unit moves of streamswitch (StreamSwitch 6, metrics). Their T_ra is a
minute: DRS publishes 3 and 6 minutes for a bound of a second (figure 9), with re-allocations that take seconds, and ours
take less. StreamSwitch does not say which it used, so `_ra0` stands beside: no T_ra at all."""


@dataclass(frozen=True)
class Run:
    """What to simulate."""

    policy: str
    """`oracle`, `static_8`, `streamswitch`, `streamswitch_e0.4`, `drs-lb_ra0`."""
    seed: int
    seconds: float
    latency_s: float = 1.0
    window_s: float = 1.0


@dataclass(frozen=True)
class Done:
    """A run, and what came of it."""

    run: Run
    success: float
    tasks: float
    mean_s: float
    p99_s: float
    actions: int
    moved_shards: int
    day: str
    """Checksum of the day; those of all seeds were committed before any policy ran."""
    code: str


def make_case(one: Run) -> Case:
    """Return the order stream of a run's day under its bound."""
    sla = SLA(one.latency_s, one.window_s, scope=OPERATOR)
    return order_stream_case(one.seed, seconds=one.seconds, sla=sla, costs=MEASURED)


def make_contender(policy: str) -> Contender:
    """Return the policy that a name stands for: `NAME` has ε = 0.2, `NAME_e0.4` another one, `static_8` no policy.

    `NAME_ra0` is drs or drs-lb without a least time between two re-allocations.
    """
    if policy.startswith(STATIC):
        return static(int(policy.removeprefix(STATIC)))
    name, *marks = policy.split("_")
    options: dict[str, Any] = {"margin": EPSILON}
    options |= DRS_OPTIONS if name in ("drs", "drs-lb") else {}
    for mark in marks:
        key, cut = ("reallocation_s", "ra") if mark.startswith("ra") else ("margin", "e")
        options[key] = float(mark.removeprefix(cut))
    return Contender(
        policy, lambda: make_policy(name, **options), guards=make_guards(make_policy(name, **options))
    )


def simulate(one: Run) -> tuple[Done, Result]:
    """Carry a run out."""
    case = make_case(one)
    found = run_oracle(case) if one.policy == ORACLE else run(case, make_contender(one.policy))
    done = Done(
        one, found.success, found.mean_tasks, found.mean_s, found.p99_s, found.actions, found.moved_shards,
        _checksum(one.seed), code(),
    )  # fmt: skip
    return done, found


@cache
def _checksum(seed: int) -> str:
    return order_stream.make_order_day(seed).checksum()


@cache
def code() -> str:
    """Return a short digest of everything that a run's outcome depends on."""
    root, digest = Path(penstock.__file__).parent, hashlib.sha256()
    files = [p for folder in ("control", "sim/elastic") for p in sorted((root / folder).rglob("*.py"))]
    for path in [*files, root / "workloads" / "order_stream.py", root / "bench" / "sla_runs.py"]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Runs:
    """Runs that are done, kept in a file where there is one.

    Args:
        path: lines of JSON; None keeps them in memory only.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._done: dict[Run, Done] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._read(line)

    def _read(self, line: str) -> None:
        try:
            raw = json.loads(line)
            done = Done(**{**raw, "run": Run(**raw["run"])})
        except (ValueError, TypeError, KeyError):
            return  # the last line of a bench that was cut off
        if done.code == code():
            self._done[done.run] = done

    def get(self, one: Run) -> Done | None:
        return self._done.get(one)

    def add(self, done: Done) -> None:
        """Keep a run that was carried out."""
        self._done[done.run] = done
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                # The line's end first: what stands there may be a line that was cut off.
                file.write("\n" + json.dumps(dataclasses.asdict(done)))

    def find(self, runs: Iterable[Run]) -> list[Done]:
        """Return those of some runs that are done."""
        return [done for one in runs if (done := self._done.get(one)) is not None]
