"""Group an epoch's rows by key, without Python per row.

Keys come in the order of their first row within each shard, rows of a key in their channel order: both follow
from the rows alone, so a replay groups the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.dataplane.keys.encoding import encode_keys
from penstock.dataplane.keys.kinds import kind_of
from penstock.dataplane.logic.protocol import ShardedRows

_MAX_U16 = 1 << 16


@dataclass(frozen=True)
class Groups:
    """Rows by key. Key `i` has the rows `bounds[i]` to `bounds[i + 1]` of the rows taken in `order`."""

    keys: list[bytes]
    """Distinct key bytes, by shard and then by first row."""
    bounds: list[int]
    order: npt.NDArray[np.intp] | None
    """None when the rows stand grouped as they are."""
    shard_bounds: list[int]
    """Shard `j` of the given rows has the keys `shard_bounds[j]` to `shard_bounds[j + 1]`."""


def group_by_key(given: ShardedRows, names: Sequence[str], operator: str) -> Groups:
    """Group the rows by the columns `names`.

    Raises:
        OperatorError: a key is null or too long.
    """
    codes, keys = _codes(given.rows, names, operator)
    counts = np.bincount(codes, minlength=len(keys))
    bounds = np.zeros(len(keys) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    order: npt.NDArray[np.intp] | None = None
    firsts = bounds[:-1]
    if not bool(np.all(codes[1:] >= codes[:-1])):
        narrow = codes.astype(np.uint16) if len(keys) <= _MAX_U16 else codes
        order = np.argsort(narrow, kind="stable")  # a radix sort for 16-bit values
        firsts = order[firsts]
    # Rows come sorted by shard, so first rows ascend and the keys of a shard are contiguous.
    shard_bounds = np.searchsorted(firsts, given.offsets).tolist()
    return Groups(keys.to_pylist(), bounds.tolist(), order, shard_bounds)


def _codes(
    rows: pa.Table, names: Sequence[str], operator: str
) -> tuple[npt.NDArray[np.int32], pa.BinaryArray]:
    """Return the number of each row's key, numbered by first appearance, and the bytes of the distinct
    keys."""
    columns = [rows.column(name) for name in names]
    if len(columns) == 1 and _compares_as_bytes(columns[0].type) and not columns[0].null_count:
        distinct = columns[0].combine_chunks().dictionary_encode()
        keys = encode_keys([distinct.dictionary], names, operator)
    else:
        distinct = encode_keys(columns, names, operator).dictionary_encode()
        keys = distinct.dictionary
    return distinct.indices.to_numpy(), keys


def _compares_as_bytes(type_: pa.DataType) -> bool:
    """Whether two values of the type are equal exactly when their key bytes are."""
    if pa.types.is_timestamp(type_):
        return bool(type_.unit == "us")
    return kind_of(type_) in ("int", "uint", "bytes", "decimal")
