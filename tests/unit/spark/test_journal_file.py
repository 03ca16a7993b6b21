"""Decisions go to a file line by line, and a file that cannot be had is refused when the query starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.errors import DeclarationError
from penstock.spark.journal_file import JournalFile, check_journal


def test_lines_are_appended_to_what_is_there_and_seen_at_once(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "decisions.jsonl"
    first = JournalFile(str(path))
    first.add(b'{"a": 1}')
    assert path.read_bytes() == b'{"a": 1}\n'
    first.close()
    first.add(b"late")
    second = JournalFile(str(path))
    second.add(b'{"b": 2}')
    second.close()
    assert path.read_bytes().splitlines() == [b'{"a": 1}', b'{"b": 2}']


def test_a_file_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=f"'journal': {tmp_path} cannot be written"):
        JournalFile(str(tmp_path))


def test_what_a_killed_driver_left_of_a_line_gets_its_end(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b"')
    after = JournalFile(str(path))
    after.add(b'{"c": 3}')
    after.close()
    assert path.read_bytes().splitlines() == [b'{"a": 1}', b'{"b"', b'{"c": 3}']


def test_decisions_may_go_to_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    check_journal(str(path))
    with pytest.raises(DeclarationError, match="nobody reads the pipe"):
        JournalFile(str(path))
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        journal = JournalFile(str(path))
        journal.add(b'{"a": 1}')
        assert os.read(reader, 100) == b'{"a": 1}\n'
        journal.close()
    finally:
        os.close(reader)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_ends_the_writing_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    full = JournalFile("/dev/full")
    full.add(b"one")
    full.add(b"two")
    full.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "decisions are no longer written to /dev/full" in caplog.text


def test_whether_it_can_be_written_is_found_out_before_it_is_used(tmp_path: Path) -> None:
    check_journal("")
    check_journal(str(tmp_path / "new" / "decisions.jsonl"))
    with pytest.raises(DeclarationError, match="cannot be written"):
        check_journal(str(tmp_path))
