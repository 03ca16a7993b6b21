"""The demo: what it makes of a query's progress, what it draws, how it ends, and when it says that counts are
wrong."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from penstock.cli.demo import MAX_NODES, End, _Show, _watch, run_demo
from penstock.cli.demo_view import (
    COUNTED,
    Reading,
    Tally,
    derive_summary,
    live_view,
    plain_line,
    read_progress,
    size,
    sparkline,
    summary_text,
)
from penstock.workloads.exchange_orders import STOCKS

OPERATOR = {
    "rowsIn": 900, "rowsOut": 1_200, "rowsPerSecond": 41_000.0, "epochs": 70,
    "latencyMeanMs": 21.5, "latencyP99Ms": 44.0, "stateBytes": 5 << 20, "tasks": 1, "epochMs": 11.2,
}  # fmt: skip
PROGRESS: dict[str, Any] = {
    "name": "exchange",
    "epoch": 70,
    "operators": {
        "matching": OPERATOR,
        "statistics": {**OPERATOR, "latencyMeanMs": 30.0, "latencyP99Ms": 61.0},
    },
    "inputs": {"orders": {"rows": 950, "rowsPerSecond": 40_000.0, "behindRows": 50}},
    "outputs": {"sink": {"rowsIn": 18_000, "epochs": 70}},
}


def statistics(*rows: tuple[int, int, int, int, int]) -> pa.Table:
    """Make sink rows of (stock, orders, matched, resting, rejected)."""
    columns = dict(zip(("stock", *COUNTED[:4]), zip(*rows, strict=True), strict=True))
    more = {"trades": [3] * len(rows), "shares": [300] * len(rows), "low": [1] * len(rows)}
    return pa.table({name: list(values) for name, values in (columns | more).items()})


def full_tally(orders: int = 10) -> Tally:
    tally = Tally()
    tally.fold(statistics(*((stock, orders, orders - 7, 6, 1) for stock in range(STOCKS))))
    return tally


def reading_of(tally: Tally, limit: int) -> Reading:
    """Read the progress two seconds after one in which there were 66 epochs and 2,000 sink rows less."""
    operators = {name: {**facts, "epochs": 4} for name, facts in PROGRESS["operators"].items()}
    earlier = read_progress({**PROGRESS, "operators": operators}, tally, 10.0, limit)
    tally.rows += 2_000
    return read_progress(PROGRESS, tally, 12.0, limit, earlier)


def drawn(reading: Reading) -> str:
    console = Console(file=io.StringIO(), width=110, force_terminal=False)
    console.print(live_view([reading]))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_later_row_of_a_stock_replaces_an_earlier_one_within_and_across_sink_epochs() -> None:
    tally = Tally()
    tally.fold(statistics((4, 10, 4, 6, 0), (9, 5, 0, 5, 0), (4, 12, 6, 5, 1)))
    tally.fold(statistics((9, 7, 1, 6, 0)))
    assert {name: tally.total(name) for name in COUNTED[:4]} == {
        "orders": 19, "matched": 7, "resting": 11, "rejected": 1,
    }  # fmt: skip
    assert tally.stocks_seen == 2


def test_progress_is_read_even_before_there_is_any() -> None:
    assert read_progress(None, Tally(), 0.0, 100).operators == ()
    assert read_progress({"inputs": {"orders": {"rows": None}}}, Tally(), 0.0, 100).orders_in == 0


def test_a_rate_needs_an_earlier_reading() -> None:
    first = read_progress(PROGRESS, Tally(), 12.0, 100)
    assert (first.out_per_s, first.operators[0].epochs_per_s) == (0.0, 0.0)
    second = reading_of(Tally(), 100)
    assert (second.out_per_s, second.operators[0].epochs_per_s) == (1_000.0, 33.0)


def test_the_live_view_shows_rates_epochs_latency_state_progress_and_the_equation() -> None:
    text = drawn(reading_of(full_tally(), 40_000))
    for shown in ("40,000/s", "1,000/s", "waiting 50", "33", "22 ms", "61 ms", "5 MiB", "11,560 of 40,000"):
        assert shown in text
    assert "11,560 orders in = 3,468 matched + 6,936 resting + 1,156 rejected" in text
    assert "matching" in text and "statistics" in text


def test_the_live_view_can_be_drawn_before_anything_is_known() -> None:
    assert "0 orders in" in drawn(read_progress(None, Tally(), 0.0, 100))


def test_a_pipe_gets_a_line_with_the_same_figures() -> None:
    line = plain_line(reading_of(full_tally(), 40_000))
    for shown in ("11,560 of 40,000", "40,000/s", "66/s", "30 ms", "61 ms", "10 MiB", "resting 6,936"):
        assert shown in line
    assert "\n" not in line


def test_a_run_in_which_every_stock_reconciles_and_every_order_is_there_has_no_problem() -> None:
    tally = full_tally()
    summary = derive_summary([reading_of(tally, 11_560)], tally, resumed=False, finished=True)
    assert summary.problems == ()
    assert summary.as_json()["reconciles"] is True
    assert summary.thinnest_book == 6
    assert "every stock reconciles" in summary_text(summary)
    assert "Try next" in summary_text(summary)


@pytest.mark.parametrize("row", [(3, 10, 4, 6, 1), (3, 11, 3, 6, 1), (3, 10, 3, 5, 1)])
def test_one_stock_that_is_off_by_one_is_a_problem(row: tuple[int, int, int, int, int]) -> None:
    tally = full_tally()
    tally.fold(statistics(row))
    last = reading_of(tally, tally.total("orders"))
    summary = derive_summary([last], tally, resumed=False, finished=True)
    assert len(summary.problems) == 1
    assert "1 stocks do not reconcile" in summary_text(summary)


def test_a_lost_or_doubled_order_is_a_problem_though_every_stock_reconciles() -> None:
    for limit in (11_559, 11_561):
        tally = full_tally()
        assert derive_summary([reading_of(tally, limit)], tally, resumed=False, finished=True).problems
        assert derive_summary([reading_of(tally, limit)], tally, resumed=True, finished=True).problems


def test_a_resumed_run_that_did_not_see_all_stocks_is_judged_by_those_it_saw() -> None:
    tally = Tally()
    tally.fold(statistics((1, 10, 3, 6, 1)))
    last = reading_of(tally, 11_560)
    assert not derive_summary([last], tally, resumed=True, finished=True).problems
    assert derive_summary([last], tally, resumed=False, finished=True).problems


def test_a_run_that_ended_early_says_so() -> None:
    tally = full_tally()
    summary = derive_summary([reading_of(tally, 99_999)], tally, resumed=False, finished=False)
    assert "ended early" in summary_text(summary)


class FakeQuery:
    """Brings one more stock at every look at it; can stall, end or be interrupted on the way."""

    def __init__(
        self, tally: Tally, stop_at: int | None = None, error: type[BaseException] | None = None
    ) -> None:
        self.tally, self.stop_at, self.error = tally, stop_at, error
        self.looks = 0
        self.drained = False

    @property
    def isActive(self) -> bool:
        return not (self.stop_at == self.looks and self.error is None)

    @property
    def lastProgress(self) -> None:
        if self.error and self.looks == self.stop_at:
            self.error, error = None, self.error
            raise error
        if self.stop_at is None or self.looks < self.stop_at:
            self.tally.fold(statistics((self.looks, 10, 3, 6, 1)))
        self.looks += 1

    def processAllAvailable(self) -> None:
        self.drained = True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def watch(query: FakeQuery, limit: int, patience_s: float = 1_000.0) -> tuple[list[Reading], End]:
    clock = Clock()
    return _watch(query, query.tally, limit, patience_s, _Show(), clock, clock.sleep)


def test_watching_ends_when_all_orders_are_accounted_for() -> None:
    query = FakeQuery(Tally())
    history, end = watch(query, limit=50)
    assert end is End.FINISHED
    assert query.drained
    assert history[-1].orders >= 50


def test_watching_gives_up_when_the_query_ends_or_takes_too_long() -> None:
    assert watch(FakeQuery(Tally(), stop_at=3), limit=1_000)[1] is End.GAVE_UP
    assert watch(FakeQuery(Tally()), limit=1_000, patience_s=5.0)[1] is End.GAVE_UP


def test_an_interrupt_ends_the_watching_and_keeps_what_was_seen() -> None:
    history, end = watch(FakeQuery(Tally(), stop_at=3, error=KeyboardInterrupt), limit=1_000)
    assert end is End.INTERRUPTED
    assert history[-1].orders > 0


def test_a_resumed_query_with_nothing_left_to_do_is_drained_and_ended() -> None:
    class Idle(FakeQuery):
        @property
        def lastProgress(self) -> None:
            return None

    query = Idle(Tally())
    assert watch(query, limit=1_000)[1] is End.FINISHED
    assert query.drained


def test_sizes_and_sparklines_are_short() -> None:
    assert [size(count) for count in (0, 1023, 5 << 20, 3 << 30)] == ["0 B", "1,023 B", "5 MiB", "3.0 GiB"]
    assert sparkline([0, 1, 4, 8], 3) == "▁▄█"
    assert sparkline([], 3) == ""
    assert sparkline([0.0, 0.0], 3) == "  "


@pytest.mark.parametrize("nodes", [0, -1, MAX_NODES + 1])
def test_a_number_of_nodes_that_cannot_be_is_refused_before_anything_starts(
    nodes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_demo(nodes=nodes) == 1
    assert f"not {nodes}" in capsys.readouterr().out
