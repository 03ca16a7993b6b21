"""Driver processes on one cluster, and what is checked about what they committed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults import spark_app
from tests.scenario import shapes

from penstock.dataplane.compile import compile_program
from penstock.dataplane.program import Program
from penstock.sim import timelines
from penstock.spark.localcluster import LocalCluster
from penstock.spark.processes import descendants
from penstock.spark.watching import watch_settings
from penstock.testing.replay import replay
from penstock.testing.schedule import check_schedule

HERE = Path(__file__).parent
WORKERS, CORES = 2, 3


@contextmanager
def cluster() -> Iterator[LocalCluster]:
    """The one cluster, with watched Python workers."""
    with LocalCluster(workers=WORKERS, cores=CORES, memory="768m") as found:
        yield found


def watched_settings(on: LocalCluster, log: Path) -> dict[str, str]:
    """Settings that make Python workers watch which paths they touch, and note trespasses in a file."""
    return watch_settings(on.directory, log)


def violations(found: LocalCluster) -> str:
    """What Python workers touched of other nodes, by their own account and by what they have open and mapped."""
    return "".join(f"{line}\n" for line in found.trespasses())


@dataclass
class Run:
    """One checkpoint with its sink, through however many drivers it takes."""

    folder: Path
    rate: float
    pause_s: float = 0.0
    cores: int = 2
    options: dict[str, object] = field(default_factory=dict)
    topology: str = "bids"
    rows: int = 0
    """Known when a driver has finished."""

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def program(self) -> Program:
        make, _ = spark_app.TOPOLOGIES[self.topology]
        given = {"rate": self.rate, "pause_s": 0.0, "cores": 2}
        return compile_program(make(given).node, tasks=2, memory_bytes=64 << 20)

    @property
    def counted(self) -> str:
        """The operator whose rows tell how far a run is."""
        return spark_app.TOPOLOGIES[self.topology][1]

    def check(self, complete: bool = True) -> None:
        """Identical: the schedule tiles what was taken in, and a replay of it gives the same bytes."""
        check_schedule(str(self.checkpoint), self.program(), complete=complete)
        replayed = replay(str(self.checkpoint), self.program())
        assert replayed.rows > 0
        if complete:
            self.check_sink()

    def check_sink(self) -> None:
        """Every row arrived, a sink epoch always meant the same rows, and the last values are those of a plain model."""
        folder = self.folder / "sink"
        assert not list(folder.glob("*.differs")), "a sink epoch was handed over again with other rows"
        epochs = sorted(int(path.stem) for path in folder.glob("*.json"))
        assert epochs == list(range(1, len(epochs) + 1))
        rows = [row for epoch in epochs for row in json.loads((folder / f"{epoch}.json").read_text())]
        if self.topology == "bids":
            last = {row["item"]: (row["count"], row["total"], row["best"]) for row in rows}
            assert last == model(self.rows)
            return
        self._check_in_a_row([row for row in rows if row["kind"] in shapes.KINDS_IN_A_ROW])
        seen = {(row["kind"], row["user"]): (row["count"], row["amount"]) for row in rows}
        left_out = {"late", "tardy", *shapes.KINDS_IN_A_ROW}  # of which some depend on how epochs were cut
        settled = {key: value for key, value in seen.items() if key[0] not in left_out}
        assert settled == {**shapes.model(self.rows, self.rows), **shapes.timed_model(self.rows)}

    def _check_in_a_row(self, rows: Sequence[dict[str, Any]]) -> None:
        """No row is late behind watermarks in a row, whatever was killed: windows and timers are those of arithmetic."""
        found = Counter(
            shapes.in_a_row_result(row["kind"], row["user"], row["count"], row["amount"]) for row in rows
        )
        wrong = timelines.differences(found, shapes.in_a_row_model(self.rows, spark_app.IN_A_ROW))
        assert not wrong, f"{len(wrong)} differences behind watermarks in a row: {wrong[:4]}"


def model(rows: int) -> dict[str, tuple[int, int, float]]:
    """The last value per item, by a plain loop."""
    kept: dict[int, list[int]] = {}
    best: dict[tuple[int, str], float] = {}
    items: dict[str, tuple[int, int, float]] = {}
    for row in spark_app.make_bids(0, rows).to_pylist():
        bidder, item = row["bidder"], row["item"]
        kept[bidder] = [*kept.get(bidder, []), row["id"]][-5:]
        best[bidder, item] = max(row["price"], best.get((bidder, item), 0.0))
        count, total, most = items.get(item, (0, 0, 0.0))
        items[item] = (count + 1, total + sum(kept[bidder]), max(most, best[bidder, item]))
    return items


class Driver:
    """One driver process, started by `penstock run`."""

    def __init__(self, on: LocalCluster, run: Run, *, nodes: int = WORKERS, **more: object) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        options = {**run.options, **more.pop("options", {})}  # type: ignore[dict-item]
        config = run.folder / f"config-{time.monotonic_ns()}.json"
        config.touch(mode=0o600)
        self._finish = config.with_suffix(".finish")
        conf = {**on.conf(), **watched_settings(on, on.directory / "violations"), "spark.executor.memory": "512m",
                "spark.cores.max": str(nodes * CORES), "spark.driver.memory": "512m"}  # fmt: skip
        given = {"conf": conf, "checkpoint": str(run.checkpoint), "sink": str(run.folder / "sink"),
                 "finish": str(self._finish),
                 "rate": run.rate, "pause_s": run.pause_s, "cores": run.cores, "topology": run.topology,
                 "options": options, **more}  # fmt: skip
        config.write_text(json.dumps(given))
        self.errors = run.folder / f"{config.stem}.err"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock.cli.main", "run", str(HERE / "spark_app.py"), str(config)],
                stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            )  # fmt: skip
        self.run = run
        self.last: dict[str, Any] = {"rows": 0, "leases": {}, "ready": False, "settled": False, "nodes": []}
        self.answers: list[dict[str, Any]] = []
        self.done = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.startswith("{"):
                continue
            found = json.loads(line)
            if "done" in found:
                self.done, self.run.rows = True, int(found["done"])
            elif "told" in found:
                self.answers.append(found)
            else:
                self.last = found

    def tell(self, order: dict[str, object], seconds: float = 90.0) -> dict[str, Any]:
        """Let the driver carry something out, and return what it says."""
        number = len(self.answers)
        part = self._finish.with_suffix(".part")
        part.write_text(json.dumps(order))
        part.rename(self._finish.with_suffix(f".order-{number}"))
        self.wait(lambda: len(self.answers) > number, seconds)
        return self.answers[number]

    @property
    def rows(self) -> int:
        return int(self.last["rows"])

    @property
    def lease_pids(self) -> list[int]:
        return sorted(self.last["leases"].values())

    def wait(self, holds: Callable[[], bool], seconds: float = 90.0) -> None:
        """Wait for something about this driver; raise what it said when it ends before."""
        deadline = time.monotonic() + seconds
        while not holds():
            if self.process.poll() is not None:
                self._reader.join(5)
                if holds():
                    return
                raise AssertionError(f"the driver ended with {self.process.returncode}: {self.said()}")
            assert time.monotonic() < deadline, f"did not happen in time: {self.last} {self.said()}"
            time.sleep(0.02)

    def said(self) -> str:
        return self.errors.read_text(errors="replace")[-4000:]

    def finish(self, seconds: float = 120.0) -> None:
        """Let the source end and everything drain."""
        self._finish.touch()
        code = self.await_end(seconds)
        assert code == 0 and self.done, f"the driver ended with {code}: {self.said()}"

    def await_end(self, seconds: float) -> int:
        """Wait for the end; return the exit code."""
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code

    def kill(self) -> None:
        """kill -9, and wait until its JVM has gone too, so that its slots are free."""
        below = [process.pid for process in descendants(self.process.pid)]
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.await_gone(below)

    def await_gone(self, pids: Sequence[int], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while any(_is_running(pid) for pid in pids):
            assert time.monotonic() < deadline, "the killed driver left processes behind"
            time.sleep(0.05)

    def end(self) -> None:
        """Whatever happened, leave nothing behind."""
        below = [process.pid for process in descendants(self.process.pid)]
        for pid in [self.process.pid, *below]:
            try:
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def driver(on: LocalCluster, run: Run, **more: Any) -> Iterator[Driver]:
    started = Driver(on, run, **more)
    try:
        yield started
    finally:
        started.end()


def written_bytes(checkpoint: Path) -> dict[Path, tuple[int, bytes]]:
    """Size and hash of every log part and data file as they are now."""
    found = {}
    for path in [*checkpoint.glob("log/*.log"), *checkpoint.glob("data/*")]:
        data = path.read_bytes()
        found[path] = (len(data), hashlib.blake2b(data, digest_size=16).digest())
    return found


def changed_since(before: dict[Path, tuple[int, bytes]]) -> list[str]:
    """Files whose bytes of then are not the same any more; growing is fine."""
    changed = []
    for path, (size, digest) in before.items():
        data = path.read_bytes()[:size] if path.exists() else b""
        if hashlib.blake2b(data, digest_size=16).digest() != digest:
            changed.append(path.name)
    return changed
