"""Parts of `bench rescale`, and how long a change held rows up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.bench import rescale, rescale_cores, rescale_runs
from penstock.bench.changing import Change, ChangeError, longest_gap_s
from penstock.bench.result import BenchResult, UnknownPart
from penstock.control.apply.actuator import Outcome
from penstock.dataplane.latency import Latency
from penstock.dataplane.placement import ShardMove


def move(released_at: float, ready_at: float) -> ShardMove:
    return ShardMove("calculate", 3, "0", "1", 32_768, 1.0, released_at, ready_at)


def test_every_name_that_is_owed_has_a_part() -> None:
    parts = rescale.parts_of(quick=True).values()
    figures = {name for part in parts for name in part.figures}
    assert {"intra_node_ms", "inter_node_32kb_ms", "inter_node_32mb_ms"} <= figures
    assert {name for part in parts for name in part.ratios} == {"plain_spark_vs_ours_rescale"}


def test_a_part_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(UnknownPart, match="no part beside; there is inside, between"):
        rescale.run(BenchResult("rescale", {}), True, ["beside"])


def test_rows_are_held_up_by_the_longest_gap_or_the_slowest_shard() -> None:
    assert longest_gap_s([1.0, 1.5, 3.0, 3.1]) == 1.5
    assert longest_gap_s([1.0]) == 0.0
    assert Change(Outcome(True), (move(2.0, 2.25),), gap_s=0.1).held_up_s == 0.25
    assert Change(Outcome(True), (move(2.0, 2.25),), gap_s=0.5).held_up_s == 0.5


def test_rows_are_late_by_what_the_slowest_took_longer_than_usual() -> None:
    seen = Latency(100, 15.0, 12.0, 60.0, 90.0)
    assert Change(Outcome(True), (), 0.5, seen).late_s(12.0) == pytest.approx(0.078)
    assert Change(Outcome(True), (), 0.5, seen).late_s(100.0) == 0.0
    assert Change(Outcome(True), (), 0.5).late_s(12.0) == 0.0, "no row was committed"


def test_changes_are_added_in_every_sense_beside_what_is_usual() -> None:
    result, quiet = BenchResult("rescale", {}), Latency(100, 10.0, 10.0, 20.0, 30.0)
    changed = Change(
        Outcome(True, took_s=0.3), (move(1.5, 1.75),), 0.04, Latency(100, 15.0, 12.0, 60.0, 90.0)
    )
    rescale_runs.add_quiet(result, "cores", [Change(Outcome(True), (), 0.03, quiet)] * 3)
    late = rescale_runs.add_changes(
        result, "cores", [changed], rescale_runs.usual_ms([Change(Outcome(True), (), 0.03, quiet)])
    )
    assert late == [pytest.approx(0.08)]
    names = (
        "held_up_ms",
        "commit_gap_ms",
        "shard_held_up_ms",
        "undisturbed_p50_ms",
        "undisturbed_worst_row_ms",
    )
    assert [result.figures[f"cores_{name}"] for name in names] == [80.0, 40.0, 250.0, 10.0, 30.0]


def test_a_move_is_added_as_hold_up_and_wait_apart() -> None:
    result = BenchResult("rescale", {})
    rescale_runs.add_moves(result, "inter_node_32kb", [Change(Outcome(True), (move(1.5, 1.75),), 0.1)])
    assert result.figures["inter_node_32kb_ms"] == 250.0
    assert result.figures["inter_node_32kb_wait_ms"] == 500.0
    assert result.figures["inter_node_32kb_commit_gap_ms"] == 100.0


def test_each_size_of_state_has_the_same_keys_and_more_of_them() -> None:
    sizes = [8 << 20, 128 << 20, 512 << 20, 1 << 30]
    assert [one.bytes for one in rescale_cores.STATES.values()] == sizes
    assert {one.key_bytes for one in rescale_cores.STATES.values()} == {2 << 10}
    assert [one.keys for one in rescale_cores.STATES.values()] == [size // (2 << 10) for size in sizes]


def test_the_ratio_stands_for_one_size_and_the_others_stand_beside_it() -> None:
    result = BenchResult("rescale", {})
    rescale_cores.add_ratio(result, rescale_cores.HEADLINE, [8.0, 12.0], [0.05, 0.05])
    rescale_cores.add_ratio(result, "8mb", [1.0, 2.0], [0.05, 0.0])
    assert result.ratios == {"plain_spark_vs_ours_rescale": 200.0}
    assert result.figures["plain_spark_vs_ours_rescale_state_bytes"] == 512 << 20
    by_state = result.figures["plain_spark_vs_ours_rescale_by_state"]
    assert list(by_state) == ["8mb", "512mb"]
    assert by_state["8mb"]["state_bytes"] == 8 << 20
    assert by_state["512mb"]["ratio"] == 200.0 and by_state["512mb"]["plain_spark_held_up_ms"] == 10_000.0
    assert by_state["8mb"]["ratio_spread"] == [20.0, 2000.0], (
        "a row that is not late at all counts as a millisecond"
    )


def test_the_full_form_has_sizes_of_state_that_the_quick_one_has_no_time_for() -> None:
    assert {*rescale.parts_of(False)} - {*rescale.parts_of(True)} == {"cores-128mb", "cores-1gb"}


def calm_of(pace_s: float, state: list[int], waiting: int) -> rescale_runs.Calm:
    calm = rescale_runs.Calm(pace_s)
    for size in state:
        calm.look(size, waiting)
    return calm


LOOKS = rescale_runs.CALM_LOOKS + 1


def test_rows_that_gather_between_two_paced_epochs_are_no_unrest() -> None:
    a_pace_of_rows = int(rescale_runs.ROWS_PER_S * rescale.PACED_S)
    still = [4 << 20] * LOOKS
    assert calm_of(rescale.PACED_S, still, a_pace_of_rows + 150).unrest(0) == ""
    assert "450 rows waited where 150 may" in calm_of(0.0, still, 450).unrest(0)
    assert "rows waited" in calm_of(rescale.PACED_S, still, 3 * a_pace_of_rows).unrest(0)


def test_what_is_not_calm_is_named() -> None:
    growing = [(4 << 20) + at * 40_960 for at in range(LOOKS)]
    assert calm_of(0.5, growing, 0).unrest(0).startswith("state grew by 327,680 of ")
    assert calm_of(0.5, growing, 0).unrest(3).endswith("3 snapshots were due")
    assert calm_of(0.5, growing[:3], 0).unrest(0) == "no look was long enough"


def test_a_measurement_that_fails_leaves_its_reason_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The part ends with what it has, whichever number of upstream executors finds no calm."""

    @contextmanager
    def loaded(held: object, cores: int, upstream: int = 1, **options: object) -> Iterator[int]:
        if upstream == 8:
            raise ChangeError("the query was not calm within 90 s: 3 snapshots were due.")
        yield upstream

    monkeypatch.setattr(rescale, "loaded", loaded)
    monkeypatch.setattr(
        rescale, "_measure_moves", lambda result, name, *_: result.add_figures(**{f"{name}_ms": 1.0})
    )
    result = BenchResult("rescale", {})
    result.figures["x_32_upstream_problem"] = "of an earlier run"
    rescale._measure_upstream(result, "x", rescale.Effort.of(True), lambda query: None)
    assert result.figures == {
        "x_1_upstream_ms": 1.0,
        "x_8_upstream_problem": "the query was not calm within 90 s: 3 snapshots were due.",
        "x_32_upstream_ms": 1.0,
    }
