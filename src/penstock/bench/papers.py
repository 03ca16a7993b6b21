"""`penstock bench papers`: the experiments of the papers, simulated, one part for each figure or table.

The experiments are in `papers_drs`, `papers_elasticutor`, `papers_esstream` and `papers_streamswitch`; docs/papers.md
shows what came of them beside the papers' numbers, with plots by `papers_plots`. No row is processed, so that only the time
of one scheduling decision in table 3 depends on the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.bench import papers_drs as drs
from penstock.bench import papers_elasticutor as elasticutor
from penstock.bench import papers_esstream as esstream
from penstock.bench import papers_streamswitch as streamswitch
from penstock.bench.papers_runs import Table
from penstock.bench.parts import Part, run_parts
from penstock.bench.result import BenchResult
from penstock.workloads.paper_topologies import FREQUENT_PATTERNS, LOGO_DETECTION, PaperTopology


@dataclass(frozen=True)
class Effort:
    """How much of everything a run does."""

    share: float
    """Of the simulated time of the full form."""
    seeds: tuple[int, ...]
    points: int
    """Every so-manieth point of a sweep; the full form takes all of them."""

    @staticmethod
    def of(quick: bool) -> Effort:
        return Effort(0.25, (1,), 2) if quick else Effort(1.0, (1, 2), 1)


def _each_app(run: Callable[[PaperTopology], Table]) -> Table:
    return {name: run(topology) for name, topology in esstream.APPLICATIONS.items()}


def es_stream_9_12(effort: Effort) -> Table:
    rates = (900.0, 1800.0, 2700.0, 3600.0)[:: effort.points]
    return _each_app(
        lambda app: {
            f"{rate:g}": esstream.latency_at(
                app, rate, seconds=max(120 * effort.share, 60.0), seeds=effort.seeds
            )
            for rate in sorted({*rates, {"commcount": 1800.0, "top-n": 2700.0}[app.name]})
        }
    )


def es_stream_13(effort: Effort) -> Table:
    return _each_app(lambda app: esstream.bottleneck(app, step_s=max(30 * effort.share, 20.0)))


def es_stream_14(effort: Effort) -> Table:
    return _each_app(esstream.stable)


def es_stream_15(effort: Effort) -> Table:
    return _each_app(esstream.changing)


def es_stream_16_17(effort: Effort) -> Table:
    return _each_app(
        lambda app: (
            {policy: esstream.fluctuating(app, policy) for policy in ("esstream", "drs")}
            | {"r-storm": esstream.packed(app)}
        )
    )


def es_stream_sweep(effort: Effort) -> Table:
    return _each_app(lambda app: esstream.sweep(app, seconds=480.0, seeds=effort.seeds[:1]))


def streamswitch_10_11(effort: Effort) -> Table:
    values = streamswitch.VALUES[:: effort.points]
    return {
        which: streamswitch.parameters(which, values, seconds=660.0, seeds=effort.seeds[:1])
        for which in ("alert_s", "interval_s")
    }


def streamswitch_12_13(effort: Effort) -> Table:
    found = [
        streamswitch.unlike(
            speed, share, seconds=1800 * effort.share, warm_s=600 * effort.share, seeds=effort.seeds[:1]
        )
        for speed in streamswitch.SPEEDS
        for share in streamswitch.SHARES[:: effort.points]
    ]
    return {"settings": found}


def streamswitch_14(effort: Effort) -> Table:
    seconds = 60 + 600 * effort.share
    return {
        "settings": [
            streamswitch.dynamics(amplitude, period, seconds=seconds, seeds=effort.seeds)
            for amplitude, period in streamswitch.AMPLITUDES
        ]
    }


def streamswitch_15(effort: Effort) -> Table:
    seconds = 60 + 600 * effort.share
    return {
        "settings": [
            streamswitch.dynamics(10_000.0, 90.0, delay, seconds=seconds, seeds=effort.seeds[:1])
            for delay in streamswitch.DELAYS[:: effort.points]
        ]
    }


def streamswitch_16(effort: Effort) -> Table:
    seconds, warm = 900 * effort.share, 300 * effort.share
    return {
        "settings": [
            streamswitch.two_operators(one, seconds=seconds, warm_s=warm, seeds=effort.seeds[:1])
            for one in (*streamswitch.SPLITS[:: effort.points], None)
        ]
    }


def drs_8(effort: Effort) -> Table:
    minutes = 27 * max(effort.share, 1 / 3)
    return {
        "logo-detection": drs.same_end(LOGO_DETECTION, 13.0, minutes),
        "frequent-patterns": drs.same_end(FREQUENT_PATTERNS, 320.0, minutes),
    }


def drs_9(effort: Effort) -> Table:
    return {
        f"{name}_w{window}": drs.changing_rate(changes, window, minutes)
        for name, changes, minutes in (("long", drs.LONG, 44.0), ("short", drs.SHORT, 26.0))
        for window in (6, 3)
    }


def drs_10(effort: Effort) -> Table:
    return {f"{rate:g}": drs.which_model(rate, 3600 * effort.share) for rate in (5.0, 6.0)}


def elasticutor_6(effort: Effort) -> Table:
    omegas = (0.0, 2.0, 4.0, 8.0, 16.0) if effort.points == 1 else (0.0, 2.0, 16.0)
    return {
        f"{omega:g}": elasticutor.shuffled(omega, seconds=max(120 * effort.share, 45.0)) for omega in omegas
    }


def elasticutor_table_3(effort: Effort) -> Table:
    return {
        str(nodes): elasticutor.growing(nodes, seconds=max(120 * effort.share, 60.0)) for nodes in (8, 16, 32)
    }


def elasticutor_13(effort: Effort) -> Table:
    return {
        "settings": [
            elasticutor.shapes(executors, shards, omega, seconds=max(120 * effort.share, 60.0))
            for omega in (2.0, 16.0)
            for executors in (1, 2, 4, 8)
            for shards in (16, 64, 256, 1024)
        ]
    }


EXPERIMENTS: Final[dict[str, Callable[[Effort], Table]]] = {
    "es-stream-9-12": es_stream_9_12,
    "es-stream-13": es_stream_13,
    "es-stream-14": es_stream_14,
    "es-stream-15": es_stream_15,
    "es-stream-16-17": es_stream_16_17,
    "es-stream-sweep": es_stream_sweep,
    "streamswitch-10-11": streamswitch_10_11,
    "streamswitch-12-13": streamswitch_12_13,
    "streamswitch-14": streamswitch_14,
    "streamswitch-15": streamswitch_15,
    "streamswitch-16": streamswitch_16,
    "drs-8": drs_8,
    "drs-9": drs_9,
    "drs-10": drs_10,
    "elasticutor-6": elasticutor_6,
    "elasticutor-table-3": elasticutor_table_3,
    "elasticutor-13": elasticutor_13,
}


def figure_of(part: str) -> str:
    """Return the name under which a part's table stands among the figures."""
    return part.replace("-", "_")


def _part(name: str, effort: Effort) -> Part:
    def run_it(result: BenchResult) -> None:
        result.figures[figure_of(name)] = EXPERIMENTS[name](effort)
        result.write()

    return Part(run_it, figures=(figure_of(name),))


def run(result: BenchResult, quick: bool, only: list[str] | None) -> list[str]:
    """Run the experiments asked for (all when none is named); return the names that are missing at the end.

    Raises:
        UnknownPart: a part is asked for that does not exist.
    """
    effort = Effort.of(quick)
    result.emulated.append("every figure: simulated, no row was processed")
    return run_parts(result, {name: _part(name, effort) for name in EXPERIMENTS}, only, quick)
