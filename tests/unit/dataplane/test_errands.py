"""What both shells do alike: the order of writes, and which old parts may go."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dataplane import paths
from penstock.dataplane.disk import TEMP_SUFFIX
from penstock.dataplane.errands import data_files, old_parts, plan_writes
from penstock.dataplane.records import Base
from penstock.testing.disk import SimDisk

Item = list[bytes] | Base


def base(part: int) -> Base:
    return Base(0, "", 1, part, b"", 0, [])


def queues() -> st.SearchStrategy[list[Item]]:
    appends = st.lists(st.binary(max_size=3), max_size=3)
    return st.lists(st.one_of(appends, st.integers(1, 9).map(base)), max_size=8)


def flat(items: list[Item]) -> list[bytes | Base]:
    """Records and parts one by one, without the bounds of appends."""
    return [one for item in items for one in (item if isinstance(item, list) else [item])]


@given(queues())
def test_writes_keep_the_order_of_what_was_queued_and_are_as_few_as_it_allows(queued: list[Item]) -> None:
    writes = list(plan_writes(queued))
    assert flat(writes) == flat(queued)
    assert all(write for write in writes if isinstance(write, list))
    kinds = [isinstance(write, list) for write in writes]
    assert not any(first and second for first, second in pairwise(kinds))


def test_a_part_begins_after_everything_that_was_queued_before_it() -> None:
    assert list(plan_writes([[b"a"], [], [b"b", b"c"], base(2), [b"d"]])) == [
        [b"a", b"b", b"c"],
        base(2),
        [b"d"],
    ]


def test_nothing_queued_is_nothing_written() -> None:
    assert list(plan_writes([])) == list(plan_writes([[]])) == []


def test_old_parts_are_those_before_the_newest_and_never_a_later_generations() -> None:
    disk = SimDisk()
    disk.make_dirs(paths.logs("/c"))
    parts = [paths.LogPart(1, 7), paths.LogPart(2, 1), paths.LogPart(2, 2), paths.LogPart(3, 1)]
    for part in parts:
        disk.create_exclusive(paths.log("/c", part), b"")
    assert old_parts(disk, "/c", parts[2]) == sorted(paths.log("/c", part) for part in parts[:2])


def test_files_being_made_are_not_among_the_data_files() -> None:
    disk = SimDisk()
    disk.make_dirs(paths.data("/c"))
    for name in ("a", f"b{TEMP_SUFFIX}"):
        disk.create_exclusive(f"{paths.data('/c')}/{name}", b"")
    assert data_files(disk, "/c") == ["a"]


def test_appends_are_joined_up_to_a_size_and_never_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.dataplane.errands.APPEND_BYTES", 10)
    queued = [[b"aaaa"], [b"bbbb", b"c"], [b"d" * 8], [b"e" * 30], [b"f" * 9, b"g" * 9], [b"h"], [b"i"]]
    assert list(plan_writes(queued)) == [
        [b"aaaa", b"bbbb", b"c"], [b"d" * 8], [b"e" * 30], [b"f" * 9, b"g" * 9], [b"h", b"i"],
    ]  # fmt: skip
    assert list(plan_writes([[b"a" * 9], base(1), [b"b" * 9]])) == [[b"a" * 9], base(1), [b"b" * 9]]
