"""The peer of order matching: a bare Python loop in several processes, with no engine around it.

Each process owns a part of the stocks and runs the very matching of the exchange on rows it already holds as
tuples, grouped by stock. It has no exchange of rows, no state store, no commit, and forgets its trades:
nothing that must survive a kill could be faster in this language.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections import defaultdict
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Barrier
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.workloads.exchange_matching import Book, Order
from penstock.workloads.exchange_orders import STOCKS, WARM_UP_ORDERS, orders, share_per_stock

GROUP_ROWS: Final = 20_000
"""Rows of the stream that are grouped by stock together: what an epoch of a tenth of a second holds at
200,000 /s."""

Grouped = list[tuple[int, list[Order]]]


def bare_loop(count: int = 1_500_000, processes: int = 2) -> float:
    """Return orders per second of all processes together, on warm books (at least 300 resting orders a
    stock).

    Making, decoding and grouping the rows and the warm-up are not timed; the clock stops with the last
    process.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    started: list[tuple[SpawnProcess, Connection]] = []
    for index in range(processes):
        ours, theirs = context.Pipe(duplex=False)
        part = (index, processes, count, barrier, theirs)
        process = context.Process(target=_run_part, args=part, daemon=True)
        process.start()
        theirs.close()
        started.append((process, ours))
    try:
        spans: list[float] = [connection.recv() for _, connection in started]
    except EOFError:
        raise RuntimeError("a process of the bare loop ended without a result; see above") from None
    finally:
        for process, connection in started:
            connection.close()
            process.join(timeout=30)
    return count / max(spans)


def part_of_stocks(index: int, parts: int) -> set[int]:
    """Deal the stocks out, heaviest first and back and forth, so that each part takes about the same load."""
    heaviest_first = np.argsort(-share_per_stock(), kind="stable").tolist()
    rounds = range(0, STOCKS, parts)
    hands = (heaviest_first[at : at + parts][:: 1 if turn % 2 else -1] for turn, at in enumerate(rounds))
    return {hand[index] for hand in hands if index < len(hand)}


def grouped_rows(offset: int, count: int, stocks: set[int]) -> list[Grouped]:
    """Return the orders of some stocks as tuples, grouped by stock within every `GROUP_ROWS` of the
    stream."""
    wanted = pa.array(sorted(stocks), pa.int32())
    groups = []
    for start in range(offset, offset + count, GROUP_ROWS):
        batch = orders(start, min(GROUP_ROWS, offset + count - start))
        mine = batch.filter(pc.is_in(batch.column("stock"), value_set=wanted))
        by_stock: defaultdict[int, list[Order]] = defaultdict(list)
        columns = [column.to_numpy(zero_copy_only=False).tolist() for column in mine.columns]
        for row in zip(*columns, strict=True):
            by_stock[row[1]].append(row)
        groups.append(list(by_stock.items()))
    return groups


def match_all(books: list[Book], groups: list[Grouped]) -> None:
    """Match every row in turn; trades are dropped after each group."""
    for group in groups:
        for stock, rows in group:
            book = books[stock]
            book.place(stock, rows)
            book.touched.clear()


def _run_part(index: int, parts: int, count: int, barrier: Barrier, result: Connection) -> None:
    stocks = part_of_stocks(index, parts)
    books = [Book() for _ in range(STOCKS)]
    match_all(books, grouped_rows(0, WARM_UP_ORDERS, stocks))
    timed = grouped_rows(WARM_UP_ORDERS, count, stocks)
    # The rows are many small objects that never die: without this the collector walks them again and again.
    gc.collect()
    gc.freeze()
    barrier.wait(timeout=300)
    began = time.perf_counter()
    match_all(books, timed)
    result.send(time.perf_counter() - began)
    result.close()
