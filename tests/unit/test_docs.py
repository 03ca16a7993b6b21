"""The code on the pages of the documentation declares what it says: every block runs, in order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import penstock

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def blocks(page: str) -> list[str]:
    return BLOCK.findall((DOCS / page).read_text())


@pytest.mark.parametrize("page", ["topologies.md", "testing.md"])
def test_every_block_of_a_page_runs(page: str) -> None:
    names: dict[str, object] = {}
    for code in blocks(page):
        exec(compile(code, page, "exec"), names)  # the page's own code


def test_the_streams_of_the_page_on_topologies_compile() -> None:
    from penstock.dataplane.compile import compile_program

    names: dict[str, object] = {}
    for code in blocks("topologies.md"):
        exec(code, names)
    streams = [value for value in names.values() if isinstance(value, penstock.Stream)]
    assert len(streams) > 10
    for stream in streams:
        compile_program(stream.node, tasks=2, memory_bytes=1 << 20)
