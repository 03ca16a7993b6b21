"""`penstock simulate`: policies compared on simulated hours of traffic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from penstock.cli.output import answer, check_writable, one_line_errors, plain
from penstock.cli.simulate_view import (
    check_plots,
    comparison_table,
    make_plot_folder,
    write_html,
    write_plots,
)
from penstock.control.policy.registry import make_policy, make_policy_for
from penstock.control.sla import SLA
from penstock.errors import DeclarationError
from penstock.sim.elastic.cases import Case, order_stream_case
from penstock.sim.elastic.compare import Contender, Result, compare, make_guards, static, summarise
from penstock.sim.elastic.setting import EpochTiming
from penstock.sim.elastic.topologies import paper_case
from penstock.words import counted
from penstock.workloads.paper_topologies import TOPOLOGIES

WORKLOADS: dict[str, Callable[..., Case]] = {
    "order-stream": order_stream_case,
    **{name: partial(paper_case, name) for name in TOPOLOGIES},
}
DEFAULT_POLICIES = ("static_8", "streamswitch", "penstock")

_STATIC = "static_"
SHORTEST_S = 1.0
"""Of a simulation: one window of the bound."""


def run_simulate(
    workload: str,
    policies: list[str],
    seeds: str,
    hours: float,
    interval_s: float | None,
    epochs: bool,
    json: str | None,
    plots: Path | None,
    html: Path | None,
) -> int:
    """Compare, show, and write what was asked for; return the exit code."""
    with one_line_errors():
        if workload not in WORKLOADS:
            raise DeclarationError(f"there is no workload '{workload}'; there is {', '.join(WORKLOADS)}.")
        check_span(hours, interval_s)
        for path in (json, html):
            check_writable(path)
        if plots is not None:
            check_plots()
        numbers = read_seeds(seeds)

        def make(seed: int) -> Case:
            timing = EpochTiming() if epochs else None
            # Each workload has an interval of its own.
            stated = {} if interval_s is None else {"interval_s": interval_s}
            return WORKLOADS[workload](seed, seconds=hours * 3600.0, epochs=timing, **stated)

        first = make(numbers[0])
        check_span(hours, first.interval_s)
        contenders = [derive_contender(text, first.sla) for text in policies]
        refuse_twice("--policy", [one.name for one in contenders])
        if plots is not None:
            make_plot_folder(plots)
        cases = chain([first], map(make, numbers[1:]))
        results = compare(cases, contenders, lambda what: typer.echo(what, err=True))
        title = f"{workload}, {hours:g} simulated hours, {counted(len(numbers), 'seed')}"

        def show(console: Console) -> None:
            console.print(comparison_table(results, title))

        if plots is not None:
            write_plots(results, plots)
        if html is not None:
            write_html(results, title, html)
        answer(_payload(results, title), json, show)
    return 0


def check_span(hours: float, interval_s: float | None) -> None:
    """Refuse a span without a turn of the control loop; None is the interval of the workload.

    Raises:
        DeclarationError: it names the option and what to give.
    """
    for name, value in (("--hours", hours), ("--interval", interval_s)):
        if value is not None and not 0 < value < math.inf:
            raise DeclarationError(f"{name} must be a positive number, not {value:g}.")
    shortest_s = max(interval_s or 0.0, SHORTEST_S)
    if hours * 3600.0 < shortest_s:
        raise DeclarationError(
            f"--hours {hours:g} is shorter than {shortest_s:g} s: simulate at least {shortest_s / 3600.0:.2g} hours."
        )


def refuse_twice(option: str, given: Sequence[object]) -> None:
    """Refuse what is given twice: results are put together by it, so one run would count as two.

    Raises:
        DeclarationError: it names the option and what is there twice.
    """
    twice = next((one for at, one in enumerate(given) if one in given[:at]), None)
    if twice is not None:
        raise DeclarationError(f"{option}: {twice} is given twice; once is enough.")


def read_seeds(text: str) -> list[int]:
    """Read comma-separated seeds.

    Raises:
        DeclarationError: something else than whole numbers of zero or more, or one of them twice.
    """
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not (part.isascii() and part.isdigit())]
    if wrong:
        raise DeclarationError(
            f"--seeds {text!r}: {wrong[0]!r} is no seed; write whole numbers such as 1,2,3."
        )
    seeds = [int(part) for part in parts]
    refuse_twice("--seeds", seeds)
    return seeds


def derive_contender(text: str, sla: SLA) -> Contender:
    """Return the contender that a text names: `static_8`, `streamswitch`, `streamswitch:margin=0.4` or `advise:drs`.

    Raises:
        DeclarationError: it names none, or options that do not go with the bound.
    """
    if text.startswith(_STATIC):
        number = text[len(_STATIC) :]
        if not (number.isascii() and number.isdigit()) or not int(number):
            raise DeclarationError(f"policy '{text}': write static_8 for eight tasks.")
        return static(int(number))
    guards = make_guards(make_policy_for(sla, text))  # says at once what is wrong with it
    return Contender(text, lambda: make_policy(text), guards=guards)


def _payload(results: list[Result], title: str) -> dict[str, Any]:
    def short(result: Result) -> dict[str, Any]:
        left_out = {"series", "decisions", "success_by_shard"}
        return {
            **{key: value for key, value in vars(result).items() if key not in left_out},
            "success_by_shard": result.success_by_shard.round(5).tolist(),
        }

    return {
        "title": title,
        "policies": [plain(one) for one in summarise(results)],
        "runs": [short(one) for one in results],
    }
