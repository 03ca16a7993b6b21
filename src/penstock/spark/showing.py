"""How a query shows itself: a line, and a small table in a notebook. Pure; shows a report that it is given."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_STYLE = "text-align:left;padding:2px 10px 2px 0"


@dataclass(frozen=True)
class Shown:
    """What is shown of a query."""

    name: str
    state: str
    checkpoint: str
    error: str | None
    report: Mapping[str, Any] | None


def show_line(shown: Shown) -> str:
    """Return one line for a terminal."""
    parts = [f"<penstock.Query {shown.name}: {shown.state}"]
    if shown.report is not None and shown.state == "running":
        parts.append(f"{_rate(shown.report)}, latency {_latency(shown.report)}, state {_state(shown.report)}")
        parts.append(f"sink epoch {shown.report['batchId']}")
    if shown.error:
        parts.append(shown.error)
    return ", ".join(parts) + ">"


def show_html(shown: Shown) -> str:
    """Return a table for a notebook: the query, and a row for each operator."""
    facts = [("query", shown.name), ("state", shown.state)]
    if shown.report is not None:
        facts += [
            ("rows/s", _rate(shown.report)),
            ("latency, p99", _latency(shown.report)),
            ("state size", _state(shown.report)),
            ("sink epoch", str(shown.report["batchId"])),
        ]
    facts.append(("checkpoint", shown.checkpoint))
    if shown.error:
        facts.append(("last error", shown.error))
    rows = "".join(_row("th", name) + _cell("td", value) + "</tr>" for name, value in facts)
    return f"<table>{rows}</table>{_operators(shown.report)}"


def _operators(report: Mapping[str, Any] | None) -> str:
    if report is None or not report["operators"]:
        return ""
    heads = ("operator", "rows/s", "p99 latency", "state size", "tasks", "waiting rows")
    rows = "".join(
        f"<tr>{''.join(_cell('td', value) for value in _operator(name, facts))}</tr>"
        for name, facts in report["operators"].items()
    )
    return f"<table><tr>{''.join(_cell('th', head) for head in heads)}</tr>{rows}</table>"


def _operator(name: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        name, f"{facts['rowsPerSecond']:,.0f}", show_ms(facts["latencyP99Ms"]), show_bytes(facts["stateBytes"]),
        str(facts["tasks"]), f"{facts['waitingRows']:,}",
    )  # fmt: skip


def _row(tag: str, value: str) -> str:
    return f"<tr>{_cell(tag, value)}"


def _cell(tag: str, value: str) -> str:
    return f'<{tag} style="{_STYLE}">{html.escape(value)}</{tag}>'


def _rate(report: Mapping[str, Any]) -> str:
    return f"{report['processedRowsPerSecond'] or 0:,.0f} rows/s"


def _latency(report: Mapping[str, Any]) -> str:
    known = [one["latencyP99Ms"] for one in report["operators"].values() if one["latencyP99Ms"] is not None]
    return show_ms(max(known, default=None))


def _state(report: Mapping[str, Any]) -> str:
    return show_bytes(sum(one["stateBytes"] for one in report["operators"].values()))


def show_ms(value: float | None) -> str:
    return "no rows yet" if value is None else f"{value:,.1f} ms"


def show_bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"
