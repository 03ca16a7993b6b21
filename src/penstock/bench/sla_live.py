"""The Spark part of `bench sla`: policies on a compressed stretch of the order stream, live, with an emulated service time;
and the same stretch simulated, beside it.

The simulator is calibrated by the first policy that was run live: what a row, an epoch and a new task took in it; its
error is that of the other policies. Success is counted by the data plane from the arrival and commit of rows, by shard
and window; policies do not see it.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

import penstock
from penstock.bench import emulated
from penstock.bench.changing import ask
from penstock.bench.emulated import NAME, Calculate
from penstock.bench.machine import CpuMeter
from penstock.bench.order_slice import COMPRESSED, MAX_TASKS, SERVICE_PER_S, SHARDS, OrderSlice
from penstock.bench.ours import await_rows, running
from penstock.bench.result import BenchResult
from penstock.bench.sla_runs import DRS_OPTIONS, EPSILON, MEASURED
from penstock.control.measure.sample import ExecutorSample
from penstock.control.policy.protocol import Limits, Policy
from penstock.control.policy.registry import make_policy
from penstock.control.sla import OPERATOR, SLA
from penstock.sim.elastic.arrivals import BinnedArrivals
from penstock.sim.elastic.cases import Case
from penstock.sim.elastic.compare import ORACLE, Contender, Result, make_guards, run, run_oracle, static
from penstock.sim.elastic.setting import (
    Costs,
    EpochTiming,
    Setting,
    SimExecutor,
    SimNode,
    SimOperator,
    spread_evenly,
)
from penstock.spark.measuring import take_sample

SWITCH: Final = "streamswitch"
STATIC: Final = "static"
CALIBRATING: Final = ("row_s", "epoch_overhead_s", "touched_shards", "tasks", "placed_s")
"""What of a `Done` calibrates."""
POLICIES: Final = (SWITCH, "drs", "drs-lb", STATIC, "penstock")
"""In the order in which they run: the static one has as many tasks as streamswitch had on the mean, rounded up."""
BOUND: Final = SLA(1.0, 1.0, scope=OPERATOR)
EVERY_S: Final = 0.5
WARM_S: Final = 15
"""Seconds at a low rate, for tasks to start; not judged."""
START_TASKS: Final = 3
"""What the mean load of the stretch fills."""
MAX_EPOCH_S: Final = 0.4
"""Long enough that chance does not leave most tasks idle at the end of an epoch: a task has 80 rows in it."""


@dataclass(frozen=True)
class Done:
    """What came of one policy."""

    policy: str
    success: float
    tasks: float
    mean_s: float
    p99_s: float
    actions: int
    held_up_s: float = 0.0
    """Median time that a shard that moved sat out."""
    placed_s: float = 0.0
    """Median time from the wish to move a shard until its new task had it, a new task's start included."""
    row_s: float = 0.0
    """Useful time of a row; its sleep is shorter."""
    epoch_overhead_s: float = 0.0
    """Mean time of an epoch in which its busiest task does not work."""
    touched_shards: float = 0.0
    """Shards with rows in an epoch, on the mean."""
    real_cores: float = 0.0
    system_load: float = 0.0


@dataclass(frozen=True)
class Calibration:
    """What the simulator takes from a live run."""

    service_per_s: float
    epochs: EpochTiming
    costs: Costs


def derive_calibration(seen: Mapping[str, float]) -> Calibration:
    """Return the simulator's settings by what a `Done` says of its run: the time of a row as it was, the costs of an epoch
    in the proportions of the defaults, and as a new task's start the time until a shard had its new task."""
    usual = EpochTiming(max_work_s=MAX_EPOCH_S)
    overhead_s = usual.o0_s + usual.o1_s * seen["tasks"] + usual.o2_s * seen["touched_shards"]
    times = seen["epoch_overhead_s"] / overhead_s
    timing = replace(usual, o0_s=times * usual.o0_s, o1_s=times * usual.o1_s, o2_s=times * usual.o2_s)
    start_s = seen["placed_s"] or MEASURED.task_start_s
    return Calibration(1.0 / seen["row_s"], timing, replace(MEASURED, task_start_s=start_s))


def run_live(policy: str, tasks: int, seconds: int) -> Done:
    """Run one policy on Spark."""
    rows = OrderSlice(seconds, WARM_S)
    work = Calculate(1.0 / SERVICE_PER_S, key_bytes=512)
    stream = emulated.calculate(emulated.source(rows, rows.steps()), work, cores=tasks, shards=SHARDS)
    with running(stream, maxEpochSeconds=MAX_EPOCH_S) as query:
        await_rows(query, NAME, 0)
        _await_warm(query, int(rows.starts[WARM_S]))
        _steer(query, policy)
        began, meter = time.monotonic(), CpuMeter()
        before = _sample(query, began)
        seen = _watch(query, seconds)
        latency = query.latency(NAME, began)
        held_up_s, placed_s = ask(query, _move_times)
        after = _sample(query, began)
        epochs = max(1, after.epochs - before.epochs)
        idle_s = (after.epochs_s - before.epochs_s) - (after.longest_task_s - before.longest_task_s)
        rows_done = max(1, int(after.completed.sum() - before.completed.sum()))
        success = query.elasticity.success()[NAME].ratio
        return Done(
            policy,
            float(success or 0.0),
            float(np.mean([tasks for tasks, _ in seen])),
            latency.mean_ms / 1e3,
            latency.p99_ms / 1e3,
            sum(one.acted for one in query.decisions()),
            held_up_s,
            placed_s,
            float(after.busy_s.sum() - before.busy_s.sum()) / rows_done,
            idle_s / epochs,
            (after.touched_shards - before.touched_shards) / epochs,
            meter.read().cores,
            os.getloadavg()[0],
        )


def _sample(query: Any, since_s: float) -> ExecutorSample:
    found: ExecutorSample = ask(query, lambda engine: take_sample(engine, [], since_s)).executors[NAME]
    return found


def _make(policy: str) -> Policy:
    if not policy.startswith("drs"):
        return make_policy(policy, margin=EPSILON)
    # T_ra of DRS is a time of the day, so it is compressed with it.
    options: dict[str, Any] = dict(DRS_OPTIONS)
    options["reallocation_s"] /= COMPRESSED
    return make_policy(policy, margin=EPSILON, **options)


def _await_warm(query: Any, rows: int) -> None:
    """Wait until the seconds to warm up are over."""
    while ask(query, lambda engine: engine.sources.due_now()["rows"]) < rows:
        time.sleep(0.05)


def _steer(query: Any, policy: str) -> None:
    """Hold the bound by a policy with the margin and the guards that the simulated runs have."""
    query.elasticity.hold(BOUND, policy, EVERY_S)
    if policy != STATIC:
        chosen, loop = _make(policy), query.elasticity._steering.loop
        loop.use(chosen)
        loop.guards = make_guards(chosen)


def _move_times(engine: Any) -> tuple[float, float]:
    moves = [(one.held_up_s, one.ready_at - one.wanted_at) for one in engine.placing.moves.last]
    if not moves:
        return 0.0, 0.0
    held_up_s, placed_s = np.median(moves, axis=0)
    return float(held_up_s), float(placed_s)


def _watch(query: Any, seconds: int) -> list[tuple[int, int]]:
    """Return tasks that had a lease and rows that waited, twice a second; say them now and then."""
    found: list[tuple[int, int]] = []
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        time.sleep(0.5)
        if query.exception() is not None:
            raise query.exception()
        found.append(ask(query, _tasks_and_waiting))
        if len(found) % 10 == 0:
            tasks, waiting = found[-1]
            print(
                f"-- {time.monotonic() - began:.0f} s: {tasks} tasks, {waiting:,} rows wait",
                file=sys.stderr,
                flush=True,
            )
    return found


def _tasks_and_waiting(engine: Any) -> tuple[int, int]:
    run = engine.runs[NAME]
    leased = sum(slot.lease is not None for slot in run.slots.values())
    return leased, int((run.counts.arrived - run.counts.completed).sum())


def make_case(seconds: int, by: Calibration, *, ideal: bool = False) -> Case:
    """Return the same stretch for the simulator, on one node; an ideal one has no epochs."""
    rows = OrderSlice(seconds, WARM_S)
    nodes = (SimNode("driver", MAX_TASKS),)
    match = SimOperator(NAME, SHARDS, by.service_per_s, state_bytes=32 * 1024)
    epochs = None if ideal else by.epochs

    def setting(tasks: int) -> Setting:
        placed = SimExecutor(NAME, spread_evenly(SHARDS, nodes, tasks))
        return Setting(nodes, (match,), {NAME: placed}, costs=by.costs, epochs=epochs)

    return Case(
        "order-slice",
        rows.seed,
        setting,
        lambda: {NAME: BinnedArrivals(rows.counts[WARM_S:], seed=rows.seed)},
        BOUND,
        float(seconds),
        Limits(MAX_TASKS, 1, 1, MAX_TASKS),
        NAME,
        START_TASKS,
        EVERY_S,
    )


def run_simulated(policy: str, tasks: int, seconds: int, by: Calibration) -> Done:
    """Run the same policy, or the oracle, on the same orders in the simulator."""
    case = make_case(seconds, by, ideal=policy == ORACLE)
    found: Result
    if policy == ORACLE:
        found = run_oracle(case)
    elif policy == STATIC:
        found = run(case, static(tasks))
    else:
        found = run(case, Contender(policy, lambda: _make(policy), guards=make_guards(_make(policy))))
    return Done(policy, found.success, found.mean_tasks, found.mean_s, found.p99_s, found.actions)


class LiveBench:
    """Keeps the figures of the Spark part under `spark`, beside those that earlier runs of the bench have left."""

    def __init__(self, result: BenchResult, quick: bool) -> None:
        self._result = result
        self._seconds = 120 if quick else 600
        self.figures: dict[str, Any] = result.figures.setdefault("spark", {})
        self.figures |= {"seconds": self._seconds, "max_tasks": MAX_TASKS, "service_per_s": SERVICE_PER_S}

    def measure(self, policy: str) -> None:
        """Run a policy live and simulated, and write what came of both."""
        print(f"-- spark {policy}", file=sys.stderr, flush=True)
        tasks = self._equal_tasks() if policy == STATIC else START_TASKS
        penstock.session("penstock-bench-sla", cores=MAX_TASKS)
        self._add(self.figures, run_live(policy, tasks, self._seconds))
        by = self._calibration(policy)
        beside = self.figures.setdefault("simulated", {})
        self._add(beside, run_simulated(policy, tasks, self._seconds, by))
        if ORACLE not in beside.get("success", {}):
            self._add(beside, run_simulated(ORACLE, MAX_TASKS, self._seconds, by))
        self._judge()

    def _calibration(self, policy: str) -> Calibration:
        """Return what the first live run says of the machine; this is it where there is no other."""
        self.figures.setdefault("calibrated_by", policy)
        first = self.figures["calibrated_by"]
        return derive_calibration({n: by[first] for n, by in self.figures.items() if n in CALIBRATING})

    def _equal_tasks(self) -> int:
        """Return the tasks of the static that costs as much as streamswitch did; the start's where it was not run."""
        return math.ceil(float(self.figures.get("tasks", {}).get(SWITCH, START_TASKS)) - 1e-9)

    def _add(self, into: dict[str, Any], done: Done) -> None:
        for name, value in asdict(done).items():
            if name != "policy":
                into.setdefault(name, {})[done.policy] = round(float(value), 5)
        self._result.write()

    def _judge(self) -> None:
        """Say by how much the simulator was off, and whether policies come in the same order in both."""
        beside = self.figures["simulated"]
        there = [one for one in POLICIES if one in self.figures["success"] and one in beside["success"]]
        judged = [one for one in there if one != self.figures["calibrated_by"]] or there
        self._result.figures["simulator_error"] = {
            name: round(float(np.mean([abs(beside[f][one] / self.figures[f][one] - 1) for one in judged])), 4)
            for name, f in (("mean", "mean_s"), ("p99", "p99_s"), ("cores", "tasks"))
        }
        for name, figures in (("order", self.figures), ("simulated_order", beside)):
            ranked = sorted(there, key=lambda one: -figures["success"][one])
            self.figures[name] = " > ".join(ranked)
        self._result.write()


def recall(result: BenchResult) -> None:
    """Take over the Spark figures of the file that the result will be written to; to be called before it is."""
    if result.path is None or not result.path.exists():
        return
    found = json.loads(result.path.read_text(encoding="utf-8"))
    if found.get("bench") == result.bench and found.get("versions") == dict(result.versions):
        result.figures |= {
            name: found["figures"][name] for name in ("spark", "simulator_error") if name in found["figures"]
        }


PARTS: Final = {f"spark-{policy}": policy for policy in POLICIES}
"""Part -> the policy that it runs."""


def run_parts(result: BenchResult, parts: Sequence[str], quick: bool) -> list[str]:
    """Run the parts named, one policy each; return the names that are missing at the end."""
    if not parts:
        return []
    bench = LiveBench(result, quick)
    result.emulated.append(f"under spark: {emulated.EMULATION}, {MAX_TASKS} of them")
    for part in parts:
        bench.measure(PARTS[part])
    names = [(figure, PARTS[part]) for part in parts for figure in ("success", "tasks")]
    return [
        f"spark.{figure}.{policy}" for figure, policy in names if policy not in bench.figures.get(figure, {})
    ]
