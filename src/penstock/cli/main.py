"""The `penstock` command. Each sub-command is a thin call; nothing is decided here."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.arguments import file, path, place
from penstock.cli.checkpoint import app as checkpoint_app
from penstock.cli.query import app as query_app
from penstock.cli.usage import OneLineGroup
from penstock.errors import PenstockError
from penstock.version import __version__

app = typer.Typer(cls=OneLineGroup, add_completion=False, no_args_is_help=True)
app.add_typer(checkpoint_app, name="checkpoint")
app.add_typer(query_app, name="query")
Json = Annotated[Path | None, typer.Option("--json", parser=path, help="also write the result to this file")]


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Stateful stream processing on Spark."""


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(help="about how long it runs")] = 60.0,
    quiet: Annotated[bool, typer.Option(help="print the summary only")] = False,
    checkpoint: Annotated[str | None, typer.Option(parser=place, help="keep the checkpoint here")] = None,
    nodes: Annotated[int, typer.Option(help="run on a cluster of so many nodes on this machine")] = 1,
    json: Json = None,
) -> None:
    """Run a small exchange: generated orders, matching, per-stock statistics."""
    from penstock.cli.demo import run_demo

    written = str(json) if json else None
    raise typer.Exit(run_demo(seconds, quiet=quiet, checkpoint=checkpoint, json=written, nodes=nodes))


@app.command()
def run(
    program: Annotated[Path, typer.Argument(parser=file, help="a Python program that starts queries")],
    arguments: Annotated[list[str] | None, typer.Argument(help="its arguments")] = None,
) -> None:
    """Run a program until its queries end; exit non-zero when one of them fails or is taken over by another
    driver. SIGTERM stops them in order; the exit code is then 143."""
    from penstock.cli.ending import in_order_on_sigterm
    from penstock.spark.running import await_all

    sys.argv = [str(program), *(arguments or [])]
    sys.path.insert(0, str(program.parent.resolve()))
    try:
        with in_order_on_sigterm():
            runpy.run_path(str(program), run_name="__main__")
            await_all()
    except PenstockError as error:
        typer.echo(f"penstock: {error}", err=True)
        raise typer.Exit(1) from error


@app.command()
def bench(
    name: Annotated[
        str, typer.Argument(help="dynamics, keyed-count, models, papers, rescale, scaling, schedule or sla")
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="about ten minutes: every figure that has a target, shorter runs")
    ] = False,
    json: Json = None,
    only: Annotated[str | None, typer.Option(help="comma-separated parts")] = None,
) -> None:
    """Measure: against plain Spark in the same run, or how long decisions take."""
    from penstock.bench.registry import run_bench

    raise typer.Exit(run_bench(name, quick=quick, path=json, only=only.split(",") if only else None))


@app.command()
def simulate(
    workload: Annotated[
        str,
        typer.Argument(
            help="order-stream, commcount, top-n, split-count, frequent-patterns or logo-detection"
        ),
    ] = "order-stream",
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="static_8, or a policy's name with options: streamswitch:margin=0.4, advise:drs; may be repeated"
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="comma-separated")] = "1",
    hours: Annotated[float, typer.Option(help="simulated hours")] = 4.0,
    interval: Annotated[
        float | None,
        typer.Option(
            help="simulated seconds between two turns of the control loop; else 0.1 for order-stream, 1 for the others"
        ),
    ] = None,
    epochs: Annotated[
        bool, typer.Option("--epochs", help="tasks work in epochs, as the engine does, not row by row")
    ] = False,
    json: Annotated[
        str | None,
        typer.Option(
            "--json", parser=place, help="also write the result to this file; - prints JSON instead"
        ),
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option(parser=path, help="write PNG plots to this folder; needs the extra `plots`"),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(parser=path, help="write one HTML file with table and charts")
    ] = None,
) -> None:
    """Compare policies on simulated hours of traffic. The oracle is all cores, perfectly balanced, rows served in order of
    arrival: no policy is better while its cores suffice; in an overload one that lets some shards wait can be."""
    from penstock.cli.simulate import DEFAULT_POLICIES, run_simulate

    chosen = policy or list(DEFAULT_POLICIES)
    raise typer.Exit(run_simulate(workload, chosen, seeds, hours, interval, epochs, json, plots, html))


@app.command()
def plan(
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            parser=place, help="checkpointLocation of a running query: its measured rates are taken"
        ),
    ] = None,
    operator: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME:RATE:SERVICE[:VISITS], rows a second that arrive, rows a second that one core serves, and rows that "
            "reach the operator for each input row (1 by default); may be repeated"
        ),
    ] = None,
    latency: Annotated[float, typer.Option(help="bound in seconds")] = 1.0,
    quantile: Annotated[
        float | None, typer.Option(help="of which the bound is, such as 0.99; the mean by default")
    ] = None,
    scope: Annotated[
        str, typer.Option(help="end-to-end bounds whole paths, operator each operator on its own")
    ] = "end-to-end",
    cores_per_node: Annotated[int, typer.Option(help="cores that a node has")] = 8,
    timeout: Annotated[float, typer.Option(help="seconds to wait for the query's answer")] = 15.0,
    json: Annotated[
        str | None,
        typer.Option(
            "--json", parser=place, help="also write the result to this file; - prints JSON instead"
        ),
    ] = None,
) -> None:
    """Say how many cores and nodes a latency bound takes, at 1, 1.5 and 10 times the load; exit code 1 if it cannot be held
    at the load there is."""
    from penstock.cli.output import one_line_errors
    from penstock.cli.plan import run_plan
    from penstock.topology.sla import MEAN, SLA

    with one_line_errors():
        sla = SLA(latency, quantile=MEAN if quantile is None else quantile, scope=scope)
    raise typer.Exit(run_plan(checkpoint, operator or [], sla, cores_per_node, timeout, json))


@app.command("import")
def import_(
    origin: Annotated[
        str, typer.Argument(parser=place, help="checkpointLocation of the Spark query, which must be stopped")
    ],
    checkpoint: Annotated[
        str, typer.Argument(parser=place, help="checkpointLocation of the new query; not used before")
    ],
    operator: Annotated[str, typer.Option(help="name= of the processor in the new query")],
    source: Annotated[str, typer.Option(help="name= of the source in the new query")] = "source",
    without: Annotated[str | None, typer.Option(help="comma-separated states to leave behind")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be carried")] = False,
    json: Json = None,
) -> None:
    """Move a Spark query here with its state and its place in the source."""
    from penstock.cli.importing import run_import

    left = tuple(without.split(",")) if without else ()
    raise typer.Exit(run_import(origin, checkpoint, operator, source, left, dry_run, json))


@app.command()
def doctor(
    checkpoint: Annotated[
        str | None, typer.Option(parser=place, help="also look at this checkpoint folder")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="do not start Spark")] = False,
    json: Annotated[
        str | None,
        typer.Option(
            "--json", parser=place, help="also write the result to this file; - prints JSON instead"
        ),
    ] = None,
) -> None:
    """Say whether this machine is fit to run queries, and what to do where it is not; exit code 1 if it is not."""
    from penstock.cli.doctor import Level, run_checks
    from penstock.cli.output import FOUND, answer, one_line_errors

    checks = []
    for check in run_checks(checkpoint, quick):
        checks.append(check)
        if json != "-":
            fix = f"; {check.fix}" if check.fix else ""
            typer.echo(f"{check.level:<4}  {check.what}: {check.found}{fix}")
    with one_line_errors():
        answer(checks, json, lambda console: None)
    if any(check.level is Level.FAIL for check in checks):
        raise typer.Exit(FOUND)


@app.command()
def replay(
    journal: Annotated[Path, typer.Argument(parser=file, help="a journal of decisions, as a query wrote it")],
    policy: Annotated[
        str | None, typer.Option(help="decide by this one; the recorded one by default")
    ] = None,
    json: Annotated[
        str | None,
        typer.Option(
            "--json", parser=place, help="also write the result to this file; - prints JSON instead"
        ),
    ] = None,
) -> None:
    """Decide a recorded run again and print where decisions differ; exit code 1 if any does."""
    from penstock.cli.replay import run_replay

    raise typer.Exit(run_replay(journal, policy, json))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


if __name__ == "__main__":
    app()
