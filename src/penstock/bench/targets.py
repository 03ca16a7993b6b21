"""What benches must give: every name of `keyed-count`, the target of every ratio, and the table that compares them.

Pure: measures nothing, so that a missing name is found without a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

SIZES: Final = ("100k", "1m", "4m")
INGEST: Final = "_through_ingest"


@dataclass(frozen=True)
class Target:
    """What a ratio (ours / theirs) should come to: at least the target, or at most where less is better."""

    target: float
    aim: float | None
    at_most: bool
    what: str

    def is_met(self, ratio: float) -> bool:
        return ratio <= self.target if self.at_most else ratio >= self.target

    def verdict(self, ratio: float) -> str:
        """Say "met", "missed", or that even the aim was met."""
        if not self.is_met(ratio):
            return "missed"
        reached = self.aim is not None and (ratio <= self.aim if self.at_most else ratio >= self.aim)
        return "met, aim too" if reached else "met"


TARGETS: Final[Mapping[str, Target]] = {
    "aggregate_vs_spark_native": Target(1.0, 2.0, False, "count and sum, rate held at 500 ms"),
    "row_function_vs_best_pyspark": Target(40.0, 100.0, False, "row function, 100,000 rows a batch"),
    "row_function_vs_pyspark_at_10s": Target(4.0, 8.0, False, "row function, PySpark's best within 10 s"),
    "stateful_processor_vs_spark": Target(
        20.0, 40.0, False, "one StatefulProcessor class, 100,000 rows a batch"
    ),
    "aggregate_10m_keys_vs_spark_native": Target(1.0, None, False, "10 million keys, rate"),
    "matching_vs_bare_loop": Target(1 / 3, None, False, "order matching, rate"),
    "latency_one_operator_vs_spark_native": Target(1 / 15, 1 / 40, True, "mean latency at 20,000 rows/s"),
    "latency_two_operators_vs_spark_native": Target(1 / 8, None, True, "the same, two operators"),
    "latency_p99_over_mean": Target(3.0, None, True, "ours at 20,000 rows/s"),
}


ELASTIC_TARGETS: Final[Mapping[str, Target]] = {
    "efficiency_16": Target(0.9, None, False, "one executor on 16 emulated cores, 1 ms a row"),
    "plain_spark_vs_ours_rescale": Target(100.0, None, False, "2 -> 4 -> 2 cores, time rows are held up"),
    "share_of_ceiling_w2": Target(0.9, None, False, "two shuffles a minute, Zipf 0.5 and 0.8, the lower"),
    "share_of_ceiling_w16": Target(0.8, None, False, "sixteen shuffles a minute"),
    "share_of_ceiling_hot_keys": Target(0.85, None, False, "40 keys with 80 % of all rows"),
}
"""Targets of the benches of elastic executors: `scaling`, `rescale`, `dynamics`."""


@dataclass(frozen=True)
class Names:
    """What one part of the bench must have added when it is done."""

    ratios: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()


def _rate(name: str, suffix: str = "") -> tuple[str, str]:
    return f"{name}_per_s{suffix}", f"{name}_mean_latency_ms{suffix}"


NAMES: Final[Mapping[str, Names]] = {
    "latency": Names(
        (
            "latency_one_operator_vs_spark_native",
            "latency_two_operators_vs_spark_native",
            "latency_p99_over_mean",
        ),
        (
            "ours_latency_20k_mean_ms", "ours_latency_20k_p99_ms", "ours_latency_two_operators_20k_mean_ms",
            "ours_latency_two_operators_20k_p99_ms", "spark_latency_20k_mean_ms", "spark_latency_20k_p99_ms",
            "driver_ms_per_epoch", "start_s", "ours_cpu_20k_cores", "spark_cpu_20k_cores",
        ),
    ),
    "aggregate": Names(
        ("aggregate_vs_spark_native",),
        (
            *(name for size in SIZES for name in _rate(f"ours_aggregate_{size}")),
            *(name for size in SIZES for name in _rate(f"spark_native_{size}")),
            *(f"aggregate_at_500ms_vs_spark_native_{size}" for size in SIZES),
            *_rate("ours_aggregate_any_latency"),
            "ours_aggregate_at_500ms_per_s", "ours_aggregate_at_500ms_mean_ms",
            "ours_aggregate_at_100ms_per_s", "ours_aggregate_at_100ms_mean_ms",
            "spark_native_at_500ms_per_s", "spark_native_at_500ms_mean_ms",
            "aggregate_vs_spark_native_compares_with", "aggregate_vs_spark_native_just_beyond",
        ),
    ),
    "row-function": Names(
        ("row_function_vs_best_pyspark", "row_function_vs_pyspark_at_10s"),
        (
            *_rate("ours_row_function_100k"), *_rate("ours_row_function_best"),
            *_rate("spark_with_state_100k"), *_rate("spark_with_state_400k"),
            *_rate("spark_in_pandas_100k"), *_rate("spark_in_pandas_1m"),
            "row_function_vs_best_pyspark_compares_with", "row_function_vs_pyspark_at_10s_compares_with",
            "row_function_vs_pyspark_at_10s_just_beyond",
        ),
    ),
    "stateful-processor": Names(
        ("stateful_processor_vs_spark",),
        (
            *_rate("ours_processor_100k"), *_rate("ours_processor_in_pandas_100k"),
            *_rate("spark_processor_100k"), *_rate("spark_processor_1m"),
            "stateful_processor_vs_spark_compares_with",
        ),
    ),
    "many-keys": Names(
        ("aggregate_10m_keys_vs_spark_native",),
        (
            *_rate("ours_10m_keys"), *_rate("spark_native_10m_keys"),
            "ours_10m_keys_python_resident_mib", "ours_10m_keys_state_mib",
        ),
    ),
    "matching": Names(
        ("matching_vs_bare_loop",),
        (*_rate("ours_matching"), "ours_matching_max_epoch_s", "bare_loop_matching_per_s"),
    ),
    "idle": Names((), ("ours_cpu_idle_cores", "spark_cpu_idle_cores")),
    "driver": Names(
        (),
        (
            "epoch_overhead_ms", "epoch_overhead_work_ms", "epoch_overhead_sync_ms", "epoch_overhead_log_ms",
            "epoch_overhead_rest_ms", "executors_one_driver_carries_at_100ms",
        ),
    ),
    "ingest": Names(
        (),
        (
            *(name for size in SIZES for name in _rate(f"ours_aggregate_{size}", INGEST)),
            *(name for size in ("100k", "1m") for name in _rate(f"ours_row_function_{size}", INGEST)),
            f"ours_latency_20k_mean_ms{INGEST}", f"ours_latency_20k_p99_ms{INGEST}",
            f"ours_latency_two_operators_20k_mean_ms{INGEST}",
            f"ours_latency_two_operators_20k_p99_ms{INGEST}",
        ),
    ),
}  # fmt: skip
"""Part -> what it must have added, in a quick run as in a full one. A rate never stands without its latency."""

ONLY_WHOLE: Final[Mapping[str, Names]] = {
    "ingest": Names((), (*_rate("ours_10m_keys", INGEST), *_rate("ours_matching", INGEST))),
}
"""What a quick run has no time for: neither has a target."""


def missing_names(
    parts: Iterable[str], ratios: Mapping[str, Any], figures: Mapping[str, Any], whole: bool = False
) -> list[str]:
    """Return the names that these parts owe; a figure without a value is as missing as one without a name.

    Args:
        whole: whether it was no quick run.
    """
    asked = list(parts)
    owed = [NAMES[part] for part in asked]
    owed += [ONLY_WHOLE[part] for part in asked if whole and part in ONLY_WHOLE]
    lacking = [name for names in owed for name in names.ratios if ratios.get(name) is None]
    return lacking + [name for names in owed for name in names.figures if figures.get(name) is None]


def ratio_table(ratios: Mapping[str, float], figures: Mapping[str, Any]) -> list[str]:
    """Return lines that set every ratio beside its target, spread and verdict; none where there is no ratio."""
    if not ratios:
        return []
    head = f"{'ratio (ours / theirs)':40} {'measured':>9}  {'lowest, highest':>19}  {'target':>8}  verdict"
    lines = [head, "-" * len(head)]
    for name, target in {**TARGETS, **ELASTIC_TARGETS}.items():
        if name not in ratios:
            continue
        low, high = figures.get(f"{name}_spread", (ratios[name], ratios[name]))
        sign = "<=" if target.at_most else ">="
        lines.append(
            f"{name:40} {ratios[name]:9.4g}  {f'{low:.4g}, {high:.4g}':>19}  {sign} {target.target:<5.3g}  "
            f"{target.verdict(ratios[name])}"
        )
        if figures.get(f"{name}_compares_with"):
            lines.append(f"    against {figures[f'{name}_compares_with']}")
        if f"{name}_just_beyond_ratio" in figures:
            beyond = figures[f"{name}_just_beyond"]
            lines.append(
                f"    {figures[f'{name}_just_beyond_ratio']:.4g} against what missed the bound: {beyond}"
            )
    return lines
