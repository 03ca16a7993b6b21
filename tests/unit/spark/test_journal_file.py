"""Decisions go to a file line by line, and a file that cannot be had is refused when the query starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import DeclarationError
from penstock.spark.journal_file import JournalFile


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
