"""Forges files of a checkpoint so that every checksum, hash and length still fits, and judges what readers make of it.

What a forger may not do: crash a reader, hold it up, take its memory, or make it raise anything but an error of ours
that names a file. Readers run in a process of their own, whose memory and time are bounded. Run as a program it judges a
range of seeds and prints one line before and one after each.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent.parent.parent / one) for one in ("src", "")]

import msgspec
import pyarrow as pa
from tests.faults.damage import Tally
from tests.faults.runs import fast_disk, scratch
from tests.unit.dataplane.looked_at import PROGRAMS, left_behind

from penstock.cli.checkpoint import _check_schedule, _shown
from penstock.dataplane import exports, records
from penstock.dataplane.disk import is_temp
from penstock.dataplane.exports import ExportFolder
from penstock.dataplane.frames import FrameKind, encode_frame, frame_crc, scan_frames
from penstock.dataplane.identity import hash_meta
from penstock.dataplane.imported import (
    ImportedRows,
    ImportedVariable,
    Manifest,
    read_manifests,
    write_imported,
)
from penstock.dataplane.inspecting import look, read_holder, summarise, view_stages
from penstock.dataplane.outside import view_exports, view_imported
from penstock.dataplane.positions import ChannelKey
from penstock.dataplane.recordlog import RecordBatch, frame_bytes
from penstock.dataplane.repairing import plan_repair
from penstock.dataplane.run import SinkWork
from penstock.dataplane.taking import PieceTaken
from penstock.dataplane.verifying import verify
from penstock.errors import PenstockError
from penstock.sim.inprocess import Driver
from penstock.sim.timing import SMALL, quick

SECONDS = 60
"""A reader that takes longer is taken to hang."""
MEMORY = 1 << 30
"""Bytes that readers may take on top of what an idle process has."""
STARTS = 4
"""Every so many-th case is also started by a driver."""
_BASE = {name: at for at, name in enumerate(records.Base.__struct_fields__)}
_CHAIN = {name: at for at, name in enumerate(records.ChainBase.__struct_fields__)}
_RECORD = {name: at for at, name in enumerate(records.Record.__struct_fields__)}
_JSON = (FrameKind.CLAIM, FrameKind.META, FrameKind.NEWEST)
_INTS = (
    0,
    1,
    -1,
    7,
    255,
    65_535,
    1 << 16,
    1 << 31,
    1 << 32,
    1 << 40,
    10**15,
    (1 << 62),
    (1 << 63) - 1,
    -(1 << 63),
)
_FLOATS = (0.0, -1.0, 1e9, 1e12, 1e18, 1e300, -1e300, 5e-324, 1e308)
_TEXTS = (
    "",
    "x" * 5_000,
    "../../../etc/passwd",
    "/etc/passwd",
    "\0",
    "é",
    "g000001-a-000001.seg",
    "fold#9",
    "source",
)


def make(folder: Path, kind: str = "memory") -> str:
    """A checkpoint with everything that one can hold: two log parts, all kinds of frames, an export and an import."""
    checkpoint = left_behind(folder, PROGRAMS[kind]())
    disk = fast_disk()
    seen = look(disk, checkpoint)
    schema = next(edge for edge in seen.chains.program.stages["fold"].inputs).schema
    queue = seen.chains["source"].out[0]
    own = ExportFolder(disk, checkpoint, "source", schema, 1 << 30)
    own.open(seen.metas.first.query)
    pieces = [PieceTaken(ChannelKey(0, "source"), 0, -1, item) for item in queue]
    own.take(SinkWork("export.source", 1, pieces))
    variable = ImportedVariable("count", "value", False, "n BIGINT")
    rows = pa.table({"k0": [1, 2, 3], "v0": ["a", None, "ccc"], "timer_ms": [3, 4, 5]})
    write_imported(disk, checkpoint, Manifest("fold", "/old", 4, ["k"], [variable], True), rows)
    return checkpoint


@dataclass(frozen=True)
class Forgery:
    """What was done, and the files that are other now; for what is no file, how to make it."""

    what: str
    files: dict[str, bytes | Callable[[str], None]]


class Forger:
    """Forges one thing for each seed."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self.files = {
            str(path.relative_to(checkpoint)): path.read_bytes()
            for path in sorted(Path(checkpoint).rglob("*"))
            if path.is_file() and not is_temp(path.name)
        }
        self.log = max(name for name in self.files if name.endswith(".log"))
        self.data = [name for name in self.files if name.startswith("data/")]
        self.small = [
            name for name in self.files if not name.startswith("data/") and not name.endswith(".log")
        ]

    def forge(self, seed: int) -> Forgery:
        rng = random.Random(f"forged {seed}")
        ways = (self._small_file, self._records, self._records, self._frame, self._frame, self._no_file)
        return rng.choice(ways)(rng)

    def _small_file(self, rng: random.Random) -> Forgery:
        name = rng.choice(self.small)
        (frame,) = scan_frames(self.files[name], name)
        payload = bytes(frame.payload)
        decoded = self._decoded(frame.kind, payload)
        if decoded is not None and rng.random() < 0.7:
            encode = msgspec.json.encode if frame.kind in _JSON else msgspec.msgpack.encode
            how, value = _other_value(rng, decoded)
            payload = _encoded(encode, value, payload)
        else:
            how, payload = _other_bytes(rng, payload)
        changed: dict[str, Any] = {name: frame_bytes(frame.kind, payload)}
        if name == "meta":  # bases name it by its hash
            changed[self.log] = self._log(lambda base, batches: _put(base, "identity", hash_meta(payload)))
        return Forgery(f"{how} of {name}", changed)

    def _records(self, rng: random.Random) -> Forgery:
        told = ""

        def edit(base: list[Any], batches: list[list[Any]]) -> None:
            nonlocal told
            spot = rng.randrange(1 + sum(map(len, batches)))
            flat = [base, *(record for batch in batches for record in batch)]
            told, value = _other_value(rng, flat[spot])
            if isinstance(value, list):
                flat[spot][:] = value

        if rng.random() < 0.15:
            frames = list(scan_frames(self.files[self.log], self.log))
            spot = rng.randrange(len(frames))
            told, payload = _other_bytes(rng, bytes(frames[spot].payload))
            parts = [bytes(frame.payload) for frame in frames]
            parts[spot] = payload
            whole = b"".join(frame_bytes(one.kind, part) for one, part in zip(frames, parts, strict=True))
        else:
            whole = self._log(edit)
        return Forgery(f"{told} of {self.log}", {self.log: whole})

    def _frame(self, rng: random.Random) -> Forgery:
        name = rng.choice(self.data)
        frame = rng.choice(list(scan_frames(self.files[name], name)))
        payload = bytes(frame.payload)
        if rng.random() < 0.3:
            how, payload = _other_arrow(rng, frame.kind, payload)
        else:
            how, payload = _other_bytes(rng, payload)
        made = encode_frame(frame.kind, payload)
        at = len(self.files[name])
        forged = [os.path.basename(name), at, sum(map(len, made)), frame_crc(made)]
        old = [os.path.basename(name), frame.offset]

        def edit(base: list[Any], batches: list[list[Any]]) -> None:
            _rename_extents([base, batches], old, forged)

        changed: dict[str, Any] = {
            name: self.files[name] + b"".join(bytes(part) for part in made),
            self.log: self._log(edit),
        }
        for manifest in (one for one in self.small if one.startswith("export/source/e")):
            (held,) = scan_frames(self.files[manifest], manifest)
            tree = msgspec.msgpack.decode(bytes(held.payload))
            _rename_extents(tree, old, forged)
            changed[manifest] = frame_bytes(FrameKind.EXPORT, msgspec.msgpack.encode(tree))
        return Forgery(f"{how} of the {frame.kind.name} frame at {frame.offset} of {name}", changed)

    def _no_file(self, rng: random.Random) -> Forgery:
        name = rng.choice([*self.files, "log", "data", "drivers", "export", "imported", "requests"])
        what = rng.choice(sorted(NO_FILES))
        return Forgery(f"{what} in place of {name}", {name: NO_FILES[what]})

    def _log(self, edit: Callable[[list[Any], list[list[Any]]], None]) -> bytes:
        """The newest log part with values edited, every record linked to the one before it again."""
        first, *rest = scan_frames(self.files[self.log], self.log)
        base = msgspec.msgpack.decode(bytes(first.payload))
        raw = [msgspec.msgpack.decode(bytes(frame.payload), type=RecordBatch).records for frame in rest]
        batches = [[msgspec.msgpack.decode(one) for one in batch] for batch in raw]
        edit(base, batches)
        heads: dict[Any, Any] = {}
        chains = base[_BASE["chains"]] if len(base) > _BASE["chains"] else []
        for chain in chains if isinstance(chains, list) else []:
            if isinstance(chain, list) and len(chain) > _CHAIN["hash"]:
                heads[str(chain[_CHAIN["chain"]])] = chain[_CHAIN["hash"]]
        parts = [frame_bytes(FrameKind.BASE, msgspec.msgpack.encode(base))]
        for batch in batches:
            encoded = []
            for record in batch:
                name = str(record[_RECORD["chain"]]) if record else ""
                if len(record) > _RECORD["previous"] and name in heads:
                    record[_RECORD["previous"]] = heads[name]
                encoded.append(msgspec.msgpack.encode(record))
                heads[name] = records.hash_of(encoded[-1])
            parts.append(frame_bytes(FrameKind.RECORD, msgspec.msgpack.encode(RecordBatch(encoded))))
        return b"".join(parts)

    @staticmethod
    def _decoded(kind: FrameKind, payload: bytes) -> Any:
        try:
            return msgspec.json.decode(payload) if kind in _JSON else msgspec.msgpack.decode(payload)
        except msgspec.DecodeError:
            return None  # a part of an import: Arrow


def _put(base: list[Any], field: str, value: Any) -> None:
    base[_BASE[field]] = value


def _rename_extents(tree: Any, old: list[Any], new: list[Any]) -> None:
    if isinstance(tree, list):
        if tree[:2] == old and len(tree) == 4:
            tree[:] = new
            return
        for one in tree:
            _rename_extents(one, old, new)


def _encoded(encode: Callable[[Any], bytes], value: Any, before: bytes) -> bytes:
    try:
        return encode(value)
    except (OverflowError, msgspec.MsgspecError, TypeError):
        return before


# -- other bytes and values ---------------------------------------------------------------------------------------------


def _other_bytes(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    """Bytes that are a little, or altogether, other."""
    out, how = bytearray(data), rng.randrange(10)
    at = rng.randrange(len(out)) if out else 0
    if not out or how == 0:
        return "other bytes", rng.randbytes(rng.randrange(64))
    if how == 1:
        return f"the first {at} bytes", bytes(out[:at])
    if how == 2:
        return "a longer one", bytes(out) + rng.randbytes(rng.randrange(1, 100))
    if how == 3:
        return "an endless nesting", rng.choice((b'{"format":' + b"[" * 100_000, b"\x91" * 100_000))
    if how in (4, 5):
        size = rng.choice((2, 4, 8))
        place = at - at % size
        out[place : place + size] = (rng.choice(_INTS) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        return f"a number at {place}", bytes(out[: len(data)])
    for _ in range(1 if how < 9 else 20):
        out[rng.randrange(len(out))] = rng.choice((0, 0xFF, 0x7F, 0x80, rng.randrange(256)))
    return f"bytes near {at}", bytes(out)


def _other_value(rng: random.Random, tree: Any) -> tuple[str, Any]:
    """A copy of decoded values with one of them other."""
    tree = msgspec.msgpack.decode(msgspec.msgpack.encode(tree))
    spots = list(_spots(tree, ()))
    if not spots:
        return "another value", _other(rng, tree)
    where, holder, key = rng.choice(spots)
    if isinstance(holder, list) and rng.random() < 0.15:
        if rng.random() < 0.5:
            del holder[key]
            return f"no value at {where}", tree
        holder.insert(key, holder[key])
        return f"a value twice at {where}", tree
    holder[key] = _other(rng, holder[key])
    return f"another value at {where}", tree


def _spots(tree: Any, where: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    pairs = enumerate(tree) if isinstance(tree, list) else tree.items() if isinstance(tree, dict) else ()
    for key, value in pairs:
        yield (*where, key), tree, key
        yield from _spots(value, (*where, key))


def _other(rng: random.Random, value: Any) -> Any:
    if rng.random() < 0.15:
        return rng.choice((None, 0, "", b"", [], {}, True, 1.5, [[]], float("inf")))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((*_INTS, value + 1, value - 1 if value else 2, value ^ (1 << rng.randrange(40))))
    if isinstance(value, float):
        return rng.choice((*_FLOATS, value + 1.0, -value))
    if isinstance(value, bytes):
        return _other_bytes(rng, value)[1]
    if isinstance(value, str):
        return rng.choice((*_TEXTS, value + "x", value[:-1]))
    if isinstance(value, list):
        return rng.choice(([], value * 2, value[:-1], value[::-1]))
    return rng.choice((0, "x", b"\0" * 7, [1], {}))


def _other_arrow(rng: random.Random, kind: FrameKind, payload: bytes) -> tuple[str, bytes]:
    """The rows of a frame as a bomb, of another schema, or with another head."""
    segment = kind is FrameKind.SEGMENT
    size = int.from_bytes(payload[8:12], "little") if segment else 0
    start = 16 + size + -size % 8 if segment else 0
    head, how = payload[:start], rng.randrange(4)
    if segment and how == 0:
        lies = bytearray(head)
        lies[rng.randrange(12)] ^= 1 << rng.randrange(8)
        return "a head that lies", bytes(lies) + payload[start:]
    if how == 1:
        return "a bomb", head + bomb(6 << 30)
    if how == 2:
        other = pa.record_batch({"x": [["a"], None], "y": [1.5, None]})
        return "rows of another schema", head + other.serialize().to_pybytes()
    return "no rows", head


def bomb(size: int) -> bytes:
    """A compressed batch that says that it becomes this many bytes."""
    schema = pa.schema([("a", pa.int64())])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_batch(pa.record_batch({"a": [0] * 1000}, schema))
    message = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))[1].serialize().to_pybytes()
    return message.replace((8000).to_bytes(8, "little"), size.to_bytes(8, "little"))


# -- what is no file ----------------------------------------------------------------------------------------------------


def _sparse(path: str) -> None:
    with open(path, "wb") as file:
        file.truncate(3 << 30)


def _socket(path: str) -> None:
    here = os.open(".", os.O_RDONLY)
    os.chdir(os.path.dirname(path))  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.basename(path))
    os.fchdir(here)
    os.close(here)


NO_FILES: dict[str, Callable[[str], None]] = {
    "a FIFO": os.mkfifo,
    "a folder": os.mkdir,
    "a socket": _socket,
    "a link to itself": lambda path: os.symlink(os.path.basename(path), path),
    "a link to nothing": lambda path: os.symlink("nothing", path),
    "a link to /dev/zero": lambda path: os.symlink("/dev/zero", path),
    "3 GiB of nothing": _sparse,
    "an empty file": lambda path: Path(path).write_bytes(b"") and None,
}


def place(forger: Forger, forgery: Forgery, target: Path) -> str:
    """Copy the checkpoint with what was forged; the rest is linked."""
    target.mkdir()
    for folder, names, files in os.walk(forger.checkpoint):
        inside = os.path.relpath(folder, forger.checkpoint)
        kept = [one for one in names if os.path.normpath(f"{inside}/{one}") not in forgery.files]
        names[:] = kept
        for name in kept:
            (target / inside / name).mkdir()
        for name in files:
            path = os.path.normpath(os.path.join(inside, name))
            if path not in forgery.files:
                os.link(os.path.join(folder, name), target / path)
    for name, made in forgery.files.items():
        if callable(made):
            made(str(target / name))
        else:
            (target / name).write_bytes(made)
    return str(target)


# -- the judgement -------------------------------------------------------------------------------------------------------


def readers(checkpoint: str, kind: str, start: bool) -> Iterator[tuple[str, Callable[[], object]]]:
    """Everything that reads a checkpoint."""
    disk = fast_disk()
    yield "show", lambda: view_stages(look(disk, checkpoint))
    yield "a key", lambda: _shown(disk, look(disk, checkpoint), "fold", ["7"])
    yield "ls", lambda: summarise(disk, checkpoint, 0.0)
    yield "holder", lambda: read_holder(disk, checkpoint, 0.0)
    yield "verify", lambda: _check_schedule(disk, verify(disk, checkpoint))
    yield "repair", lambda: plan_repair(disk, checkpoint, 0.0, boot="boot", is_running=lambda claim: False)
    yield "exports", lambda: (view_exports(disk, checkpoint), view_imported(disk, checkpoint))
    yield "rows of an export", lambda: _read_export(checkpoint)
    yield "rows of an import", lambda: _read_import(checkpoint)
    if start:
        yield "a start", lambda: _start(checkpoint, kind)


def _read_export(checkpoint: str) -> None:
    disk = fast_disk()
    schema = exports.read_head(disk, checkpoint, "source").arrow_schema()
    for epoch in exports.list_epochs(disk, checkpoint, "source"):
        manifest = exports.read_manifest(disk, checkpoint, "source", epoch)
        for batch in exports.read_rows(disk, checkpoint, manifest, schema):
            batch.validate()


def _read_import(checkpoint: str) -> None:
    for manifest in read_manifests(fast_disk(), checkpoint):
        rows = ImportedRows(checkpoint, manifest.operator, manifest.part_rows)
        rows.schema()
        if sum(manifest.part_rows):
            rows(0, sum(manifest.part_rows))


def _start(checkpoint: str, kind: str) -> None:
    node = f"{checkpoint}-node"
    driver = Driver(
        fast_disk(), checkpoint, PROGRAMS[kind](), quick(SMALL), 5, node, rows=600, rate=8_000.0, name="next"
    )
    driver.run_until("drained", 5.0)
    if driver.failed is None:
        driver.stop()
        driver.loop.run_until(lambda: False, 1.0)


def judge(checkpoint: str, kind: str, start: bool) -> str | None:
    """Say what a reader did that it may not; None where all of them read it, or refused it by the name of a file."""
    for name, read in readers(checkpoint, kind, start):
        try:
            read()
        except PenstockError as error:
            if checkpoint not in str(error) and "option(" not in str(error) and name != "a start":
                return f"{name} names no file: {error}"
        except FileNotFoundError as error:
            if checkpoint not in str(error.filename):
                return f"{name} names no file: {error!r}"
        except Exception as error:
            return f"{name} raised {type(error).__name__}: {str(error)[:300]}"
    return None


def forge_and_judge(kind: str, first: int, count: int) -> Tally:
    """Judge a range of seeds, in processes of their own; one that dies, hangs or runs out of memory is a failure."""
    tally = Tally()
    with scratch() as folder:
        checkpoint = make(folder, kind)
        at = first
        while at < first + count:
            at = _run(tally, [kind, checkpoint, str(folder), str(at), str(first + count - at)], at)
    return tally


def _run(tally: Tally, arguments: list[str], first: int) -> int:
    """One process, as far as it comes; returns the next seed."""
    made = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    begun, at = "", first
    for line in made.stdout.splitlines():
        told = json.loads(line)
        if "begun" in told:
            begun, at = told["begun"], told["seed"]
        else:
            tally.add(f"{told['seed']}: {begun}", told["fault"], told["fault"] is None)
            begun, at = "", told["seed"] + 1
    if made.returncode:
        tally.add(f"{at}: {begun}", f"ended with {made.returncode}: {made.stderr[-1500:]}", False)
        at += 1
    return at


def main(kind: str, checkpoint: str, folder: str, first: int, count: int) -> None:
    forger = Forger(checkpoint)
    whole = judge(place(forger, Forgery("nothing", {}), Path(folder, f"whole-{first}")), kind, start=True)
    assert whole is None, whole
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    for seed in range(first, first + count):
        forgery = forger.forge(seed)
        print(json.dumps({"begun": forgery.what, "seed": seed}), flush=True)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        target = Path(folder, f"c{seed}")
        fault = judge(place(forger, forgery, target), kind, start=seed % STARTS == 0)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"seed": seed, "fault": fault}), flush=True)
        for left in (target, Path(f"{target}-node")):
            shutil.rmtree(left, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
