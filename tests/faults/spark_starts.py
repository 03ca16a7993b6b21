"""Driver processes with sessions of their own that start one query with ingest at the same moment, on Spark: exactly one
runs and goes on, and every other one is told within seconds who does.

Run as a program it is one of those drivers: a line of JSON in is an order, a line out says what came of it.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

DRIVERS = 2
TOLD_WITHIN_S = 5.0
"""From the call of a `start()` that is refused to who has the checkpoint."""
SETTLED_WITHIN_S = 15.0
"""Until a driver that was overtaken has noticed; on a busy machine its next look may be late."""
READY_WITHIN_S, ROWS_WITHIN_S = 120.0, 60.0


class Starter:
    """One driver process."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )  # fmt: skip
        self.pid = self._process.pid

    def send(self, **order: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"{"):
                return dict(json.loads(line))
        raise AssertionError(f"a driver process is gone, see {self._log.name}")

    def ask(self, **order: object) -> dict[str, Any]:
        self.send(**order)
        return self.hear()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def race(folder: Path, count: int, seed: int) -> Iterator[str]:
    """Run races; yield a line for each that passed.

    Raises:
        AssertionError: says which promise was broken, and what the drivers said.
    """
    starters = [Starter(folder / f"driver{number}.log") for number in range(DRIVERS)]
    try:
        for starter in starters:
            assert starter.hear()["ready"]
        rng = random.Random(seed)
        for number in range(count):
            # Every other checkpoint is that of the round before; in every third round one starts with a takeover.
            checkpoint = folder / f"cp{number // 2}"
            takeover = number % 3 == 2
            yield _one(starters, checkpoint, takeover, [rng.uniform(0.0, 0.3) for _ in starters])
    finally:
        for starter in starters:
            starter.end()


def _one(starters: Sequence[Starter], checkpoint: Path, takeover: bool, gaps_s: Sequence[float]) -> str:
    for number, (starter, gap_s) in enumerate(zip(starters, gaps_s, strict=True)):
        starter.send(do="start", folder=str(checkpoint), gap_s=gap_s, takeover=takeover and number == 0)
    first = [starter.hear() for starter in starters]
    deadline = time.monotonic() + SETTLED_WITHIN_S
    now = _look(starters)
    while sum(map(_runs, now)) != 1 and time.monotonic() < deadline:
        time.sleep(0.1)
        now = _look(starters)
    running = [starter for starter, told in zip(starters, now, strict=True) if _runs(told)]
    assert len(running) == 1, f"{len(running)} drivers run: {first}, {now}"
    winner = running[0]
    for starter, began, told in zip(starters, first, now, strict=True):
        if starter is winner:
            continue
        assert told["error"] in ("CheckpointError", "FencedError"), told
        assert f"(process {winner.pid} on " in told["text"] and ", since 20" in told["text"], told
        assert began["error"] == "" or began["took_s"] <= TOLD_WITHIN_S, began
    _await_rows(winner)
    for starter in starters:
        starter.ask(do="stop")
    return f"{checkpoint.name}, {'a takeover' if takeover else 'no takeover'}"


def _runs(told: dict[str, Any]) -> bool:
    """Whether a query goes on: one that has its error may still be winding up."""
    return bool(told["active"]) and not told["error"]


def _look(starters: Sequence[Starter]) -> list[dict[str, Any]]:
    return [starter.ask(do="look") for starter in starters]


def _await_rows(winner: Starter) -> None:
    """The one that is left takes rows in, batch after batch."""
    deadline, seen = time.monotonic() + ROWS_WITHIN_S, set()
    while len(seen) < 3:
        told = winner.ask(do="look")
        assert told["active"], f"the one that was left ended: {told}"
        assert time.monotonic() < deadline, f"the one that was left takes no rows in: {told}"
        seen.add(told["rows"])
        time.sleep(0.2)


# -- the driver process -------------------------------------------------------------------------------------------


def main() -> None:
    import penstock

    spark = penstock.session("starts", cores=2)
    query: Any = None
    error: BaseException | None = None
    _say(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "start":
            query, error, took_s = _start(spark, order)
            _say(**_told(query, error), took_s=took_s)
        elif order["do"] == "look":
            _say(**_told(query, error))
        else:
            if query is not None:
                query.stop()
            _say(stopped=True)
    spark.stop()


def _start(spark: Any, order: dict[str, Any]) -> tuple[Any, BaseException | None, float]:
    import penstock

    rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    stream = (
        penstock.from_dataframe(rows, name="numbers").select("value").groupBy("value").agg(penstock.count())
    )
    writer = stream.writeStream.format("noop").option("checkpointLocation", order["folder"])
    time.sleep(order["gap_s"])
    began = time.monotonic()
    try:
        query = writer.option("takeover", str(order["takeover"]).lower()).start(spark)
    except Exception as error:  # whatever leaves `start()` is what the user sees
        return None, error, time.monotonic() - began
    return query, None, time.monotonic() - began


def _told(query: Any, error: BaseException | None) -> dict[str, Any]:
    if query is None:
        return {
            "active": False,
            "error": type(error).__name__ if error else "",
            "text": str(error),
            "rows": 0,
        }
    failed = query.exception()
    told = {"active": query.isActive, "error": "", "text": "", "rows": 0}
    if failed is not None:
        cause = failed.__cause__ or failed
        told |= {"error": type(cause).__name__, "text": str(cause)}
    elif query.isActive:
        progress = query.lastProgress or {"inputs": {"numbers": {}}}
        told["rows"] = progress["inputs"]["numbers"].get("rows", 0)
    return told


def _say(**told: object) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
