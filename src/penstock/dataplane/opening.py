"""Opening a checkpoint: is it ours, is it free, claim it, fence the older driver, read what is committed.

The order is the proof: the claim is durable before the log is read, and the first base of the new generation
is durable before anything else happens. Nothing is overwritten; whatever does not fit is refused by name.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from penstock.dataplane import paths, recordlog
from penstock.dataplane.chains import Chains
from penstock.dataplane.disk import PROBE, Disk, check_writable, is_temp
from penstock.dataplane.frames import FrameKind, decode_frame
from penstock.dataplane.program import Program, StageSpec
from penstock.dataplane.recordlog import Claim, frame_bytes
from penstock.dataplane.state.local import boot_id
from penstock.errors import CheckpointError, PenstockError, StorageError


class StageIdentity(msgspec.Struct, frozen=True):
    """What must stay the same for a stage's state to stay meaningful."""

    kind: str
    schema: str
    inputs: list[str] = []
    keys: list[str] = []
    shards: int = 1
    logic: dict[str, object] = {}


class Meta(msgspec.Struct, frozen=True):
    format: int
    query: str
    stages: dict[str, StageIdentity]


@dataclass(frozen=True)
class Opened:
    """A checkpoint that this driver owns, with everything committed in it."""

    checkpoint: str
    query: str
    claim: Claim
    chains: Chains
    identity: bytes
    fresh: bool


def identity_of(program: Program) -> dict[str, StageIdentity]:
    return {name: _stage_identity(spec) for name, spec in program.stages.items()}


def _stage_identity(spec: StageSpec) -> StageIdentity:
    return StageIdentity(
        kind=spec.kind,
        schema=", ".join(f"{field.name} {field.type}" for field in spec.schema),
        inputs=[given.producer for given in spec.inputs],
        keys=list(spec.keys),
        shards=spec.shards,
        logic=spec.logic.identity() if spec.logic is not None else {},
    )


def open_checkpoint(
    disk: Disk,
    checkpoint: str,
    program: Program,
    *,
    takeover: bool = False,
    fresh_s: float = 15.0,
    who: Claim | None = None,
    wall: Callable[[], float] = time.time,
    is_running: Callable[[Claim], bool] | None = None,
) -> Opened:
    """Claim a checkpoint for this driver and read it.

    Args:
        takeover: claim it even while its holder seems alive; the holder's query ends with an error.

    Raises:
        CheckpointError: held by a living driver, of another topology, of a newer format, or not writable.
        CorruptFileError: names the damaged file.
    """
    check_writable(checkpoint, disk)
    for folder in (checkpoint, paths.drivers(checkpoint), paths.logs(checkpoint), paths.data(checkpoint)):
        disk.make_dirs(folder)
    meta = _read_or_create_meta(disk, checkpoint, program)
    _check_identity(checkpoint, meta, identity_of(program))
    who = who or this_process()
    if not takeover:
        holder = recordlog.resolve_holder(
            recordlog.read_heartbeat(disk, checkpoint),
            wall(),
            fresh_s,
            who.boot,
            is_running or process_is_running,
        )
        if holder is not None:
            raise CheckpointError(
                f"The checkpoint {checkpoint} is held by {holder}; stop that query, or start this one with "
                "option('takeover', 'true') to end it."
            )
    _check_claimed(disk, checkpoint)
    claim = recordlog.claim_generation(disk, checkpoint, who)
    recordlog.write_heartbeat(disk, checkpoint, recordlog.Heartbeat(claim, wall()))
    _drop_leftovers(disk, checkpoint)
    try:
        chains, fresh = _load(disk, checkpoint, program, meta)
    except PenstockError:
        with contextlib.suppress(PenstockError):  # what was refused is the news
            recordlog.write_heartbeat(disk, checkpoint, recordlog.Heartbeat(claim, wall(), released=True))
        raise
    identity = hashlib.blake2b(msgspec.json.encode(meta), digest_size=8).digest()
    return Opened(checkpoint, meta.query, claim, chains, identity, fresh)


def _drop_leftovers(disk: Disk, checkpoint: str) -> None:
    """Delete what drivers left half written beside the log and the data; those folders have clean-ups of their own."""
    with contextlib.suppress(StorageError):  # the next start tries again
        for folder in (checkpoint, paths.drivers(checkpoint)):
            for name in disk.list(folder):
                if is_temp(name) or name.startswith(PROBE):
                    disk.delete(f"{folder}/{name}")


def _load(disk: Disk, checkpoint: str, program: Program, meta: Meta) -> tuple[Chains, bool]:
    tail = recordlog.read_tail(disk, checkpoint)
    chains = Chains(program)
    if tail.base is None or tail.part is None:
        return chains, True
    if tail.base.query != meta.query:
        path = paths.log(checkpoint, tail.part)
        raise CheckpointError(
            f"{path} is the log of another query than {paths.meta(checkpoint)}; restore both from a copy."
        )
    chains.load(tail.base, tail.records)
    return chains, False


def _read_or_create_meta(disk: Disk, checkpoint: str, program: Program) -> Meta:
    path = paths.meta(checkpoint)
    if disk.size(path) is None:
        if disk.list(paths.logs(checkpoint)):
            raise CheckpointError(
                f"{path} is gone though the checkpoint has a log; restore the file from a copy."
            )
        meta = Meta(paths.FORMAT_VERSION, str(uuid.uuid4()), identity_of(program))
        disk.create_exclusive(path, frame_bytes(FrameKind.META, msgspec.json.encode(meta)))
    payload = bytes(decode_frame(disk.read(path), FrameKind.META, path))
    head = msgspec.json.decode(payload)
    if not isinstance(head, dict) or head.get("format", 0) > paths.FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format {head.get('format') if isinstance(head, dict) else '?'}, this release reads up to "
            f"{paths.FORMAT_VERSION}; use the newer release or a new checkpointLocation."
        )
    return msgspec.json.decode(payload, type=Meta)


def _check_claimed(disk: Disk, checkpoint: str) -> None:
    """A log part without the claim of its generation: that number would be given away again."""
    parts = [part for part in map(paths.parse_log, disk.list(paths.logs(checkpoint))) if part is not None]
    if parts and disk.size(path := paths.claim(checkpoint, max(parts).generation)) is None:
        raise CheckpointError(
            f"{path} is gone though the log has parts of that generation; restore the file from a copy."
        )


def _check_identity(checkpoint: str, meta: Meta, now: dict[str, StageIdentity]) -> None:
    for name, was in meta.stages.items():
        if name not in now:
            raise CheckpointError(
                f"The checkpoint {checkpoint} has {was.kind} '{name}', which this topology lacks (it has "
                f"{', '.join(sorted(now))}); keep the name, or use a new checkpointLocation."
            )
        for field in StageIdentity.__struct_fields__:
            before, after = getattr(was, field), getattr(now[name], field)
            if before != after:
                raise CheckpointError(
                    f"{was.kind.capitalize()} '{name}' had {field} {before!r} in the checkpoint {checkpoint} and now has "
                    f"{after!r}; change it back, or use a new checkpointLocation."
                )
    added = sorted(set(now) - set(meta.stages))
    if added:
        raise CheckpointError(
            f"This topology has {', '.join(map(repr, added))}, which the checkpoint {checkpoint} lacks; use a new "
            "checkpointLocation."
        )


def this_process() -> Claim:
    """Return this process as a claimant."""
    pid = os.getpid()
    return Claim(0, socket.gethostname(), pid, process_space(), _start_time(pid) or 0.0, time.time())


def process_space() -> str:
    """Return what makes a process id mean one process: the boot, and the container where there is one."""
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # no such thing on this system
        return boot_id()


def process_is_running(claim: Claim) -> bool:
    """Whether the claiming process, on this machine, is still there (and is not another one with its pid)."""
    if claim.pid == os.getpid():
        return False
    try:
        os.kill(claim.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    started = _start_time(claim.pid)
    if started == DEAD:
        return False
    return started is None or not claim.started or started == claim.started


DEAD = -1.0
"""Start time of a process that has ended and that its parent has not asked after yet."""


def _start_time(pid: int) -> float | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return DEAD if fields[0] in "ZX" else float(fields[19])
