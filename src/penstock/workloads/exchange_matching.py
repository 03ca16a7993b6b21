"""Continuous auction of one stock: price-time priority, partial fills, balances checked.

`match` is the row function of the exchange, written as a user would write it. The durable truth is plain
(open orders and balances by id); the heaps are derived from it and live in `state.cached`. Nothing here reads
a clock, and an order book never depends on how its orders were cut into epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeAlias

Order: TypeAlias = tuple[int, int, int, bool, int, int, int]
"""order_id, stock, account, buy, price, volume, gateway: one row of the order stream."""
Report: TypeAlias = tuple[int, int | None, int, int | None, int | None, int, int, int, int]
"""One row of `REPORT_DDL`: a trade, or the tally of one call."""

REPORT_DDL: Final = (
    "stock int, price int, volume int, buy_order long, sell_order long, "
    "orders int, matched int, resting int, rejected int"
)
"""A trade has both order ids. A tally has none: it counts what one call did (`resting` is a change, and may
be negative) and repeats the last price. Sums over any prefix of the stream satisfy `orders = matched +
resting + rejected`, where `matched` are orders filled to the last share."""

OPENING_CASH: Final = 20_000_000
OPENING_SHARES: Final = 20_000
"""What an account has for trading one stock: balances are per stock and account, because state is per key."""

_ID_BITS: Final = 40
_ID_MASK: Final = (1 << _ID_BITS) - 1


class Book:
    """Open orders and free balances of one stock.

    An order's rank is one integer: price, then order id, with the price negated for a bid. So the smallest
    rank of a heap is its best price, and among equal prices the oldest order, and a bid is a negative rank.
    """

    __slots__ = ("asks", "bids", "free", "last_price", "resting", "touched")

    def __init__(self) -> None:
        self.bids: list[int] = []
        self.asks: list[int] = []
        self.resting: dict[int, list[int]] = {}
        """Rank -> [open volume, account]."""
        self.free: dict[int, list[int]] = {}
        """Account -> [cash, shares] that no open order holds."""
        self.touched: dict[int, list[int]] = {}
        """What `resting` gained, changed or lost (open volume 0) since the last `save`."""
        self.last_price: int | None = None

    @staticmethod
    def load(state: Any) -> Book:
        """Rebuild the book from durable state."""
        book = Book()
        for order_id, (buy, price, volume, account) in state.orders.items():
            rank = (-price if buy else price) << _ID_BITS | order_id
            (book.bids if buy else book.asks).append(rank)
            book.resting[rank] = [volume, account]
        heapify(book.bids)
        heapify(book.asks)
        book.free = {account: [cash, shares] for account, (cash, shares) in state.balances.items()}
        book.last_price = state.last_price.get()
        return book

    def save(self, state: Any, rows: Sequence[Order]) -> None:
        """Write what changed while `rows` were placed; an order that came and went meanwhile is never
        written."""
        first_id = rows[0][0]
        stored = state.orders
        accounts = {row[2] for row in rows}
        for rank, (volume, account) in self.touched.items():
            order_id = rank & _ID_MASK
            accounts.add(account)
            if volume:
                stored[order_id] = (rank < 0, abs(rank >> _ID_BITS), volume, account)
            elif order_id < first_id:
                del stored[order_id]
        self.touched.clear()
        balances = state.balances
        for account in accounts:
            balances[account] = tuple(self.free[account])
        if self.last_price != state.last_price.get():
            state.last_price.update(self.last_price)

    def place(self, stock: int, rows: Iterable[Order]) -> list[Report]:
        """Match or rest each order in turn; return the trades and, at the end, the tally.

        An order holds its price in cash (buy) or its volume in shares (sell) from the moment it is accepted;
        one that its account cannot cover is rejected whole. A trade takes place at the price of the order
        that was there first.
        """
        bids, asks, resting, free, touched = self.bids, self.asks, self.resting, self.free, self.touched
        resting_before = len(resting)
        reports: list[Report] = []
        placed = matched = rejected = 0
        for order_id, _, account, buy, price, volume, _ in rows:
            placed += 1
            own = free.get(account)
            if own is None:
                own = free[account] = [OPENING_CASH, OPENING_SHARES]
            if buy:
                if price * volume > own[0]:
                    rejected += 1
                    continue
                own[0] -= price * volume
                while asks and (ask_price := (best := asks[0]) >> _ID_BITS) <= price:
                    touched[best] = ask = resting[best]
                    if (traded := ask[0]) <= volume:
                        heappop(asks)
                        del resting[best]
                        ask[0] = 0
                        matched += 1
                    else:
                        traded = volume
                        ask[0] -= traded
                    volume -= traded
                    own[0] += (price - ask_price) * traded
                    own[1] += traded
                    free[ask[1]][0] += ask_price * traded
                    reports.append((stock, ask_price, traded, order_id, best & _ID_MASK, 0, 0, 0, 0))
                    if not volume:
                        matched += 1
                        break
                else:
                    rank = -price << _ID_BITS | order_id
                    heappush(bids, rank)
                    resting[rank] = touched[rank] = [volume, account]
            else:
                if volume > own[1]:
                    rejected += 1
                    continue
                own[1] -= volume
                while bids and (bid_price := -((best := bids[0]) >> _ID_BITS)) >= price:
                    touched[best] = bid = resting[best]
                    if (traded := bid[0]) <= volume:
                        heappop(bids)
                        del resting[best]
                        bid[0] = 0
                        matched += 1
                    else:
                        traded = volume
                        bid[0] -= traded
                    volume -= traded
                    own[0] += bid_price * traded
                    free[bid[1]][1] += traded
                    reports.append((stock, bid_price, traded, best & _ID_MASK, order_id, 0, 0, 0, 0))
                    if not volume:
                        matched += 1
                        break
                else:
                    rank = price << _ID_BITS | order_id
                    heappush(asks, rank)
                    resting[rank] = touched[rank] = [volume, account]
        if reports:
            self.last_price = reports[-1][1]
        change = len(resting) - resting_before
        reports.append((stock, self.last_price, 0, None, None, placed, matched, change, rejected))
        return reports


def match(key: tuple[int], rows: Sequence[Order], state: Any) -> list[Report]:
    """Match the orders of one stock: the row function of the exchange.

    Orders of a stock must arrive with growing ids. State: `orders` (order id -> buy, price, open volume,
    account), `balances` (account -> free cash, free shares) and `last_price`.
    """
    book = state.cached(Book.load)
    reports: list[Report] = book.place(key[0], rows)
    book.save(state, rows)
    return reports
