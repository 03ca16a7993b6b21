"""What a checkpoint holds for others than its own log: exports for readers, and state that was imported.

Says what is there and checks it. Reads only, also beside a driver that lets the oldest epochs of an export go.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from penstock.dataplane import exports, paths
from penstock.dataplane.channel import OlderSchema, read_segment
from penstock.dataplane.disk import Disk
from penstock.dataplane.exports import Manifest
from penstock.dataplane.findings import DAMAGE, NOTE, Report, attempt, count
from penstock.dataplane.imported import check_part_rows, read_imported_manifest, read_imported_part
from penstock.errors import PenstockError, StorageError


@dataclass(frozen=True)
class ExportView:
    """One export: what its readers can still get."""

    operator: str
    first_epoch: int | None
    last_epoch: int | None
    epochs: int
    bytes: int
    """Of the rows that the kept epochs hold."""
    problem: str | None = None


@dataclass(frozen=True)
class ImportedView:
    """State that was brought for one operator before the first start."""

    operator: str
    origin: str
    batch: int
    """The last one that the other query had committed."""
    states: list[str]
    timers: bool
    rows: int
    bytes: int
    problem: str | None = None


def folders(disk: Disk, checkpoint: str) -> list[str]:
    """Return the folders of all exports and of all that was imported."""
    made = [paths.export(checkpoint, name) for name in _operators(disk, paths.exports(checkpoint))]
    return made + [
        f"{paths.imported(checkpoint)}/{name}" for name in _operators(disk, paths.imported(checkpoint))
    ]


def is_known_outside(root: str, folder: str, name: str) -> bool:
    """Whether a name in one of these folders is one that Penstock gives."""
    if folder.startswith(f"{paths.exports(root)}/"):
        return name == "head" or paths.parse_manifest(name) is not None
    return name == "manifest" or paths.parse_imported_part(name) is not None


def _operators(disk: Disk, folder: str) -> list[str]:
    found = []
    for name in sorted(disk.list(folder)):
        try:
            disk.list(f"{folder}/{name}")
        except StorageError:  # a file, and none of ours
            continue
        found.append(name)
    return found


# -- what is there ------------------------------------------------------------------------------------------------


def view_exports(disk: Disk, checkpoint: str) -> list[ExportView]:
    """Return every export of a checkpoint; one that cannot be read says why."""
    return [_view_export(disk, checkpoint, name) for name in _operators(disk, paths.exports(checkpoint))]


def _view_export(disk: Disk, checkpoint: str, operator: str) -> ExportView:
    kept: list[int] = []
    size, problem = 0, None
    for epoch in exports.list_epochs(disk, checkpoint, operator):
        try:
            size += exports.read_manifest(disk, checkpoint, operator, epoch).row_bytes
        except PenstockError as error:
            if not _was_let_go(disk, checkpoint, operator, epoch):
                problem = str(error)
            continue
        kept.append(epoch)
    return ExportView(operator, min(kept, default=None), max(kept, default=None), len(kept), size, problem)


def view_imported(disk: Disk, checkpoint: str) -> list[ImportedView]:
    """Return what was imported into a checkpoint; what cannot be read says why."""
    return [_view_imported(disk, checkpoint, name) for name in _operators(disk, paths.imported(checkpoint))]


def _view_imported(disk: Disk, checkpoint: str, operator: str) -> ImportedView:
    folder = f"{paths.imported(checkpoint)}/{operator}"
    size = sum(disk.size(f"{folder}/{name}") or 0 for name in disk.list(folder))
    try:
        manifest = read_imported_manifest(disk, checkpoint, operator)
        problem = None if manifest is not None else "the import was cut off"
    except PenstockError as error:
        manifest, problem = None, str(error)
    if manifest is None:
        return ImportedView(operator, "", -1, [], False, 0, size, problem)
    states = [f"{one.kind} {one.name}" for one in manifest.variables]
    return ImportedView(
        operator, manifest.origin, manifest.batch, states, manifest.timers, sum(manifest.part_rows), size
    )


# -- whether it is whole ------------------------------------------------------------------------------------------


def verify_exports(disk: Disk, report: Report, query: str | None) -> None:
    """Read heads, manifests and the rows that they name; `query` is that of the checkpoint, None if not known."""
    for operator in _operators(disk, paths.exports(report.checkpoint)):
        epochs = exports.list_epochs(disk, report.checkpoint, operator)
        if epochs or disk.size(paths.export_head(report.checkpoint, operator)) is not None:
            _verify_head(disk, report, operator, query)
        kept = [epoch for epoch in epochs if _verify_epoch(disk, report, operator, epoch)]
        gone = sorted(set(range(kept[0], kept[-1] + 1)) - set(epochs)) if kept else []
        if gone:
            report.add(
                DAMAGE,
                paths.export_manifest(report.checkpoint, operator, gone[0]),
                f"the manifests of epochs {gone[0]} to {gone[-1]} of the export of '{operator}' are gone though older ones "
                "are there; restore them from a copy.",
            )


def _verify_head(disk: Disk, report: Report, operator: str, query: str | None) -> None:
    path = paths.export_head(report.checkpoint, operator)
    head = attempt(report, path, partial(exports.read_head, disk, report.checkpoint, operator))
    count(report, disk.size(path) or 0)
    if head is None:
        return
    if attempt(report, path, head.arrow_schema) is not None and query not in (None, head.query):
        report.add(
            DAMAGE,
            path,
            f"{path} is of query {head.query}, this checkpoint of query {query}; its epochs are other rows: move the "
            "folder away.",
        )


def _verify_epoch(disk: Disk, report: Report, operator: str, epoch: int) -> bool:
    """Read a manifest and its rows; return whether the epoch is still kept."""
    checkpoint = report.checkpoint
    path = paths.export_manifest(checkpoint, operator, epoch)
    found = Report(checkpoint)
    manifest = attempt(found, path, partial(exports.read_manifest, disk, checkpoint, operator, epoch))
    count(found, disk.size(path) or 0)
    if manifest is not None:
        _verify_rows(disk, found, path, manifest)
        if (manifest.operator, manifest.epoch) != (operator, epoch):
            found.add(
                DAMAGE,
                path,
                f"{path} is the manifest of epoch {manifest.epoch} of '{manifest.operator}'; restore it from a copy.",
            )
    if found.findings and _was_let_go(disk, checkpoint, operator, epoch):
        return False
    report.frames += found.frames
    report.bytes += found.bytes
    report.findings.extend(found.findings)
    return True


def _verify_rows(disk: Disk, report: Report, path: str, manifest: Manifest) -> None:
    def schemas() -> tuple[pa.Schema, list[OlderSchema]]:
        older = [OlderSchema(until, _schema(was)) for until, was in manifest.older]
        return _schema(manifest.schema), older

    written = attempt(report, path, schemas)
    if written is None:
        return
    for extent in (extent for piece in manifest.pieces for extent in piece.segments):
        file = paths.data_file(report.checkpoint, extent.file)
        attempt(report, file, partial(read_segment, disk, report.checkpoint, extent, *written, whole=True))
        count(report, extent.length)


def _schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def _was_let_go(disk: Disk, checkpoint: str, operator: str, epoch: int) -> bool:
    return disk.size(paths.export_manifest(checkpoint, operator, epoch)) is None


def verify_imported(disk: Disk, report: Report) -> None:
    """Read what was imported, part by part."""
    checkpoint = report.checkpoint
    for operator in _operators(disk, paths.imported(checkpoint)):
        path = paths.imported_manifest(checkpoint, operator)
        if disk.size(path) is None:
            report.add(NOTE, path, f"{path} is not there: an import was cut off, and its parts do not count.")
            continue
        manifest = attempt(report, path, partial(read_imported_manifest, disk, checkpoint, operator))
        count(report, disk.size(path) or 0)
        for number, rows in enumerate(manifest.part_rows if manifest is not None else ()):
            _verify_part(disk, report, operator, number, rows)


def _verify_part(disk: Disk, report: Report, operator: str, number: int, rows: int) -> None:
    path = paths.imported_part(report.checkpoint, operator, number)

    def read() -> None:
        found = read_imported_part(disk, report.checkpoint, operator, number, whole=True)
        check_part_rows(report.checkpoint, operator, number, found.num_rows, rows)

    attempt(report, path, read)
    count(report, disk.size(path) or 0)
