"""Renders results of `make torture` as the table of docs/reliability.md: `python tests/torture/table.py A.json B.json`.

Refuses results of different code: a table of two commits proves neither.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def render_table(results: Sequence[dict[str, Any]]) -> str:
    """Return the table of some runs of one code, with a row for each suite, in the order of their numbers.

    Raises:
        ValueError: the runs are of different code, or a suite was not finished.
    """
    codes = sorted({result["code"] for result in results})
    if len(codes) != 1:
        raise ValueError(
            f"these results are of different code: {', '.join(codes)}; run all suites on one commit."
        )
    suites = {name: suite for result in results for name, suite in result["tests"].items()}
    unfinished = [name for name, suite in suites.items() if not suite["complete"]]
    if unfinished:
        raise ValueError(f"these suites were not finished or did not pass: {', '.join(unfinished)}.")
    rows = [f"| {name} | {suite['title']} | {suite['tried']:,} | {suite['passed']:,} |" for name, suite in
            sorted(suites.items(), key=lambda item: _order(item[0]))]  # fmt: skip
    return "\n".join(
        [f"Code: commit {codes[0]}.", "", "| suite | test | tried | passed |", "|---|---|---|---|", *rows]
    )


def _order(name: str) -> tuple[int, str]:
    number, _, part = name.partition("-")
    return int(number), part


if __name__ == "__main__":
    print(render_table([json.loads(Path(name).read_text()) for name in sys.argv[1:]]))
