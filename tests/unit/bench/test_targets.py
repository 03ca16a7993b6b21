"""Which names the bench owes, and how a ratio is judged."""

from __future__ import annotations

import pytest

from penstock.bench.targets import ELASTIC_TARGETS, NAMES, ONLY_WHOLE, TARGETS, missing_names, ratio_table

ISSUE_RATIOS = {
    "aggregate_vs_spark_native",
    "row_function_vs_best_pyspark",
    "row_function_vs_pyspark_at_10s",
    "stateful_processor_vs_spark",
    "aggregate_10m_keys_vs_spark_native",
    "matching_vs_bare_loop",
    "latency_one_operator_vs_spark_native",
    "latency_two_operators_vs_spark_native",
    "latency_p99_over_mean",
}


def test_every_promised_ratio_has_a_target_and_a_part_that_owes_it() -> None:
    assert set(TARGETS) == ISSUE_RATIOS
    assert {name for names in NAMES.values() for name in names.ratios} == ISSUE_RATIOS


def test_every_promised_figure_is_owed_by_some_part() -> None:
    owed = {name for names in NAMES.values() for name in names.figures}
    assert {"epoch_overhead_ms", "driver_ms_per_epoch", "start_s"} <= owed


def test_no_rate_is_owed_without_its_latency() -> None:
    owed = {name for names in NAMES.values() for name in names.figures}
    rates = {name for name in owed if "_per_s" in name and not name.startswith("bare_loop")}
    assert rates
    for name in rates:
        assert {name.replace("_per_s", "_mean_latency_ms"), name.replace("_per_s", "_mean_ms")} & owed, name


def test_a_failed_part_is_found_by_the_names_it_did_not_add() -> None:
    figures = dict.fromkeys(NAMES["idle"].figures, 0.01)
    assert missing_names(["idle"], {}, figures) == []
    assert missing_names(["idle", "matching"], {}, figures)[0] == "matching_vs_bare_loop"


def test_a_full_run_owes_more_than_a_quick_one() -> None:
    figures = dict.fromkeys(NAMES["ingest"].figures, 1.0)
    assert missing_names(["ingest"], {}, figures) == []
    assert missing_names(["ingest"], {}, figures, whole=True) == list(ONLY_WHOLE["ingest"].figures)


def test_a_figure_without_a_value_is_missing() -> None:
    figures = {"ours_cpu_idle_cores": None, "spark_cpu_idle_cores": 0.0}
    assert missing_names(["idle"], {}, figures) == ["ours_cpu_idle_cores"]


@pytest.mark.parametrize(
    ("name", "ratio", "verdict"),
    [
        ("aggregate_vs_spark_native", 0.99, "missed"),
        ("aggregate_vs_spark_native", 1.0, "met"),
        ("aggregate_vs_spark_native", 2.5, "met, aim too"),
        ("latency_one_operator_vs_spark_native", 0.07, "missed"),
        ("latency_one_operator_vs_spark_native", 0.03, "met"),
        ("latency_one_operator_vs_spark_native", 0.02, "met, aim too"),
        ("latency_p99_over_mean", 3.5, "missed"),
    ],
)
def test_less_is_better_for_latency_and_more_for_rates(name: str, ratio: float, verdict: str) -> None:
    assert TARGETS[name].verdict(ratio) == verdict


def test_the_table_shows_only_what_was_measured_with_its_verdict_and_what_it_was_measured_against() -> None:
    name = "aggregate_vs_spark_native"
    figures = {f"{name}_spread": [0.5, 0.9], f"{name}_compares_with": "Spark at 700 ms"}
    lines = ratio_table({name: 0.8}, figures)
    assert len(lines) == 4
    assert "0.5, 0.9" in lines[2] and lines[2].endswith("missed")
    assert lines[3].strip() == "against Spark at 700 ms"


def test_targets_of_elastic_executors_stand_in_the_table_too() -> None:
    lines = ratio_table(dict.fromkeys(ELASTIC_TARGETS, 0.87), {})
    assert len(lines) == 2 + len(ELASTIC_TARGETS)
    verdicts = {line.split()[0]: line.split()[-1] for line in lines[2:]}
    assert verdicts["share_of_ceiling_hot_keys"] == verdicts["share_of_ceiling_w16"] == "met"
    assert verdicts["efficiency_16"] == verdicts["plain_spark_vs_ours_rescale"] == "missed"
