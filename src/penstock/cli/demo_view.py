"""What the demo shows: readings in, text out. No engine, no clock, no terminal state.

`Tally` holds the newest statistics of every stock, `read_progress` turns a query's progress into a `Reading`,
and the rest draws a reading: live for a terminal, as a line for a pipe, and as the summary at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np
import pyarrow as pa
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.workloads.exchange_orders import STOCKS

SPARKS: Final = " ▁▂▃▄▅▆▇█"
COUNTED: Final = ("orders", "matched", "resting", "rejected", "trades", "shares")


class Tally:
    """The newest statistics per stock, folded from the sink; a later row of a stock replaces an earlier
    one."""

    def __init__(self) -> None:
        self._newest = np.zeros((STOCKS, len(COUNTED)), np.int64)
        self._seen = np.zeros(STOCKS, np.bool_)
        self.rows = 0
        """Rows that the sink brought so far."""

    def fold(self, table: pa.Table) -> None:
        """Take in what one sink epoch brought."""
        stock = table.column("stock").to_numpy()
        rows = np.column_stack([table.column(name).to_numpy() for name in COUNTED])
        # Of several rows of a stock the last one counts: look from the end, keep the first of each.
        _, at = np.unique(stock[::-1], return_index=True)
        newest = len(stock) - 1 - at
        self._newest[stock[newest]] = rows[newest]
        self._seen[stock] = True
        self.rows += table.num_rows

    def total(self, name: str) -> int:
        return int(self._newest[:, COUNTED.index(name)].sum())

    @property
    def stocks_seen(self) -> int:
        return int(self._seen.sum())

    @property
    def thinnest_book(self) -> int:
        """Resting orders of the stock that has the fewest."""
        return int(self._newest[:, COUNTED.index("resting")].min())

    def stocks_that_do_not_reconcile(self) -> int:
        """Count stocks for which orders in = matched + resting + rejected does not hold."""
        orders, matched, resting, rejected = self._newest[:, :4].T
        return int((orders != matched + resting + rejected).sum())


@dataclass(frozen=True)
class OperatorReading:
    name: str
    rows_per_s: float
    epochs: int
    epochs_per_s: float
    epoch_ms: float
    latency_mean_ms: float
    latency_p99_ms: float
    state_bytes: int
    tasks: int


@dataclass(frozen=True)
class Reading:
    """One look at the running exchange."""

    elapsed_s: float
    orders_in: int
    limit: int
    in_per_s: float
    behind: int
    out_rows: int
    out_per_s: float
    operators: tuple[OperatorReading, ...]
    orders: int
    matched: int
    resting: int
    rejected: int
    trades: int

    @property
    def latency(self) -> tuple[float, float] | None:
        """Mean and p99, in ms, at the last operator: from the order's arrival to the commit of its
        statistics."""
        last = self.operators[-1] if self.operators else None
        return (last.latency_mean_ms, last.latency_p99_ms) if last and last.latency_mean_ms else None


def read_progress(
    progress: Mapping[str, Any] | None,
    tally: Tally,
    elapsed_s: float,
    limit: int,
    earlier: Reading | None = None,
) -> Reading:
    """Join a query's progress (None or incomplete at first) with the tally of its sink.

    What the query only counts becomes a rate by comparison with an `earlier` reading.
    """
    found = progress or {}
    sources = list(found.get("inputs", {}).values())
    epochs_before = {one.name: one.epochs for one in earlier.operators} if earlier else {}
    span_s = elapsed_s - earlier.elapsed_s if earlier else 0.0
    return Reading(
        elapsed_s=elapsed_s,
        orders_in=max(tally.total("orders"), sum(int(_number(source, "rows")) for source in sources)),
        limit=limit,
        in_per_s=sum(_number(source, "rowsPerSecond") for source in sources),
        behind=sum(int(_number(source, "behindRows")) for source in sources),
        out_rows=tally.rows,
        out_per_s=_rate(tally.rows, earlier.out_rows if earlier else None, span_s),
        operators=tuple(
            _operator(name, facts, epochs_before.get(name), span_s)
            for name, facts in found.get("operators", {}).items()
        ),
        orders=tally.total("orders"),
        matched=tally.total("matched"),
        resting=tally.total("resting"),
        rejected=tally.total("rejected"),
        trades=tally.total("trades"),
    )


def _operator(
    name: str, facts: Mapping[str, Any], epochs_before: int | None, span_s: float
) -> OperatorReading:
    epochs = int(_number(facts, "epochs"))
    return OperatorReading(
        name=name,
        rows_per_s=_number(facts, "rowsPerSecond"),
        epochs=epochs,
        epochs_per_s=_rate(epochs, epochs_before, span_s),
        epoch_ms=_number(facts, "epochMs"),
        latency_mean_ms=_number(facts, "latencyMeanMs"),
        latency_p99_ms=_number(facts, "latencyP99Ms"),
        state_bytes=int(_number(facts, "stateBytes")),
        tasks=int(_number(facts, "tasks")),
    )


def _rate(count: int, before: int | None, span_s: float) -> float:
    return max(0, count - before) / span_s if before is not None and span_s > 0 else 0.0


def _number(facts: Mapping[str, Any], name: str) -> float:
    """Return a figure, 0 where it is not known yet."""
    return float(facts.get(name) or 0)


def live_view(history: Sequence[Reading]) -> RenderableType:
    """Draw the newest reading, with the rate of the last minute above it."""
    now = history[-1]
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(no_wrap=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True, justify="right")
    done = ProgressBar(total=now.limit, completed=min(now.orders, now.limit))
    bar.add_row("orders", done, f"{now.orders:,} of {now.limit:,}")
    rates = Text(f"in {now.in_per_s:>9,.0f}/s  ")
    rates.append(sparkline([reading.in_per_s for reading in history], 48), style="cyan")
    rates.append(f"  statistics out {now.out_per_s:,.0f}/s, waiting {now.behind:,}")
    body = Group(bar, rates, Text(), _operator_table(now), Text(), Text(reconciliation(now)))
    title = f"a small exchange: {STOCKS:,} stocks, {now.trades:,} trades, {now.elapsed_s:.0f} s"
    return Panel(body, title=title, border_style="blue")


def _operator_table(reading: Reading) -> Table:
    table = Table(box=None, pad_edge=False, expand=True)
    table.add_column("operator", no_wrap=True)
    for heading in ("rows/s", "epochs/s", "epoch", "latency", "p99", "state", "tasks"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in reading.operators:
        table.add_row(
            one.name,
            f"{one.rows_per_s:,.0f}",
            f"{one.epochs_per_s:,.0f}",
            f"{one.epoch_ms:,.1f} ms",
            f"{one.latency_mean_ms:,.0f} ms",
            f"{one.latency_p99_ms:,.0f} ms",
            size(one.state_bytes),
            str(one.tasks),
        )
    return table


def plain_line(reading: Reading) -> str:
    """Return one reading as a line, for output that is not a terminal."""
    mean, p99 = reading.latency or (0.0, 0.0)
    epochs = sum(one.epochs_per_s for one in reading.operators)
    state = sum(one.state_bytes for one in reading.operators)
    return (
        f"{reading.elapsed_s:5.0f} s  {reading.orders:>9,} of {reading.limit:,} orders  "
        f"in {reading.in_per_s:>7,.0f}/s  out {reading.out_per_s:>7,.0f}/s  epochs {epochs:4.0f}/s  "
        f"latency {mean:4.0f} ms, p99 {p99:4.0f} ms  state {size(state)}  resting {reading.resting:,}"
    )


def reconciliation(reading: Reading) -> str:
    """Return the equation that must hold at every committed point."""
    return (
        f"{reading.orders:,} orders in = {reading.matched:,} matched + {reading.resting:,} resting "
        f"+ {reading.rejected:,} rejected"
    )


@dataclass(frozen=True)
class Summary:
    """How the demo ended; `problems` is empty when everything reconciles."""

    last: Reading
    thinnest_book: int
    latency_mean_ms: float | None
    latency_p99_ms: float | None
    problems: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        last = self.last
        return {
            "orders": last.orders,
            "matched": last.matched,
            "resting": last.resting,
            "rejected": last.rejected,
            "trades": last.trades,
            "thinnest_book": self.thinnest_book,
            "seconds": round(last.elapsed_s, 1),
            "latency_mean_ms": self.latency_mean_ms,
            "latency_p99_ms": self.latency_p99_ms,
            "reconciles": not self.problems,
            "problems": list(self.problems),
        }


def derive_summary(history: Sequence[Reading], tally: Tally, resumed: bool, finished: bool) -> Summary:
    """Judge the run: every stock must reconcile, and a finished run must account for every order made.

    A resumed run sees only stocks that changed since; unless it saw all of them, it cannot count the orders.
    """
    last = history[-1]
    problems = []
    if wrong := tally.stocks_that_do_not_reconcile():
        problems.append(f"{wrong} stocks do not reconcile: orders in is not matched + resting + rejected")
    counts_all = tally.stocks_seen == STOCKS or not resumed
    if finished and counts_all and last.orders != last.limit:
        problems.append(f"{last.limit:,} orders were made but {last.orders:,} are accounted for")
    if not finished:
        problems.append(f"ended early: {last.orders:,} of {last.limit:,} orders are accounted for")
    latencies = [reading.latency for reading in history if reading.latency]
    return Summary(
        last=last,
        thinnest_book=tally.thinnest_book,
        latency_mean_ms=round(median(mean for mean, _ in latencies), 1) if latencies else None,
        latency_p99_ms=round(median(p99 for _, p99 in latencies), 1) if latencies else None,
        problems=tuple(problems),
    )


def summary_text(summary: Summary) -> str:
    """Return the closing words: what happened, whether it reconciles, what to try next."""
    last = summary.last
    lines = [
        reconciliation(last),
        *(f"does not reconcile: {problem}" for problem in summary.problems),
        *(["every stock reconciles, none lost, none twice"] if not summary.problems else []),
        f"{last.trades:,} trades in {last.elapsed_s:.0f} s; the thinnest of {STOCKS:,} books has "
        f"{summary.thinnest_book:,} resting orders",
    ]
    if summary.latency_mean_ms is not None:
        lines.append(
            f"from an order's arrival to its committed statistics: mean {summary.latency_mean_ms:,.0f} ms, "
            f"p99 {summary.latency_p99_ms:,.0f} ms (median of the looks at the run, openings included)"
        )
    return "\n".join([*lines, "", NEXT_STEPS])


NEXT_STEPS: Final = """\
Try next:
  penstock demo --checkpoint /tmp/exchange    kill -9 it half way and run it again: it goes on where it was
  penstock bench keyed-count --quick          how fast this machine is, beside plain Spark
  src/penstock/workloads/exchange.py          the whole topology; the matching is in exchange_matching.py"""


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw the last `width` values as bars; the highest of them fills the line."""
    shown = list(values)[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return SPARKS[0] * len(shown)
    steps = len(SPARKS) - 1
    return "".join(SPARKS[min(steps, -int(-value * steps // top))] for value in shown)


def size(count: int) -> str:
    """Return a number of bytes with a unit."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:,.0f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} GiB"
