"""Cases to compare policies on: a workload, the system it runs on, and what is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.control.policy.protocol import Limits
from penstock.control.sla import OPERATOR, SLA
from penstock.errors import DeclarationError
from penstock.sim.elastic.arrivals import Arrivals, BinnedArrivals
from penstock.sim.elastic.setting import (
    Costs,
    EpochTiming,
    Setting,
    SimExecutor,
    SimNode,
    SimOperator,
    spread_evenly,
)
from penstock.workloads import order_stream

MATCH = "match"
FOUR_NODES = tuple(SimNode(f"node-{number}", 8) for number in range(4))


@dataclass(frozen=True)
class Case:
    """One run's world, without a policy."""

    name: str
    seed: int
    setting: Callable[[int], Setting]
    """From the number of tasks to start with."""
    feeds: Callable[[], Mapping[str, Arrivals]]
    sla: SLA
    seconds: float
    limits: Limits
    operator: str
    """Whose shards the success rate is taken over."""
    tasks: int
    """To start with, where a policy has no number of its own."""
    interval_s: float = 0.1
    """δ: one turn of the control loop in this time."""

    @property
    def is_single(self) -> bool:
        """Whether there is one operator, so that its latency is all there is."""
        return self.sla.scope == OPERATOR


def order_stream_case(
    seed: int,
    *,
    seconds: float = order_stream.SECONDS,
    sla: SLA | None = None,
    costs: Costs | None = None,
    epochs: EpochTiming | None = None,
    nodes: tuple[SimNode, ...] = FOUR_NODES,
    interval_s: float = 0.1,
) -> Case:
    """The order stream of StreamSwitch 6: one operator, (L, T) = (1 s, 1 s), four nodes, δ = 100 ms.

    Raises:
        DeclarationError: more seconds than its day has.
    """
    if seconds > order_stream.SECONDS:
        raise DeclarationError(
            f"the day of the order stream has {order_stream.SECONDS / 3600:g} hours: simulate at most so many."
        )
    day = order_stream.make_order_day(seed)
    match = SimOperator(
        MATCH, order_stream.SHARDS, order_stream.SERVICE_PER_S, state_bytes=day.state_bytes, row_bytes=100
    )

    def setting(tasks: int) -> Setting:
        placed = SimExecutor(MATCH, spread_evenly(order_stream.SHARDS, nodes, tasks))
        return Setting(nodes, (match,), {MATCH: placed}, costs=costs or Costs(), epochs=epochs)

    return Case(
        "order-stream",
        seed,
        setting,
        lambda: {MATCH: BinnedArrivals(day.orders, seed=seed)},
        sla or SLA(1.0, 1.0, scope=OPERATOR),
        seconds,
        Limits(order_stream.MAX_TASKS, len(nodes), len(nodes), nodes[0].cores),
        MATCH,
        round(order_stream.MEAN_PER_S / order_stream.SERVICE_PER_S),
        interval_s,
    )
