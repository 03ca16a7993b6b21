"""`penstock query`: ask a running query for other cores, shards or nodes, from any process that reaches its checkpoint."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from penstock.cli.arguments import path, place
from penstock.cli.output import FOUND, USAGE, ago, answer, check_writable, end_with, one_line_errors
from penstock.dataplane.disk import PosixDisk, check_scheme
from penstock.dataplane.foreign import check_not_sparks
from penstock.dataplane.inspecting import is_checkpoint, read_holder
from penstock.dataplane.requests import Request, ask
from penstock.errors import CheckpointError, DeclarationError
from penstock.topology.sla import END_TO_END, MEAN, OPERATOR, SLA

app = typer.Typer(no_args_is_help=True, help="Ask a running query for other cores, shards or nodes.")

MOST = 65_535
"""Largest number of a shard or task, and most cores that can be asked for."""
MOST_DIGITS = 20
"""Zeros in front included."""
ANSWER_S = 5.0
"""What is left of the time that somebody waits for the query to say what came of it."""
Folder = Annotated[Path, typer.Argument(parser=path, help="the folder given as checkpointLocation")]
Operator = Annotated[str, typer.Argument(help="name of the operator")]
Json = Annotated[
    str | None,
    typer.Option("--json", parser=place, help="also write the answer to this file; - prints JSON instead"),
]
Timeout = Annotated[float, typer.Option(help="seconds to wait for the answer")]


@app.command()
def rescale(
    checkpoint: Folder,
    operator: Operator,
    cores: Annotated[int | None, typer.Option(help="cores that it should have")] = None,
    nodes: Annotated[
        str | None, typer.Option(help="where, as executor id=cores: 0=3,1=1; they add up to --cores")
    ] = None,
    timeout: Timeout = 10.0,
    json: Json = None,
) -> None:
    """Give an operator this many cores while rows flow."""
    with one_line_errors():
        where = read_nodes(nodes) if nodes is not None else {}
        if cores is None and not where:
            raise DeclarationError("say how many: --cores 4, or --nodes 0=3,1=1.")
        wanted = check_cores(sum(where.values()) if cores is None else cores)
    asked = Request("rescale", time.time(), operator=operator, cores=wanted, nodes=where)
    _ask(checkpoint, asked, timeout, json)


@app.command()
def move(
    checkpoint: Folder,
    operator: Operator,
    shards: Annotated[str, typer.Option(help="numbers and ranges: 3,17,20-24")],
    task: Annotated[int, typer.Option(help="index of the task that gets them")],
    timeout: Timeout = 10.0,
    json: Json = None,
) -> None:
    """Give shards of an operator to another of its tasks."""
    with one_line_errors():
        numbers = read_shards(shards)
        if not 0 <= task <= MOST:
            raise DeclarationError(f"--task {task}: tasks are counted from 0.")
    asked = Request("move", time.time(), operator=operator, shards=numbers, task=task)
    _ask(checkpoint, asked, timeout, json)


@app.command()
def split(checkpoint: Folder, operator: Operator, timeout: Timeout = 10.0, json: Json = None) -> None:
    """Let an operator have one executor more, with half of the shards of its busiest one."""
    _ask(checkpoint, Request("split", time.time(), operator=operator), timeout, json)


@app.command()
def merge(checkpoint: Folder, operator: Operator, timeout: Timeout = 10.0, json: Json = None) -> None:
    """Let an operator have one executor less."""
    _ask(checkpoint, Request("merge", time.time(), operator=operator), timeout, json)


@app.command()
def drain(
    checkpoint: Folder,
    node: Annotated[str, typer.Argument(help="executor id")],
    release: Annotated[bool, typer.Option("--release", help="give the node back to Spark")] = False,
    timeout: Timeout = 90.0,
    json: Json = None,
) -> None:
    """Take everything of the query off a node."""
    wait_s = max(timeout / 2, timeout - ANSWER_S)
    asked = Request("drain", time.time(), node=node, release=release, wait_s=wait_s)
    _ask(checkpoint, asked, timeout, json)


@app.command()
def undrain(
    checkpoint: Folder,
    node: Annotated[str, typer.Argument(help="executor id")],
    timeout: Timeout = 10.0,
    json: Json = None,
) -> None:
    """Let tasks be put on a node again that was drained."""
    _ask(checkpoint, Request("undrain", time.time(), node=node), timeout, json)


@app.command()
def pause(checkpoint: Folder, timeout: Timeout = 10.0, json: Json = None) -> None:
    """Begin no epoch until `resume`; leases are kept."""
    _ask(checkpoint, Request("pause", time.time()), timeout, json)


@app.command()
def resume(checkpoint: Folder, timeout: Timeout = 10.0, json: Json = None) -> None:
    """Go on after `pause`."""
    _ask(checkpoint, Request("resume", time.time()), timeout, json)


@app.command()
def hold(
    checkpoint: Folder,
    latency: Annotated[float, typer.Option(help="the bound, in seconds")],
    window: Annotated[float, typer.Option(help="seconds over which latency is taken together")] = 1.0,
    quantile: Annotated[
        float | None, typer.Option(help="bounds this quantile, such as 0.99, instead of the mean")
    ] = None,
    scope: Annotated[
        str, typer.Option(help=f"{OPERATOR} bounds each operator on its own, {END_TO_END} whole paths")
    ] = END_TO_END,
    policy: Annotated[
        str, typer.Option(help="by which it is held, with its options: drs:k_max=8")
    ] = "penstock",
    timeout: Timeout = 10.0,
    json: Json = None,
) -> None:
    """Hold a latency bound from now on, or another one, or by another policy."""
    with one_line_errors():
        SLA(latency, window, MEAN if quantile is None else quantile, scope)  # says what is wrong with it
    asked = Request(
        "hold", time.time(), latency_s=latency, window_s=window, quantile=quantile, scope=scope, policy=policy
    )
    _ask(checkpoint, asked, timeout, json)


@app.command()
def decisions(checkpoint: Folder, timeout: Timeout = 10.0, json: Json = None) -> None:
    """Print what the control loop has decided, and why."""
    _ask(checkpoint, Request("decisions", time.time()), timeout, json)


@app.command()
def tasks(checkpoint: Folder, timeout: Timeout = 10.0, json: Json = None) -> None:
    """Print the tasks of every operator, their nodes and shards."""
    _ask(checkpoint, Request("tasks", time.time()), timeout, json)


def read_shards(text: str) -> list[int]:
    """Read numbers of shards and ranges of them: `3,17,20-24`.

    Raises:
        DeclarationError: it is not of that form.
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = (one.strip() for one in part.partition("-"))
        ends = [first, last] if dash else [first, first]
        if not all(_is_number(one) for one in ends):
            raise _wrong_shards(text, part)
        if int(ends[0]) > int(ends[1]):
            raise _wrong_shards(text, part)
        found += range(int(ends[0]), int(ends[1]) + 1)
    return list(dict.fromkeys(found))


def _is_number(text: str) -> bool:
    """Whether it is one that can be meant; of thousands of digits Python reads none."""
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS and int(text) <= MOST


def _wrong_shards(text: str, part: str) -> DeclarationError:
    return DeclarationError(
        f"--shards {text!r}: {part!r} is no shard; write numbers and ranges such as 3,17,20-24."
    )


def read_nodes(text: str) -> dict[str, int]:
    """Read cores by node: `0=3,1=1`.

    Raises:
        DeclarationError: it is not of that form.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        node, equals, count = (one.strip() for one in part.partition("="))
        if not (equals and node and _is_number(count)):
            raise DeclarationError(
                f"--nodes {text!r}: {part!r} is no node; write executor id=cores, such as 0=3,1=1."
            )
        if node in found:
            raise DeclarationError(f"--nodes {text!r}: node {node} is named twice; name it once.")
        found[node] = int(count)
    return found


def check_cores(cores: int) -> int:
    """Refuse what no cluster has before it is asked for.

    Raises:
        DeclarationError: it is no number of cores.
    """
    if not 1 <= cores <= MOST:
        raise DeclarationError(f"--cores {cores}: give between 1 and {MOST:,}.")
    return cores


def _ask(checkpoint: Path, request: Request, timeout_s: float, json: str | None) -> None:
    with one_line_errors():
        check_writable(json)
        found = ask(PosixDisk(), checkpoint_folder(checkpoint), request, timeout_s)
        text = [found.text] if found.ok else []
        told = [*text, *found.lines] if request.verb == "tasks" else [*found.lines, *text]
        answer(found, json, lambda console: _show(console, told))
        if not found.ok:
            end_with(found.text, USAGE if found.refused else FOUND)


def _show(console: Console, lines: list[str]) -> None:
    if lines:
        console.print("\n".join(lines), markup=False, soft_wrap=True)


def checkpoint_folder(checkpoint: Path) -> str:
    """Return the folder that requests go to.

    Raises:
        CheckpointError: it is no checkpoint, or its query was stopped and answers nobody.
    """
    folder = check_scheme(str(checkpoint))
    if not is_checkpoint(PosixDisk(), folder):
        check_not_sparks(PosixDisk(), folder)
        raise CheckpointError(
            f"{folder} is no checkpoint of Penstock; give the folder of checkpointLocation."
        )
    holder = read_holder(PosixDisk(), folder, time.time())
    if holder.is_stopped:
        raise CheckpointError(f"the query on {folder} was stopped {ago(holder.beat)}; start it again first.")
    return folder
