"""The order stream of the exchange: 1,156 unlike stocks, moving prices, the bursts of a trading day.

Every order is a pure function of its row number (splitmix64 of the number, in numpy), so any range can be
made anywhere and replayed. The first `WARM_UP_ORDERS` rows are quotes that no later price reaches: they give
each book its depth and keep it. Nothing here knows about balances or matching, and no clock is read.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.workloads.mixing import GOLDEN, mix

STOCKS: Final = 1_156
ACCOUNTS: Final = 16
"""Accounts that trade each stock; a balance is kept per stock and account."""

DEPTH: Final = 320
"""Quotes per stock in the warm-up, half on each side; they stay, so no warm book is thinner than this."""
WARM_UP_ORDERS: Final = STOCKS * DEPTH

SKEW: Final = 0.57
"""Exponent of the power law: the heaviest stock takes 2.2 % of the orders, the 11 heaviest 10.5 %."""

SWING_TICKS: Final = 40
"""How far a stock's mid price wanders from its opening price, up and down."""
NOISE_TICKS: Final = 16
"""How far an order's limit may lie from the mid, on either side of it."""
SWING_ORDERS: Final = 4_096
"""Orders of a stock during one full swing of its mid price."""
LOT: Final = 100
MAX_LOTS: Final = 16

ORDER_SCHEMA: Final = pa.schema(
    [
        pa.field("order_id", pa.int64()),
        pa.field("stock", pa.int32()),
        pa.field("account", pa.int32()),
        pa.field("buy", pa.bool_()),
        pa.field("price", pa.int32()),
        pa.field("volume", pa.int32()),
        pa.field("gateway", pa.int32()),
    ]
)
ORDER_DDL: Final = "order_id long, stock int, account int, buy boolean, price int, volume int, gateway int"
"""Prices are in ticks. `order_id` is the row number: it grows with time, so it also gives time priority."""

_CHUNK_ROWS: Final = 1 << 15  # a chunk's arrays stay in the cache between the passes below
_CELL_BITS: Final = 16
_WORD: Final = (1 << 64) - 1

U64 = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Columns: TypeAlias = tuple[I32, I32, npt.NDArray[np.bool_], I32, I32, I32]


class _Market(NamedTuple):
    """What is fixed per stock, and the table that draws one."""

    draw: npt.NDArray[np.int16]
    opening: I32
    swing_step: U64
    swing_start: U64


def orders(offset: int, count: int) -> pa.RecordBatch:
    """Make orders `offset` to `offset + count`; any split of a range gives the same rows.

    Raises:
        ValueError: a negative range.
    """
    if offset < 0 or count < 0:
        raise ValueError(f"orders need offset >= 0 and count >= 0, not {offset} and {count}")
    parts = [_chunk(start, end) for start, end in _chunk_ranges(offset, offset + count)]
    arrays = [pa.array(np.arange(offset, offset + count, dtype=np.int64))]
    for index, field in enumerate(list(ORDER_SCHEMA)[1:]):
        whole = np.concatenate([part[index] for part in parts]) if parts else np.empty(0, np.int32)
        arrays.append(pa.array(whole, type=field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=ORDER_SCHEMA)


def bursts(scale: float = 1.0, seconds: float = 60.0) -> list[tuple[float, int]]:
    """Return a trading day as (seconds, rows per second) steps, squeezed into `seconds`.

    The rates at scale 1 are those of the trace in StreamSwitch section 6: some thousand orders a second that
    vary all the time, 70,000 to 80,000 when the morning and the afternoon session open, and a surge towards
    the close. The first opening holds the warm-up when `scale * seconds` is at least 60. The last
    rate holds: end the day with a limit of `total_rows`.
    """
    day = [
        (0.10, 80_000),  # the morning opens
        (0.04, 12_000),
        *((0.04, rate) for rate in (5_000, 2_500, 7_000, 3_000, 1_500, 4_500, 2_000, 6_000)),
        (0.05, 75_000),  # the afternoon opens
        (0.04, 10_000),
        *((0.04, rate) for rate in (4_000, 2_000, 6_500, 2_500, 5_000, 1_500, 8_000)),
        (0.07, 20_000),  # towards the close
        (0.10, 9_000),
    ]
    return [(share * seconds, int(rate * scale)) for share, rate in day]


def total_rows(profile: list[tuple[float, int]]) -> int:
    """Return how many rows a rate profile lets through in the time it names."""
    return int(sum(seconds * rate for seconds, rate in profile))


def share_per_stock() -> npt.NDArray[np.float64]:
    """Return the share of the orders after the warm-up that each stock takes."""
    ranks = np.arange(STOCKS)
    weights = np.empty(STOCKS, np.float64)
    # 537 and 1,156 share no divisor, so that each rank has its stock and the heavy ones lie apart.
    weights[ranks * 537 % STOCKS] = (ranks + 1.0) ** -SKEW
    shares: npt.NDArray[np.float64] = weights / weights.sum()
    return shares


def _chunk_ranges(start: int, end: int) -> list[tuple[int, int]]:
    """Cut a range into chunks, none of which lies on both sides of the end of the warm-up."""
    cuts = list(range(start, end, _CHUNK_ROWS))
    if start < WARM_UP_ORDERS < end and WARM_UP_ORDERS not in cuts:
        cuts = sorted([*cuts, WARM_UP_ORDERS])
    return list(zip(cuts, [*cuts[1:], end], strict=True)) if cuts else []


def _chunk(start: int, end: int) -> Columns:
    number = np.arange(start, end, dtype=np.uint64)
    words = mix((number + np.uint64(1)) * np.uint64(GOLDEN))
    return _warm_up(number, words) if end <= WARM_UP_ORDERS else _trading(number, words)


def _trading(number: U64, words: U64) -> Columns:
    market = _market()
    stock = market.draw.take(_bits(words, 0, _CELL_BITS), mode="clip")
    phase = number * market.swing_step.take(stock) + market.swing_start.take(stock)
    wave = (phase >> np.uint64(40)).astype(np.int32)  # 24 bits of a full turn, folded into a triangle
    wave = np.where(wave & (1 << 23), (1 << 24) - 1 - wave, wave)
    opening = market.opening.take(stock)
    mid = opening - SWING_TICKS + ((wave >> 8) * (2 * SWING_TICKS + 1) >> 15)
    limit = mid + _bits(words, 16, 4) + _bits(words, 20, 4) - (NOISE_TICKS - 1)
    buy = _bits(words, 40, 1)
    # One order in four trades at any price. That is what keeps a book from growing: they reach the orders
    # that lie beyond the turning points of the mid, which would stay for ever otherwise.
    reach = np.where(_bits(words, 24, 2) == 0, (SWING_TICKS + NOISE_TICKS) * (2 * buy - 1), limit - opening)
    return (
        stock.astype(np.int32),
        _bits(words, 32, 4),
        buy.astype(np.bool_),
        opening + reach,
        (_bits(words, 44, 4) + 1) * LOT,
        _bits(words, 50, 3),
    )


def _warm_up(number: U64, words: U64) -> Columns:
    """Quotes beyond the reach of every later order: each stock in turn, sides and accounts in turn."""
    turn = (number // np.uint64(STOCKS)).astype(np.int32)
    stock = (number % np.uint64(STOCKS)).astype(np.int32)
    buy = (turn & 1).astype(np.bool_)
    distance = _bits(words, 16, 7) + (SWING_TICKS + NOISE_TICKS + 1)
    return (
        stock,
        (turn >> 1) % ACCOUNTS,
        buy,
        _market().opening.take(stock) + np.where(buy, -distance, distance),
        (_bits(words, 44, 4) + 1) * LOT,
        _bits(words, 50, 3),
    )


def _bits(words: U64, low: int, width: int) -> I32:
    return ((words >> np.uint64(low)).astype(np.uint32) & np.uint32((1 << width) - 1)).view(np.int32)


@lru_cache(maxsize=1)
def _market() -> _Market:
    shares = share_per_stock()
    cdf = np.cumsum(shares)
    middles = (np.arange(1 << _CELL_BITS) + 0.5) / (1 << _CELL_BITS)
    draw = np.minimum(np.searchsorted(cdf, middles), STOCKS - 1).astype(np.int16)
    words = mix(np.arange(1, STOCKS + 1, dtype=np.uint64) * np.uint64(GOLDEN))
    opening = (900 + words % np.uint64(200)).astype(np.int32)
    # A busier stock swings faster, so that each stock sees as many orders per swing and none hoards stale
    # ones.
    swing_step = (shares / SWING_ORDERS * float(1 << 64)).astype(np.uint64)
    return _Market(draw, opening, swing_step, words)
