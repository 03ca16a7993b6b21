"""Tests 3, 4, 5, 10, 11, 13 and 14 at full counts."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor

from tests.faults.crash_runs import all_points, crash_by_exception, crash_by_exit
from tests.faults.disk_weather import bad_disk as bad_disk_seed
from tests.faults.disk_weather import clean_up_race, power_loss, power_loss_with_stale_blocks
from tests.faults.plan_stories import check_seed as check_plans
from tests.faults.shape_runs import lateness, story
from tests.faults.zombie_runs import scratch, zombie
from tests.torture.report import Report, over_seeds

from penstock.testing.faults import When

CHUNK = 100


def check_exception(point: tuple[int, When]) -> str | None:
    return crash_by_exception(*point)


def check_exit(point: tuple[int, When]) -> str | None:
    with scratch() as folder:
        return crash_by_exit(*point, folder)


def crash_at_every_step(count: int, seed: int, report: Report) -> None:
    """Before and after every step of a whole run, as an exception and as `os._exit`."""
    points = all_points()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name, check in (("exception", check_exception), ("exit", check_exit)):
            for first in range(0, len(points), CHUNK):
                chosen = points[first : first + CHUNK]
                part = f"{name}, points {first + 1} to {first + len(chosen)} of {len(points)}"
                if report.wanted(part):
                    found = list(pool.map(check, chosen, chunksize=4))
                    wrong = [
                        f"{when} step {nth}: {what}"
                        for (nth, when), what in zip(chosen, found, strict=True)
                        if what
                    ]
                    report.note(part, len(found), len(found) - len(wrong), wrong)


def power_loss_suite(count: int, seed: int, report: Report) -> None:
    over_seeds(report, power_loss, count, seed, chunk=25)
    over_seeds(report, power_loss_with_stale_blocks, count // 2, seed + 1_000, chunk=25)


def zombies(count: int, seed: int, report: Report) -> None:
    over_seeds(report, zombie, count, seed, chunk=20)


def bad_disk(count: int, seed: int, report: Report) -> None:
    over_seeds(report, bad_disk_seed, count, seed, chunk=50)


def clean_up_races(count: int, seed: int, report: Report) -> None:
    over_seeds(report, clean_up_race, count, seed, chunk=25)


def plans(count: int, seed: int, report: Report) -> None:
    over_seeds(report, check_plans, count, seed, chunk=50)


def all_shapes(count: int, seed: int, report: Report) -> None:
    """Every shape at once with one, two or three watermarks in a row, then those alone, behind all that can stand before
    them: results by arithmetic over the sources' rows."""
    over_seeds(report, story, count, seed, chunk=25)
    over_seeds(report, lateness, count, seed + 1_000, chunk=25)
