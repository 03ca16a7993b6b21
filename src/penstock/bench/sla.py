"""`penstock bench sla`: how well policies hold a latency bound on the order stream of StreamSwitch 6, simulated.

Owns the parts, which run needs which, and the names they owe. The oracle comes first: it bounds everyone. The parts on
Spark stand in `sla_live`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from penstock.bench import sla_live
from penstock.bench.machine import describe
from penstock.bench.result import BenchResult, UnknownPart
from penstock.bench.sla_runs import STATIC, Done, Run, Runs, code, simulate
from penstock.sim.elastic.compare import ORACLE, Result
from penstock.workloads import order_stream

SWITCH: Final = "streamswitch"
PENSTOCK: Final = "penstock"
POLICIES: Final = (ORACLE, SWITCH, "drs", "drs-lb", STATIC, PENSTOCK)
"""`static_` stands for the static of equal mean cost: as many tasks as streamswitch had on the mean, rounded up."""
SPECTRUM: Final = (
    "streamswitch_e0.1",
    "streamswitch_e0.4",
    "drs_e0.4",
    "drs-lb_e0.4",
    "drs_ra0",
    "drs-lb_ra0",
    "penstock_e0.1",
    "penstock_e0.4",
)
STATICS: Final = tuple(f"{STATIC}{tasks}" for tasks in (6, 8, 10, 12, 16, 20))
PAPER: Final = {"success": 0.9628, "tasks": 8.40}
"""Switch(0.2) on Samza, StreamSwitch 6.1."""
GOAL: Final = 0.99


@dataclass(frozen=True)
class Plan:
    """How much a bench does."""

    seconds: float
    seeds: tuple[int, ...]
    unseen: tuple[int, ...]
    few: tuple[int, ...]
    """For parts that vary the setting and not the day."""
    part_s: float = 3600.0
    """For parts that look at the beginning of a day only, its opening included."""

    @staticmethod
    def of(quick: bool) -> Plan:
        if quick:
            return Plan(3600.0, order_stream.SEEDS[:2], (), order_stream.SEEDS[:1])
        whole = float(order_stream.SECONDS)
        return Plan(whole, order_stream.SEEDS, order_stream.UNSEEN_SEEDS, order_stream.SEEDS[:3])


class Bench:
    """Carries out runs that are not done yet, and keeps the figures up to date."""

    def __init__(self, result: BenchResult, plan: Plan) -> None:
        self.result, self.plan = result, plan
        beside = None if result.path is None else result.path.with_suffix(".runs.jsonl")
        self.runs = Runs(beside)
        self.recalls = False
        """Whether only what is done already is looked at."""
        self.figures: dict[str, Any] = {
            "seconds": plan.seconds,
            "paper": PAPER,
            "code": code(),
            "service_per_s": order_stream.SERVICE_PER_S,
        }
        result.figures["simulated"] = self.figures

    def run(
        self,
        policy: str,
        seeds: Sequence[int],
        latency_s: float = 1.0,
        window_s: float = 1.0,
        seconds: float | None = None,
    ) -> list[Done]:
        """Return a policy's runs, carried out now where they are not done."""
        length_s = self.plan.seconds if seconds is None else seconds
        wanted = [Run(policy, seed, length_s, latency_s, window_s) for seed in seeds]
        for one in wanted:
            if self.runs.get(one) is None and not self.recalls:
                self._carry_out(one)
        found = self.runs.find(wanted)
        return found if len(found) == len(wanted) else []

    def _carry_out(self, one: Run) -> None:
        began = time.process_time()
        done, _ = simulate(one)
        self.runs.add(done)
        print(
            f"-- {one.policy}, seed {one.seed}, ({one.latency_s:g} s, {one.window_s:g} s): success"
            f" {done.success:.4%} with {done.tasks:.2f} tasks, {time.process_time() - began:.0f} s",
            file=sys.stderr,
            flush=True,
        )

    def compare(
        self,
        into: str,
        policies: Sequence[str],
        seeds: Sequence[int],
        latency_s: float = 1.0,
        window_s: float = 1.0,
        seconds: float | None = None,
    ) -> None:
        """Run policies and write their means and spreads, after each one."""
        for name in policies:
            chosen = self._resolve(name, seeds, latency_s, window_s, seconds)
            self.write(into, self.run(chosen, seeds, latency_s, window_s, seconds))

    def _resolve(
        self, name: str, seeds: Sequence[int], latency_s: float, window_s: float, seconds: float | None
    ) -> str:
        if name != STATIC:
            return name
        tasks = [done.tasks for done in self.run(SWITCH, seeds, latency_s, window_s, seconds)]
        return f"{STATIC}{math.ceil(float(np.mean(tasks or [1.0])) - 1e-9)}"

    def recall(self, parts: Sequence[str]) -> None:
        """Write what earlier runs of the bench have found out about these parts."""
        self.recalls = True
        for part in parts:
            PARTS[part](self)
        self.recalls = False

    def write(self, into: str, found: Sequence[Done]) -> None:
        """Put what came of one policy under `into`; an empty name is the table itself."""
        if not found:
            return
        table = self.figures.setdefault(into, {}) if into else self.figures
        name = found[0].run.policy
        for figure in ("success", "tasks", "mean_s", "p99_s", "actions"):
            values = [float(getattr(done, figure)) for done in found]
            table.setdefault(figure, {})[name] = round(float(np.mean(values)), 5)
            if figure in ("success", "tasks"):
                table.setdefault(f"{figure}_spread", {})[name] = [
                    round(min(values), 5),
                    round(max(values), 5),
                ]
        table.setdefault("seeds", {})[name] = [done.run.seed for done in found]
        self.figures.setdefault("days", {}).update({str(done.run.seed): done.day for done in found})
        self.result.write()


def table(policy: str) -> Callable[[Bench], None]:
    """Return the part that runs one policy on all seeds."""
    return lambda bench: bench.compare("", [policy], bench.plan.seeds)


def unseen(bench: Bench) -> None:
    """The final table: every policy on days that nobody looked at before."""
    bench.compare("unseen", POLICIES, bench.plan.unseen)


def hour(bench: Bench) -> None:
    """The first hour of every day: a table of all policies and seeds that takes a quarter of the time."""
    bench.compare("hour", POLICIES, bench.plan.seeds, seconds=bench.plan.part_s)


def hour_unseen(bench: Bench) -> None:
    """The same on days that nobody looked at before."""
    bench.compare("hour_unseen", POLICIES, bench.plan.unseen, seconds=bench.plan.part_s)


def spectrum(bench: Bench) -> None:
    """Other margins, and fixed numbers of tasks (figure 5)."""
    bench.compare("", [*SPECTRUM, *STATICS], bench.plan.few)


def window_5s(bench: Bench) -> None:
    """(L, T) = (1 s, 5 s), the left of figure 17."""
    bench.compare("window_5s", POLICIES, bench.plan.few, 1.0, 5.0)


def bound_5s(bench: Bench) -> None:
    """(L, T) = (5 s, 1 s), the right of figure 17."""
    bench.compare("bound_5s", POLICIES, bench.plan.few, 5.0, 1.0)


def burst(bench: Bench) -> None:
    """How one opening is treated, second by second (figures 6 to 9)."""
    if bench.recalls:
        return
    shown = {}
    for policy in (ORACLE, SWITCH, PENSTOCK):
        done, result = simulate(Run(policy, bench.plan.seeds[0], min(180.0, bench.plan.part_s)))
        shown[policy] = _series(result) | {"success": round(done.success, 5), "actions": done.actions}
    bench.figures["burst"] = shown
    bench.result.write()


def _series(result: Result) -> dict[str, Any]:
    last_late = np.flatnonzero(result.series.p99_s > 1.0)
    return {
        "late_until_s": float(result.series.second[last_late[-1]]) if len(last_late) else 0.0,
        "tasks": [round(float(one), 2) for one in result.series.tasks],
        "mean_s": [None if math.isnan(one) else round(float(one), 3) for one in result.series.mean_s],
        "treatments": [f"{one.at_s:.1f} s: {one.action}" for one in result.decisions[:100]],
    }


PARTS: Final[dict[str, Callable[[Bench], None]]] = {
    **{(name if name != STATIC else "static"): table(name) for name in POLICIES},
    "unseen": unseen,
    "hour": hour,
    "hour_unseen": hour_unseen,
    "burst": burst,
    "window_5s": window_5s,
    "bound_5s": bound_5s,
    "spectrum": spectrum,
}


def run(result: BenchResult, quick: bool, only: list[str] | None) -> list[str]:
    """Run the parts asked for (all when none is named); return the names that are missing at the end.

    Raises:
        UnknownPart: a part is asked for that does not exist.
    """
    live = [part for part in sla_live.PARTS if not only or part in only]
    unknown = sorted(set(only or ()) - set(PARTS) - set(live))
    if unknown:
        raise UnknownPart(
            f"there is no part {', '.join(unknown)}; there is {', '.join([*PARTS, *sla_live.PARTS])}"
        )
    chosen = [part for part in PARTS if not only or part in only]
    sla_live.recall(result)
    plan = Plan.of(quick)
    result.add_figures(**{f"machine_{name}": value for name, value in describe().items()}, quick=quick)
    result.emulated.append("every figure under simulated: no row was processed")
    bench = Bench(result, plan)
    bench.recall([part for part in PARTS if part not in chosen])
    for part in chosen:
        print(f"-- {part}", file=sys.stderr, flush=True)
        PARTS[part](bench)
    _judge(bench)
    missing = [name for name in _owed(chosen, bench) if _look_up(bench.figures, name) is None]
    return missing + sla_live.run_parts(result, live, quick)


def _judge(bench: Bench) -> None:
    """Say whether the goals are met, on the seen and the unseen days, where their runs are there."""
    for into in ("", "unseen", "hour", "hour_unseen"):
        found = bench.figures.get(into, {}) if into else bench.figures
        success, tasks = found.get("success", {}), found.get("tasks", {})
        if {ORACLE, SWITCH, PENSTOCK} <= set(success):
            goal = derive_goal(success[SWITCH], success[ORACLE])
            found["goal"] = round(goal, 5)
            found["goal_met"] = success[PENSTOCK] >= goal and tasks[PENSTOCK] <= tasks[SWITCH]
        others = [one for one in success if one in ("drs", "drs-lb")]
        equal = f"{STATIC}{math.ceil(tasks[SWITCH] - 1e-9)}" if SWITCH in tasks else ""
        others += [equal] if equal in success else []
        if SWITCH in success and others:
            found["streamswitch_above_others"] = all(success[SWITCH] > success[one] for one in others)
    bench.result.write()


def derive_goal(switch: float, oracle: float) -> float:
    """Return the success that penstock owes: 99 %, or three quarters of the way to the oracle where that is less."""
    return min(GOAL, switch + 0.75 * (oracle - switch))


def _owed(chosen: Sequence[str], bench: Bench) -> list[str]:
    plain = [part for part in chosen if part in POLICIES]
    names = [f"{figure}.{policy}" for policy in plain for figure in ("success", "tasks")]
    names += [f"{part}.success.{PENSTOCK}" for part in ("window_5s", "bound_5s") if part in chosen]
    if "unseen" in chosen and bench.plan.unseen:
        names += [f"unseen.success.{PENSTOCK}"]
    return names


def _look_up(figures: dict[str, Any], name: str) -> Any:
    """Find `success.streamswitch_e0.4` in nested figures: what is after the last group is one name, dots and all."""
    group, _, rest = name.partition(".")
    found = figures.get(group)
    if not isinstance(found, dict) or not rest:
        return found
    return found[rest] if rest in found else _look_up(found, rest)
