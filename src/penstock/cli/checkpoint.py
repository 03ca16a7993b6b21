"""`penstock checkpoint`: look into checkpoints, verify and repair them. All but `repair --yes` change nothing."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import checkpoint_view as view
from penstock.cli.arguments import path, place
from penstock.cli.output import FOUND, USAGE, answer, end_with, one_line_errors
from penstock.dataplane.disk import Disk, PosixDisk, check_scheme
from penstock.dataplane.findings import DAMAGE, Report
from penstock.dataplane.foreign import check_not_sparks
from penstock.dataplane.identity import skeleton
from penstock.dataplane.inspecting import (
    Holder,
    Look,
    StageView,
    find_checkpoints,
    is_checkpoint,
    look,
    read_holder,
    summarise,
    view_stages,
    walk,
)
from penstock.dataplane.key_states import KeyStates, read_key
from penstock.dataplane.outside import ExportView, ImportedView, view_exports, view_imported
from penstock.dataplane.rebuilding import input_schema
from penstock.dataplane.repairing import apply_repair, plan_repair
from penstock.dataplane.small_files import folding
from penstock.dataplane.verifying import verify
from penstock.errors import PenstockError
from penstock.testing.line import CheckFailure, read_line
from penstock.testing.schedule import find_schedule_faults

app = typer.Typer(no_args_is_help=True, help="Look into checkpoints, verify and repair them.")

Json = Annotated[
    str | None,
    typer.Option("--json", parser=place, help="also write the result to this file; - prints JSON instead"),
]
Folder = Annotated[Path, typer.Argument(parser=path, help="the folder given as checkpointLocation")]


@dataclass(frozen=True)
class Shown:
    """A checkpoint in full, as `show` answers."""

    path: str
    query: str
    holder: Holder
    part: str | None
    last_activity: float | None
    topologies: int
    stages: list[StageView]
    shards: list[view.ShardRow] = field(default_factory=list)
    key: KeyStates | None = None
    exports: list[ExportView] = field(default_factory=list)
    imported: list[ImportedView] = field(default_factory=list)


@app.command("ls")
def list_(
    folder: Annotated[Path, typer.Argument(parser=path, help="a folder")] = Path("."), json: Json = None
) -> None:
    """List the checkpoints under a folder, or the parts of one."""
    with one_line_errors():
        disk, path = PosixDisk(), _path(folder)
        if is_checkpoint(disk, path):
            parts = view.parts_of(path, list(walk(disk, path)), _live(disk, path))
            answer(parts, json, lambda console: view.show_parts(console, parts))
            return
        check_not_sparks(disk, path)
        found = find_checkpoints(disk, path)
        if not found:
            end_with(f"{path} holds no checkpoint.", FOUND)
        summaries = [summarise(disk, one, time.time()) for one in found]
        answer(summaries, json, lambda console: view.show_summaries(console, path, summaries))


@app.command()
def show(
    folder: Folder,
    operator: Annotated[str | None, typer.Option(help="show the shards of this stage")] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="show the state of this key; once for each key column")
    ] = None,
    json: Json = None,
) -> None:
    """Show where every stage stands: epochs, positions, what waits, and state; also exports and imported state."""
    with one_line_errors():
        disk, path = PosixDisk(), _path(folder)
        seen = look(disk, path)
        if operator is not None and operator not in seen.meta.stages:
            end_with(f"there is no '{operator}'; the checkpoint has {', '.join(seen.meta.stages)}.", USAGE)
        if key and operator is None:
            end_with("--key needs --operator, the operator whose state it is.", USAGE)
        shown = _shown(disk, seen, operator, key)
        answer(shown, json, lambda console: view.show_checkpoint(console, shown, operator))


@app.command("verify")
def verify_(folder: Folder, json: Json = None) -> None:
    """Read everything that records name, rebuild every shard, and say what is damaged; exit code 1 if anything is."""
    with one_line_errors():
        disk, path = PosixDisk(), _path(folder)
        report = verify(disk, path)
        checked = _check_schedule(disk, report)
        answer(
            {**asdict(report), "damaged": report.damaged, "schedule": checked},
            json,
            lambda console: view.show_report(console, report, checked),
        )
    if report.damaged:
        raise typer.Exit(FOUND)


@app.command()
def repair(
    folder: Folder,
    yes: Annotated[bool, typer.Option("--yes", help="do what the plan says")] = False,
    json: Json = None,
) -> None:
    """Plan what can be mended without guessing, and with --yes do it; exit code 1 if damage remains."""
    with one_line_errors():
        disk, path = PosixDisk(), _path(folder)
        plan = plan_repair(disk, path, time.time())
        done = yes and bool(plan.actions)
        if done:
            apply_repair(disk, plan, time.time())
        answer({**asdict(plan), "done": done}, json, lambda console: view.show_plan(console, plan, done))
    if plan.beyond:
        raise typer.Exit(FOUND)


def _path(folder: Path) -> str:
    path = check_scheme(str(folder))
    if not Path(path).is_dir():
        end_with(f"{path} is no folder.", USAGE)
    return path


def _live(disk: Disk, path: str) -> set[str]:
    try:
        return look(disk, path).chains.live_files()
    except (PenstockError, FileNotFoundError):
        return set()


def _shown(disk: Disk, seen: Look, operator: str | None, key: list[str] | None) -> Shown:
    summary = summarise(disk, seen.checkpoint, time.time())
    part = seen.tail.part
    chains = seen.chains.of(operator) if operator is not None else []
    state = None
    stage = seen.meta.stages[operator] if operator is not None else None
    if stage is not None and (key or (stage.kind == "operator" and stage.stateful and not stage.keys)):
        with folding(seen.checkpoint):
            state = read_key(disk, seen.checkpoint, chains, stage, input_schema(chains[0]), key or [])
    return Shown(
        seen.checkpoint,
        seen.metas.first.query,
        read_holder(disk, seen.checkpoint, time.time()),
        f"generation {part.generation}, part {part.part}" if part is not None else None,
        summary.last_activity,
        len(seen.metas.known),
        [stage for stage in view_stages(seen) if operator in (None, stage.name)],
        view.shard_rows(chains) if not key else [],
        state,
        [one for one in view_exports(disk, seen.checkpoint) if operator in (None, one.operator)],
        [one for one in view_imported(disk, seen.checkpoint) if operator in (None, one.operator)],
    )


def _check_schedule(disk: Disk, report: Report) -> str:
    """Where the whole run is retained, prove from its records alone that every row was consumed once."""
    try:
        seen = look(disk, report.checkpoint)
        line = read_line(report.checkpoint, disk)
    except (CheckFailure, PenstockError, FileNotFoundError, ValueError):
        return "not retained"
    if len({part.base.identity for part in line.parts}) > 1:
        return "the topology changed"
    faults = find_schedule_faults(line, skeleton(seen.meta))
    for fault in faults:
        report.add(
            DAMAGE, "log", f"{fault}; the records contradict each other, restore the checkpoint from a copy."
        )
    return f"{sum(1 for _ in line.records())} records" if not faults else f"{len(faults)} faults"
