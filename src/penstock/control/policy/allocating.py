"""What DRS decides for executors under one bound: another split, more cores, fewer, or what can be had.

Numbers only, from the models' predictions and the measured latency (DRS III-B, IV-B). When to act on it is `drs`'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.control.model.allocation import (
    Allocation,
    Station,
    assign_processors,
    min_processors,
    spread_processors,
)
from penstock.control.model.queues import ModelError
from penstock.control.policy.hotness import HotShard
from penstock.control.policy.protocol import Option
from penstock.control.policy.wording import count, in_ms


@dataclass(frozen=True)
class Group:
    """Executors that one bound holds for: all of them end-to-end, or one."""

    label: str
    stations: Sequence[Station]
    measured_s: float | None
    """E[T̂]: the measured total sojourn time."""
    current: Mapping[str, int]
    loads: Mapping[str, float]
    """Core-seconds a second that each executor needs, margin included."""
    waiting_s: float = 0.0
    """How long its tasks would work on what waits."""
    hot: HotShard | None = None
    """A shard that is late whatever number of cores there is."""

    @property
    def total(self) -> int:
        return sum(self.current.values())

    @property
    def room(self) -> float:
        """Cores that could be used at most."""
        return sum(station.at_most or math.inf for station in self.stations)

    def predict(self, cores: Mapping[str, int]) -> float:
        """Return E[T](k) = Σ (λ_i / λ0) E[T_i](k_i) (DRS, equation 4)."""
        visited = [station for station in self.stations if station.visits > 0]
        return math.fsum(s.visits * s.model.latency_s(cores[s.name]) for s in visited)


@dataclass(frozen=True)
class Want:
    """Cores that a group should have, and why."""

    group: Group
    cores: Mapping[str, int]
    symptom: str
    predicted_s: float
    action: str = ""
    """Empty where nothing should change."""
    problem: str = ""
    """Why the bound cannot be held, where it cannot."""
    options: tuple[Option, ...] = ()


def derive_options(wants: Sequence[Want]) -> tuple[Option, ...]:
    """Return what all groups together could do: "no change" as the slowest of them has it, then what each thought of."""
    before_s = max((want.group.predict(want.group.current) for want in wants), default=0.0)
    found = [Option("no change", before_s)]
    for want in wants:
        label = f"{want.group.label}: " if len(wants) > 1 else ""
        found += [
            Option(label + one.action, one.predicted_s, one.cost_s, one.feasible)
            for one in want.options
            if one.action != "no change"
        ]
    return tuple(found)


def propose_split(group: Group, k_max: int, min_gain: float) -> Want:
    """Problem (6): AssignProcessors for at most k_max cores.

    Raises:
        ModelError: k_max is below the stable minimum.
    """
    best = assign_processors(group.stations, k_max)
    now_s = group.predict(group.current)
    symptom = f"{count(group.total, 'core')}{in_ratio(group.current, ' as ')}, predicted {in_ms(now_s)}"
    split = f"split {count(best.total, 'core')}{in_ratio(best.cores, ' as ')}"
    options = (Option("no change", now_s), Option(split, best.latency_s))
    must = group.total > k_max or (now_s == math.inf and best.latency_s < math.inf)
    if best.cores == group.current or not (must or best.latency_s < now_s * (1 - min_gain)):
        return Want(group, group.current, symptom, now_s, options=options)
    action = f"{group.label}: {split}" if len(best.cores) > 1 else _change(group, best)
    return Want(group, best.cores, symptom, best.latency_s, action, options=options)


def propose_fit(
    group: Group,
    bound_s: float,
    t_min_s: float,
    floor: int,
    min_gain: float,
    serves: Callable[[Mapping[str, int]], bool],
) -> Want:
    """Problem (8): more cores on shortage, fewer under T_min, else the better split of as many (DRS IV-B).

    Where the model asks for no more than there is and the latency is over the bound all the same, the model errs, and
    one more is tried (III-B, last paragraph); not for a shard that no core more can help.

    Args:
        floor: fewest cores worth trying when some are given up.
        serves: whether so many cores keep up with the load as shards can be dealt to them: the model takes all tasks of an
            executor for equally loaded, and they are not. Asked before cores are given up.

    Raises:
        ModelError: no number of cores holds the bound.
    """
    now_s = group.predict(group.current)
    seen_s = group.measured_s if group.measured_s is not None else now_s
    need = min_processors(group.stations, bound_s)
    symptom = describe_latency(group, bound_s)
    options = (Option("no change", now_s), _option(need))
    if is_short(group, bound_s):
        if need.total > group.total:
            return Want(group, need.cores, symptom, need.latency_s, _change(group, need), options=options)
        if group.hot is not None:
            then_s = now_s if group.hot.is_served else math.inf
            return Want(group, group.current, symptom, then_s, problem=str(group.hot), options=options)
        if group.total >= group.room:
            problem = f"{group.label} is over the bound with a core for every shard that has rows"
            return Want(group, group.current, symptom, now_s, problem=problem, options=options)
        more = assign_processors(group.stations, group.total + 1)
        return Want(
            group,
            more.cores,
            symptom,
            more.latency_s,
            _change(group, more),
            options=(*options, _option(more)),
        )
    fewer = _find_fewer(group, need, bound_s, floor, serves) if seen_s < t_min_s else None
    if fewer is not None:
        return Want(group, fewer.cores, symptom, fewer.latency_s, _change(group, fewer), options=options)
    if len(group.stations) == 1:
        return Want(group, group.current, symptom, now_s, options=options)
    found = propose_split(group, group.total, min_gain)
    return Want(
        group, found.cores, symptom, found.predicted_s, found.action, options=options + found.options[1:]
    )


def describe_latency(group: Group, bound_s: float) -> str:
    """Return what is measured of a group and what is predicted, beside its bound."""
    now_s = group.predict(group.current)
    seen_s = group.measured_s if group.measured_s is not None else now_s
    return f"{group.label}: latency {in_ms(seen_s)}, predicted {in_ms(now_s)}, bound {in_ms(bound_s)}"


def _find_fewer(
    group: Group, need: Allocation, bound_s: float, floor: int, serves: Callable[[Mapping[str, int]], bool]
) -> Allocation | None:
    """Return an allocation with fewer cores than there are, `need` or as few more as keep up; None where none does.

    Steps double, as each has all shards dealt on trial.
    """
    total, step = max(need.total, floor), 1
    while total < group.total:
        found = need if total == need.total else assign_processors(group.stations, total)
        if found.latency_s <= bound_s and serves(found.cores):
            return found
        total, step = total + step, 2 * step
    return None


def is_short(group: Group, bound_s: float) -> bool:
    """Return whether cores are short: the measured latency is over the bound, or the load is not served."""
    seen_s = group.measured_s if group.measured_s is not None else 0.0
    return seen_s > bound_s or group.predict(group.current) == math.inf


def propose_making_do(group: Group, bound_s: float, usable: int, min_gain: float, problem: str) -> Want:
    """Deal what can be had, where no allocation holds the bound or serves the load; only if that helps, or if more than
    that is held. Where the load is served and the bound out of reach, it is all cores that help; else it goes by load."""
    now_s, must, problem = group.predict(group.current), group.total > usable, problem.rstrip(".")
    symptom = describe_latency(group, bound_s)
    stays = Want(group, group.current, symptom, now_s, problem=problem)
    if group.hot is None and not must:
        try:
            found = _find_all_that_help(group, usable, min_gain)
        except ModelError:
            pass
        else:
            gains = found.latency_s < now_s * (1 - 2 * min_gain)
            if not gains or not is_short(group, bound_s) or (found.total < group.total and now_s < math.inf):
                return stays
            return Want(group, found.cores, symptom, found.latency_s, _change(group, found), problem)
    least = {name: math.floor(load) + 1 for name, load in group.loads.items()}
    cores = least if sum(least.values()) <= usable else spread_by_load(group.loads, usable)
    most = {station.name: station.at_most or cores[station.name] for station in group.stations}
    cores = {name: min(max(k, 1), most[name]) for name, k in cores.items()}
    now = busiest(group.loads, group.current)
    if not must and (now < 1 or busiest(group.loads, cores) > now * (1 - 2 * min_gain)):
        return stays
    action = f"{group.label}: {count(sum(cores.values()), 'core')} by load{in_ratio(cores, ', ')}"
    return Want(group, cores, symptom, group.predict(cores), action, problem)


def _find_all_that_help(group: Group, usable: int, min_gain: float) -> Allocation:
    """Return the fewest cores whose latency is the least that can be had, but for what is no gain.

    Raises:
        ModelError: the load is not served.
    """
    best = assign_processors(group.stations, usable)
    return min_processors(group.stations, best.latency_s * (1 + min_gain), usable)


def spread_by_load(loads: Mapping[str, float], k_max: int) -> dict[str, int]:
    """Return so many cores spread by load, at least one for each."""
    return spread_processors(loads, max(k_max, len(loads)))


def busiest(loads: Mapping[str, float], cores: Mapping[str, int]) -> float:
    """Return the largest load per core."""
    return max((load / cores[name] for name, load in loads.items()), default=0.0)


def in_ratio(cores: Mapping[str, int], link: str) -> str:
    """Return an allocation as the papers write it, executors by name, behind a link: ` as 8:12:2`; nothing of a single
    executor, of which the number is said already."""
    return link + ":".join(str(cores[name]) for name in sorted(cores)) if len(cores) > 1 else ""


def _option(found: Allocation) -> Option:
    return Option(f"{count(found.total, 'core')}{in_ratio(found.cores, ', ')}", found.latency_s)


def _change(group: Group, found: Allocation) -> str:
    return f"{group.label}: {group.total} -> {count(found.total, 'core')}{in_ratio(found.cores, ', ')}"
