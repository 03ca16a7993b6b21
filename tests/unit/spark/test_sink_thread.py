"""What a sink is handed: every sink epoch that has rows, and no empty table where executors changed."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.dataplane.run import SinkWork
from penstock.spark import shell as shell_module
from penstock.spark.shell import SparkShell


def test_a_sink_epoch_without_rows_is_done_without_the_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {7: pa.table({"v": [1, 2]}), 8: pa.table({"v": pa.array([], pa.int64())})}
    monkeypatch.setattr(shell_module, "read_sink_rows", lambda *given: tables[given[-1].epoch])
    taken: list[tuple[int, int]] = []
    done: list[tuple[str, int]] = []
    shell: Any = SparkShell.__new__(SparkShell)
    shell._sink_queue = queue.Queue()
    shell._exports, shell.disk, shell._program = {}, None, None
    shell.opened = SimpleNamespace(checkpoint="cp")
    shell.hub = SimpleNamespace(post=lambda call: call())
    shell.engine = SimpleNamespace(on_sink_done=lambda stage, epoch: done.append((stage, epoch)))
    shell._sinks = {"out": SimpleNamespace(take=lambda table, epoch: taken.append((epoch, table.num_rows)))}
    for work in (SinkWork("out", 7, []), SinkWork("out", 8, []), None):
        shell._sink_queue.put(work)
    shell._run_sink_thread()
    assert taken == [(7, 2)]
    assert done == [("out", 7), ("out", 8)]
