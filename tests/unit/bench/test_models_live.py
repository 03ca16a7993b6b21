"""What the live parts of `bench models` do with what they saw: keep it, fit on some of it, judge by the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.bench import chain_simulated
from penstock.bench import models_live as live
from penstock.bench.chain import SERVICE_S, Seen, Setting, Stage
from penstock.bench.result import BenchResult
from penstock.control.measure.estimate import EpochCosts
from penstock.control.model.epoch_chain import EpochLink, predict_chain
from penstock.control.model.epoch_fit import EpochObservation

TRUE = EpochCosts(0.006, 0.0015, 0.0001)
INTAKE_S = 0.015


def see(rate_per_s: float, cores: tuple[int, ...]) -> Seen:
    """A chain that does what the model says."""
    links = [EpochLink(name, TRUE, rate_per_s, row_s * 1.1, live.SHARDS) for name, row_s in SERVICE_S.items()]
    split = dict(zip(SERVICE_S, cores, strict=True))
    predicted = predict_chain(links, split, INTAKE_S)
    stages = {}
    for link in links:
        found, k = predicted[link.name], split[link.name]
        touched = 40.0
        overhead_s = TRUE.o0_s + TRUE.o1_s * k + TRUE.o2_s * touched
        whole = EpochObservation(
            k, touched, 1 - overhead_s / found.duration_s, found.duration_s, found.latency_s
        )
        stages[link.name] = Stage(found.latency_s, 2 * found.latency_s, whole, (whole,) * 15, link.row_s)
    mean_s = sum(one.mean_s for one in stages.values())
    return Seen(Setting(rate_per_s, cores), mean_s, 2 * mean_s, stages, rate_per_s, 0.008, 0.5, 1.0)


def table(settings: dict[float, list[tuple[int, ...]]]) -> dict[str, Any]:
    seen = [see(rate, cores) for rate, splits in settings.items() for cores in splits]
    return {str(one.setting): json.loads(json.dumps(live.encode(one))) for one in seen}


def test_what_was_seen_is_the_same_after_a_file() -> None:
    seen = see(110.0, (1, 2, 1))
    assert live.decode(json.loads(json.dumps(live.encode(seen)))) == seen


def test_no_judged_setting_is_one_that_was_fitted_on_and_there_are_twelve() -> None:
    judged = {Setting(rate, cores) for rate, splits in live.JUDGED.items() for cores in splits}
    fitted = {Setting(rate, cores) for rate, splits in live.CALIBRATION.items() for cores in splits}
    assert len(judged) == 12 and not judged & fitted
    assert not set(live.JUDGED) & set(live.CALIBRATION)
    assert all(sum(one.cores) <= live.SESSION_CORES for one in judged | fitted)
    assert min(one.busiest for one in judged) <= 0.3 and 0.75 <= max(one.busiest for one in judged) <= 0.85


def test_a_chain_that_follows_the_model_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "derive_errors", lambda seen, links, intake_s: {"mean": len(seen)})
    result = BenchResult("models", {})
    result.figures["chain"] = {"calibration": table(live.CALIBRATION), "judged": table(live.JUDGED)}
    live.judge_errors(result)
    errors = result.figures["model_error"]
    assert errors["epoch"] < 0.1
    assert result.figures["model_error_ahead"]["epoch"] < 0.1
    assert set(errors) == {"mm1", "mmk", "gigk", "epoch", "epoch-station"}
    assert errors["mmk"] > 0.5, "a queue without epochs sees none of their overhead"
    assert result.figures["model_error_settings_judged"] == 12
    assert result.figures["simulator_error"] == {"mean": 12}


def test_the_time_of_a_row_is_taken_from_where_the_model_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "derive_errors", lambda seen, links, intake_s: {})
    result = BenchResult("models", {})
    slower = table({150.0: [(2, 4, 1)]})
    for one in slower.values():
        one["stages"]["match"]["row_s"] *= 1.2
    result.figures["chain"] = {"calibration": table(live.CALIBRATION), "judged": slower}
    live.judge_errors(result)
    measured, calibrated = result.figures["model_error"], result.figures["model_error_ahead"]
    assert measured["epoch"] > calibrated["epoch"], "rows that take longer are predicted to wait longer"
    assert measured["mmk"] != calibrated["mmk"]


def test_a_backlog_is_worked_off_by_what_the_tightest_operator_has_to_spare() -> None:
    # 250 rows/s of 16 ms on five cores: four are busy, so one works off what gathers on four.
    assert Setting(250.0, (3, 5, 2)).work_off_s(1.5) == pytest.approx(6.0)
    assert Setting(250.0, (5, 8, 3)).work_off_s(1.5) < 2.0


def test_the_simulator_steps_as_the_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_simulated, "SECONDS", 20.0)
    seen = [see(150.0, (2, 4, 1))]
    links, intake_s = live.fit(seen)
    found = chain_simulated.derive_errors(seen, links, intake_s)
    assert found["mean"] < 0.3


def test_the_epoch_model_of_a_chain_chooses_the_split_that_it_says_is_best() -> None:
    links, _ = live.fit([see(rate, cores) for rate, splits in live.CALIBRATION.items() for cores in splits])
    chosen = live.choose(links)
    rate_per_s, k_max = live.CHOICE
    assert set(chosen) == {"mm1", "mmk", "gigk", "epoch", "epoch-station"}
    assert {sum(split) for split in chosen.values()} == {k_max}
    said = {
        split: live.predict_s("epoch", links, 0.0, Setting(rate_per_s, split)) for split in chosen.values()
    }
    assert said[chosen["epoch"]] == min(said.values())


def test_neighbours_have_one_core_elsewhere_and_serve_the_load() -> None:
    found = live.neighbours_of((3, 5, 2), (1.6, 3.2, 0.8))
    assert (2, 6, 2) in found and (4, 4, 2) in found and (3, 6, 1) in found
    assert all(sum(one) == 10 for one in found) and (3, 5, 2) not in found
    assert (2, 5, 2) not in live.neighbours_of((3, 4, 2), (1.9, 3.2, 0.8))


@pytest.mark.parametrize(("own_s", "is_fine"), [(0.10, True), (0.105, True), (0.15, False)])
def test_a_choice_is_fine_if_it_is_best_or_within_noise(own_s: float, is_fine: bool) -> None:
    runs = {(3, 5, 2): (own_s, own_s * 1.05), (4, 4, 2): (0.1, 0.11), (2, 6, 2): (0.4, 0.44)}
    found = live.judge_choice((3, 5, 2), [(4, 4, 2), (2, 6, 2)], runs)
    assert found["best_or_within_noise"] is is_fine
    assert found["best_neighbour"] == "4:4:2"
