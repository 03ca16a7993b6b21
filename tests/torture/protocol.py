"""Test 12 at full count: thousands of seeds of the protocol simulation, and every planted bug."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

from tests.scenario.planted import PLANTED, hunt
from tests.torture.report import Report, over_seeds

from penstock.sim.protocol import simulate


def check_seed(seed: int) -> str | None:
    outcome = simulate(seed)
    if outcome.violation is None and seed % 50 == 0 and simulate(seed).trace != outcome.trace:
        return "the same seed gave another trace"
    return outcome.violation


def seeds(count: int, seed: int, report: Report) -> None:
    """Random schedules; of every fiftieth seed, the trace of a second run is compared."""
    over_seeds(report, check_seed, count, seed, chunk=100)


def check_planted(number: int) -> str | None:
    return None if hunt(PLANTED[number]).seed is not None else f"'{PLANTED[number].name}' was not found"


def planted(count: int, seed: int, report: Report) -> None:
    """Every planted bug must be found."""
    with ProcessPoolExecutor() as pool:
        wanted = [number for number, bug in enumerate(PLANTED) if report.wanted(bug.name)]
        for number, wrong in zip(wanted, pool.map(check_planted, wanted), strict=True):
            report.note(PLANTED[number].name, 1, int(wrong is None), [wrong] if wrong else [])
