"""How bad it gets in a simulated world: what happens to disks, leases and drivers, how often, and which of it for a seed.

Plain numbers; `world` makes it happen.
"""

from __future__ import annotations

from dataclasses import dataclass

LEASE_ACTIONS = (
    "kill",
    "kill",
    "pause",
    "pause",
    "cut",
    "cut",
    "gate",
    "gate",
    "clean",
    "resize",
    "plan",
    "plan",
    "plan",
)
PLAN_ACTIONS = (*("plan",) * 6, "kill", "pause", "cut", "gate", "clean", "resize")
DEAL_ACTIONS = (*("deal",) * 6, "plan", "plan", "kill", "pause", "cut", "gate", "clean", "resize")
DRIVER_ACTIONS = ("crash", "crash", "take_over", "take_over", "power", "stop", "plan")


@dataclass(frozen=True)
class Weather:
    """How bad it gets. Ratios are per disk step, rates per virtual second."""

    fail_ratio: float = 0.002
    crash_ratio: float = 0.0007
    take_over_ratio: float = 0.001
    meanwhile_ratio: float = 0.02
    """Steps of a starting driver during which others go on."""
    stall_ratio: float = 0.02
    """Messages and appends that take up to a hundred times as long."""
    slow_step_ratio: float = 0.0
    """Steps that take up to half a second, while which nothing else gets on."""
    cleanup_s: float | None = None
    """Time between two rounds of clean-up, where it is not left to the seed."""
    short_lived_files: bool = False
    """Small files, few epochs retained and slow copies: files die while copies are made from them."""
    disturbances_per_s: float = 25.0
    storm_s: float = 0.4
    rows: int = 240
    actions: tuple[str, ...] = (*LEASE_ACTIONS, *DRIVER_ACTIONS)


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
