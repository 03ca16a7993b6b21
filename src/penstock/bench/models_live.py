"""The live parts of `bench models`: a chain of three operators on Spark, against what each model says of it.

Owns the settings, what is fitted on which of them, and the figures. A setting that was looked at is kept with the
figures, so that parts can be run one by one. What an epoch costs is fitted on settings of other rates than those the
model is judged by; the rate and the useful time of a row are inputs, measured where a model is judged, as the control
loop measures them (and a second error says what comes of the row times of the calibration).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any, Final

import numpy as np

import penstock
from penstock.bench import emulated
from penstock.bench.chain import SERVICE_S, SHARDS, Seen, Setting, Stage, chain, look, place
from penstock.bench.chain_simulated import derive_errors
from penstock.bench.parts import Part
from penstock.bench.result import BenchResult
from penstock.control.model.allocation import Station, assign_processors
from penstock.control.model.epoch import EpochStation, largest_load_curve
from penstock.control.model.epoch_chain import BACK_TO_BACK, EpochLink, predict_chain
from penstock.control.model.epoch_fit import EpochFit, EpochObservation
from penstock.control.model.stations import QueueStation, SplitStation, StationModel

Cores = tuple[int, ...]
SESSION_CORES: Final = 16
CALIBRATION: Final = {110.0: [(2, 3, 1), (2, 4, 1), (4, 6, 2)], 230.0: [(3, 5, 2), (4, 7, 2), (6, 8, 2)]}
JUDGED: Final = {
    150.0: [(2, 3, 1), (2, 4, 1), (3, 6, 2), (4, 8, 2)],
    200.0: [(3, 5, 2), (3, 6, 2), (4, 6, 2), (4, 8, 2)],
    250.0: [(3, 5, 2), (3, 6, 2), (4, 7, 2), (5, 8, 3)],
}
"""Rate -> cores of each operator in the order of the chain. The busiest operator of those judged is at work 0.3 to 0.85 of
the time."""
CHOICE: Final = (200.0, 10)
"""Rate and K_max at which the models choose, and their choice is compared with its neighbours."""
MODELS: Final = ("mm1", "mmk", "gigk", "epoch")
WARM_S: Final = 2.0


def measure(
    result: BenchResult, into: str, rate_per_s: float, splits: Sequence[Cores], seconds: float
) -> None:
    """Look at one rate on several splits of cores, in one query; those that are there already are left."""
    table = result.figures.setdefault("chain", {}).setdefault(into, {})
    wanted = [cores for cores in splits if str(Setting(rate_per_s, cores)) not in table]
    if not wanted:
        return
    with chain(rate_per_s, wanted[0]) as query:
        for cores in wanted:
            setting = Setting(rate_per_s, cores)
            place(query, cores)
            seen = look(query, setting, WARM_S, seconds)
            table[str(setting)] = encode(seen)
            print(f"-- {setting}: {seen.mean_s * 1e3:.0f} ms", flush=True)
            result.write()


def encode(seen: Seen) -> dict[str, Any]:
    """Return a sighting as it stands in the result."""
    found = asdict(seen)
    for stage in found["stages"].values():
        stage["observations"] = [list(one.values()) for one in stage["observations"]]
    return found


def decode(given: Mapping[str, Any]) -> Seen:
    """Return the sighting of `encode`, also when it was read from a file."""
    stages = {
        name: Stage(
            **{
                **stage,
                "whole": EpochObservation(**stage["whole"]),
                "observations": tuple(EpochObservation(*one) for one in stage["observations"]),
            }
        )
        for name, stage in given["stages"].items()
    }
    setting = Setting(given["setting"]["rate_per_s"], tuple(given["setting"]["cores"]))
    return Seen(**{**given, "setting": setting, "stages": stages})


def fit(seen: Sequence[Seen]) -> tuple[list[EpochLink], float]:
    """Fit the epoch model to some settings: each operator's coefficients and time of a row, and the time of the intake.

    All settings count the same: nothing is forgotten. A task's work in an epoch has a part that does not grow with its
    rows; that part is overhead, or rows of small epochs would seem dearer than those of large ones.
    """
    links = []
    for name in SERVICE_S:
        fitted = EpochFit(forgetting=1.0)
        for one in seen:
            for observation in one.stages[name].observations:
                fitted.observe(observation)
        row_s, fixed_s = _split_work([one.stages[name] for one in seen])
        costs = replace(fitted.costs, o0_s=fitted.costs.o0_s + fixed_s)
        links.append(EpochLink(name, costs, 0.0, row_s, SHARDS))
    first = links[0].name
    rest = [one.stages[first].mean_s - BACK_TO_BACK * one.stages[first].whole.duration_s for one in seen]
    return links, max(0.0, float(np.mean(rest)))


def _split_work(stages: Sequence[Stage]) -> tuple[float, float]:
    """Return what a row takes, and what a task takes in an epoch besides, by least squares; neither is below zero."""
    touched = np.minimum([one.whole.touched for one in stages], 0.97 * SHARDS)
    rows = -SHARDS * np.log1p(-touched / SHARDS) / [one.whole.k for one in stages]
    row_s = np.array([one.row_s for one in stages])
    spread = 1 / rows - np.mean(1 / rows)
    fixed_s = max(0.0, float(spread @ row_s / max(spread @ spread, 1e-12)))
    return max(1e-6, float(np.mean(row_s - fixed_s / rows))), fixed_s


def predict_s(model: str, links: Sequence[EpochLink], intake_s: float, setting: Setting) -> float:
    """Return the end-to-end latency that a model says a setting has."""
    cores = dict(zip(SERVICE_S, setting.cores, strict=True))
    if model == "epoch":
        here = [replace(link, rate_per_s=setting.rate_per_s) for link in links]
        return math.fsum(one.latency_s for one in predict_chain(here, cores, intake_s).values())
    stations = stations_of(model, links, setting.rate_per_s)
    return math.fsum(one.model.latency_s(cores[one.name]) for one in stations)


def with_measured_rows(links: Sequence[EpochLink], seen: Seen) -> list[EpochLink]:
    """Return the links with the useful time of a row as it was measured here; what an epoch costs stays as fitted."""
    return [replace(link, row_s=seen.stages[link.name].row_s) for link in links]


def stations_of(model: str, links: Sequence[EpochLink], rate_per_s: float) -> list[Station]:
    """Return the chain as allocation sees it. `epoch-station` is the epoch model of one operator by itself."""
    return [Station(link.name, 1.0, _station(model, link, rate_per_s)) for link in links]


def _station(model: str, link: EpochLink, rate_per_s: float) -> StationModel:
    service_per_s = 1.0 / link.row_s
    if model == "mm1":
        return SplitStation(rate_per_s, service_per_s)
    if model == "mmk":
        return QueueStation(rate_per_s, service_per_s)
    if model == "gigk":
        # Every row takes the same time; how they arrive is left as in M/M/k.
        return QueueStation(rate_per_s, service_per_s, 1.0, 0.0)
    loads = np.full(link.shards, rate_per_s * link.row_s / link.shards)
    return EpochStation(
        link.costs,
        largest_load_curve(loads, SESSION_CORES),
        arrival_per_s=np.full(link.shards, rate_per_s / link.shards),
    )


def judge_errors(result: BenchResult) -> None:
    """Add each model's mean absolute percentage error over the settings that were looked at, none of them fitted on."""
    tables = result.figures.get("chain", {})
    calibration = [decode(one) for one in tables.get("calibration", {}).values()]
    judged = [decode(one) for one in tables.get("judged", {}).values()]
    if not calibration or not judged:
        return
    links, intake_s = fit(calibration)
    models = (*MODELS, "epoch-station")
    predicted = {
        model: [predict_s(model, with_measured_rows(links, one), intake_s, one.setting) for one in judged]
        for model in models
    }
    ahead = {model: [predict_s(model, links, intake_s, one.setting) for one in judged] for model in models}
    for name, by_model in (("model_error", predicted), ("model_error_ahead", ahead)):
        result.figures[name] = {model: _mean_error(found, judged) for model, found in by_model.items()}
    result.figures["simulator_error"] = derive_errors(judged, links, intake_s)
    busiest = [
        max(
            one.rate_per_s * stage.row_s / k
            for stage, k in zip(one.stages.values(), one.setting.cores, strict=True)
        )
        for one in judged
    ]
    result.figures["model_error_settings"] = [
        f"{one.setting}, busiest {busy:.2f}: {one.mean_s * 1e3:.0f} ms, epoch model {p * 1e3:.0f} ms, with the row"
        f" times of the calibration {early * 1e3:.0f} ms"
        for one, busy, p, early in zip(judged, busiest, predicted["epoch"], ahead["epoch"], strict=True)
    ]
    result.add_figures(
        model_error_settings_judged=len(judged), model_error_intake_ms=intake_s * 1e3, **_costs(links)
    )


def _mean_error(predicted_s: Sequence[float], seen: Sequence[Seen]) -> float:
    found = [_error(p, one.mean_s) for p, one in zip(predicted_s, seen, strict=True)]
    return round(float(np.mean(found)), 4)


def _error(predicted_s: float, measured_s: float) -> float:
    """Return the relative error; 1 where the model says that the load is not served and it was."""
    return abs(predicted_s / measured_s - 1) if math.isfinite(predicted_s) else 1.0


def _costs(links: Sequence[EpochLink]) -> dict[str, float]:
    return {
        f"epoch_{link.name}_{name}": value * 1e3
        for link in links
        for name, value in (
            ("o0_ms", link.costs.o0_s),
            ("o1_ms", link.costs.o1_s),
            ("o2_ms", link.costs.o2_s),
            ("row_ms", link.row_s),
        )
    }


def choose(links: Sequence[EpochLink]) -> dict[str, Cores]:
    """Return the split of K_max that each model recommends: stations by allocation, the epoch model of a chain, whose
    operators are no stations by themselves, by looking at every split."""
    rate_per_s, k_max = CHOICE
    splits = [one for one in product(range(1, k_max), repeat=len(links)) if sum(one) == k_max]
    found = {"epoch": min(splits, key=lambda one: predict_s("epoch", links, 0.0, Setting(rate_per_s, one)))}
    for model in ("mm1", "mmk", "gigk", "epoch-station"):
        cores = assign_processors(stations_of(model, links, rate_per_s), k_max).cores
        found[model] = tuple(cores[name] for name in SERVICE_S)
    return found


def neighbours_of(split: Cores, loads: Sequence[float]) -> list[Cores]:
    """Return the splits that differ by one core given to another operator, as far as they serve the load."""
    found = []
    for taken in range(len(split)):
        for given in range(len(split)):
            other = tuple(k - (at == taken) + (at == given) for at, k in enumerate(split))
            if taken != given and all(load < 0.93 * k for load, k in zip(loads, other, strict=True)):
                found.append(other)
    return found


def neighbours(result: BenchResult, seconds: float) -> None:
    """Measure what each model recommends and its neighbours, twice; say whether it is best or within noise of it."""
    calibration = [decode(one) for one in result.figures["chain"]["calibration"].values()]
    links, _ = fit(calibration)
    rate_per_s, k_max = CHOICE
    chosen = choose(links)
    loads = [rate_per_s * link.row_s for link in links]
    splits = list(
        dict.fromkeys(one for split in chosen.values() for one in (split, *neighbours_of(split, loads)))
    )
    for turn in ("first", "second"):
        measure(
            result, f"neighbours_{turn}", rate_per_s, splits if turn == "first" else splits[::-1], seconds
        )
    tables = [result.figures["chain"][f"neighbours_{turn}"] for turn in ("first", "second")]
    runs = {split: [table[str(Setting(rate_per_s, split))]["mean_s"] for table in tables] for split in splits}
    result.figures["neighbours"] = {
        model: judge_choice(split, neighbours_of(split, loads), runs) for model, split in chosen.items()
    } | {"k_max": k_max, "rate_per_s": rate_per_s}
    result.write()


def judge_choice(
    split: Cores, others: Sequence[Cores], runs: Mapping[Cores, Sequence[float]]
) -> dict[str, Any]:
    """Compare a split with its neighbours; noise is how far two looks at the same split are apart, on the mean."""
    noise = float(np.mean([abs(a - b) / ((a + b) / 2) for a, b in runs.values()]))
    mean = {one: float(np.mean(runs[one])) for one in (split, *others)}
    nearest = min(others, key=mean.__getitem__, default=split)
    behind = mean[split] / min(mean.values()) - 1
    return {
        "split": ":".join(map(str, split)),
        "mean_ms": round(mean[split] * 1e3, 1),
        "best_neighbour": ":".join(map(str, nearest)),
        "best_neighbour_ms": round(mean[nearest] * 1e3, 1),
        "behind_best_ratio": round(behind, 4),
        "noise_ratio": round(noise, 4),
        "best_or_within_noise": behind <= noise,
    }


def parts_of(quick: bool) -> dict[str, Part]:
    """Return the live parts with what each owes."""
    seconds = 8.0 if quick else 15.0

    def on_spark(work: Any) -> Any:
        def run_it(result: BenchResult) -> None:
            if emulated.EMULATION not in result.emulated:
                result.emulated.append(emulated.EMULATION)
            penstock.session("penstock-bench-models", cores=SESSION_CORES)
            work(result)
            judge_errors(result)

        return run_it

    def calibrate(result: BenchResult) -> None:
        for rate_per_s, splits in CALIBRATION.items():
            measure(result, "calibration", rate_per_s, splits, seconds)

    def judged(rate_per_s: float) -> Any:
        return lambda result: measure(result, "judged", rate_per_s, JUDGED[rate_per_s], seconds)

    parts = {"chain-calibration": Part(on_spark(calibrate), (), ("chain",))}
    parts |= {
        f"chain-{rate_per_s:g}": Part(on_spark(judged(rate_per_s)), (), ("chain",)) for rate_per_s in JUDGED
    }
    work = on_spark(lambda result: neighbours(result, seconds / 2))
    return parts | {"chain-neighbours": Part(work, (), ("neighbours", "model_error", "simulator_error"))}
