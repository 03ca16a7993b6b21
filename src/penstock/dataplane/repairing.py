"""What can be mended in a checkpoint without guessing: planned whole, shown, then carried out.

Removes what no record names and what cut-off writes left, cuts a torn end off the log, and says that a dead holder is
gone. Never deletes a file that a record names, and never runs beside a living driver: it claims the checkpoint first.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.dataplane import paths, recordlog, records
from penstock.dataplane.disk import PROBE, Disk, is_temp
from penstock.dataplane.exports import held_files
from penstock.dataplane.findings import DAMAGE, Finding
from penstock.dataplane.frames import FrameKind, ScanEnd, scan_frames
from penstock.dataplane.holding import process_is_running, this_process
from penstock.dataplane.inspecting import Holder, read_holder
from penstock.dataplane.metas import read_metas
from penstock.dataplane.outside import folders
from penstock.dataplane.recordlog import Claim, Heartbeat, LogTail
from penstock.dataplane.small_files import read_framed
from penstock.dataplane.verifying import verify
from penstock.errors import CheckpointError, PenstockError


class What(enum.StrEnum):
    """The kinds of repair."""

    DELETE = "delete"
    CUT = "cut"
    RELEASE = "release"


@dataclass(frozen=True)
class Action:
    """One thing to do to one file."""

    what: What
    path: str
    why: str
    bytes: int = 0
    """Deleted or cut off."""
    keep: int = 0
    """Of a file that is cut: the bytes that stay."""


@dataclass
class Plan:
    """Everything that repair would do, and what it cannot mend."""

    checkpoint: str
    holder: Holder
    actions: list[Action] = field(default_factory=list)
    beyond: list[Finding] = field(default_factory=list)
    """Damage that has to be restored from a copy."""


def plan_repair(
    disk: Disk,
    checkpoint: str,
    now: float,
    *,
    boot: str | None = None,
    is_running: Callable[[Claim], bool] = process_is_running,
) -> Plan:
    """Look at a checkpoint and plan its repair; nothing is changed.

    Raises:
        CheckpointError: no checkpoint, or its holder is alive.
    """
    holder = read_holder(disk, checkpoint, now, boot=boot, is_running=is_running)
    if holder.alive:
        raise CheckpointError(
            f"The checkpoint {checkpoint} is held by {holder.claim}; stop that query before repairing it."
        )
    report = verify(disk, checkpoint)
    plan = Plan(checkpoint, holder, beyond=[one for one in report.findings if one.level == DAMAGE])
    tails, whole = _read_parts(disk, checkpoint)
    plan.actions.extend(_leftovers(disk, checkpoint))
    plan.actions.extend(_torn_tails(disk, checkpoint, tails))
    if whole:
        plan.actions.extend(_orphans(disk, checkpoint, tails))
        plan.actions.extend(_unused_metas(disk, checkpoint, tails))
    plan.actions.extend(_heartbeat(disk, checkpoint, holder))
    return plan


def apply_repair(disk: Disk, plan: Plan, now: float, who: Claim | None = None) -> Claim:
    """Carry a plan out, under a claim of its own; return the claim.

    A driver that starts meanwhile is told that the repair holds the checkpoint. One that takes it over claims a higher
    generation: what it writes has other names, and nothing that it reads is touched.

    Raises:
        CheckpointError: a driver has claimed the checkpoint since the plan was made.
    """
    checkpoint = plan.checkpoint
    claim = recordlog.as_next(who or this_process(), plan.holder.generation)
    if not recordlog.create_claim(disk, checkpoint, claim):
        newer = read_holder(disk, checkpoint, now)
        raise CheckpointError(
            f"The checkpoint {checkpoint} was claimed by {newer.claim} since it was looked at; stop that query and repair "
            "again."
        )
    for action in plan.actions:
        recordlog.check_claim(disk, checkpoint, claim)
        if action.what is What.DELETE:
            disk.delete(action.path)
        elif action.what is What.CUT:
            disk.put(action.path, disk.view(action.path, 0, action.keep))
    recordlog.write_heartbeat(disk, checkpoint, Heartbeat(claim, now, released=True))
    return claim


def named_files(tails: list[LogTail]) -> set[str]:
    """Return the names of all data files that any base or record names."""
    named: set[str] = set()
    for tail in tails:
        for record, _ in tail.records:
            named = named.union(*map(records.files_of, record.parts), records.files_of_batch(record.batch))
        for chain in tail.base.chains if tail.base is not None else ():
            named |= records.files_of_batch(chain.batch)
            named.update(frame.extent.file for frame in chain.deltas)
            named.update(s.extent.file for s in chain.snapshots if s.extent is not None)
            published = (item for edge in chain.edges for item in edge.published)
            named.update(segment.extent.file for item in published for segment in item.segments)
    return named


def _read_parts(disk: Disk, checkpoint: str) -> tuple[list[LogTail], bool]:
    """All log parts that can be read, and whether that is surely all of them, the newest that there was included."""
    found = map(paths.parse_log, disk.list(paths.logs(checkpoint)))
    tails, whole = [], True
    for part in sorted(part for part in found if part is not None):
        try:
            tails.append(recordlog.read_part(disk, checkpoint, part))
        except PenstockError:
            whole = False
    try:
        recordlog.read_tail(disk, checkpoint)  # also misses the part that `newest` names
    except PenstockError:
        whole = False
    return tails, whole and bool(tails) and disk.size(paths.newest_log(checkpoint)) is not None


def _leftovers(disk: Disk, checkpoint: str) -> list[Action]:
    own = (checkpoint, paths.drivers(checkpoint), paths.logs(checkpoint), paths.data(checkpoint))
    return [
        _delete(disk, f"{folder}/{name}", "left by a write that was cut off")
        for folder in (*own, *folders(disk, checkpoint))
        for name in disk.list(folder)
        if is_temp(name) or (folder == checkpoint and name.startswith(PROBE))
    ]


def _torn_tails(disk: Disk, checkpoint: str, tails: list[LogTail]) -> list[Action]:
    actions = []
    for tail in tails:  # what looks like damage was not read, and is not here
        assert tail.part is not None
        path = paths.log(checkpoint, tail.part)
        data = disk.view(path)
        scan = scan_frames(data, path)
        for _ in scan:
            pass
        if scan.end is ScanEnd.TORN:
            why = "an append that a crash cut off; nobody was told of it"
            actions.append(Action(What.CUT, path, why, len(data) - scan.end_offset, scan.end_offset))
    return actions


def _orphans(disk: Disk, checkpoint: str, tails: list[LogTail]) -> list[Action]:
    try:
        named = named_files(tails) | held_files(disk, checkpoint)
    except PenstockError:
        return []  # a manifest that cannot be read may name any of them
    newest = recordlog.newest_generation(disk, checkpoint)
    return [
        _delete(disk, paths.data_file(checkpoint, name), "no record names it")
        for name in disk.list(paths.data(checkpoint))
        if (file := paths.parse_data(name)) is not None and file.generation <= newest and name not in named
    ]


def _unused_metas(disk: Disk, checkpoint: str, tails: list[LogTail]) -> list[Action]:
    used = {tail.base.identity for tail in tails if tail.base is not None}
    try:
        known = read_metas(disk, checkpoint).known
    except PenstockError:
        return []
    found = {name: paths.parse_meta_version(name) for name in disk.list(checkpoint)}
    return [
        _delete(disk, f"{checkpoint}/{name}", "a topology that was noted and never run")
        for name, identity in found.items()
        if identity is not None and identity in known and identity not in used
    ]


def _heartbeat(disk: Disk, checkpoint: str, holder: Holder) -> list[Action]:
    path = paths.heartbeat(checkpoint)
    if disk.size(path) is None:
        return []
    try:
        read_framed(disk, path, FrameKind.CLAIM)
    except PenstockError:
        return [Action(What.RELEASE, path, "it is damaged; it only guards against accidents")]
    if holder.released:
        return []
    return [Action(What.RELEASE, path, f"{holder.claim} is gone and did not give the checkpoint back")]


def _delete(disk: Disk, path: str, why: str) -> Action:
    return Action(What.DELETE, path, why, disk.size(path) or 0)
