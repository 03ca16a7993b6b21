"""What the checkpoint commands draw. Pure: results in, tables out."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.output import ago, size
from penstock.dataplane import paths
from penstock.dataplane.chain import Chain
from penstock.dataplane.findings import DAMAGE, Report
from penstock.dataplane.inspecting import StageView, Summary
from penstock.dataplane.key_states import KeyStates
from penstock.dataplane.outside import ExportView, ImportedView
from penstock.dataplane.records import END_US
from penstock.dataplane.repairing import Plan

if TYPE_CHECKING:
    from penstock.cli.checkpoint import Shown


_ONLY_IF_THERE = ("data *.pln", "data *.src", "ingest", "export", "imported", "other")
"""Kinds of files of which a line is drawn only where there are some."""


@dataclass(frozen=True)
class Part:
    """Files of one kind in a checkpoint."""

    name: str
    what: str
    files: int
    bytes: int
    needed_files: int | None = None
    """Of data files: those that a restart reads."""


@dataclass(frozen=True)
class ShardRow:
    """One shard of an operator."""

    shard: int
    version: int
    digest: str
    snapshot_version: int | None
    snapshot_bytes: int
    dirty_since: int
    """First epoch whose delta the snapshot lacks; 0 when it is whole."""
    positions: dict[str, str]


def parts_of(checkpoint: str, files: Sequence[tuple[str, int]], live: Collection[str]) -> list[Part]:
    """Sort the files of a checkpoint by what they are."""
    kinds = {
        "meta": "topology and query id",
        "drivers": "claims and heartbeat",
        "log": "records",
        "data *.seg": "segments and deltas",
        "data *.snp": "snapshots",
        "data *.pln": "what Spark planned for ingested batches",
        "data *.src": "second names of files of Spark's",
        "ingest": "Spark's own checkpoints of DataFrame sources",
        "export": "what readers of exports may take",
        "imported": "state brought from another query",
        "other": "not Penstock's",
    }
    found: dict[str, list[tuple[str, int]]] = {kind: [] for kind in kinds}
    for path, count in files:
        found[_kind_of(os.path.relpath(path, checkpoint))].append((path, count))
    return [
        Part(
            kind,
            what,
            len(found[kind]),
            sum(count for _, count in found[kind]),
            sum(os.path.basename(path) in live for path, _ in found[kind])
            if kind.startswith("data")
            else None,
        )
        for kind, what in kinds.items()
        if found[kind] or kind not in _ONLY_IF_THERE
    ]


def _kind_of(name: str) -> str:
    folder, _, rest = name.partition("/")
    if not rest:
        return "meta" if folder == "meta" or paths.parse_meta_version(folder) is not None else "other"
    data = paths.parse_data(rest) if folder == "data" else None
    if data is not None:
        return f"data *.{data.kind}"
    return folder if folder in ("drivers", "log", "ingest", "export", "imported") else "other"


def show_parts(console: Console, parts: Sequence[Part]) -> None:
    table = _table("part", "holds", "files", "size", "needed")
    for part in parts:
        needed = "" if part.needed_files is None else str(part.needed_files)
        table.add_row(part.name, part.what, str(part.files), size(part.bytes), needed)
    console.print(table)


def show_summaries(console: Console, folder: str, summaries: Sequence[Summary]) -> None:
    table = _table("checkpoint", "query", "generation", "holder", "active", "size", "files", "epochs")
    for one in summaries:
        holder = "alive" if one.holder.alive else "stopped" if one.holder.released else "gone"
        epochs = ", ".join(f"{name} {epoch}" for name, epoch in one.stages.items())
        table.add_row(
            escape(os.path.relpath(one.path, folder)),
            one.query[:8],
            str(one.holder.generation),
            holder,
            ago(one.last_activity),
            size(one.size_bytes),
            str(one.files),
            escape(f"unreadable: {one.problem}" if one.problem else epochs),
        )
    console.print(table)


def show_checkpoint(console: Console, shown: Shown, operator: str | None) -> None:
    console.print(f"[bold]{escape(shown.path)}[/bold]")
    changed = f", topology changed {shown.topologies - 1} times" if shown.topologies > 1 else ""
    console.print(f"query {shown.query}{changed}", highlight=False)
    console.print(f"holder: {shown.holder}; last activity {ago(shown.last_activity)}", highlight=False)
    console.print(f"log: {shown.part or 'no part yet'}", highlight=False)
    if shown.key is not None and shown.key.key:
        _show_key(console, shown.key)
        return
    console.print(_stage_table(shown.stages))
    inputs = _table("input", "rows from", "waiting rows", "size", "epochs", "positions (producer epoch:row)")
    for stage in shown.stages:
        for one in stage.inputs:
            places = ", ".join(f"{count} shards at {at}" for count, at in one.positions)
            inputs.add_row(
                escape(stage.name), escape(one.producer), f"{one.waiting_rows:,}", size(one.waiting_bytes),
                str(one.waiting_epochs), places if stage.shards > 1 else next((at for _, at in one.positions), ""),
            )  # fmt: skip
    console.print(inputs)
    console.print(_state_table(shown.stages))
    if shown.exports:
        console.print(_export_table(shown.exports))
    if shown.imported:
        console.print(_imported_table(shown.imported))
    if shown.key is not None:
        _show_states(console, shown.key)
    if operator is not None and shown.shards:
        console.print(_shard_table(shown.shards))


def _with_executors(stages: Sequence[StageView]) -> list[StageView]:
    """Every stage, and below an operator with several executors each of them."""
    return [
        one
        for stage in stages
        for one in (stage, *(replace(each, name=f"  {each.name}") for each in stage.executors))
    ]


def _stage_table(stages: Sequence[StageView]) -> Table:
    table = _table("stage", "kind", "keys", "shards", "epoch", "rows in", "rows out", "stands at")
    for stage in _with_executors(stages):
        more = [
            f"row {stage.offset:,}" if stage.offset is not None else "",
            f"batch {stage.batch}" if stage.batch is not None else "",
            f"epoch {stage.intent} intended, not done" if stage.intent is not None else "",
            f"watermark {_time(stage.watermark)}" if stage.watermark is not None else "",
        ]
        table.add_row(
            escape(stage.name), stage.kind, escape(", ".join(stage.keys)), str(stage.shards), str(stage.epoch),
            f"{stage.rows_in:,}", f"{stage.rows_out:,}", ", ".join(filter(None, more)),
        )  # fmt: skip
    return table


def _state_table(stages: Sequence[StageView]) -> Table:
    table = _table("state of", "shards written", "snapshots", "size", "deltas", "delta size", "digest")
    for stage in _with_executors(stages):
        if (state := stage.state) is not None:
            table.add_row(
                escape(stage.name), str(state.written_shards), str(state.snapshots), size(state.snapshot_bytes),
                str(state.deltas), size(state.delta_bytes), state.digest,
            )  # fmt: skip
    return table


def _export_table(exports: Sequence[ExportView]) -> Table:
    table = _table("export of", "epochs kept", "size", "from", "to", "")
    for one in exports:
        first, last = ("" if epoch is None else str(epoch) for epoch in (one.first_epoch, one.last_epoch))
        table.add_row(
            escape(one.operator), str(one.epochs), size(one.bytes), first, last, escape(one.problem or "")
        )
    return table


def _imported_table(imported: Sequence[ImportedView]) -> Table:
    table = _table("imported for", "rows", "size", "holds", "from")
    for one in imported:
        holds = ", ".join([*one.states, *(["timers"] if one.timers else [])])
        origin = one.problem or f"batch {one.batch} of {one.origin}"
        table.add_row(escape(one.operator), str(one.rows), size(one.bytes), escape(holds), escape(origin))
    return table


def _time(seconds: float) -> str:
    if seconds >= END_US / 1e6 - 1:
        return "at its end"
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(sep=" ", timespec="milliseconds")


def shard_rows(chains: Sequence[Chain]) -> list[ShardRow]:
    """Say where every shard of a stage stands, whichever of its chains it is in."""
    return sorted((row for chain in chains for row in _shard_rows(chain)), key=lambda row: row.shard)


def _shard_rows(chain: Chain) -> list[ShardRow]:
    places: dict[int, dict[str, str]] = {}
    for group in chain.groups:
        at = {f"{key.chain} ({key.edge})": f"{place.epoch}:{place.row}" for key, place in group.at.items()}
        places.update(dict.fromkeys(group.shards.tolist(), at))
    rows = []
    for shard in chain.shards().tolist():
        snapshot = chain.snapshot_of(shard)
        rows.append(
            ShardRow(
                shard,
                int(chain.versions[shard]),
                chain.digest(shard).hex(),
                snapshot.version if snapshot is not None else None,
                snapshot.size if snapshot is not None else 0,
                int(chain.dirty_since[shard]),
                places.get(shard, {}),
            )
        )
    return rows


def _shard_table(shards: Sequence[ShardRow]) -> Table:
    table = _table("shard", "version", "digest", "snapshot", "size", "deltas since", "position")
    for row in shards:
        snapshot = "" if row.snapshot_version is None else f"of epoch {row.snapshot_version}"
        table.add_row(
            str(row.shard), str(row.version), row.digest, snapshot, size(row.snapshot_bytes),
            str(row.dirty_since or ""), ", ".join(f"{name} {at}" for name, at in row.positions.items()),
        )  # fmt: skip
    return table


def _show_key(console: Console, key: KeyStates) -> None:
    console.print(f"key {key.key} is in shard {key.shard}", highlight=False, markup=False)
    _show_states(console, key)


def _show_states(console: Console, key: KeyStates) -> None:
    table = _table("state", "value")
    for name, value in key.states.items():
        table.add_row(escape(name), escape(_short(value)))
    console.print(table if key.states else "no state", highlight=False)


def _short(value: Any, length: int = 400) -> str:
    text = repr(value)
    return text if len(text) <= length else f"{text[:length]} ... ({len(text):,} characters)"


def show_report(console: Console, report: Report, schedule: str) -> None:
    for finding in report.findings:
        style = "red" if finding.level == DAMAGE else "yellow"
        console.print(f"[{style}]{finding.level}[/{style}]  {escape(finding.message)}", highlight=False)
    console.print(
        f"read {report.frames:,} frames, {size(report.bytes)}: {report.records:,} records, {report.rows:,} rows, "
        f"{report.shards:,} shards rebuilt; schedule: {schedule}",
        highlight=False,
    )
    damaged = sum(finding.level == DAMAGE for finding in report.findings)
    console.print(f"[red]{damaged} damaged[/red]" if damaged else "[green]no damage[/green]")


def show_plan(console: Console, plan: Plan, done: bool) -> None:
    for action in plan.actions:
        name = os.path.relpath(action.path, plan.checkpoint)
        amount = f" ({size(action.bytes)})" if action.bytes else ""
        console.print(f"{action.what}  {escape(name)}{amount}: {escape(action.why)}", highlight=False)
    for finding in plan.beyond:
        console.print(f"[red]cannot be repaired[/red]  {escape(finding.message)}", highlight=False)
    if not plan.actions:
        console.print("nothing to repair" if not plan.beyond else "nothing that repair can do")
    elif done:
        console.print(f"[green]{len(plan.actions)} done[/green]")
    else:
        console.print("nothing was changed; run again with --yes to do this")


_RIGHT = frozenset({
    "generation", "size", "files", "needed", "shards", "epoch", "version", "shard", "deltas", "snapshots", "rows in",
    "rows out", "waiting rows", "deltas since", "delta size", "shards written", "epochs kept", "rows",
})  # fmt: skip


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in _RIGHT else "left")
    return table
