"""Numbers in sentences."""

from __future__ import annotations

from penstock.words import counted, listed


def test_one_is_said_without_an_s() -> None:
    assert [counted(n, "lease") for n in (0, 1, 2)] == ["0 leases", "1 lease", "2 leases"]


def test_a_long_list_ends_with_how_many_more_there_are() -> None:
    assert listed(range(8)) == "0, 1, 2, 3, 4, 5, 6, 7"
    assert listed(range(256)) == "0, 1, 2, 3, 4, 5, 6, 7 and 248 more"
    assert listed([]) == ""
