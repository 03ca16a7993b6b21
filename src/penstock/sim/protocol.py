"""The record, lease and bring protocol as a deterministic simulation: one seed, one storm, one outcome.

The real engine, log, workers and bring run in a `World`; a simple model and a list of promises judge them.
The same seed gives the same trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock.sim.inprocess import Driver
from penstock.sim.model import Violation
from penstock.sim.world import (
    DEAL_ACTIONS,
    DRIVER_ACTIONS,
    LEASE_ACTIONS,
    PLAN_ACTIONS,
    Weather,
    World,
)


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


def weather_of(seed: int) -> Weather:
    """Seeds take turns: trouble with leases alone, with plans, with drivers, with the disk, with everything."""
    actions: tuple[str, ...]
    match seed % 8:
        case 0:
            return Weather(0.0, 0.0, 0.0, actions=LEASE_ACTIONS, disturbances_per_s=40.0)
        case 4:
            short = seed % 16 == 12
            return Weather(
                0.0,
                0.0,
                0.0,
                actions=PLAN_ACTIONS,
                disturbances_per_s=50.0,
                rows=480,
                short_lived_files=short,
            )
        case 1 | 5:
            actions = (*DRIVER_ACTIONS, "kill", "clean", "plan")
            return Weather(
                0.0,
                0.0,
                take_over_ratio=0.008,
                meanwhile_ratio=0.04,
                actions=actions,
                disturbances_per_s=15.0,
            )
        case 2 | 6:
            actions = ("power", "clean", "kill", "plan", "plan")
            return Weather(0.004, 0.002, take_over_ratio=0.0, actions=actions, disturbances_per_s=6.0)
        case _:
            return Weather()


def dealt_weather_of(seed: int) -> Weather:
    """As `weather_of`, with shards dealt anew between executors all the time."""
    actions: tuple[str, ...]
    match seed % 4:
        case 0:
            return Weather(0.0, 0.0, 0.0, actions=DEAL_ACTIONS, disturbances_per_s=60.0, rows=480)
        case 1:
            actions = (*DRIVER_ACTIONS, *DEAL_ACTIONS)
            return Weather(0.0, 0.0, take_over_ratio=0.004, actions=actions, disturbances_per_s=30.0)
        case 2:
            actions = ("power", "clean", "kill", *("deal",) * 5)
            return Weather(0.003, 0.0015, take_over_ratio=0.0, actions=actions, disturbances_per_s=20.0)
        case _:
            return Weather(
                0.0, 0.0, 0.0, actions=DEAL_ACTIONS, disturbances_per_s=50.0, short_lived_files=True
            )


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
