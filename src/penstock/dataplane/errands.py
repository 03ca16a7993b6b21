"""The errands of an engine's shell that are the same on Spark and in the simulation.

In which order queued appends and parts are written, which rows a sink epoch holds, which old parts may go and which
data files there are. When an errand is run, and what is reported back, is the shell's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.dataplane import paths
from penstock.dataplane.channel import read_segment
from penstock.dataplane.disk import Disk, is_temp
from penstock.dataplane.program import Program
from penstock.dataplane.recordlog import plan_log_cleanup
from penstock.dataplane.records import Base
from penstock.dataplane.run import SinkWork
from penstock.dataplane.slices import slice_pieces

APPEND_BYTES: Final = 32 << 20
"""Bytes of records that are joined at most; `tornness` looks at twice as many byte by byte."""
_SINK_SHARD: Final = np.zeros(1, np.uint16)
"""A sink has one shard."""


def plan_writes(queued: Iterable[list[bytes] | Base]) -> Iterator[list[bytes] | Base]:
    """Yield what the log writes, in order: records that wait together as one append, and parts between them.

    A part begins only after everything queued before it is appended, since its base covers that. An append has at most
    `APPEND_BYTES`, or what was queued as one: of a longer one less is known when a crash has cut it off.
    """
    encoded: list[bytes] = []
    size = 0
    for item in queued:
        more = sum(map(len, item)) if isinstance(item, list) else 0
        if encoded and (not isinstance(item, list) or size + more > APPEND_BYTES):
            yield encoded
            encoded, size = [], 0
        if isinstance(item, list):
            encoded.extend(item)
            size += more
        else:
            yield item
    if encoded:
        yield encoded


def read_sink_rows(disk: Disk, checkpoint: str, program: Program, work: SinkWork) -> pa.Table:
    """Return the rows of a sink epoch in the one fixed order: producer chain, epoch, task, row."""
    schema = program.stages[work.stage].schema
    older = {given.edge: given.older for given in program.stages[work.stage].inputs}
    tables: list[pa.Table] = []
    for piece in work.pieces:
        found = [
            read_segment(disk, checkpoint, s.extent, schema, older.get(piece.key.edge, ()))
            for s in piece.source.published.segments
        ]
        tables.extend(part.rows for part in slice_pieces(found, _SINK_SHARD, piece.start, piece.end))
    return pa.concat_tables(tables) if tables else schema.empty_table()


def old_parts(disk: Disk, checkpoint: str, newest: paths.LogPart) -> list[str]:
    """Return the paths of log parts that nothing reads any more, now that `newest` is durable."""
    folder = paths.logs(checkpoint)
    return [f"{folder}/{name}" for name in plan_log_cleanup(disk.list(folder), newest, newest.generation)]


def data_files(disk: Disk, checkpoint: str) -> list[str]:
    """Return the names of the data files there are, for the engine to plan a clean-up with."""
    return [name for name in disk.list(paths.data(checkpoint)) if not is_temp(name)]
