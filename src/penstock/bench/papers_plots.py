"""Plots of `penstock bench papers`: one PNG for each figure of docs/papers.md, drawn from the bench's JSON.

`python -m penstock.bench.papers_plots RESULT.json FOLDER`; needs penstock[plots]. Computes nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from penstock.errors import DeclarationError

Draw = Callable[[Any, Any], None]


def _apps(figure: Any, table: Any, draw: Callable[[Any, str, Any], None]) -> None:
    for axes, (name, found) in zip(figure.subplots(1, len(table)), table.items(), strict=True):
        axes.set_title(name, fontsize=9)
        draw(axes, name, found)


def es_stream_9_12(figure: Any, table: Any) -> None:
    def draw(axes: Any, name: str, found: Any) -> None:
        rates = sorted(found, key=float)
        for policy in found[rates[0]]["policies"]:
            axes.plot(
                [float(r) for r in rates],
                [found[r]["policies"][policy]["ms"] for r in rates],
                "o-",
                label=policy,
            )
        axes.set(xlabel="rows/s", ylabel="mean latency, ms", ylim=(0, None))
        axes.legend(fontsize=7)

    _apps(figure, table, draw)


def es_stream_13(figure: Any, table: Any) -> None:
    def draw(axes: Any, name: str, found: Any) -> None:
        policies = found["policies"]
        axes.bar(list(policies), [one["rate_per_s"] for one in policies.values()])
        axes.set_ylabel("rows/s before rows pile up")

    _apps(figure, table, draw)


def es_stream_14(figure: Any, table: Any) -> None:
    def draw(axes: Any, name: str, found: Any) -> None:
        for station, tasks in found["tasks"].items():
            axes.step(found["at_s"], tasks, where="post", label=station)
        axes.set(xlabel="s", ylabel="tasks", ylim=(0, None))
        axes.legend(fontsize=7)

    _apps(figure, table, draw)


def es_stream_15(figure: Any, table: Any) -> None:
    def draw(axes: Any, name: str, found: Any) -> None:
        total = [sum(one) for one in zip(*found["tasks"].values(), strict=True)]
        axes.step(found["at_s"], total, where="post", label="simulated")
        for start, end, tasks in zip(
            (0, 100, 160), (100, 160, found["at_s"][-1]), found["paper"], strict=True
        ):
            axes.hlines(
                tasks, start, end, linestyles="dashed", colors="gray", label="paper" if start == 0 else None
            )
        axes.set(xlabel="s", ylabel="tasks of all operators", ylim=(0, None))
        axes.legend(fontsize=7)

    _apps(figure, table, draw)


def es_stream_16_17(figure: Any, table: Any) -> None:
    def draw(axes: Any, name: str, found: Any) -> None:
        for policy, one in found.items():
            axes.step(one["at_s"], one["nodes"], where="post", label=policy)
        axes.set(xlabel="s", ylabel="nodes", ylim=(0, None))
        axes.legend(fontsize=7)

    _apps(figure, table, draw)


def streamswitch_10_11(figure: Any, table: Any) -> None:
    for row, (which, label) in zip(
        figure.subplots(2, 2), {"alert_s": "l, s", "interval_s": "δ, s"}.items(), strict=True
    ):
        found = table[which]
        x = [float(value) for value in found]
        row[0].plot(x, [100 * one["success"] for one in found.values()], "o-")
        row[0].set(xlabel=label, ylabel="success, %", ylim=(90, 100.2))
        for kind in ("scale_out", "scale_in", "balance"):
            row[1].plot(
                x, [one["treatments"][kind] for one in found.values()], "o-", label=kind.replace("_", " ")
            )
        row[1].set(xlabel=label, ylabel="treatments")
        row[1].legend(fontsize=7)


def streamswitch_12_13(figure: Any, table: Any) -> None:
    axes = figure.subplots(1, 3)
    for speed in sorted({one["speed"] for one in table["settings"]}):
        here = [one for one in table["settings"] if one["speed"] == speed]
        x = [one["share"] for one in here]
        axes[0].plot(x, [100 * one["success"] for one in here], "o-", label=f"α = {speed:g}")
        axes[1].plot(x, [one["tasks"] for one in here], "o-", label=f"α = {speed:g}")
        axes[2].plot(x, [100 * one["used_share"] for one in here], "o-", label=f"α = {speed:g}")
    axes[2].plot([0.2, 0.8], [20, 80], ":", color="gray")
    for one, label in zip(axes, ("success, %", "tasks", "mixed resource in use, %"), strict=True):
        one.set(xlabel="β", ylabel=label)
    axes[0].set_ylim(95, 100.2)
    axes[1].legend(fontsize=7)


def streamswitch_14(figure: Any, table: Any) -> None:
    names = [f"{one['amplitude_per_s'] / 1e3:g}K\n{one['period_s']:g} s" for one in table["settings"]]
    _success_and_share(figure, names, table["settings"])


def streamswitch_15(figure: Any, table: Any) -> None:
    _success_and_share(figure, [f"+{one['delay_s']:g} s" for one in table["settings"]], table["settings"])


def _success_and_share(figure: Any, names: list[str], settings: list[Any]) -> None:
    left, right = figure.subplots(1, 2)
    success = [100 * one["success"] for one in settings]
    left.bar(names, success)
    left.set(ylabel="success, %", ylim=(min(90.0, min(success) - 2), 100))
    right.bar(names, [100 * one["switching_share"] for one in settings])
    right.set_ylabel("time in treatments, %")


def streamswitch_16(figure: Any, table: Any) -> None:
    axes = figure.subplots()
    names = [
        "learnt" if one["split_s"] is None else f"{one['split_s']:g}, {2 - one['split_s']:g}"
        for one in table["settings"]
    ]
    success = [100 * one["success"] for one in table["settings"]]
    axes.bar(names, success)
    axes.set(
        xlabel="bound of split, bound of count (s)",
        ylabel="end-to-end success, %",
        ylim=(min(90.0, min(success) - 2), 100),
    )


def drs_8(figure: Any, table: Any) -> None:
    def draw(axes: Any, name: str, found: Any) -> None:
        for start, one in found["runs"].items():
            axes.plot(
                range(1, len(one["ms_by_minute"]) + 1), one["ms_by_minute"], label=f"{start} → {one['end']}"
            )
        axes.set(xlabel="minute", ylabel="mean latency, ms", ylim=(0, None))
        axes.legend(fontsize=7)

    _apps(figure, table, draw)


def drs_9(figure: Any, table: Any) -> None:
    for axes, (name, found) in zip(figure.subplots(2, 2).ravel(), table.items(), strict=True):
        axes.semilogy(range(1, len(found["ms_by_minute"]) + 1), found["ms_by_minute"])
        for event in found["events"]:
            axes.axvline(event["minute"], color="gray", linewidth=0.6)
        axes.axhspan(450, 1000, alpha=0.15)
        axes.set_title(name.replace("_", ", "), fontsize=9)
        axes.set(xlabel="minute", ylabel="mean latency, ms")


def drs_10(figure: Any, table: Any) -> None:
    for axes, (rate, found) in zip(figure.subplots(1, 2), table.items(), strict=True):
        for at, (which, label) in enumerate(
            {"measured_ms": "simulated", "mmk_ms": "M/M/k", "gigk_ms": "GI/G/k"}.items()
        ):
            x = [place + 0.25 * at for place in range(len(found["settings"]))]
            axes.bar(x, [one[which] for one in found["settings"].values()], 0.25, label=label)
        axes.set_xticks([place + 0.25 for place in range(len(found["settings"]))], list(found["settings"]))
        axes.set_title(f"{rate} frames/s", fontsize=9)
        axes.set(ylabel="mean latency, ms", yscale="log")
        axes.legend(fontsize=7)


def elasticutor_6(figure: Any, table: Any) -> None:
    left, right = figure.subplots(1, 2)
    x = [float(omega) for omega in table]
    for policy in next(iter(table.values()))["policies"]:
        found = [one["policies"][policy] for one in table.values()]
        left.plot(x, [one["rows_per_s"] / 1e3 for one in found], "o-", label=policy)
        right.semilogy(x, [one["mean_ms"] for one in found], "o-", label=policy)
    left.set(xlabel="ω, shuffles a minute", ylabel="throughput, 1,000 rows/s", ylim=(0, None))
    right.set(xlabel="ω, shuffles a minute", ylabel="mean latency at 0.8 load, ms")
    left.legend(fontsize=7)


def elasticutor_table_3(figure: Any, table: Any) -> None:
    axes = figure.subplots()
    x = [int(nodes) for nodes in table]
    axes.plot(x, [one["rows_per_s"] / 1e3 for one in table.values()], "o-", label="simulated")
    axes.plot(
        x,
        [one["paper"][0] / 1e3 for one in table.values()],
        "s--",
        color="gray",
        label="paper (other application)",
    )
    axes.set(xlabel="nodes of 8 cores", ylabel="throughput, 1,000 rows/s", ylim=(0, None))
    axes.legend(fontsize=7)


def elasticutor_13(figure: Any, table: Any) -> None:
    omegas = sorted({one["omega"] for one in table["settings"]})
    for axes, omega in zip(figure.subplots(1, len(omegas), sharey=True), omegas, strict=True):
        for executors in sorted({one["executors"] for one in table["settings"]}):
            here = [
                one for one in table["settings"] if one["omega"] == omega and one["executors"] == executors
            ]
            axes.plot(
                [one["shards"] for one in here],
                [one["rows_per_s"] / 1e3 for one in here],
                "o-",
                label=f"y = {executors}",
            )
        axes.set_title(f"ω = {omega:g}", fontsize=9)
        axes.set(
            xlabel="z, shards an executor", ylabel="throughput, 1,000 rows/s", xscale="log", ylim=(0, None)
        )
        axes.legend(fontsize=7)


PLOTS: Final[dict[str, Draw]] = {
    draw.__name__: draw
    for draw in (
        es_stream_9_12, es_stream_13, es_stream_14, es_stream_15, es_stream_16_17, streamswitch_10_11,
        streamswitch_12_13, streamswitch_14, streamswitch_15, streamswitch_16, drs_8, drs_9, drs_10, elasticutor_6,
        elasticutor_table_3, elasticutor_13,
    )
}  # fmt: skip
"""Figure of the bench -> what draws it."""


def write_plots(figures: dict[str, Any], folder: Path) -> list[Path]:
    """Draw every figure that is there.

    Raises:
        DeclarationError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DeclarationError("Plots need matplotlib: pip install 'penstock[plots]'.") from error
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in PLOTS.items():
        if name not in figures:
            continue
        tall = name in ("streamswitch_10_11", "drs_9")
        figure = Figure(figsize=(7.2, 5.0 if tall else 2.8), layout="constrained")
        draw(figure, figures[name])
        written.append(folder / f"{name.replace('_', '-')}.png")
        figure.savefig(written[-1], dpi=90)
    return written


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        for path in write_plots(json.load(file)["figures"], Path(sys.argv[2])):
            print(path)
