"""Opening a checkpoint: is it ours, is it free, claim it, fence the older driver, read what is committed.

The order is the proof: the claim is durable before the log is read, and the first base of the new generation
is durable before anything else happens. Nothing is overwritten; whatever does not fit is refused by name.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from penstock.dataplane import paths, recordlog
from penstock.dataplane.chains import Chains
from penstock.dataplane.disk import PROBE, Disk, check_writable, is_temp
from penstock.dataplane.fitting import Fitted, fit_program
from penstock.dataplane.foreign import check_not_foreign
from penstock.dataplane.frames import FrameKind
from penstock.dataplane.holding import (
    FRESH_S,
    Onlooker,
    claim_checkpoint,
    give_back,
    process_is_running,
    this_process,
)
from penstock.dataplane.identity import Meta, encode_meta, hash_meta, skeleton
from penstock.dataplane.metas import create_meta, read_metas
from penstock.dataplane.positions import ChannelKey
from penstock.dataplane.program import Program
from penstock.dataplane.recordlog import Claim, LogTail, frame_bytes
from penstock.dataplane.small_files import folding
from penstock.errors import CheckpointError, FencedError, PenstockError, StorageError

T = TypeVar("T")
STARTS_AT_ONCE = 10
"""Times that a start begins anew because others that start clean up beside it."""


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
    beside: str = "",
    fresh_s: float = FRESH_S,
    who: Claim | None = None,
    wall: Callable[[], float] = time.time,
    is_running: Callable[[Claim], bool] = process_is_running,
    pause: Callable[[float], None] = time.sleep,
) -> Opened:
    """Claim a checkpoint for this driver and read it. Of any number of drivers that do so at once, one gets it.

    Args:
        takeover: claim it even while its holder seems alive; the holder's query ends with an error.
        beside: a file of the query's own that is no part of the checkpoint, and may lie in its folder.
        pause: lets time pass where the heartbeat of another host has to be watched.

    Raises:
        CheckpointError: held by a living driver, of another topology, of a newer format, not writable, or filled by
            something else, such as a Spark query.
        CorruptFileError: names the damaged file.
        FencedError: a newer driver took it over meanwhile.
    """
    who = who or this_process()
    onlooker = Onlooker(who.boot, wall, is_running, fresh_s, pause)

    def claim_it() -> Claim:
        _prepare(disk, checkpoint, program, beside)
        return claim_checkpoint(disk, checkpoint, who, onlooker, takeover)

    claim = _beside_others(claim_it)
    with _given_back_on_failure(disk, checkpoint, claim, wall):
        recordlog.write_heartbeat(disk, checkpoint, recordlog.Heartbeat(claim, wall()))
        _drop_leftovers(disk, checkpoint, claim)
        opened = _load(disk, checkpoint, program, claim)
        recordlog.check_claim(disk, checkpoint, claim)
    return opened


def _prepare(disk: Disk, checkpoint: str, program: Program, beside: str) -> None:
    """Make what a new checkpoint lacks, and refuse one that does not fit; changes nothing of one that does."""
    check_not_foreign(disk, checkpoint, beside)
    check_writable(checkpoint, disk)
    for folder in (checkpoint, paths.drivers(checkpoint), paths.logs(checkpoint), paths.data(checkpoint)):
        disk.make_dirs(folder)
    create_meta(disk, checkpoint, program)
    _check_fits(disk, checkpoint, program)
    _check_claimed(disk, checkpoint)


def _beside_others(step: Callable[[], T]) -> T:
    """Carry out a step that writes before it has the claim: whoever got the claim meanwhile may have cleaned away what
    was being written. Then it is done again, and meets the new holder."""
    for _ in range(STARTS_AT_ONCE):
        try:
            return step()
        except (StorageError, CheckpointError, FileNotFoundError) as error:
            if not _has_vanished(error):
                raise
    return step()


def _has_vanished(error: BaseException | None) -> bool:
    """Whether a write failed because its file, or its folder, was not there any more."""
    return error is not None and (isinstance(error, FileNotFoundError) or _has_vanished(error.__cause__))


@contextlib.contextmanager
def _given_back_on_failure(
    disk: Disk, checkpoint: str, claim: Claim, wall: Callable[[], float]
) -> Iterator[None]:
    """Give a claim back where it comes to nothing; where a newer driver was the reason, say so instead of what it did."""
    try:
        yield
    except (PenstockError, FileNotFoundError) as error:
        try:
            recordlog.check_claim(disk, checkpoint, claim)
        except FencedError as fenced:
            raise fenced from error
        finally:
            give_back(disk, checkpoint, claim, wall(), None)
        raise
    except BaseException:  # else this process would hold it as long as it lives
        give_back(disk, checkpoint, claim, wall(), None)
        raise


def _drop_leftovers(disk: Disk, checkpoint: str, claim: Claim) -> None:
    """Delete what drivers left half written beside the log and the data; those folders have clean-ups of their own.

    The listing is older than the look for a newer claim, and a newer driver writes what it cannot write again after its
    claim: nothing of its is deleted. Who has no claim yet begins again.
    """
    folders = (checkpoint, paths.drivers(checkpoint))
    with contextlib.suppress(StorageError):  # the next start tries again
        found = [f"{folder}/{name}" for folder in folders for name in disk.list(folder) if _is_left(name)]
        recordlog.check_claim(disk, checkpoint, claim)
        for path in found:
            disk.delete(path)


def _is_left(name: str) -> bool:
    return is_temp(name) or name.startswith(PROBE)


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
