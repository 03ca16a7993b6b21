"""The checks pass on honest runs, however disturbed, and fail on every forgery. Runs use the harness and real state."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.faults.runs import KEPT, fast_disk, real_program, scratch

from penstock.dataplane.program import Program
from penstock.sim.inprocess import Driver
from penstock.sim.programs import memory_program
from penstock.sim.timing import quick
from penstock.testing.line import CheckFailure, read_line
from penstock.testing.outputs import last_per_key, operator_digest, output_rows, rows_by_key
from penstock.testing.replay import replay
from penstock.testing.schedule import check_schedule, find_schedule_faults
from penstock.testing.tamper import Tampering, rewrite, tamper_rows, tamper_schedule

PROGRAMS: dict[str, Callable[[], Program]] = {"memory": memory_program, "real": real_program}


def disturbed_run(folder: Path, program: Program, seed: int, rows: int = 300, disturb: bool = True) -> str:
    """A run that is drained in the end, with leases killed and drivers crashed on the way."""
    checkpoint = str(folder / "run")
    driver = Driver(
        fast_disk(), checkpoint, program, KEPT, seed, str(folder / "node"), rows=rows, rate=4_000.0
    )
    rng = random.Random(seed)
    for _ in range(5 if disturb else 0):
        driver.run_until(rng.uniform(0.03, 0.1))
        leases = driver.live_leases()
        if rng.random() < 0.6 and leases:
            driver.kill(rng.choice(leases))
        else:
            driver.crash()
            driver.restart()
    assert driver.run_until("drained", 30.0), driver.failed
    driver.stop()
    driver.loop.run_until(lambda: False, 1.0)
    return checkpoint


@pytest.fixture(scope="module", params=list(PROGRAMS))
def run(request: pytest.FixtureRequest) -> Iterator[tuple[str, Program, Path]]:
    with scratch() as folder:
        program = PROGRAMS[request.param]()
        yield disturbed_run(folder, program, seed=3), program, folder


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", list(PROGRAMS))
def test_a_disturbed_run_commits_a_schedule_without_gaps_and_replays_to_the_same_bytes(
    kind: str, seed: int
) -> None:
    with scratch() as folder:
        program = PROGRAMS[kind]()
        checkpoint = disturbed_run(folder, program, seed)
        check_schedule(checkpoint, program, complete=True)
        replayed = replay(checkpoint, program)
        assert replayed.rows == 3 * 300, "source, fold and gather each saw every row"
        assert replayed.digests > 50


def test_a_disturbed_run_says_the_same_of_every_key_as_a_free_running_one(
    run: tuple[str, Program, Path],
) -> None:
    checkpoint, program, _ = run
    line = read_line(checkpoint)
    with scratch() as folder:
        free = read_line(disturbed_run(folder, program, seed=77, disturb=False))
        assert rows_by_key(output_rows(line, program, "fold"), ["k"]) == rows_by_key(
            output_rows(free, program, "fold"), ["k"]
        )
        assert operator_digest(line, program, "fold") == operator_digest(free, program, "fold")
        last = last_per_key(output_rows(line, program, "fold"), ["k"])
        assert sum(row["seq"] for row in last.values()) == 300  # type: ignore[misc]


@pytest.mark.parametrize("how", list(Tampering))
@pytest.mark.parametrize("stage", ["source", "fold", "gather"])
def test_the_replay_notices_when_rows_are_tampered_with(
    run: tuple[str, Program, Path], stage: str, how: Tampering
) -> None:
    checkpoint, program, folder = run
    target = str(folder / f"rows-{stage}-{how.name}")
    tamper_rows(checkpoint, program, target, stage, how)
    with pytest.raises(CheckFailure):
        replay(target, program)


@pytest.mark.parametrize("how", [Tampering.DROP, Tampering.DOUBLE])
def test_the_schedule_check_notices_source_rows_that_were_dropped_or_doubled(
    run: tuple[str, Program, Path], how: Tampering
) -> None:
    checkpoint, program, folder = run
    target = str(folder / f"taken-in-{how.name}")
    tamper_rows(checkpoint, program, target, "source", how)
    with pytest.raises(CheckFailure, match="'source' epoch"):
        check_schedule(target, program)


@pytest.mark.parametrize("how", list(Tampering))
@pytest.mark.parametrize("stage", ["fold", "gather", "sink"])
def test_the_schedule_check_notices_when_ranges_are_tampered_with(
    run: tuple[str, Program, Path], stage: str, how: Tampering
) -> None:
    checkpoint, program, folder = run
    target = str(folder / f"ranges-{stage}-{how.name}")
    tamper_schedule(checkpoint, program, target, stage, how)
    expected = (
        "leaving a gap" if how is Tampering.DROP else "again" if how is Tampering.DOUBLE else "gap|again"
    )
    with pytest.raises(CheckFailure, match=expected):
        check_schedule(target, program)
    if stage != "sink":
        with pytest.raises(CheckFailure):
            replay(target, program)


def test_a_rewritten_checkpoint_with_nothing_changed_passes_every_check(
    run: tuple[str, Program, Path],
) -> None:
    checkpoint, program, folder = run
    target = str(folder / "same")
    rewrite(read_line(checkpoint), program, target, lambda record: record)
    check_schedule(target, program, complete=True)
    replay(target, program)


def test_a_run_that_is_not_drained_has_a_sound_schedule_that_is_not_complete() -> None:
    with scratch() as folder:
        program = memory_program()
        checkpoint = str(folder / "run")
        driver = Driver(
            fast_disk(), checkpoint, program, KEPT, 1, str(folder / "node"), rows=400, rate=8_000.0
        )
        driver.run_until(lambda: driver.engine.chains["gather"].rows_in > 100)
        driver.crash()
        line = read_line(checkpoint)
        assert find_schedule_faults(line, program) == []
        assert find_schedule_faults(line, program, complete=True)


def test_a_run_without_retained_parts_is_said_to_be_unreadable() -> None:
    with scratch() as folder:
        program = memory_program()
        driver = Driver(fast_disk(), str(folder / "run"), program, quick(), 1, str(folder / "node"), rows=400)
        driver.run_until("drained")
        with pytest.raises(CheckFailure, match="retain_all"):
            read_line(str(folder / "run"))
