"""`penstock plan`: how many cores and nodes a latency bound takes, from stated rates or from those of a running query."""

from __future__ import annotations

import json as json_format
import math
import time
from dataclasses import asdict, fields
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.output import FOUND, answer, check_writable, one_line_errors
from penstock.cli.query import checkpoint_folder
from penstock.control.plan.capacity import Capacity, OperatorRate, find_hottest, name_model, plan_capacity
from penstock.control.sla import SLA
from penstock.dataplane.disk import PosixDisk
from penstock.dataplane.program import operator_of
from penstock.dataplane.requests import Request, ask
from penstock.errors import DeclarationError

STATED = "rates as stated; nothing was measured"


def run_plan(
    checkpoint: str | None,
    stated: list[str],
    sla: SLA,
    cores_per_node: int,
    timeout_s: float,
    json: str | None,
) -> int:
    """Print what the bound takes at the load there is, at one and a half times and at ten times that; return 1 if it cannot
    be held at the load there is."""
    with one_line_errors():
        check_writable(json)
        if (checkpoint is None) == (not stated):
            raise DeclarationError(
                "penstock plan takes either a checkpoint that a query runs on, or --operator NAME:RATE:SERVICE for each."
            )
        if checkpoint is not None:
            operators, confidence = _measured(checkpoint, timeout_s)
        else:
            operators, confidence = [read_operator(one) for one in stated], STATED
        found = plan_capacity(operators, sla, cores_per_node)
        notes = [describe_model(operators, checkpoint is not None), describe_balance(operators)]
        payload = {
            "sla": str(sla),
            "confidence": confidence,
            "notes": notes,
            "operators": [asdict(one) for one in operators],
            "capacity": [{**asdict(one), "total": one.total} for one in found],
        }
        answer(payload, json, lambda console: _show(console, operators, found, sla, [confidence, *notes]))
    return FOUND if any(one.problem for one in found if one.factor == 1.0) else 0


def describe_model(operators: list[OperatorRate], measured: bool) -> str:
    """Say which model the predictions of the table are of."""
    told = f"what the table predicts is by {name_model(operators)}"
    return f"{told}; errors above, if any, are of the models that policies decided by" if measured else told


def describe_balance(operators: list[OperatorRate]) -> str:
    """Say that shards are taken to be balanced, and how far the hottest one is from that."""
    hottest = find_hottest(operators)
    if hottest is None:
        return "balanced shards are assumed"
    return (
        f"balanced shards are assumed; the hottest is {hottest.hottest_ratio:.1%} of the load of {hottest.name} and keeps "
        f"{hottest.hottest_cores():.0%} of a core busy"
    )


def read_operator(text: str) -> OperatorRate:
    """Read NAME:RATE:SERVICE[:VISITS]: rows a second that arrive and that one core serves, and rows that reach the operator
    for each input row.

    Raises:
        DeclarationError: it is not of that form.
    """
    parts = text.split(":")
    try:
        name, numbers = parts[0], [float(part) for part in parts[1:]]
        finite = all(0 <= number < math.inf for number in numbers)
        if not name or not 2 <= len(numbers) <= 3 or not finite or numbers[1] <= 0:
            raise ValueError
    except ValueError:
        raise DeclarationError(
            f"--operator {text!r}: give NAME:RATE:SERVICE, rows a second that arrive and that one core serves, such as "
            "match:5000:800; a fourth number says how many rows reach it for each input row."
        ) from None
    return OperatorRate(name, numbers[0], numbers[1], numbers[2] if len(numbers) > 2 else 1.0)


def _measured(checkpoint: str, timeout_s: float) -> tuple[list[OperatorRate], str]:
    folder = checkpoint_folder(Path(checkpoint))
    found = ask(PosixDisk(), folder, Request("rates", time.time()), timeout_s)
    if not found.ok:
        raise DeclarationError(found.text)
    return [read_rate(line) for line in found.lines], found.text


def read_rate(line: str) -> OperatorRate:
    """Read what a query sends of one operator; one of an older or newer release knows less or more of it."""
    known = {one.name for one in fields(OperatorRate)}
    return OperatorRate(**{key: value for key, value in json_format.loads(line).items() if key in known})


def _show(
    console: Console, operators: list[OperatorRate], found: list[Capacity], sla: SLA, notes: list[str]
) -> None:
    table = Table(title=f"For a {sla}")
    table.add_column("load")
    columns: dict[str, list[OperatorRate]] = {}
    for one in operators:
        columns.setdefault(operator_of(one.name), []).append(one)
    for name, executors in columns.items():
        table.add_column(f"{escape(name)}\n{_rates(executors)}", justify="right")
    what = "mean" if sla.is_mean else f"p{100 * float(sla.quantile):g}"
    for name in ("cores", "nodes", f"predicted {what}"):
        table.add_column(name, justify="right")
    for row in found:
        if row.problem and not row.cores:
            table.add_row(f"{row.factor:g}x", *["" for _ in columns], "", "", escape(row.problem))
            continue
        cores = [str(sum(row.cores[one.name] for one in executors)) for executors in columns.values()]
        told = f"{row.predicted_s * 1e3:,.1f} ms" + (f"; {escape(row.problem)}" if row.problem else "")
        table.add_row(f"{row.factor:g}x", *cores, str(row.total), str(row.nodes), told)
    console.print(table)
    for note in notes:
        console.print(note, markup=False, highlight=False)


def _rates(executors: list[OperatorRate]) -> str:
    """Rows a second that come to an operator, and that a core of it serves, on average over cores kept busy."""
    rate = sum(one.rate_per_s for one in executors)
    busy = sum(one.rate_per_s / one.service_per_s for one in executors)
    service = rate / busy if busy else sum(one.service_per_s for one in executors) / len(executors)
    several = f"{len(executors)} executors\n" if len(executors) > 1 else ""
    return f"{several}{rate:,.0f}/s, {service:,.0f}/s a core"
