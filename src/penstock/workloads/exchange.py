"""The exchange as a topology: order stream -> matching per stock -> statistics per stock, on the public API.

Also its oracle: `reference` matches a list of orders by brute force, with none of the code it is compared
with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.workloads.exchange_matching import OPENING_CASH, OPENING_SHARES, REPORT_DDL, Order, match
from penstock.workloads.exchange_orders import ORDER_DDL, bursts, orders

if TYPE_CHECKING:
    from penstock.topology.states import StateSpec
    from penstock.topology.stream import Stream

Rate = float | Sequence[tuple[float, int]]

STATISTICS: Final = (
    "stock", "trades", "shares", "low", "high", "last", "orders", "matched", "resting", "rejected"
)  # fmt: skip
"""Columns of the statistics stream."""


def matching_states() -> dict[str, StateSpec]:
    """Return the states that `match` keeps for a stock: the book, the balances and the last price."""
    import penstock

    return {
        "orders": penstock.MapState("long", "struct<buy:boolean,price:int,volume:int,account:int>"),
        "balances": penstock.MapState("int", "struct<cash:long,shares:long>"),
        "last_price": penstock.ValueState("int"),
    }


def matching(rate: Rate | None = None, limit: int | None = None) -> Stream:
    """Declare order stream and matching; return the stream of trades and tallies (`REPORT_DDL`).

    Args:
        rate: orders per second, or (seconds, orders per second) steps; by default a day of `bursts`.
        limit: stop after that many orders; by default never.
    """
    import penstock

    placed = penstock.generate(
        orders, schema=ORDER_DDL, rate=bursts() if rate is None else rate, name="orders", limit=limit
    )
    return placed.groupBy("stock").apply_rows(
        match,
        schema=REPORT_DDL,
        state=matching_states(),
        name="matching",
    )


def topology(rate: Rate | None = None, limit: int | None = None) -> Stream:
    """Declare the whole exchange; return the stream of `STATISTICS`: one row per stock whenever it changes.

    The last four columns count orders, so for each stock and at every committed point
    `orders = matched + resting + rejected`.
    """
    import penstock

    return matching(rate, limit).groupBy("stock").agg(
        penstock.count("buy_order").alias("trades"),
        penstock.sum("volume").alias("shares"),
        penstock.min("price").alias("low"),
        penstock.max("price").alias("high"),
        penstock.last("price").alias("last"),
        penstock.sum("orders").alias("orders"),
        penstock.sum("matched").alias("matched"),
        penstock.sum("resting").alias("resting"),
        penstock.sum("rejected").alias("rejected"),
        name="statistics",
    )  # fmt: skip


@dataclass
class Outcome:
    """What `reference` found: who traded with whom, what is still open, what was refused."""

    trades: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    """(stock, price, volume, buy order, sell order), in the order of the stream."""
    resting: dict[int, int] = field(default_factory=dict)
    """Order id -> open volume."""
    matched: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)
    cash: dict[tuple[int, int], int] = field(default_factory=dict)
    """(stock, account) -> cash that no open order holds."""
    shares: dict[tuple[int, int], int] = field(default_factory=dict)


def reference(placed: Iterable[Order]) -> Outcome:
    """Match orders one by one, scanning every open order each time: slow, and plainly right."""
    found = Outcome()
    cash: defaultdict[tuple[int, int], int] = defaultdict(lambda: OPENING_CASH)
    shares: defaultdict[tuple[int, int], int] = defaultdict(lambda: OPENING_SHARES)
    by_id = {order[0]: order for order in placed}
    for order_id, stock, account, buy, price, volume, _ in by_id.values():
        owner = (stock, account)
        cash[owner], shares[owner] = cash[owner], shares[owner]
        if (buy and cash[owner] < price * volume) or (not buy and shares[owner] < volume):
            found.rejected.add(order_id)
            continue
        if buy:
            cash[owner] -= price * volume
        else:
            shares[owner] -= volume
        found.resting[order_id] = volume
        while order_id in found.resting:
            other = _best_counterpart(by_id[order_id], found.resting, by_id)
            if other is None:
                break
            _, _, other_account, _, deal, _, _ = other
            traded = min(found.resting[order_id], found.resting[other[0]])
            buyer, seller = (account, other_account) if buy else (other_account, account)
            bought, sold = (order_id, other[0]) if buy else (other[0], order_id)
            cash[stock, buyer] += (by_id[bought][4] - deal) * traded
            shares[stock, buyer] += traded
            cash[stock, seller] += deal * traded
            found.trades.append((stock, deal, traded, bought, sold))
            for filled in (bought, sold):
                found.resting[filled] -= traded
                if not found.resting[filled]:
                    del found.resting[filled]
                    found.matched.add(filled)
    found.cash, found.shares = dict(cash), dict(shares)
    return found


def _best_counterpart(order: Order, resting: Iterable[int], by_id: dict[int, Order]) -> Order | None:
    """Return the open order of the other side with the best price that still trades; the oldest of
    several."""
    _, stock, _, buy, price, _, _ = order
    open_orders = [by_id[order_id] for order_id in resting]
    others = [other for other in open_orders if other[1] == stock and other[3] != buy]
    if buy:
        return min((o for o in others if o[4] <= price), key=lambda o: (o[4], o[0]), default=None)
    return min((o for o in others if o[4] >= price), key=lambda o: (-o[4], o[0]), default=None)
