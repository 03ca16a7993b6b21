"""`penstock import`: moves a running Spark query with its state. Prints what will and what cannot be carried first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import typer

from penstock.cli.output import check_writable
from penstock.dataplane.disk import check_place, check_scheme
from penstock.errors import PenstockError


def run_import(
    origin: str,
    checkpoint: str,
    operator: str,
    source: str,
    without: tuple[str, ...] = (),
    dry_run: bool = False,
    json: Path | None = None,
) -> int:
    """Carry the import out; return the exit code."""
    import penstock
    from penstock.spark import importing

    try:
        check_writable(json)
        origin = check_scheme(origin, "The old checkpoint")
        checkpoint = check_scheme(checkpoint, "The new checkpoint")
        check_place(checkpoint)
        spark = penstock.session("penstock-import")
        plan = importing.look(spark, origin, checkpoint, without)
        for line in plan.told():
            typer.echo(line)
        found: dict[str, Any] = {"plan": msgspec.to_builtins(plan), "written": None}
        if not dry_run:
            manifest = importing.carry_out(spark, plan, checkpoint, operator, source)
            found["written"] = msgspec.to_builtins(manifest)
            _say_next(checkpoint, operator, source, sum(manifest.part_rows), importing.starting_options(plan))
    except PenstockError as error:
        typer.echo(f"penstock: {' '.join(str(error).split())}", err=True)
        return 1
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    return 0


def _say_next(checkpoint: str, operator: str, source: str, rows: int, options: list[str]) -> None:
    typer.echo(f"wrote {rows} rows of state of '{operator}' to {checkpoint}")
    typer.echo(
        f"next: start the new query with option('checkpointLocation', '{checkpoint}'), its processor with "
        f"name='{operator}' and its source with name='{source}'"
    )
    typer.echo(
        f"if Spark refuses the copied logs of the source, delete {checkpoint}/ingest/{source} and set on its reader:"
    )
    for line in options:
        typer.echo(f"  {line}")
