"""How a comparison of policies is shown: a table, PNG plots, and one HTML file that needs nothing else."""

from __future__ import annotations

import html as markup
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
from rich.markup import escape
from rich.table import Table

from penstock.control.measure.sample import F64
from penstock.errors import DeclarationError
from penstock.sim.elastic.compare import Result, Summary, summarise

_COLUMNS: Final = ("policy", "success", "tasks", "mean", "p99", "actions", "shards moved")
_WIDTH: Final = 900
_HEIGHT: Final = 150
_POINTS: Final = 600
_COLOURS: Final = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#718096", "#975a16", "#285e61")


def comparison_table(results: Sequence[Result], title: str) -> Table:
    """Return the table: one line per policy, spread over seeds beside what is compared."""
    table = Table(title=title)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "policy" else "right")
    for one in summarise(results):
        table.add_row(*map(escape, _cells(one)))
    return table


def _cells(one: Summary) -> tuple[str, ...]:
    def spread(value: str, by: str) -> str:
        return f"{value} ± {by}" if one.seeds > 1 else value

    return (
        one.policy,
        spread(f"{100 * one.success:.2f} %", f"{100 * one.success_spread:.2f}"),
        spread(f"{one.tasks:.2f}", f"{one.tasks_spread:.2f}"),
        _seconds(one.mean_s),
        _seconds(one.p99_s),
        f"{one.actions:.0f}",
        f"{one.moved_shards:.0f}",
    )


def _seconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.2f} s"


def check_plots() -> None:
    """Refuse plots where nothing can draw them.

    Raises:
        DeclarationError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise DeclarationError(
            "PNG plots need matplotlib: pip install 'penstock[plots]'; --html needs nothing."
        )


def make_plot_folder(folder: Path) -> None:
    """Make the folder that plots go to, before what they are of has taken its time.

    Raises:
        DeclarationError: it is a file, or cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise DeclarationError(f"--plots {folder} is a file; name a folder.") from None
    except OSError as error:
        raise DeclarationError(f"--plots {folder} cannot be made: {error.strerror}.") from error
    if not os.access(folder, os.W_OK):
        raise DeclarationError(f"--plots {folder} cannot be written to: permission denied.")


def write_plots(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write PNG plots to a folder that is there: success against tasks, and each run of the first seed over time.

    Raises:
        DeclarationError: matplotlib is not installed.
    """
    check_plots()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for one in summarise(results):
        axes.errorbar(one.tasks, 100 * one.success, 100 * one.success_spread, one.tasks_spread, fmt="o")
        axes.annotate(one.policy, (one.tasks, 100 * one.success), textcoords="offset points", xytext=(5, 5))
    axes.set_xlabel("mean tasks")
    axes.set_ylabel("success rate, %")
    written = [folder / "success.png"]
    figure.savefig(written[0], dpi=120)
    for result in _first_runs(results):
        written.append(folder / f"run-{result.policy.replace(':', '-').replace('/', '-')}.png")
        figure = Figure(figsize=(10, 6), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        minute = result.series.second / 60
        upper.step(minute, result.series.tasks, where="post")
        upper.set_ylabel("tasks")
        lower.semilogy(minute, result.series.mean_s, label="mean")
        lower.semilogy(minute, result.series.p99_s, label="p99", linewidth=0.6)
        lower.set_ylabel("latency, s")
        lower.set_xlabel("minute")
        lower.legend()
        figure.suptitle(f"{result.policy}: {100 * result.success:.2f} %, {result.mean_tasks:.2f} tasks")
        figure.savefig(written[-1], dpi=120)
    return written


def write_html(results: Sequence[Result], title: str, path: Path) -> None:
    """Write one file with the table and a chart of each policy's run; it loads nothing from anywhere."""
    head = "".join(f"<th>{markup.escape(name)}</th>" for name in _COLUMNS)
    lines = "".join(
        "<tr>" + "".join(f"<td>{markup.escape(cell)}</td>" for cell in _cells(one)) + "</tr>"
        for one in summarise(results)
    )
    runs = "".join(_run_section(result) for result in _first_runs(results))
    path.write_text(
        f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{markup.escape(title)}</title>
<style>body{{font:15px system-ui,sans-serif;margin:2em auto;max-width:{_WIDTH + 60}px;color:#222}}
table{{border-collapse:collapse}}td,th{{padding:.3em .8em;border-bottom:1px solid #ddd;text-align:right}}
td:first-child,th:first-child{{text-align:left}}svg{{width:100%;height:auto;background:#fafafa;margin:.2em 0}}
text{{font:11px system-ui,sans-serif;fill:#666}}</style></head><body>
<h1>{markup.escape(title)}</h1><table><tr>{head}</tr>{lines}</table>
{_scatter(summarise(results))}{runs}</body></html>
""",
        encoding="utf-8",
    )


def _first_runs(results: Sequence[Result]) -> list[Result]:
    first = results[0].seed if results else 0
    return [result for result in results if result.seed == first]


def _run_section(result: Result) -> str:
    series = result.series
    return (
        f"<h2>{markup.escape(result.policy)}</h2><p>seed {result.seed}: {100 * result.success:.2f} % of windows met, "
        f"{result.mean_tasks:.2f} tasks, {result.actions} actions</p>"
        + _chart("tasks", series.second, [series.tasks], zero=True)
        + _chart("latency, s: mean and p99", series.second, [series.mean_s, series.p99_s], log=True)
    )


def _chart(label: str, second: F64, lines: list[F64], *, zero: bool = False, log: bool = False) -> str:
    """Return one chart as SVG: lines thinned to the highest value of each stretch, so that no peak is lost."""
    step = max(1, -(-len(second) // _POINTS))
    thin = [_highest(line, step) for line in lines]
    shown = [np.log10(np.maximum(line, 1e-4)) if log else line for line in thin]
    known = np.concatenate(shown)
    known = known[np.isfinite(known)]
    if not len(known):
        return ""
    low, high = (0.0 if zero else float(known.min())), float(known.max())
    high = high if high > low else low + 1.0
    body = "".join(
        f'<polyline fill="none" stroke="{_COLOURS[at]}" points="{_points(line, low, high)}"/>'
        for at, line in enumerate(shown)
    )
    top, bottom = (f"{10**high:.3g}", f"{10**low:.3g}") if log else (f"{high:.3g}", f"{low:.3g}")
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 20}">{body}<text x="4" y="12">{top} {markup.escape(label)}</text>'
        f'<text x="4" y="{_HEIGHT}">{bottom}</text>'
        f'<text x="{_WIDTH - 70}" y="{_HEIGHT + 14}">{second[-1] / 60:.0f} min</text></svg>'
    )


def _highest(line: F64, step: int) -> F64:
    padded = np.full(-(-len(line) // step) * step, np.nan)
    padded[: len(line)] = line
    found: F64 = np.fmax.reduce(padded.reshape(-1, step), axis=1)
    return found


def _points(line: F64, low: float, high: float) -> str:
    x = np.linspace(0, _WIDTH, len(line))
    y = _HEIGHT - (line - low) / (high - low) * (_HEIGHT - 16)
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True) if np.isfinite(b))


def _scatter(summaries: Sequence[Summary]) -> str:
    """Return success against tasks as SVG."""
    most = max((one.tasks for one in summaries), default=1.0) * 1.15
    least = min((one.success for one in summaries), default=0.0)
    low, height = max(0.0, least - 0.05), 2 * _HEIGHT

    def place(one: Summary) -> tuple[float, float]:
        return one.tasks / most * _WIDTH, height - (one.success - low) / (1.001 - low) * (height - 20)

    dots = "".join(
        f'<circle cx="{place(one)[0]:.1f}" cy="{place(one)[1]:.1f}" r="4" fill="{_COLOURS[at % len(_COLOURS)]}"/>'
        f'<text x="{place(one)[0] + 7:.1f}" y="{place(one)[1] + 4:.1f}">{markup.escape(one.policy)}</text>'
        for at, one in enumerate(summaries)
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height + 20}">{dots}<text x="4" y="12">100 % success</text>'
        f'<text x="4" y="{height}">{100 * low:.0f} %</text>'
        f'<text x="{_WIDTH - 110}" y="{height + 14}">{most:.1f} mean tasks</text></svg>'
    )
