"""The order stream: the same rows however it is cut, the skew and bursts it promises, quotes that no order
reaches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.workloads.exchange_orders import (
    ACCOUNTS,
    DEPTH,
    LOT,
    MAX_LOTS,
    ORDER_SCHEMA,
    STOCKS,
    WARM_UP_ORDERS,
    bursts,
    orders,
    share_per_stock,
    total_rows,
)

TRADING = orders(WARM_UP_ORDERS, 600_000)


@settings(deadline=None)
@given(
    start=st.sampled_from([0, 5, WARM_UP_ORDERS - 700, WARM_UP_ORDERS, 3_000_000, 1 << 36]),
    cuts=st.lists(st.integers(0, 900), max_size=6),
)
def test_any_split_of_a_range_gives_the_same_rows(start: int, cuts: list[int]) -> None:
    edges = [start, *(start + cut for cut in sorted(cuts)), start + 1_000]
    parts = [orders(low, high - low) for low, high in pairwise(edges)]
    assert pa.Table.from_batches(parts) == pa.Table.from_batches([orders(start, 1_000)])


def test_a_range_longer_than_a_chunk_across_the_end_of_the_warm_up_equals_its_parts() -> None:
    start, count = WARM_UP_ORDERS - 40_000, 100_000
    whole = orders(start, count)
    assert whole.num_rows == count
    parts = [orders(at, 10_000) for at in range(start, start + count, 10_000)]
    assert pa.Table.from_batches(parts).combine_chunks() == pa.Table.from_batches([whole])


def test_rows_are_the_same_in_every_version() -> None:
    assert [tuple(row.values()) for row in orders(0, 1).to_pylist()] == GOLDEN_FIRST
    assert [tuple(row.values()) for row in orders(WARM_UP_ORDERS + 7, 2).to_pylist()] == GOLDEN_TRADING


def test_an_empty_range_has_the_schema_and_a_negative_one_is_refused() -> None:
    assert orders(7, 0).schema == ORDER_SCHEMA
    assert orders(7, 0).num_rows == 0
    with pytest.raises(ValueError, match="offset >= 0"):
        orders(-1, 3)


def test_the_heaviest_stock_and_the_top_percent_take_the_shares_of_the_trace() -> None:
    orders_per_stock = np.bincount(TRADING.column("stock").to_numpy(), minlength=STOCKS)
    shares = np.sort(orders_per_stock)[::-1] / TRADING.num_rows
    assert 0.02 < shares[0] < 0.03
    assert 0.10 < shares[:11].sum() < 0.12
    assert shares[-1] > 0
    assert np.abs(np.sort(share_per_stock())[::-1] - shares).max() < 0.002


def test_orders_are_neither_sorted_nor_one_sided_and_stay_within_their_ranges() -> None:
    column = {name: TRADING.column(name).to_numpy(zero_copy_only=False) for name in TRADING.schema.names}
    assert (np.diff(column["order_id"]) == 1).all()
    assert 0.49 < column["buy"].mean() < 0.51
    assert set(np.unique(column["account"])) == set(range(ACCOUNTS))
    assert set(np.unique(column["volume"])) == {LOT * lots for lots in range(1, MAX_LOTS + 1)}
    assert column["price"].min() > 0
    assert not (np.diff(column["stock"]) >= 0).all()


def test_the_warm_up_gives_every_stock_the_same_depth_on_both_sides_and_no_later_price_reaches_it() -> None:
    warm = orders(0, WARM_UP_ORDERS)
    stock, price = warm.column("stock").to_numpy(), warm.column("price").to_numpy()
    buy = warm.column("buy").to_numpy(zero_copy_only=False)
    assert (np.bincount(stock[buy]) == DEPTH // 2).all()
    assert (np.bincount(stock[~buy]) == DEPTH // 2).all()
    best_bid, best_ask = np.zeros(STOCKS, np.int64), np.full(STOCKS, 1 << 30)
    np.maximum.at(best_bid, stock[buy], price[buy])
    np.minimum.at(best_ask, stock[~buy], price[~buy])
    later_stock, later_price = TRADING.column("stock").to_numpy(), TRADING.column("price").to_numpy()
    assert (later_price > best_bid[later_stock]).all()
    assert (later_price < best_ask[later_stock]).all()


def test_the_mid_price_of_a_stock_moves_slowly_and_far() -> None:
    heaviest = int(np.argmax(share_per_stock()))
    mine = TRADING.filter(pa.array(TRADING.column("stock").to_numpy() == heaviest))
    price = mine.column("price").to_numpy()[: mine.num_rows // 100 * 100].reshape(-1, 100)
    mids = np.median(price, axis=1)
    assert mids.max() - mids.min() > 50
    assert np.abs(np.diff(mids)).max() < 20


def test_a_day_has_two_openings_many_times_the_base_and_the_first_holds_the_warm_up() -> None:
    day = bursts()
    rates = [rate for _, rate in day]
    assert sum(seconds for seconds, _ in day) == pytest.approx(60)
    assert sum(rate >= 70_000 for rate in rates) == 2
    assert max(rates) > 15 * float(np.median(rates))
    assert day[0][0] * day[0][1] >= WARM_UP_ORDERS
    assert day[-1][1] > 0
    assert total_rows(day) == pytest.approx(sum(seconds * rate for seconds, rate in day), abs=1)


def test_a_day_scales_in_rate_and_in_length() -> None:
    assert total_rows(bursts(2.0)) == pytest.approx(2 * total_rows(bursts()), abs=2)
    assert total_rows(bursts(seconds=30.0)) == pytest.approx(total_rows(bursts()) / 2, abs=2)


GOLDEN_FIRST = [(0, 0, 0, False, 1121, 1100, 0)]
GOLDEN_TRADING = [(369927, 373, 7, True, 986, 400, 1), (369928, 954, 8, True, 994, 1200, 2)]
