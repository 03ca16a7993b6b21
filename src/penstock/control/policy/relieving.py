"""Load balancing the StreamSwitch way for policies that decide numbers only: drs-lb."""

from __future__ import annotations

from penstock.control.measure.estimate import Estimate, ExecutorEstimate
from penstock.control.plan.plan import Plan
from penstock.control.policy.mapping import derive_plan, derive_switch, tail_factor
from penstock.control.policy.protocol import Option, Proposal
from penstock.control.policy.switching import BALANCE, Health, UnitStrategy, derive_health, find_balancing
from penstock.control.policy.wording import count, in_ms
from penstock.control.sla import SLA


def propose_relief(
    now: Estimate, sla: SLA, *, margin: float, alert_s: float, why: str, min_gain: float = 0.1
) -> Proposal | None:
    """Return one balancing move for each executor with a severe task, None where there is none or none helps.

    Args:
        why: what keeps the number of cores as it is, for the journal.
    """
    bound_s = sla.latency / tail_factor(sla)
    found: dict[str, UnitStrategy] = {}
    before_s = 0.0
    for name, executor in sorted(now.executors.items()):
        strategy = _find(executor, bound_s, margin, alert_s, min_gain) if executor.k else None
        if strategy is not None:
            found[name] = strategy
            before_s = max(before_s, derive_switch(executor, margin).worst_s)
    if not found:
        return None
    worst = max(strategy.after.worst_s for strategy in found.values())
    moves = [
        f"{n}: moved {count(len(s.shards), 'shard')} from task {s.source} to task {s.destination}"
        for n, s in found.items()
    ]
    return Proposal(
        Plan({name: derive_plan(strategy.after) for name, strategy in found.items()}),
        f"a task of {', '.join(found)} is headed for more than {in_ms(bound_s)} while {why}",
        "; ".join(moves),
        (Option("no change", before_s), Option(BALANCE, worst)),
        worst,
        urgent=True,
    )


def _find(
    executor: ExecutorEstimate, bound_s: float, margin: float, alert_s: float, min_gain: float
) -> UnitStrategy | None:
    switch = derive_switch(executor, margin)
    instantaneous = switch.task_latencies(executor.backlog_rows)
    alert_s = min(alert_s, bound_s / 2)
    healths = derive_health(instantaneous, switch.projected_s, alert_s, bound_s)
    severe = [at for at, health in enumerate(healths) if health == Health.SEVERE]
    if not severe:
        return None
    source = min(severe, key=lambda at: (float(switch.headroom[at]), at))
    strategy = find_balancing(switch, source)
    if strategy is None:
        return None
    gain = float(strategy.after.headroom.min() - switch.headroom.min())
    scale = max(float(switch.service_per_s[source]), float(switch.task_rates[source]))
    return strategy if gain > min_gain * scale or strategy.after.worst_s <= bound_s else None
