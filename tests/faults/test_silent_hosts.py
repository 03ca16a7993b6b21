"""Hosts that fall silent: their shards go on where there is room, and they are used again when they are back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from tests.faults import links
from tests.faults.silent_app import KEYS, Book
from tests.faults.silent_hosts import SilentHosts


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.cluster
def test_shards_of_silent_hosts_go_on_elsewhere_and_come_back(tmp_path: Path) -> None:
    """Two nodes, first one silent, then the other: the second time there is room on the first alone."""
    with SilentHosts(tmp_path, by_link=False, workers=2) as hosts:
        found = hosts.tell([20.0, 20.0], seed=1)
        said = hosts.log()
    assert not found["wrong"], (found, said)
    assert [one["worker"] for one in found["cuts"]] in ([0, 1], [1, 0])
    assert said.count(" is silent: its leases sent no heartbeat for 15 s") == 2, said
    assert "other jobs hold its slots" not in said


def test_where_no_namespaces_can_be_had_processes_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: str) -> None:
        raise subprocess.CalledProcessError(1, words)

    monkeypatch.setattr(links, "_ip", refuse)
    assert not links.can_cut()
    with links.namespaces(2) as name:
        assert name is None


def numbered(key: int, *seen: int) -> pa.Table:
    return pa.table(
        {"id": [key + (one - 1) * KEYS for one in seen], "k": [key] * len(seen), "seen": list(seen)}
    )


@pytest.mark.parametrize(
    ("tables", "total", "says"),
    [
        ([numbered(0, 1, 2), numbered(1, 1)], KEYS + 1, "missing"),
        ([numbered(0, 1, 2, 2)], 2, "came as its 2th"),
        ([numbered(0, 2)], 1, "came as its 2th"),
    ],
)
def test_the_judge_finds_rows_that_are_missing_doubled_or_out_of_order(
    tables: list[pa.Table], total: int, says: str
) -> None:
    book = Book()
    for epoch, table in enumerate(tables):
        book.take(table, epoch)
    book.check(total)
    assert any(says in wrong for wrong in book.wrong)


def test_the_judge_takes_what_is_whole() -> None:
    book = Book()
    for key in range(KEYS):
        book.take(numbered(key, 1, 2), key)
    book.check(2 * KEYS)
    assert not book.wrong
