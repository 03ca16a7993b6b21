"""The reference pages are what the definitions in code say."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.reference import PAGES, TABLES, render

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_reference_page_does_not_lag_behind_the_code(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    assert page == render(page), "run `make docs`"


def test_every_table_stands_on_a_page() -> None:
    pages = "".join((DOCS / name).read_text(encoding="utf-8") for name in PAGES)
    assert [name for name in TABLES if f"<!-- table: {name} -->" not in pages] == []


def test_prose_around_a_table_stays_and_an_old_table_goes() -> None:
    page = "before\n<!-- table: options -->\n| old |\n<!-- end -->\nafter\n"
    assert render(page) == f"before\n<!-- table: options -->\n{TABLES['options']()}<!-- end -->\nafter\n"
