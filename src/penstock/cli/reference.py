"""Writes the tables of the reference pages: `python -m penstock.cli.reference docs`.

A page keeps its prose; what stands between a pair of marks is written from the definitions in code. A test fails
while a page lags behind them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.dataplane import metrics
from penstock.spark.control_metrics import CONTROL
from penstock.topology.options import options_table

PAGES = ("options.md", "metrics.md")

TABLES: Mapping[str, Callable[[], str]] = {
    "options": options_table,
    "metrics-query": lambda: metrics.metrics_table(metrics.QUERY),
    "metrics-stage": lambda: metrics.metrics_table(metrics.STAGE),
    "metrics-input": lambda: metrics.metrics_table(metrics.INPUT),
    "metrics-operator": lambda: metrics.metrics_table(metrics.OPERATOR),
    "metrics-control": lambda: metrics.metrics_table(CONTROL),
    "metrics-output": lambda: metrics.metrics_table(metrics.OUTPUT),
    "spark-report": lambda: metrics.fields_table(metrics.SPARK["report"]),
    "spark-sources": lambda: metrics.fields_table(metrics.SPARK["sources"]),
    "spark-operators": lambda: metrics.fields_table(metrics.SPARK["stateOperators"]),
    "spark-sink": lambda: metrics.fields_table(metrics.SPARK["sink"]),
}
"""Name in a mark -> what is written there."""

_MARKED = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(page: str) -> str:
    """Return a page with all of its tables as they are in code.

    Raises:
        KeyError: a mark names no table.
    """
    return _MARKED.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], page)


def main(folder: str) -> None:
    """Bring the reference pages in a folder up to date."""
    for name in PAGES:
        page = Path(folder) / name
        before = page.read_text(encoding="utf-8")
        after = render(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"wrote {page}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs")
