"""Matching against the brute-force reference, what is conserved, and how deep books stay under the order
stream."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.workloads.exchange import STATISTICS, matching, reference, topology
from penstock.workloads.exchange_matching import OPENING_CASH, OPENING_SHARES, Book, Order, Report, match
from penstock.workloads.exchange_orders import STOCKS, WARM_UP_ORDERS, orders


class FakeValue:
    def __init__(self) -> None:
        self.value: Any = None

    def get(self) -> Any:
        return self.value

    def update(self, value: Any) -> None:
        self.value = value


class FakeState:
    """The state of one key: dictionaries for maps, and a cache that can be lost at any time."""

    def __init__(self) -> None:
        self.orders: dict[int, tuple[bool, int, int, int]] = {}
        self.balances: dict[int, tuple[int, int]] = {}
        self.last_price = FakeValue()
        self._cache: Any = None

    def cached(self, build: Any) -> Any:
        if self._cache is None:
            self._cache = build(self)
        return self._cache

    def evict(self) -> None:
        self._cache = None


def run_epochs(epochs: list[list[Order]], evict: bool) -> tuple[dict[int, FakeState], list[Report]]:
    """Call `match` as the engine does: once per stock and epoch, rows in order."""
    states: defaultdict[int, FakeState] = defaultdict(FakeState)
    reports: list[Report] = []
    for rows in epochs:
        for stock in sorted({row[1] for row in rows}):
            reports += match((stock,), [row for row in rows if row[1] == stock], states[stock])
            if evict:
                states[stock].evict()
    return states, reports


def trades_of(reports: list[Report]) -> list[tuple[Any, ...]]:
    return [report[:5] for report in reports if report[3] is not None]


def tally_of(reports: list[Report]) -> tuple[int, int, int, int]:
    """Sum what a statistics operator would sum: orders, matched, resting, rejected."""
    return (
        sum(report[5] for report in reports),
        sum(report[6] for report in reports),
        sum(report[7] for report in reports),
        sum(report[8] for report in reports),
    )


def cut(rows: list[Order], cuts: list[int]) -> list[list[Order]]:
    edges = [0, *sorted(min(at, len(rows)) for at in cuts), len(rows)]
    return [rows[low:high] for low, high in pairwise(edges)]


volumes = st.one_of(st.integers(1, 30), st.sampled_from([1, 2, OPENING_SHARES // 2, OPENING_SHARES]))
streams = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 3), st.booleans(), st.integers(996, 1004), volumes),
    max_size=60,
).map(lambda rows: [(number * 3, *row, 0) for number, row in enumerate(rows)])


@settings(max_examples=300, deadline=None)
@given(rows=streams, cuts=st.lists(st.integers(0, 60), max_size=8), evict=st.booleans())
def test_matching_equals_the_reference_however_the_stream_is_cut(
    rows: list[Order], cuts: list[int], evict: bool
) -> None:
    states, reports = run_epochs(cut(rows, cuts), evict)
    expected = reference(rows)
    for stock in (0, 1):
        assert [trade for trade in trades_of(reports) if trade[0] == stock] == [
            trade for trade in expected.trades if trade[0] == stock
        ]
    open_volume = {number: order[2] for state in states.values() for number, order in state.orders.items()}
    assert open_volume == expected.resting
    fates = (expected.matched, expected.resting, expected.rejected)
    assert tally_of(reports) == (len(rows), *(len(fate) for fate in fates))
    balances = {(s, a): held for s, state in states.items() for a, held in state.balances.items()}
    assert balances == {owner: (cash, expected.shares[owner]) for owner, cash in expected.cash.items()}


@settings(deadline=None)
@given(rows=streams, cuts=st.lists(st.integers(0, 60), max_size=8))
def test_orders_and_volume_are_conserved(rows: list[Order], cuts: list[int]) -> None:
    states, reports = run_epochs(cut(rows, cuts), evict=False)
    orders_in, matched, resting, rejected = tally_of(reports)
    assert orders_in == matched + resting + rejected == len(rows)
    assert resting == sum(len(state.orders) for state in states.values())
    refused = reference(rows).rejected
    placed = sum(row[5] for row in rows if row[0] not in refused)
    still_open = sum(order[2] for state in states.values() for order in state.orders.values())
    assert placed == still_open + 2 * sum(trade[2] for trade in trades_of(reports))
    for state in states.values():
        held_shares = sum(volume for buy, _, volume, _ in state.orders.values() if not buy)
        held_cash = sum(price * volume for buy, price, volume, _ in state.orders.values() if buy)
        accounts = len(state.balances)
        assert sum(shares for _, shares in state.balances.values()) + held_shares == accounts * OPENING_SHARES
        assert sum(cash for cash, _ in state.balances.values()) + held_cash == accounts * OPENING_CASH
        assert all(cash >= 0 and shares >= 0 for cash, shares in state.balances.values())


def test_the_topology_declares_what_it_says() -> None:
    assert tuple(topology(rate=1_000, limit=10).columns) == STATISTICS
    trade = ("stock", "price", "volume", "buy_order", "sell_order")
    assert tuple(matching().columns) == (*trade, "orders", "matched", "resting", "rejected")


def test_the_better_price_goes_first_and_among_equals_the_older_order() -> None:
    rows: list[Order] = [
        (1, 7, 1, False, 102, 10, 0),
        (2, 7, 2, False, 101, 10, 0),
        (3, 7, 3, False, 101, 10, 0),
        (4, 7, 4, True, 102, 25, 0),
    ]
    _, reports = run_epochs([rows], evict=False)
    assert trades_of(reports) == [(7, 101, 10, 4, 2), (7, 101, 10, 4, 3), (7, 102, 5, 4, 1)]
    assert reports[-1] == (7, 102, 0, None, None, 4, 3, 1, 0)


def test_an_order_that_its_account_cannot_cover_is_rejected_until_it_can() -> None:
    rows: list[Order] = [
        (1, 7, 1, False, 100, OPENING_SHARES, 0),
        (2, 7, 1, False, 100, 1, 0),
        (3, 7, 2, True, 100, OPENING_SHARES, 0),
        (4, 7, 2, False, 100, OPENING_SHARES + 1, 0),
    ]
    states, reports = run_epochs([[row] for row in rows], evict=True)
    assert [report[8] for report in reports if report[3] is None] == [0, 1, 0, 0]
    assert states[7].balances[1] == (OPENING_CASH + 100 * OPENING_SHARES, 0)


def test_only_changed_orders_are_written() -> None:
    state = FakeState()
    match((7,), [(1, 7, 1, False, 101, 10, 0), (2, 7, 2, False, 102, 10, 0)], state)
    state.orders[2] = (False, 102, 99, 2)  # a mark that a rewrite would remove
    match((7,), [(3, 7, 3, True, 101, 4, 0), (4, 7, 3, True, 90, 4, 0), (5, 7, 1, False, 90, 4, 0)], state)
    assert state.orders == {1: (False, 101, 6, 1), 2: (False, 102, 99, 2)}


def test_matching_equals_the_reference_on_the_generated_stream() -> None:
    busy = (0, 537, 1_074)  # the heaviest three
    rows = [tuple(row.values()) for row in orders(WARM_UP_ORDERS, 20_000).to_pylist() if row["stock"] in busy]
    states, reports = run_epochs(cut(rows, list(range(0, len(rows), 100))), evict=False)
    expected = reference(rows)
    assert len(rows) > 700
    assert len(trades_of(reports)) > 300
    for stock in busy:
        assert [trade for trade in trades_of(reports) if trade[0] == stock] == [
            trade for trade in expected.trades if trade[0] == stock
        ]
    assert {number for state in states.values() for number in state.orders} == set(expected.resting)


def test_every_book_stays_deep_and_bounded_while_about_half_of_the_orders_match_on_arrival() -> None:
    books = [Book() for _ in range(STOCKS)]
    totals, on_arrival, trading = [0, 0, 0, 0], 0, 600_000
    for start in range(0, WARM_UP_ORDERS + trading, 100_000):
        batch = orders(start, min(100_000, WARM_UP_ORDERS + trading - start))
        by_stock: defaultdict[int, list[Order]] = defaultdict(list)
        for row in zip(*[c.to_numpy(zero_copy_only=False).tolist() for c in batch.columns], strict=True):
            by_stock[row[1]].append(row)
        for stock, rows in by_stock.items():
            reports = books[stock].place(stock, rows)
            books[stock].touched.clear()
            totals = [total + more for total, more in zip(totals, reports[-1][5:], strict=True)]
            on_arrival += len({max(report[3] or 0, report[4] or 0) for report in reports[:-1]})
        if start >= WARM_UP_ORDERS:
            assert min(len(book.resting) for book in books) >= 300
            assert max(len(book.resting) for book in books) <= 1_000
    orders_in, matched, resting, rejected = totals
    assert orders_in == WARM_UP_ORDERS + trading == matched + resting + rejected
    assert resting == sum(len(book.resting) for book in books)
    assert 0.4 < on_arrival / trading < 0.6
    assert 0.005 < rejected / trading < 0.1
