"""Opening a checkpoint: is it ours, is it free, claim it, fence the older driver, read what is committed.

The order is the proof: the claim is durable before the log is read, and the first base of the new generation
is durable before anything else happens. Nothing is overwritten; whatever does not fit is refused by name.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.dataplane import paths, recordlog
from penstock.dataplane.boot import boot_id
from penstock.dataplane.chains import Chains
from penstock.dataplane.disk import PROBE, Disk, check_writable, is_temp
from penstock.dataplane.fitting import Fitted, fit_program
from penstock.dataplane.frames import FrameKind
from penstock.dataplane.identity import Meta, encode_meta, hash_meta, skeleton
from penstock.dataplane.metas import create_meta, read_metas
from penstock.dataplane.positions import ChannelKey
from penstock.dataplane.program import Program
from penstock.dataplane.recordlog import Claim, LogTail, frame_bytes
from penstock.dataplane.small_files import folding
from penstock.errors import CheckpointError, PenstockError, StorageError


@dataclass(frozen=True)
class Opened:
    """A checkpoint that this driver owns, with everything committed in it."""

    checkpoint: str
    query: str
    claim: Claim
    chains: Chains
    identity: bytes
    fresh: bool
    program: Program
    """The program with the edge numbers and older schemas of this checkpoint; the one to run."""


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
    create_meta(disk, checkpoint, program)
    _check_fits(disk, checkpoint, program)
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
        return _load(disk, checkpoint, program, claim)
    except PenstockError:
        with contextlib.suppress(PenstockError):  # what was refused is the news
            recordlog.write_heartbeat(disk, checkpoint, recordlog.Heartbeat(claim, wall(), released=True))
        raise


def _drop_leftovers(disk: Disk, checkpoint: str) -> None:
    """Delete what drivers left half written beside the log and the data; those folders have clean-ups of their own."""
    with contextlib.suppress(StorageError):  # the next start tries again
        for folder in (checkpoint, paths.drivers(checkpoint)):
            for name in disk.list(folder):
                if is_temp(name) or name.startswith(PROBE):
                    disk.delete(f"{folder}/{name}")


def _load(disk: Disk, checkpoint: str, program: Program, claim: Claim) -> Opened:
    """Read what is committed, fit the program to it, and note the topology if it changed.

    The topology that holds is the one that the newest base names, so that one which a start noted and never ran
    under does not count.
    """
    tail = recordlog.read_tail(disk, checkpoint)
    metas = read_metas(disk, checkpoint)
    meta = metas.in_force(tail)
    with folding(paths.meta(checkpoint)):
        fitted = fit_program(checkpoint, meta, program, claim.generation)
    with folding(paths.log(checkpoint, tail.part) if tail.part is not None else paths.logs(checkpoint)):
        chains = _fold(checkpoint, tail, meta, fitted)
    identity = metas.identity_of(meta)
    if fitted.changed:
        payload = encode_meta(fitted.meta)
        identity = hash_meta(payload)
        disk.create_exclusive(paths.meta_version(checkpoint, identity), frame_bytes(FrameKind.META, payload))
    return Opened(checkpoint, meta.query, claim, chains, identity, tail.base is None, fitted.program)


def _fold(checkpoint: str, tail: LogTail, meta: Meta, fitted: Fitted) -> Chains:
    """Fold the records under the topology that wrote them, then go on with the one that is started."""
    if tail.base is None or not fitted.changed or not meta.edges:
        chains = Chains(fitted.program)
        if tail.base is not None:
            chains.load(tail.base, tail.records)
        return chains
    chains = Chains(skeleton(meta))
    chains.load(tail.base, tail.records)
    left = chains.adopt(fitted.program)
    _check_left(checkpoint, meta, left)
    return chains


def _check_left(checkpoint: str, meta: Meta, left: dict[ChannelKey, int]) -> None:
    consumers = {edge.number: edge.consumer for edge in meta.edges}
    for key, rows in left.items():
        raise CheckpointError(
            f"In the checkpoint {checkpoint} {rows} rows of '{key.chain}' wait for '{consumers.get(key.edge, '?')}', which "
            f"does not read '{key.chain}' any more; start the topology as it was, let processAllAvailable() return, stop "
            "it, and then change it."
        )


def _check_claimed(disk: Disk, checkpoint: str) -> None:
    """A log part without the claim of its generation: that number would be given away again."""
    parts = [part for part in map(paths.parse_log, disk.list(paths.logs(checkpoint))) if part is not None]
    if parts and disk.size(path := paths.claim(checkpoint, max(parts).generation)) is None:
        raise CheckpointError(
            f"{path} is gone though the log has parts of that generation; restore the file from a copy."
        )


def _check_fits(disk: Disk, checkpoint: str, program: Program) -> None:
    """Refuse early what does not fit, so that a wrong start does not end a running query.

    Which topology holds is known for sure only after the claim; until then, if the log cannot be read beside its
    holder, one that fits is enough.
    """
    metas = read_metas(disk, checkpoint)
    known = sorted(metas.known.values(), key=lambda meta: meta.generation)
    if len(known) > 1:
        with contextlib.suppress(CheckpointError, FileNotFoundError):
            known = [metas.in_force(recordlog.read_tail(disk, checkpoint))]
    error: CheckpointError | None = None
    for meta in known:
        try:
            with folding(paths.meta(checkpoint)):
                fit_program(checkpoint, meta, program, 0)
            return
        except CheckpointError as refused:
            error = refused
    assert error is not None
    raise error


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
