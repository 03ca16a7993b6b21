"""The papers' experiments in short forms: they run, and what each is there to show holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.bench import papers, papers_drs, papers_elasticutor, papers_esstream, papers_streamswitch
from penstock.bench.papers import EXPERIMENTS, Effort, figure_of
from penstock.bench.papers_plots import PLOTS, write_plots
from penstock.bench.papers_runs import rounded
from penstock.bench.result import BenchResult, UnknownPart
from penstock.control.model.allocation import Station, assign_processors, min_processors
from penstock.control.model.stations import QueueStation
from penstock.control.policy.nodeloads import EVEN, R_STORM
from penstock.workloads.paper_topologies import (
    COMMCOUNT,
    FREQUENT_PATTERNS,
    LOGO_DETECTION,
    TOP_N,
    PaperTopology,
    derive_rates,
)


def stations(topology: PaperTopology, rate_per_s: float) -> list[Station]:
    rates = derive_rates(topology, rate_per_s)
    return [
        Station(one.name, rates[one.name] / rate_per_s, QueueStation(rates[one.name], 1 / one.service_s))
        for one in topology.stations
    ]


@pytest.mark.parametrize(
    ("topology", "rate_per_s", "k_max", "paper"),
    [
        (LOGO_DETECTION, 13.0, 22, (10, 11, 1)),
        (FREQUENT_PATTERNS, 320.0, 22, (6, 13, 3)),
        (LOGO_DETECTION, 5.0, 7, (3, 3, 1)),
        (LOGO_DETECTION, 6.0, 7, (3, 3, 1)),
    ],
)
def test_the_model_gives_the_allocations_that_drs_prints(
    topology: PaperTopology, rate_per_s: float, k_max: int, paper: tuple[int, ...]
) -> None:
    found = assign_processors(stations(topology, rate_per_s), k_max).cores
    assert tuple(found[one.name] for one in topology.stations) == paper


def test_the_model_gives_the_fewest_cores_that_drs_prints_for_twelve_frames() -> None:
    found = min_processors(stations(LOGO_DETECTION, 12.0), 1.0).cores
    assert tuple(found.values()) == (4, 6, 1)


def test_only_gi_g_k_chooses_what_is_best_where_rows_come_in_bulk() -> None:
    """DRS, figure 10."""
    found = papers_drs.which_model(6.0, 900.0)
    assert found["best"] == found["chosen"]["gigk"] == "2:4:1"
    assert found["chosen"]["mmk"] == "3:3:1"


@pytest.mark.long
def test_drs_ends_at_one_allocation_from_three_starts() -> None:
    """DRS, figure 8."""
    assert papers_drs.same_end(FREQUENT_PATTERNS, 320.0, 9.0)["ends"] == ["6:13:3"]


@pytest.mark.long
def test_drs_answers_a_doubled_rate_with_more_cores_and_sooner_with_a_shorter_window() -> None:
    """DRS, figure 9."""
    slow = papers_drs.changing_rate(((0, 6.0), (60, 12.0)), 3.0, 12.0)
    quick = papers_drs.changing_rate(((0, 6.0), (60, 12.0)), 1.0, 12.0)
    assert sum(map(int, slow["end"].split(":"))) >= 11 and sum(map(int, quick["end"].split(":"))) >= 11
    assert quick["events"][0]["minute"] < slow["events"][0]["minute"]


def test_esstream_moves_tasks_from_the_first_operator_to_the_second() -> None:
    """Es-Stream, figure 14."""
    falls, rises = (papers_esstream.stable(app, seconds=60.0) for app in (COMMCOUNT, TOP_N))
    for found in (falls, rises):
        first, second = list(found["end"].values())[:2]
        assert first < found["first"][0] and second > found["first"][1]
    assert falls["total"] < sum(falls["first"]) and rises["total"] > sum(rises["first"])


def test_esstream_follows_the_rate_within_three_tasks_of_the_paper() -> None:
    """Es-Stream, figure 15: 14, 24 and 19 tasks."""
    found = papers_esstream.changing(COMMCOUNT)
    assert all(abs(ours - paper) <= 3 for ours, paper in zip(found["totals"], found["paper"], strict=True))


def test_tasks_by_load_beat_equal_numbers_of_tasks_and_r_storm_needs_fewest_nodes() -> None:
    """Es-Stream, figures 9 to 12."""
    found = papers_esstream.latency_at(COMMCOUNT, 1800.0, seconds=40.0, seeds=(1,))["policies"]
    assert found["esstream"]["ms"] < 0.7 * found[EVEN]["ms"]
    assert found["esstream"]["total"] <= found[EVEN]["total"]
    assert found[R_STORM]["nodes"] < found[EVEN]["nodes"]


def test_a_remote_share_counts_pairs_of_tasks_on_different_nodes() -> None:
    nodes = {"a": ["n1", "n1"], "b": ["n1", "n2"]}
    assert papers_esstream.remote_share(nodes, "a", "b") == 0.5


@pytest.mark.long
def test_longer_treatments_cost_streamswitch_success() -> None:
    """StreamSwitch, figure 15."""
    short, long = (
        papers_streamswitch.dynamics(1e4, 90.0, delay, seconds=150.0, seeds=(1,)) for delay in (0.0, 2.0)
    )
    assert long["success"] < short["success"] and long["switching_s"] > short["switching_s"] + 1.5


@pytest.mark.long
def test_streamswitch_uses_more_of_the_better_containers_than_there_are() -> None:
    """StreamSwitch, figure 13."""
    slow = papers_streamswitch.unlike(0.5, 0.5, seconds=600.0, warm_s=100.0)
    fast = papers_streamswitch.unlike(1.5, 0.5, seconds=600.0, warm_s=100.0)
    assert slow["used_share"] < 0.5 < fast["used_share"] and slow["tasks"] > fast["tasks"]


@pytest.mark.long
def test_a_split_of_the_bound_holds_it_end_to_end() -> None:
    """StreamSwitch, figure 16."""
    assert papers_streamswitch.two_operators(1.0, seconds=120.0, warm_s=60.0, seeds=(1,))["success"] > 0.95


@pytest.mark.long
def test_elastic_executors_beat_a_fixed_placement_under_shuffled_keys() -> None:
    """Elasticutor, figure 6, on four nodes."""
    cluster = papers_elasticutor.Cluster(nodes=4, executors=4)
    found = papers_elasticutor.shuffled(2.0, cluster, seconds=40.0)
    assert found["elastic_vs_static"] > 1.0
    elastic, static = found["policies"]["elastic"], found["policies"]["static"]
    assert elastic["mean_ms"] < static["mean_ms"] and elastic["rows_per_s"] <= found["possible_per_s"]


def test_too_few_shards_leave_cores_idle() -> None:
    """Elasticutor, figure 13."""
    few, many = (papers_elasticutor.shapes(2, z, 2.0, seconds=30.0, nodes=2) for z in (4, 256))
    assert few["rows_per_s"] < 0.7 * many["rows_per_s"]


def test_every_experiment_has_a_part_and_every_plot_its_figure() -> None:
    assert set(PLOTS) == {figure_of(name) for name in EXPERIMENTS} - {"es_stream_sweep"}


def test_parts_are_written_as_they_are_done_and_unknown_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "drs-8", lambda effort: {"share": effort.share})
    result = BenchResult("papers", {}, path=tmp_path / "papers.json")
    assert papers.run(result, True, ["drs-8"]) == []
    assert json.loads((tmp_path / "papers.json").read_text())["figures"]["drs_8"] == {
        "share": Effort.of(True).share
    }
    with pytest.raises(UnknownPart, match="drs-8"):
        papers.run(result, True, ["nothing"])


def test_what_was_not_measured_is_null() -> None:
    assert rounded(float("nan")) is None and rounded(1.23456, 2) == 1.23


def test_a_table_becomes_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    table = {"8": {"rows_per_s": 60_000, "paper": [66_600, 4.1]}}
    assert [path.name for path in write_plots({"elasticutor_table_3": table}, tmp_path)] == [
        "elasticutor-table-3.png"
    ]
