"""Several drivers that start on one checkpoint at the same moment, in processes of their own: exactly one may run.

A round is a checkpoint, new, given back or left by a driver that was killed, and two to four starts with small gaps. What
is expected is told apart from what the drivers say: by the claims in the folder, and by who can still write to the log.
Used by the tests at small counts and by the torture suite at the full one.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from penstock.dataplane import paths, recordlog
from penstock.dataplane.disk import PosixDisk
from penstock.dataplane.holding import give_back, this_process
from penstock.dataplane.opening import Opened, open_checkpoint
from penstock.dataplane.recordlog import LogWriter
from penstock.errors import PenstockError
from penstock.sim.programs import memory_program

DRIVERS = 4
TOLD_WITHIN_S = 5.0
_BEFORE = ("new", "given back", "killed")


@dataclass(frozen=True)
class Round:
    """One race: what the checkpoint was before, and how each driver starts."""

    before: str
    gaps_s: Sequence[float]
    takeover: Sequence[bool]
    apart: bool
    """Every driver counts as one of another machine: its process cannot be asked after, only its heartbeat read."""


@dataclass(frozen=True)
class Told:
    """What one driver said."""

    pid: int
    generation: int
    """Of its claim, 0 where it has none."""
    error: str
    text: str
    took_s: float


def draw_round(seed: int) -> Round:
    """Draw a race. Half of them are without any takeover: there nobody who holds the checkpoint may lose it."""
    rng = random.Random(seed)
    drivers = rng.randint(2, DRIVERS)
    widest_s = rng.choice((0.0, 0.002, 0.02, 0.1))
    apart = rng.random() < 0.3
    # Elsewhere nobody can tell a killed driver from a silent one before its heartbeat is old.
    return Round(
        rng.choice(_BEFORE[:2] if apart else _BEFORE),
        [rng.uniform(0.0, widest_s) for _ in range(drivers)],
        [seed % 2 == 1 and rng.random() < 0.5 for _ in range(drivers)],
        apart,
    )


# -- a driver's process -------------------------------------------------------------------------------------------


def serve(orders: Connection) -> None:
    """Start as told, say what came of it, and say once more, when everybody has, whether this driver still runs."""
    for folder, gap_s, takeover, apart in iter(orders.recv, None):
        time.sleep(gap_s)
        opened, writer, told = _start(folder, takeover, apart)
        orders.send(told)
        orders.recv()
        orders.send(_still(told, writer))
        orders.recv()
        if opened is not None:
            give_back(PosixDisk(), folder, opened.claim, time.time(), None)
        orders.send("done")


def _start(folder: str, takeover: bool, apart: bool) -> tuple[Opened | None, LogWriter | None, Told]:
    me = this_process()
    who = msgspec.structs.replace(me, boot=f"{me.boot} {me.pid}") if apart else me
    began, opened = time.monotonic(), None
    try:
        opened = open_checkpoint(PosixDisk(), folder, memory_program(), takeover=takeover, who=who)
        writer = LogWriter(PosixDisk(), folder, opened.claim)
        writer.start_part(_base(opened))
    except Exception as error:  # whatever it is, it is what the user would see
        took_s, generation = time.monotonic() - began, opened.claim.generation if opened else 0
        return opened, None, Told(me.pid, generation, type(error).__name__, str(error), took_s)
    return opened, writer, Told(me.pid, opened.claim.generation, "", "", time.monotonic() - began)


def _base(opened: Opened) -> Any:
    return opened.chains.to_base(opened.query, opened.claim.generation, 1, opened.identity, 0)


def _still(told: Told, writer: LogWriter | None) -> Told:
    if writer is None:
        return told
    try:
        writer.append([])
    except PenstockError as error:
        return Told(told.pid, told.generation, type(error).__name__, str(error), told.took_s)
    return told


# -- the race -----------------------------------------------------------------------------------------------------


class Races:
    """Drivers' processes that race over and over, each time on another checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._killed = str(folder / "killed")
        self._links: list[Connection] = []
        context = multiprocessing.get_context("spawn")
        self._processes = []
        for _ in range(DRIVERS):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._links.append(ours)
            self._processes.append(process)
        child = context.Process(target=_leave, args=(self._killed,))
        child.start()
        child.join()

    def close(self) -> None:
        for link in self._links:
            link.send(None)
        for process in self._processes:
            process.join(10.0)

    def run(self, seed: int) -> str | None:
        """Run one race; return what went wrong, None when nothing did."""
        race, folder = draw_round(seed), str(self._folder / f"r{seed}")
        self._make(race.before, folder)
        before = recordlog.newest_generation(PosixDisk(), folder)
        links = self._links[: len(race.gaps_s)]
        for link, gap_s, takeover in zip(links, race.gaps_s, race.takeover, strict=True):
            link.send((folder, gap_s, takeover, race.apart))
        first = [link.recv() for link in links]
        then = self._ask(links)
        wrong = judge(folder, race, before, first, then)
        for link in links:
            link.send("end")
        for link in links:
            link.recv()
        shutil.rmtree(folder)
        return None if wrong is None else f"{wrong}; {race}: {then}"

    def _ask(self, links: Sequence[Connection]) -> list[Told]:
        for link in links:
            link.send("still?")
        return [link.recv() for link in links]

    def _make(self, before: str, folder: str) -> None:
        if before == "new":
            return
        shutil.copytree(self._killed, folder)
        if before == "given back":
            claim = recordlog.read_claim(PosixDisk(), folder, 1)
            assert claim is not None
            give_back(PosixDisk(), folder, claim, time.time(), None)


def _leave(folder: str) -> None:
    """Leave a checkpoint behind as a driver that is killed does."""
    opened = open_checkpoint(PosixDisk(), folder, memory_program())
    LogWriter(PosixDisk(), folder, opened.claim).start_part(_base(opened))
    os._exit(0)


def judge(folder: str, race: Round, before: int, first: Sequence[Told], then: Sequence[Told]) -> str | None:
    """Say which promise a race broke: one driver runs, it is the newest claimant, and the others name whoever has it."""
    running = [one for one in then if not one.error]
    newest = max(map(paths.parse_claim, _claims(folder)), default=0) or 0
    if len(running) != 1:
        return f"{len(running)} drivers run"
    if running[0].generation != newest:
        return f"generation {running[0].generation} runs, and {newest} is the newest claim"
    if not any(race.takeover) and newest != before + 1:
        return f"{newest - before} drivers claimed without a takeover"
    pids = {one.pid for one in then}
    for one in (*first, *then):
        named = [pid for pid in pids if f"(process {pid} on " in one.text and ", since 20" in one.text]
        if one.error not in ("", "CheckpointError", "FencedError"):
            return f"a driver ended with {one.error}"
        if one.error and (len(named) != 1 or named == [one.pid]):
            return f"a driver was not told who has the checkpoint: {one.text}"
        if one.error and not any(race.takeover) and named != [running[0].pid]:
            return f"a driver was told of another holder than the one that runs: {one.text}"
        if one.took_s > TOLD_WITHIN_S:
            return f"a driver was told after {one.took_s:.1f} s"
    return None


def _claims(folder: str) -> list[str]:
    return [name for name in os.listdir(paths.drivers(folder)) if name.endswith(".claim")]


@contextlib.contextmanager
def races(folder: Path) -> Iterator[Races]:
    found = Races(folder)
    try:
        yield found
    finally:
        found.close()
