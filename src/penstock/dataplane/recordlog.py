"""The log of records: claims, fencing, parts that begin with a base, appends, and reading it all back.

One log part holds the records of every chain, one frame per synced append (ADR 0001). A driver owns a
generation by exclusive create and looks for a newer claim after every sync, before anything is published;
whoever sees one writes no more. A newer driver reads only after its claim is durable and starts a part of its
own with a base, which makes everything an older one may still append unreachable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import msgspec

from penstock.dataplane import paths, records
from penstock.dataplane.disk import AppendFile, Disk, is_temp
from penstock.dataplane.frames import MAGIC, Frame, FrameKind, ScanEnd, encode_frame, scan_frames
from penstock.dataplane.small_files import decode, naming, read_framed
from penstock.dataplane.tornness import is_damaged_tail
from penstock.errors import CheckpointError, CorruptFileError, FencedError, StorageError
from penstock.words import in_local_time

COPIED_MOST: Final = 256 << 20
"""Bytes of a log part up to which it is copied, not mapped: another host may drop it while it is looked at, and what of it
is mapped on a network file system is gone then, and this process with it."""
Generation: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=10**15)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e10, le=1e11)]
"""Of the years 1653 to 5138, which every calendar has; clocks may be wrong."""
ProcessId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]


class Claim(msgspec.Struct, frozen=True):
    """Who owns a generation."""

    generation: Generation
    host: str
    pid: ProcessId
    boot: str
    """Boot of the machine and space of process ids (a container has its own) in which `pid` means this process."""
    started: Seconds
    """Start time of the process as the system counts it, so that a reused pid is not taken for it."""
    time: Seconds

    def __str__(self) -> str:
        since = in_local_time(self.time)
        return f"driver generation {self.generation} (process {self.pid} on {self.host}, since {since})"


class Heartbeat(msgspec.Struct, frozen=True):
    claim: Claim
    time: Seconds
    released: bool = False


class RecordBatch(msgspec.Struct, array_like=True, frozen=True):
    """Payload of one RECORD frame: encoded records, committed by one sync."""

    records: list[bytes]


_batch = msgspec.msgpack.Decoder(RecordBatch)
_claim = msgspec.json.Decoder(Claim)
_heartbeat = msgspec.json.Decoder(Heartbeat)
_newest = msgspec.json.Decoder(tuple[int, int])


@dataclass(frozen=True)
class LogTail:
    """What start-up found: the newest base and the records after it, oldest first, with their bytes."""

    base: records.Base | None
    records: Sequence[tuple[records.Record, bytes]]
    part: paths.LogPart | None


def frame_bytes(kind: FrameKind, payload: bytes) -> bytes:
    return b"".join(bytes(part) for part in encode_frame(kind, payload))


def read_claim(disk: Disk, checkpoint: str, generation: int) -> Claim | None:
    """Return the claim of a generation, None when nobody has it."""
    path = paths.claim(checkpoint, generation)
    try:
        return decode(_claim, read_framed(disk, path, FrameKind.CLAIM), path, "claim")
    except FileNotFoundError:
        return None


def newest_generation(disk: Disk, checkpoint: str) -> int:
    """Return the highest claimed generation, 0 when there is none."""
    found = (paths.parse_claim(name) for name in disk.list(paths.drivers(checkpoint)))
    return max((generation for generation in found if generation is not None), default=0)


def as_next(identity: Claim, generation: int) -> Claim:
    """Return who claims as the claimant of the generation after this one."""
    return msgspec.structs.replace(identity, generation=generation + 1)


def create_claim(disk: Disk, checkpoint: str, claim: Claim) -> bool:
    """Give a generation to a claimant by exclusive create, durable on return; False where somebody has it."""
    data = frame_bytes(FrameKind.CLAIM, msgspec.json.encode(claim))
    return disk.create_exclusive(paths.claim(checkpoint, claim.generation), data)


def claim_generation(disk: Disk, checkpoint: str, identity: Claim) -> Claim:
    """Claim the next free generation, whoever has the one before; durable on return.

    Args:
        identity: who claims; its generation is ignored.
    """
    generation = newest_generation(disk, checkpoint)
    while not create_claim(disk, checkpoint, claim := as_next(identity, generation)):
        generation += 1
    return claim


def read_heartbeat(disk: Disk, checkpoint: str) -> Heartbeat | None:
    """Return the last heartbeat; None when there is none or it cannot be read (it only guards against
    accidents)."""
    path = paths.heartbeat(checkpoint)
    try:
        return decode(_heartbeat, read_framed(disk, path, FrameKind.CLAIM), path, "heartbeat")
    except (FileNotFoundError, CorruptFileError):
        return None


def write_heartbeat(disk: Disk, checkpoint: str, heartbeat: Heartbeat) -> None:
    """Replace the heartbeat. Raises FencedError when it fails because a newer driver has cleaned up behind this one."""
    with naming_the_winner(disk, checkpoint, heartbeat.claim):
        disk.put(paths.heartbeat(checkpoint), frame_bytes(FrameKind.CLAIM, msgspec.json.encode(heartbeat)))


def check_claim(disk: Disk, checkpoint: str, claim: Claim) -> None:
    """Raise FencedError, naming the winner, when a newer generation has been claimed."""
    if disk.size(paths.claim(checkpoint, claim.generation + 1)) is None:
        return
    winner = read_claim(disk, checkpoint, newest_generation(disk, checkpoint))
    raise FencedError(
        f"The checkpoint {checkpoint} was taken over by {winner}; this query (generation "
        f"{claim.generation}) has ended and wrote nothing after that."
    )


@contextmanager
def naming_the_winner(disk: Disk, checkpoint: str, claim: Claim) -> Iterator[None]:
    """Turn a failure into FencedError when a newer driver is there: it may have deleted what was being written."""
    try:
        yield
    except StorageError:
        check_claim(disk, checkpoint, claim)
        raise


def read_tail(disk: Disk, checkpoint: str) -> LogTail:
    """Read the newest base and the records after it.

    Call it only after the own claim is durable. A part appears under its name with its base whole, so a part
    whose first frame is bad is damaged, never half made. The last frame of a part may be torn by a crash: it
    was never acknowledged.

    Raises:
        CorruptFileError: names the file; nothing was changed.
        CheckpointError: the format is newer than this release.
    """
    noted = _read_newest(disk, checkpoint)  # before the listing: parts only ever give way to newer ones
    parts = sorted(
        part for part in map(paths.parse_log, disk.list(paths.logs(checkpoint))) if part is not None
    )
    if noted is not None and (not parts or parts[-1] < noted):
        raise CorruptFileError(
            f"{paths.log(checkpoint, noted)} is gone, and with it what was committed last; restore the file from a copy."
        )
    return read_part(disk, checkpoint, parts[-1]) if parts else LogTail(None, (), None)


def _read_newest(disk: Disk, checkpoint: str) -> paths.LogPart | None:
    path = paths.newest_log(checkpoint)
    try:
        payload = read_framed(disk, path, FrameKind.NEWEST)
    except FileNotFoundError:
        return None
    return paths.LogPart(*decode(_newest, payload, path, "name of a log part"))


def read_part(disk: Disk, checkpoint: str, part: paths.LogPart) -> LogTail:
    """Read one log part: its base and the records after it. Raises as `read_tail` does."""
    path = paths.log(checkpoint, part)
    data: bytes | memoryview = disk.read(path, 0, COPIED_MOST + 1)
    if len(data) > COPIED_MOST:
        data = disk.view(path)
    scan = scan_frames(data, path)
    frames = list(scan) if data[: len(MAGIC)] == MAGIC else []  # of gigabytes of nothing no byte is looked at
    if frames:
        scan.check()
    if not frames or frames[0].kind is not FrameKind.BASE:
        raise CorruptFileError(f"{path} does not begin with a base record; restore the file from a copy.")
    if scan.end is ScanEnd.TORN and is_damaged_tail(data, scan.end_offset):
        raise CorruptFileError(
            f"{path} is damaged at offset {scan.end_offset}: {scan.reason}, and a cut-off write does not look like "
            "that; restore the file from a copy."
        )
    base = _decode_base(frames[0], path)
    if (base.generation, base.part) != part:
        raise CorruptFileError(
            f"{path} holds part {base.part} of generation {base.generation}, so it was swapped for another file; restore "
            "the file from a copy."
        )
    tail = [record for frame in frames[1:] for record in _decode_records(frame, path)]
    _check_chains(base, tail, path)
    return LogTail(base, tail, part)


def _decode_base(frame: Frame, path: str) -> records.Base:
    with naming(path, "base"):
        try:
            base = records.decode_base(bytes(frame.payload))
        except msgspec.ValidationError as error:
            raise CheckpointError(
                f"{path} was written by a newer release of Penstock ({error}); use that release, or restore the file from "
                "a copy."
            ) from error
    if base.format > paths.FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format {base.format}, this release reads up to {paths.FORMAT_VERSION}; "
            "use the newer release or a new checkpointLocation."
        )
    return base


def _decode_records(frame: Frame, path: str) -> list[tuple[records.Record, bytes]]:
    if frame.kind is not FrameKind.RECORD:
        raise CorruptFileError(
            f"{path} holds a {frame.kind.name} frame at offset {frame.offset} among records."
        )
    with naming(path, f"record at offset {frame.offset}"):
        batch = _batch.decode(bytes(frame.payload))
        return [(records.decode_record(encoded), encoded) for encoded in batch.records]


def _check_chains(base: records.Base, tail: Sequence[tuple[records.Record, bytes]], path: str) -> None:
    """Every record follows its predecessor in its chain, by hash, and stands in its own generation's part."""
    heads = {chain.chain: chain.hash for chain in base.chains}
    for record, encoded in tail:
        if (
            record.previous != heads.get(record.chain, records.NO_HASH)
            or record.generation != base.generation
        ):
            raise CorruptFileError(
                f"{path}: epoch {record.epoch} of '{record.chain}' does not follow its predecessor; the file was put "
                "together from others, restore it from a copy."
            )
        heads[record.chain] = records.hash_of(encoded)


class LogWriter:
    """Appends records for one generation. Every method may block on the disk; one thread uses it.

    After any failure it must not be used again: what the failed call left behind is unknown until the next
    start reads it.
    """

    def __init__(self, disk: Disk, checkpoint: str, claim: Claim) -> None:
        self._disk = disk
        self._checkpoint = checkpoint
        self._claim = claim
        self._part = 0
        self._file: AppendFile | None = None
        self.appended_bytes = 0

    def start_part(self, base: records.Base) -> paths.LogPart:
        """Begin the next part with this base; durable, and not fenced, on return."""
        with naming_the_winner(self._disk, self._checkpoint, self._claim):
            return self._start_part(base)

    def _start_part(self, base: records.Base) -> paths.LogPart:
        self.check_claim()
        part = paths.LogPart(self._claim.generation, base.part)
        data = frame_bytes(FrameKind.BASE, records.encode(base))
        file = self._disk.start_append(paths.log(self._checkpoint, part), data)
        if file is None:
            raise CheckpointError(
                f"{paths.log(self._checkpoint, part)} exists though generation {part.generation} is claimed by this "
                "driver; two drivers share an identity, stop one of them."
            )
        self.check_claim()
        # Noted after the check: whoever claims the checkpoint from now on finds this part in the folder.
        self._disk.put(
            paths.newest_log(self._checkpoint), frame_bytes(FrameKind.NEWEST, msgspec.json.encode(part))
        )
        if self._file is not None:
            self._file.close()
        self._file, self._part, self.appended_bytes = file, base.part, len(data)
        return part

    def append(self, encoded: Sequence[bytes]) -> None:
        """Commit these records by one sync; on return they are durable and this driver still owned the
        checkpoint.

        Raises:
            FencedError: a newer driver has claimed the checkpoint; nothing may be published.
            StorageError: the write failed; nothing may be published.
        """
        assert self._file is not None, "start_part comes first"
        self.check_claim()
        payload = msgspec.msgpack.encode(RecordBatch(list(encoded)))
        frame = encode_frame(FrameKind.RECORD, payload)
        self._file.append(*frame)
        self._file.sync()
        self.check_claim()
        self.appended_bytes = self._file.size

    def check_claim(self) -> None:
        """Raise FencedError, naming the winner, when a newer generation has been claimed."""
        check_claim(self._disk, self._checkpoint, self._claim)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def plan_log_cleanup(names: Sequence[str], newest: paths.LogPart, own_generation: int) -> list[str]:
    """Return the names of log parts that nothing reads any more, once `newest` is durable. Never a later
    generation's."""
    parts = {name: paths.parse_log(name) for name in names}
    dead = [name for name, part in parts.items() if part is not None and part < newest]
    # Up to the newest part, which has its name, a temporary one is what a failure left behind; past it, a part being made.
    torn = [
        name
        for name in names
        if is_temp(name)
        and (
            name.startswith("newest.")  # written by the one thread that cleans up
            or ((part := paths.parse_log(name.split(".log")[0] + ".log")) is not None and part <= newest)
        )
    ]
    return sorted(dead + torn)
