"""`penstock query`: ask a running query for other cores, shards or nodes, from any process that reaches its checkpoint."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import FOUND, answer, one_line_errors
from penstock.dataplane.disk import PosixDisk, check_scheme
from penstock.dataplane.inspecting import is_checkpoint
from penstock.dataplane.requests import Request, ask
from penstock.errors import CheckpointError

app = typer.Typer(no_args_is_help=True, help="Ask a running query for other cores, shards or nodes.")

Folder = Annotated[Path, typer.Argument(help="the folder given as checkpointLocation")]
Operator = Annotated[str, typer.Argument(help="name of the operator")]
Json = Annotated[
    str | None, typer.Option("--json", help="also write the answer to this file; - prints JSON instead")
]
Timeout = Annotated[float, typer.Option(help="seconds to wait for the answer")]


@app.command()
def rescale(
    checkpoint: Folder,
    operator: Operator,
    cores: Annotated[int, typer.Option(help="cores that it should have")],
    timeout: Timeout = 10.0,
    json: Json = None,
) -> None:
    """Give an operator this many cores while rows flow."""
    _ask(checkpoint, Request("rescale", time.time(), operator=operator, cores=cores), timeout, json)


@app.command()
def move(
    checkpoint: Folder,
    operator: Operator,
    shards: Annotated[str, typer.Option(help="comma-separated numbers")],
    task: Annotated[int, typer.Option(help="index of the task that gets them")],
    timeout: Timeout = 10.0,
    json: Json = None,
) -> None:
    """Give shards of an operator to another of its tasks."""
    numbers = [int(one) for one in shards.split(",")]
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
    _ask(checkpoint, Request("drain", time.time(), node=node, release=release), timeout, json)


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
    latency: Annotated[float, typer.Option(help="seconds that rows may take on average, end to end")],
    policy: Annotated[str, typer.Option(help="by which it is held")] = "penstock",
    timeout: Timeout = 10.0,
    json: Json = None,
) -> None:
    """Hold a latency bound from now on, or another one, or by another policy."""
    _ask(checkpoint, Request("hold", time.time(), latency_s=latency, policy=policy), timeout, json)


@app.command()
def decisions(checkpoint: Folder, timeout: Timeout = 10.0, json: Json = None) -> None:
    """Print what the control loop has decided, and why."""
    _ask(checkpoint, Request("decisions", time.time()), timeout, json)


@app.command()
def tasks(checkpoint: Folder, timeout: Timeout = 10.0, json: Json = None) -> None:
    """Print the tasks of every operator, their nodes and shards."""
    _ask(checkpoint, Request("tasks", time.time()), timeout, json)


def _ask(checkpoint: Path, request: Request, timeout_s: float, json: str | None) -> None:
    with one_line_errors():
        found = ask(PosixDisk(), _folder(checkpoint), request, timeout_s)
        answer(
            found, json, lambda console: console.print("\n".join([*found.lines, found.text]), markup=False)
        )
        if not found.ok:
            raise typer.Exit(FOUND)


def _folder(checkpoint: Path) -> str:
    folder = check_scheme(str(checkpoint))
    if not is_checkpoint(PosixDisk(), folder):
        raise CheckpointError(
            f"{folder} is no checkpoint of Penstock; give the folder of checkpointLocation."
        )
    return folder
