"""The books of a soak: what reached the sink, in memory that does not grow, and what must have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from tests.soak import flow
from tests.soak.flow import Load

_CHUNK = 1_000_000


class Account:
    """A sink function that counts. A sink epoch that is handed over again is passed over."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = defaultdict(int)
        self.ids: dict[int, int] = defaultdict(int)
        self.letters = 0
        self.seen = np.zeros(flow.USERS, np.int64)
        self.numbered = np.zeros(flow.USERS, np.int64)
        self.totals = np.zeros((flow.USERS, 2), np.int64)
        self.windows: dict[int, list[int]] = {}
        """Rows of each window that was put out, one number per category."""
        self._epoch = -1

    def __call__(self, table: pa.Table, sink_epoch: int) -> None:
        if sink_epoch <= self._epoch:
            return
        kind, id_, n, value = (column.to_numpy() for column in table.columns)
        for one in np.unique(kind):
            here = kind == one
            self._take(int(one), id_[here], n[here], value[here])
        self._epoch = sink_epoch

    def _take(self, kind: int, id_: Any, n: Any, value: Any) -> None:
        if kind == flow.TOTALS:
            self.totals[id_, 0], self.totals[id_, 1] = n, value  # the last row of a key wins
            return
        if kind == flow.WINDOWED:
            for number, rows in zip(id_.tolist(), n.tolist(), strict=True):
                self.windows.setdefault(number, []).append(rows)
            return
        counted = n if kind in (flow.DEAD, flow.RULED) else np.ones(len(id_), np.int64)
        self.rows[kind] += int(counted.sum())
        self.ids[kind] += int(id_.sum())
        self.letters += len(id_) if kind == flow.DEAD else 0
        if kind == flow.NUMBERED:
            np.maximum.at(self.seen, n, value)
            np.add.at(self.numbered, n, 1)


def check(account: Account, load: Load) -> list[str]:
    """Say what differs from the model; nothing when every row was counted once."""
    wanted = _model(load)
    wrong: list[str] = []

    def same(what: str, found: object, expected: object) -> None:
        if found != expected:
            wrong.append(f"{what}: {found:,} instead of {expected:,}")

    rows, ids = account.rows, account.ids
    same("clicks numbered or in dead letters", rows[flow.NUMBERED] + rows[flow.DEAD], wanted["clicks"])
    same("sum of their ids", ids[flow.NUMBERED] + ids[flow.DEAD], wanted["click ids"])
    if not np.array_equal(account.seen, account.numbered):
        wrong.append(
            "the count in the state of some users is not the number of their clicks that were put out"
        )
    if account.letters == 0 and wanted["poison"]:
        wrong.append("there were no dead letters")
    same("orders in totals", int(account.totals[:, 0].sum()), load.orders)
    if not np.array_equal(account.totals, wanted["totals"]):
        wrong.append("the totals of some users are wrong")
    same("orders that went round", rows[flow.WALKED], -(-load.orders // flow.TO_WALK))
    same("sum of their ids", ids[flow.WALKED], wanted["walked ids"])
    same("orders under rules", rows[flow.RULED], load.orders)
    same("sum of their ids", ids[flow.RULED], load.orders * (load.orders - 1) // 2)
    same("rules told to shards", rows[flow.TOLD], load.rules * flow.RULED_SHARDS)
    same("sum of the rules", ids[flow.TOLD], flow.RULED_SHARDS * load.rules * (load.rules - 1) // 2)
    return wrong + _check_windows(account, load, wanted["windows"])


def _check_windows(account: Account, load: Load, wanted: Any) -> list[str]:
    """Every window that lies before the last watermark was put out once per category, with all its rows."""
    closed = (load.seconds - 3) // flow.WINDOW_S
    wrong = [
        f"window {number}: {len(rows)} categories with {sum(rows):,} rows instead of {int(wanted[number]):,}"
        for number, rows in sorted(account.windows.items())
        if len(rows) != flow.CATEGORIES or sum(rows) != int(wanted[number])
    ]
    missing = sorted(set(range(closed)) - set(account.windows))
    return wrong[:5] + ([f"windows {missing[:5]} were never put out"] if missing else [])


def _model(load: Load) -> dict[str, Any]:
    clicks = click_ids = poison = walked_ids = 0
    totals = np.zeros((flow.USERS, 2), np.int64)
    windows = np.zeros(load.seconds // flow.WINDOW_S + 2, np.int64)
    for ids in _chunks(load.clicks):
        kept = ids[flow.click_columns(ids)["cents"] < flow.DROPPED_CENTS]
        clicks, click_ids = clicks + len(kept), click_ids + int(kept.sum())
        poison += int((kept % flow.POISON == 7).sum())
        windows += np.bincount(kept // (load.clicks_per_s * flow.WINDOW_S), minlength=len(windows))
    for ids in _chunks(load.orders):
        columns = flow.order_columns(ids)
        totals[:, 0] += np.bincount(columns["user"], minlength=flow.USERS)
        np.add.at(totals[:, 1], columns["user"], columns["amount"])
        walked_ids += int(ids[ids % flow.TO_WALK == 0].sum())
    return {
        "clicks": clicks,
        "click ids": click_ids,
        "poison": poison,
        "walked ids": walked_ids,
        "totals": totals,
        "windows": windows,
    }


def _chunks(rows: int) -> Iterator[Any]:
    for start in range(0, rows, _CHUNK):
        yield np.arange(start, min(start + _CHUNK, rows), dtype=np.int64)
