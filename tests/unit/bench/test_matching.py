"""The bare loop: every stock has one owner, loads are alike, and it gives a rate."""

from __future__ import annotations

import pytest

from penstock.bench.matching import bare_loop, grouped_rows, match_all, part_of_stocks
from penstock.workloads.exchange_matching import Book
from penstock.workloads.exchange_orders import STOCKS, WARM_UP_ORDERS, share_per_stock


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_every_stock_has_one_owner_and_the_parts_carry_about_the_same_load(parts: int) -> None:
    dealt = [part_of_stocks(index, parts) for index in range(parts)]
    assert sorted(stock for part in dealt for stock in part) == list(range(STOCKS))
    shares = share_per_stock()
    assert all(abs(shares[sorted(part)].sum() - 1 / parts) < 0.02 for part in dealt)


def test_each_part_sees_all_its_orders_in_order() -> None:
    seen = [
        row
        for index in range(2)
        for group in grouped_rows(WARM_UP_ORDERS, 30_000, part_of_stocks(index, 2))
        for stock, rows in group
        for row in rows
        if row[1] == stock
    ]
    assert sorted(row[0] for row in seen) == list(range(WARM_UP_ORDERS, WARM_UP_ORDERS + 30_000))
    books = [Book() for _ in range(STOCKS)]
    match_all(books, grouped_rows(0, 2 * STOCKS, part_of_stocks(0, 2)))
    assert {len(book.resting) for book in books} == {0, 2}


def test_the_bare_loop_gives_a_rate() -> None:
    assert bare_loop(5_000, processes=1) > 1_000
