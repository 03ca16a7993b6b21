"""The record, lease and bring protocol as a deterministic simulation: one seed, one storm, one outcome.

The real engine, log, workers and bring run in a `World`; a simple model and a list of promises judge them.
The same seed gives the same trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock.sim.inprocess import Driver
from penstock.sim.model import Violation
from penstock.sim.weather import Weather, weather_of
from penstock.sim.world import World


@dataclass(frozen=True)
class Outcome:
    """What came of one seed."""

    seed: int
    violation: str | None
    trace: str
    drivers: int = 0
    commits: int = 0
    happened: dict[str, int] = field(default_factory=dict)
    recent: list[str] = field(default_factory=list)
    """The end of the trace, for a person who reads a failure."""


def simulate(seed: int, weather: Weather | None = None, driver_class: type[Driver] = Driver) -> Outcome:
    """Run one seed; a broken promise stands in the outcome and is not raised."""
    world = World(seed, weather or weather_of(seed), driver_class)
    violation = None
    try:
        world.run()
    except Violation as error:
        violation = str(error)
    except Exception as error:
        violation = f"{type(error).__name__}: {error}"
    world.loop.note("end" if violation is None else "violation")
    return Outcome(
        seed, violation, world.loop.trace(), len(world.drivers), len(world.promises.acknowledged), world.happened,
        world.loop.recent[-40:],
    )  # fmt: skip


def first_violation(
    seeds: Iterable[int], simulate_one: Callable[[int], Outcome] = simulate
) -> Outcome | None:
    """Return the first outcome that breaks a promise, None when there is none."""
    return next((found for seed in seeds if (found := simulate_one(seed)).violation is not None), None)
