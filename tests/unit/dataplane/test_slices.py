"""Slices of several producers come together in the fixed order. That they tile what was published: `test_channel`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.dataplane.slices import Slice, join_slices
from penstock.sim.programs import SOURCE


def test_joined_slices_keep_the_order_of_pieces_within_a_shard() -> None:
    def piece(shards: list[int], counts: list[int], first: int) -> Slice:
        rows = [{"id": first + at, "k": 0} for at in range(sum(counts))]
        return Slice(
            np.array(shards, np.uint16), np.array(counts, np.int64), pa.Table.from_pylist(rows, SOURCE)
        )

    joined = join_slices(
        [piece([1, 3], [2, 1], 0), piece([0, 3], [1, 2], 10), piece([1], [1], 20)], SOURCE, by_shard=True
    )
    assert joined.shards.tolist() == [0, 1, 3]
    assert joined.offsets.tolist() == [0, 1, 4, 7]
    assert joined.rows.column("id").to_pylist() == [10, 0, 1, 20, 2, 11, 12]
