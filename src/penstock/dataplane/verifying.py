"""Reads everything that a checkpoint's records name and says what is damaged, file by file. Writes nothing.

Every frame is read against kind, length and CRC of the record that names it; every segment's rows are read; every
shard is rebuilt and must give its digest. What a restart does not need any more is read too, and told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from penstock.dataplane import paths, recordlog, records
from penstock.dataplane.batch_plans import verify_plans
from penstock.dataplane.chain import Chain
from penstock.dataplane.chains import Chains
from penstock.dataplane.channel import read_entries, read_frame, read_segment
from penstock.dataplane.disk import Disk, is_temp
from penstock.dataplane.findings import DAMAGE, NOTE, Report, attempt, count
from penstock.dataplane.foreign import check_not_sparks
from penstock.dataplane.frames import FrameKind, ScanEnd, scan_frames
from penstock.dataplane.inspecting import Look, is_known_file, look
from penstock.dataplane.metas import read_metas
from penstock.dataplane.outside import folders, is_known_outside, verify_exports, verify_imported
from penstock.dataplane.program import InputSpec, operator_of
from penstock.dataplane.rebuilding import digest_function, input_schema, rebuild
from penstock.dataplane.recordlog import LogTail
from penstock.dataplane.records import Extent
from penstock.dataplane.small_files import read_framed
from penstock.errors import CheckpointError


def verify(disk: Disk, checkpoint: str) -> Report:
    """Read a checkpoint whole.

    Raises:
        CheckpointError: the folder is no checkpoint at all.
    """
    report = Report(checkpoint)
    if not disk.list(paths.logs(checkpoint)) and disk.size(paths.meta(checkpoint)) is None:
        check_not_sparks(disk, checkpoint)
        raise CheckpointError(
            f"{checkpoint} is no Penstock checkpoint: it has neither 'meta' nor 'log'; name the folder given as "
            "checkpointLocation."
        )
    _verify_small_files(disk, report)
    tails = _verify_log(disk, report)
    seen = attempt(report, paths.meta(checkpoint), lambda: look(disk, checkpoint))
    if seen is not None:
        _verify_live(disk, report, seen)
        _verify_state(disk, report, seen)
        _verify_rest(disk, report, seen, tails)
        verify_plans(disk, report, [chain.batch for chain in seen.chains.by_name.values()])
    verify_exports(disk, report, seen.metas.first.query if seen is not None else None)
    verify_imported(disk, report)
    _note_strangers(disk, report)
    report.findings = list(dict.fromkeys(report.findings))
    return report


# -- log and small files ------------------------------------------------------------------------------------------


def _verify_small_files(disk: Disk, report: Report) -> None:
    checkpoint = report.checkpoint
    attempt(report, paths.meta(checkpoint), lambda: read_metas(disk, checkpoint))
    for name in disk.list(paths.drivers(checkpoint)):
        generation = paths.parse_claim(name)
        if generation is None:
            continue
        path = paths.claim(checkpoint, generation)
        claim = attempt(report, path, partial(recordlog.read_claim, disk, checkpoint, generation))
        count(report, disk.size(path) or 0)
        if claim is not None and claim.generation != generation:
            report.add(
                DAMAGE,
                path,
                f"{path} holds the claim of generation {claim.generation}; restore it from a copy.",
            )
    beat = paths.heartbeat(checkpoint)
    if disk.size(beat) is not None:
        attempt(report, beat, lambda: read_framed(disk, beat, FrameKind.CLAIM), NOTE)
        count(report, disk.size(beat) or 0)


def _verify_log(disk: Disk, report: Report) -> list[LogTail]:
    checkpoint = report.checkpoint
    names = disk.list(paths.logs(checkpoint))
    parts = sorted(part for part in map(paths.parse_log, names) if part is not None)
    tails = []
    for part in parts:
        path = paths.log(checkpoint, part)
        newest = part == parts[-1]
        tail = attempt(
            report,
            path,
            partial(recordlog.read_part, disk, checkpoint, part),
            DAMAGE if newest else NOTE,
        )
        if tail is None:
            continue
        tails.append(tail)
        report.records += len(tail.records)
        data = disk.view(path)
        scan = scan_frames(data, path)
        for frame in scan:
            count(report, frame.payload.size)
        if scan.end is ScanEnd.TORN:
            cut = len(data) - scan.end_offset
            report.add(
                NOTE,
                path,
                f"{path} ends in {cut} bytes of an append that a crash cut off and nobody was told of; a start passes over "
                "them, `penstock checkpoint repair` cuts them off.",
            )
    attempt(report, paths.newest_log(checkpoint), lambda: recordlog.read_tail(disk, checkpoint))
    if parts and disk.size(paths.newest_log(checkpoint)) is None:
        report.add(
            NOTE,
            paths.newest_log(checkpoint),
            "log/newest is gone, so that the loss of the newest part would not be noticed; the next start writes it.",
        )
    if parts and disk.size(path := paths.claim(checkpoint, parts[-1].generation)) is None:
        report.add(
            DAMAGE,
            path,
            f"{path} is gone though the log has parts of that generation; restore it from a copy.",
        )
    return tails


# -- data ---------------------------------------------------------------------------------------------------------


def _verify_live(disk: Disk, report: Report, seen: Look) -> None:
    """Everything that a restart reads besides state: what waits in the channels."""
    for chain in (
        seen.chains.of(name)[0] for name in seen.chains.program.stages
    ):  # executors share their inputs
        for given in chain.spec.inputs:
            for item in seen.chains[given.producer].out[given.edge]:
                for segment in item.published.segments:
                    _verify_segment(disk, report, segment, given, DAMAGE)


def _verify_segment(
    disk: Disk, report: Report, segment: records.Segment, given: InputSpec, level: str
) -> None:
    path = paths.data_file(report.checkpoint, segment.extent.file)
    read = attempt(
        report,
        path,
        lambda: (
            read_segment(disk, report.checkpoint, segment.extent, given.schema, given.older, whole=True)
            if len(given.schema)
            else read_frame(disk, report.checkpoint, segment.extent, FrameKind.SEGMENT)
        ),
        level,
    )
    count(report, segment.extent.length)
    counts = getattr(read, "counts", None)
    if counts is None:
        return
    report.rows += segment.rows
    if not np.array_equal(counts, records.unpack_u32(segment.shard_rows)):
        report.add(
            level,
            path,
            f"{path} has other rows per shard at offset {segment.extent.offset} than its record says.",
        )


def _verify_state(disk: Disk, report: Report, seen: Look) -> None:
    for chain in seen.chains.by_name.values():
        if chain.spec.kind == "operator" and _verify_frames(disk, report, _state_extents(chain), DAMAGE):
            _verify_digests(disk, report, seen, chain)


def _state_extents(chain: Chain) -> Iterable[tuple[Extent, FrameKind]]:
    for snapshot in chain.snapshots.values():
        if snapshot.extent is not None:
            yield snapshot.extent, FrameKind.SNAPSHOT
    for frame in chain.deltas:
        yield frame.extent, FrameKind.DELTA


def _verify_frames(
    disk: Disk, report: Report, extents: Iterable[tuple[Extent, FrameKind]], level: str
) -> bool:
    """Read deltas and snapshots; return whether all are whole."""
    whole = True
    for extent, kind in extents:
        path = paths.data_file(report.checkpoint, extent.file)
        read = attempt(
            report, path, partial(read_entries, disk, report.checkpoint, extent, kind, whole=True), level
        )
        count(report, extent.length)
        whole = whole and read is not None
    return whole


def _verify_digests(disk: Disk, report: Report, seen: Look, chain: Chain) -> None:
    stage = seen.meta.stages[operator_of(chain.name)]
    schema = input_schema(chain)
    if not len(schema):
        report.add(
            NOTE,
            "meta",
            f"digests of '{chain.name}' are not checked: the checkpoint was begun by an early release.",
        )
        return
    meta = paths.meta(report.checkpoint)
    digest_of = attempt(report, meta, partial(digest_function, stage, schema, chain.name))
    if digest_of is None:
        return
    for found in rebuild(disk, report.checkpoint, chain, chain.shards().tolist()):
        report.shards += 1
        version = int(chain.versions[found.shard])
        given = attempt(report, paths.data(report.checkpoint), partial(digest_of, found.entries))
        if found.version == version and given == chain.digest(found.shard):
            continue
        snapshot = chain.snapshot_of(found.shard)
        files = {snapshot.extent.file} if snapshot is not None and snapshot.extent is not None else set()
        files |= {frame.extent.file for frame in chain.deltas}
        report.add(
            DAMAGE,
            f"data/{min(files, default='?')}",
            f"state of operator '{chain.name}', shard {found.shard}, rebuilt from {', '.join(sorted(files)) or 'nothing'} "
            f"has version {found.version}, not {version}, or another digest than the log says; restore the "
            "checkpoint from a copy.",
        )


def _verify_rest(disk: Disk, report: Report, seen: Look, tails: list[LogTail]) -> None:
    """What records name and no restart needs: read where its file is still there."""
    live = _live_extents(seen.chains)
    present = set(disk.list(paths.data(report.checkpoint)))
    report.files = len(present)
    inputs = {given.edge: given for stage in seen.chains.program.stages.values() for given in stage.inputs}
    read: set[Extent] = set()
    for part in (part for tail in tails for record, _ in tail.records for part in record.parts):
        for segment in part.segments:
            at = segment.extent
            if at.file in present and at not in live | read and segment.edge in inputs:
                read.add(at)
                _verify_segment(disk, report, segment, inputs[segment.edge], NOTE)
        others = [(s.extent, FrameKind.SNAPSHOT) for s in part.snapshots if s.extent is not None]
        others += [(part.delta, FrameKind.DELTA)] if part.delta is not None else []
        rest = [one for one in others if one[0].file in present and one[0] not in live | read]
        read.update(extent for extent, _ in rest)
        _verify_frames(disk, report, rest, NOTE)


def _live_extents(chains: Chains) -> set[Extent]:
    live: set[Extent] = set()
    for chain in chains.by_name.values():
        live.update(extent for extent, _ in _state_extents(chain))
        for queue in chain.out.values():
            live.update(segment.extent for item in queue for segment in item.published.segments)
    return live


def _note_strangers(disk: Disk, report: Report) -> None:
    root = report.checkpoint
    for folder in (root, paths.drivers(root), paths.logs(root), paths.data(root)):
        _note_in(disk, report, folder, partial(is_known_file, root, folder))
    for folder in folders(disk, root):
        _note_in(disk, report, folder, partial(is_known_outside, root, folder))


def _note_in(disk: Disk, report: Report, folder: str, is_known: Callable[[str], bool]) -> None:
    for name in disk.list(folder):
        path = f"{folder}/{name}"
        if is_temp(name):
            report.add(NOTE, path, f"{path} is what a write left that was cut off; repair removes it.")
        elif not is_known(name):
            report.add(NOTE, path, f"{path} is no file of Penstock's; it is left alone.")
