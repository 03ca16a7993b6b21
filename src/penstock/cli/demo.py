"""`penstock demo`: run the exchange for about a minute, embedded or on a small cluster, and show it live.

Starts, watches and ends the query; what is shown is drawn by `demo_view`, and the topology is the workload's.
"""

from __future__ import annotations

import contextlib
import json as json_format
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.live import Live

from penstock.cli.demo_view import (
    Reading,
    Tally,
    derive_summary,
    live_view,
    plain_line,
    read_progress,
    summary_text,
)
from penstock.errors import PenstockError
from penstock.workloads.exchange import topology
from penstock.workloads.exchange_orders import bursts, total_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOKS_PER_S: Final = 4
RATE_LOOKS: Final = 2 * LOOKS_PER_S
PLAIN_EVERY_S: Final = 5.0
MAX_SCALE: Final = 4.0
IDLE_S: Final = 30.0
MAX_NODES: Final = 8
NODE_CORES: Final = 2
NODE_MEMORY: Final = "768m"


def run_demo(
    seconds: float = 60,
    quiet: bool = False,
    checkpoint: str | None = None,
    json: str | None = None,
    nodes: int = 1,
) -> int:
    """Run the exchange until its orders are all accounted for; return the exit code.

    Args:
        seconds: length of the trading day; one shorter than a minute runs at a higher rate, so that its
        opening
            still fills the books.
        quiet: print the summary only.
        checkpoint: directory to keep; one that holds an earlier run is resumed. By default a temporary one.
        json: file to write the summary to.
        nodes: with more than one, it runs on a Spark cluster of so many nodes on this machine, each with a directory
            that no other may touch.

    Returns:
        0 when orders in = matched + resting + rejected for every stock and for the whole, and no node touched the
        directory of another, 1 when not, 130 when interrupted.
    """
    console = Console()
    if not 1 <= nodes <= MAX_NODES:
        console.print(
            f"demo: --nodes is between 1 and {MAX_NODES}, not {nodes}", style="red", highlight=False
        )
        return 1
    directory = checkpoint or tempfile.mkdtemp(prefix="penstock-demo-")
    try:
        with _session(console, nodes, quiet) as (spark, trespasses):
            code = _run(console, spark, seconds, quiet, directory, json)
            for line in trespasses():
                console.print(f"demo: a node touched what is another's: {line}", style="red", markup=False)
                code = code or 1
        return code
    except PenstockError as error:
        console.print(f"demo: {error}", style="red", markup=False, highlight=False)
        return 1
    finally:
        if checkpoint is None:
            shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _session(
    console: Console, nodes: int, quiet: bool
) -> Iterator[tuple[SparkSession, Callable[[], list[str]]]]:
    """Open Spark; also give what tells which paths of other nodes were touched."""
    import penstock

    where = "Spark" if nodes == 1 else f"a Spark cluster of {nodes} nodes"
    if not quiet:
        console.print(f"starting {where} on this machine ...", style="dim")
    if nodes == 1:
        spark = penstock.session()
        try:
            yield spark, list
        finally:
            spark.stop()
        return
    from penstock.spark.localcluster import LocalCluster

    with LocalCluster(workers=nodes, cores=NODE_CORES, memory=NODE_MEMORY, watched=True) as cluster:
        spark = cluster.session()
        try:
            yield spark, cluster.trespasses
        finally:
            spark.stop()


def _run(
    console: Console, spark: SparkSession, seconds: float, quiet: bool, directory: str, json: str | None
) -> int:
    day = bursts(scale=min(MAX_SCALE, max(1.0, 60.0 / seconds)), seconds=seconds)
    limit = total_rows(day)
    resumed = Path(directory).is_dir() and any(Path(directory).iterdir())
    tally = Tally()
    query = (
        topology(rate=day, limit=limit)
        .writeStream.queryName("exchange")
        .option("checkpointLocation", directory)
        .foreach_arrow(lambda table, _: tally.fold(table))
        .start(spark)
    )
    shown = _Show() if quiet else _LiveShow(console) if console.is_terminal else _PlainShow(console)
    try:
        history, end = _watch(query, tally, limit, 4 * seconds + 120, shown)
    finally:
        shown.close()
        query.stop()
    if error := query.exception():
        raise error
    summary = derive_summary(history, tally, resumed, finished=end is End.FINISHED)
    console.print(summary_text(summary), markup=False, highlight=False, soft_wrap=True)
    if json is not None:
        Path(json).write_text(json_format.dumps(summary.as_json(), indent=2) + "\n", encoding="utf-8")
    return 130 if end is End.INTERRUPTED else int(bool(summary.problems))


class End(Enum):
    """Why the watching ended."""

    FINISHED = "all orders are accounted for"
    INTERRUPTED = "the user pressed Ctrl-C"
    GAVE_UP = "the query ended, or took far longer than it should"


class _Show:
    """Shows nothing; what a terminal and a pipe show are its subclasses."""

    def draw(self, history: list[Reading]) -> None:
        """Show the newest of the readings so far."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class _LiveShow(_Show):
    """Redraws one panel in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def draw(self, history: list[Reading]) -> None:
        self._live.update(live_view(history), refresh=True)

    def close(self) -> None:
        self._live.stop()


class _PlainShow(_Show):
    """Prints a line every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = 0.0

    def draw(self, history: list[Reading]) -> None:
        if history[-1].elapsed_s >= self._next_s:
            self._next_s = history[-1].elapsed_s + PLAIN_EVERY_S
            self._console.print(plain_line(history[-1]), markup=False, highlight=False, soft_wrap=True)


def _watch(
    query: Any,
    tally: Tally,
    limit: int,
    patience_s: float,
    shown: _Show,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[list[Reading], End]:
    """Look at the query until all orders are in the statistics; return every look and why it ended."""
    began = clock()
    history: list[Reading] = []
    counts, moved_s = (0, 0), 0.0

    def look() -> Reading:
        earlier = history[-RATE_LOOKS:][0] if history else None
        history.append(read_progress(query.lastProgress, tally, clock() - began, limit, earlier))
        return history[-1]

    end = End.GAVE_UP
    try:
        while query.isActive and clock() - began < patience_s:
            reading = look()
            shown.draw(history)
            if (reading.orders, reading.orders_in) != counts:
                counts, moved_s = (reading.orders, reading.orders_in), reading.elapsed_s
            # A resumed query may have nothing left to do, and then tells of no order at all.
            idle = reading.elapsed_s - moved_s > IDLE_S
            if max(counts) >= limit or idle:
                query.processAllAvailable()
                end = End.FINISHED
                break
            sleep(1 / LOOKS_PER_S)
    except KeyboardInterrupt:
        end = End.INTERRUPTED
    look()
    shown.draw(history)
    return history, end
