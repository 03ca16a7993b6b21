"""Drivers that start at the same moment: one runs, and every other one is told who."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults import spark_starts
from tests.faults.start_races import draw_round, races


def test_of_drivers_that_start_at_the_same_moment_one_runs_and_the_others_are_told_who(
    tmp_path: Path,
) -> None:
    with races(tmp_path) as found:
        wrong = {seed: what for seed in range(40) if (what := found.run(seed)) is not None}
    assert wrong == {}


def test_the_races_meet_every_kind_of_start() -> None:
    drawn = [draw_round(seed) for seed in range(40)]
    assert {race.before for race in drawn} == {"new", "given back", "killed"}
    assert {len(race.gaps_s) for race in drawn} == {2, 3, 4}
    assert {race.apart for race in drawn} == {True, False}
    assert {any(race.takeover) for race in drawn} == {True, False}


@pytest.mark.long
def test_of_drivers_that_start_with_ingest_at_the_same_moment_one_goes_on(tmp_path: Path) -> None:
    assert len(list(spark_starts.race(tmp_path, 3, 7))) == 3
