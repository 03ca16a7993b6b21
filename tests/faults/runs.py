"""Small runs on the in-process harness, for tests that damage a checkpoint and look what the next start makes of it."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import penstock
from penstock.dataplane.compile import compile_program
from penstock.dataplane.disk import Disk, PosixCalls, StepDisk
from penstock.dataplane.program import Program
from penstock.dataplane.settings import Settings
from penstock.errors import CheckpointError, PenstockError
from penstock.sim.inprocess import Driver
from penstock.sim.programs import make_rows, memory_program
from penstock.sim.timing import SMALL, quick

KEPT = quick(SMALL, retain_all=True)
OPERATORS = ("fold", "gather")


class UnsyncedCalls(PosixCalls):
    """POSIX without the waiting: these tests damage files themselves and lose no power."""

    def sync(self, file: int) -> None:
        pass

    def sync_dir(self, path: str) -> None:
        pass


def fast_disk() -> Disk:
    return StepDisk(UnsyncedCalls(), None, lambda: f"{os.getpid():x}-t")


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory where there is such a thing."""
    home = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(prefix="penstock-test-", dir=home) as folder:
        yield Path(folder)


def real_program(shards: tuple[int, int] = (6, 5), memory_bytes: int = 4 << 20) -> Program:
    """The topology of `memory_program` with a row function and built-in aggregates, over LMDB."""

    def fold(key, rows, state):  # type: ignore[no-untyped-def]
        seq = state.seq.get() or 0
        for row in rows:
            seq += 1
            state.log.appendValue(row.id)
            state.last[row.id % 5] = seq
            yield row.id, key.k, key.k % 7, seq, hash((seq, row.id)) % 1000
        state.seq.update(seq)

    states = {
        "seq": penstock.ValueState("long"),
        "log": penstock.ListState("long"),
        "last": penstock.MapState("long", "long"),
    }
    source = penstock.generate(make_rows, schema="id long, k long", rate=1000, name="source")
    folded = source.groupBy("k").apply_rows(
        fold,
        schema="id long, k long, g long, seq long, mark long",
        state=states,
        name="fold",
        shards=shards[0],
        cores=2,
    )
    counted = folded.groupBy("g").agg(
        penstock.count(),
        penstock.sum("mark").alias("total"),
        penstock.last("id"),
        name="gather",
        shards=shards[1],
        cores=2,
    )
    return compile_program(counted.node, tasks=2, memory_bytes=memory_bytes)


@dataclass
class Run:
    """A checkpoint that a crashed driver left, with the copies taken on the way."""

    checkpoint: str
    rows: int
    early: str
    """A copy from some time before the crash."""
    live: list[str]
    """Data files that a restart needs."""


def make_run(
    folder: Path,
    program: Program,
    *,
    seed: int = 1,
    rows: int = 360,
    settings: Settings = KEPT,
    crash_at_rows: int = 150,
) -> Run:
    """Run until the sink has most of the rows, with a lease killed and a driver crashed on the way, then crash."""
    checkpoint, early = str(folder / "run"), str(folder / "early")
    driver = Driver(
        fast_disk(), checkpoint, program, settings, seed, str(folder / "node"), rows=rows, rate=8_000.0
    )
    rng = random.Random(seed)

    def sunk(count: int) -> Callable[[], bool]:
        return lambda: (
            driver.engine.chains["sink"].epoch > 0 and driver.engine.chains["gather"].rows_in >= count
        )

    driver.run_until(sunk(crash_at_rows // 3))
    driver.kill(rng.choice(driver.live_leases()))
    driver.run_until(sunk(crash_at_rows // 2))
    driver.crash()
    driver.restart()
    driver.run_until(sunk(crash_at_rows * 3 // 4))
    shutil.copytree(checkpoint, early)
    chains = driver.engine.chains.by_name
    crashed = driver.run_until(
        # Something of every kind must be unconsumed, or its damage would prove nothing.
        lambda: sunk(crash_at_rows)() and all(any(c.out.values()) for n, c in chains.items() if n != "sink"),
        5.0,
    )
    assert crashed, "this seed gives no moment in which every channel holds rows"
    live = driver.engine.chains.live_files()
    driver.crash()
    driver.loop.run_until(lambda: False, 1.0)
    return Run(checkpoint, rows, early, sorted(live))


@dataclass(frozen=True)
class Result:
    """What a finished run amounts to."""

    rows: dict[str, tuple[int, int]]
    """Rows in and out of each stage."""
    fold: bytes
    """Digest of fold: a running hash over the rows of each key, in order, whatever the epochs were."""
    gather: bytes
    """Digest of gather, which depends on how the rows of different keys met."""

    def same_rows(self, other: Result) -> bool:
        """Whether both say the same of every key, though their epochs may differ."""
        return (self.rows, self.fold) == (other.rows, other.fold)


def result_of(driver: Driver) -> Result:
    chains = driver.engine.chains
    rows = {name: (chain.rows_in, chain.rows_out) for name, chain in chains.by_name.items()}
    fold, gather = (chains[name].digests.sum(axis=0, dtype="u8").tobytes() for name in OPERATORS)
    return Result(rows, fold, gather)


def copy_with(run: Run, target: Path, replaced: dict[str, bytes | None]) -> str:
    """Copy a checkpoint: files named in `replaced` get other bytes or are left out, the rest is linked."""
    checkpoint = str(target)
    for folder, _, names in os.walk(run.checkpoint):
        inside = os.path.relpath(folder, run.checkpoint)
        os.makedirs(os.path.join(checkpoint, inside), exist_ok=True)
        for name in names:
            path = os.path.normpath(os.path.join(inside, name))
            if path not in replaced:
                os.link(os.path.join(folder, name), os.path.join(checkpoint, path))
            elif (data := replaced[path]) is not None:
                Path(checkpoint, path).write_bytes(data)
    return checkpoint


def files_of(checkpoint: str) -> dict[str, bytes]:
    """Return every file's hash."""
    return {
        str(path.relative_to(checkpoint)): hashlib.blake2b(path.read_bytes(), digest_size=8).digest()
        for path in Path(checkpoint).rglob("*")
        if path.is_file()
    }


@dataclass(frozen=True)
class Outcome:
    """What a start on a damaged checkpoint came to: refused with an error, or finished with a result."""

    error: PenstockError | None
    result: Result | None
    overwritten: list[str]

    def refused_by_name(self, *names: str) -> bool:
        """Whether it was refused with an error that names one of these files."""
        return isinstance(self.error, CheckpointError) and any(
            os.path.basename(n) in str(self.error) for n in names
        )


def start_on(checkpoint: str, run: Run, node: Path, program: Program | None = None, seed: int = 5) -> Outcome:
    """Start a driver on a checkpoint and let it finish; note which of the files there it changed."""
    before = files_of(checkpoint)
    program = program or memory_program()
    error: PenstockError | None = None
    result = None
    replaced_whole = ["drivers/heartbeat"]
    try:
        driver = Driver(fast_disk(), checkpoint, program, KEPT, seed, str(node), rows=run.rows, name="next")
        replaced_whole.append("log/newest")  # it was opened, so a new part may begin
        if driver.run_until("drained", 30.0):
            result = result_of(driver)
        else:
            error = driver.failed or PenstockError("the run neither ended nor failed")
        driver.stop()
        driver.loop.run_until(lambda: False, 1.0)
    except PenstockError as refused:
        error = refused
    after = files_of(checkpoint)
    changed = [name for name, was in before.items() if name not in after or after[name] != was]
    return Outcome(error, result, [name for name in changed if name not in replaced_whole])
