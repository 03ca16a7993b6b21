"""What of a run does not depend on where epochs begin and end, to compare it with a free-running reference or another
engine: the rows a stage put out, the last row of each key, and the digest of an operator's whole state.

Reads segments and records only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.dataplane.channel import read_segment
from penstock.dataplane.program import Program
from penstock.dataplane.records import unpack_u16
from penstock.testing.line import Line


def output_rows(line: Line, program: Program, stage: str) -> pa.Table:
    """Return all rows that a stage put out, in the order it published them."""
    spec = program.stages[stage]
    edge = spec.edges[0]
    schema = edge.schema_of(spec.schema)
    found = [
        read_segment(line.disk, line.checkpoint, segment.extent, schema).batch
        for record in line.of_stage(stage)
        for part in record.parts
        for segment in part.segments
        if segment.edge == edge.edge
    ]
    return pa.Table.from_batches(found, schema)


def last_per_key(rows: pa.Table, keys: Sequence[str]) -> dict[tuple[object, ...], dict[str, object]]:
    """Return the last row of each key."""
    return {tuple(row[name] for name in keys): row for row in rows.to_pylist()}


def row_counts(rows: pa.Table) -> dict[tuple[object, ...], int]:
    """Return how often each row occurs, whatever the order."""
    counted: dict[tuple[object, ...], int] = defaultdict(int)
    for row in rows.to_pylist():
        counted[tuple(row.values())] += 1
    return dict(counted)


def rows_by_key(rows: pa.Table, keys: Sequence[str]) -> dict[tuple[object, ...], list[dict[str, object]]]:
    """Return the rows of each key in order: what a row-wise operator puts out does not depend on epochs."""
    found: dict[tuple[object, ...], list[dict[str, object]]] = defaultdict(list)
    for row in rows.to_pylist():
        found[tuple(row[name] for name in keys)].append(row)
    return dict(found)


def operator_digest(line: Line, program: Program, operator: str) -> bytes:
    """Return the digest of an operator's whole state: the sum over its shards, which no routing changes."""
    digests = np.zeros((program.stages[operator].shards, 2), np.uint64)
    for record in line.of_stage(operator):
        for part in record.parts:
            digests[unpack_u16(part.changed)] = np.frombuffer(part.digests, "<u8").reshape(-1, 2)
    total: bytes = digests.sum(axis=0, dtype=np.uint64).astype("<u8").tobytes()
    return total
