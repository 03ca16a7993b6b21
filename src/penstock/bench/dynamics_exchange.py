"""The exchange under each policy (Elasticutor 5.4, figure 16 and table 2): one transactor, six operators of statistics and
five of events, on three nodes, with emulated service times and stocks whose popularity is shuffled.

What a node reads of another and what state moves between them is counted by the engine; here it is only divided by time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa

import penstock
from penstock.bench import emulated
from penstock.bench.changing import ask
from penstock.bench.emulated import serve
from penstock.bench.ours import await_rows, running
from penstock.bench.result import BenchResult
from penstock.control.plan.guards import Guards
from penstock.spark.localcluster import LocalCluster
from penstock.spark.starting import RESERVE
from penstock.topology.sla import SLA
from penstock.workloads.dynamics import Dynamics, mean_ceiling, shard_of_keys
from penstock.workloads.exchange import matching_states
from penstock.workloads.exchange_matching import REPORT_DDL, match
from penstock.workloads.exchange_orders import ORDER_DDL, ORDER_SCHEMA, STOCKS, WARM_UP_ORDERS, orders

NODES: Final = 3
TRANSACTOR: Final = "transactor"
ANALYTICS: Final = tuple([f"statistics{n}" for n in range(6)] + [f"events{n}" for n in range(5)])
ORDER_S: Final = 6e-3
REPORT_S: Final = 3e-4
"""Long enough that the emulated cores are the limit, not the two real ones that all twelve operators share."""
SHARDS: Final = 64
POPULARITY: Final = Dynamics(keys=STOCKS, zipf=0.8, payload_bytes=0)
SHUFFLES_PER_MINUTE: Final = 2
SLA_S: Final = 0.5
EVERY_S: Final = 1.0


@dataclass(frozen=True)
class ShuffledOrders:
    """The orders of the exchange after its warm-up, their stocks drawn by a popularity that is shuffled while they flow.

    The exchange's own popularity is that of a whole day; at any moment fewer stocks are traded more (figure 15).
    """

    popularity: Dynamics

    def __call__(self, offset: int, count: int) -> pa.RecordBatch:
        made = orders(WARM_UP_ORDERS + offset, count)
        stock = self.popularity(offset, count).column("key").cast(pa.int32())
        at = ORDER_SCHEMA.get_field_index("stock")
        return made.set_column(at, ORDER_SCHEMA.field("stock"), stock)


def transact(key: Any, rows: Any, state: Any) -> Any:
    """Match orders, and be as busy as emulated."""
    serve(ORDER_S * len(rows))
    return match(key, rows, state)


def analyse(key: Any, rows: Any, state: Any) -> Any:
    """Keep a moving average of the price, and be as busy as emulated."""
    serve(REPORT_S * len(rows))
    mean = state.mean.get()
    for row in rows:
        if row.price is not None:
            mean = float(row.price) if mean is None else mean + 0.1 * (row.price - mean)
    if mean is None:
        return []
    state.mean.update(mean)
    return [(key.stock, mean)]


def topology(source: ShuffledOrders, rate: float, cores: int) -> penstock.Stream:
    """Declare the exchange: each operator of the analysis has one core, and the transactor the others."""
    placed = penstock.generate(source, schema=ORDER_DDL, rate=rate, name="orders")
    reports = placed.groupBy("stock").apply_rows(
        transact,
        schema=REPORT_DDL,
        state=matching_states(),
        name=TRANSACTOR,
        shards=SHARDS,
        cores=max(1, cores - len(ANALYTICS)),
    )
    analysed = [
        reports.groupBy("stock").apply_rows(
            analyse,
            schema="stock int, mean double",
            state={"mean": penstock.ValueState("double")},
            name=name,
            shards=SHARDS,
            cores=1,
        )
        for name in ANALYTICS
    ]
    return reduce(lambda one, other: one.union(other), analysed)


@contextmanager
def exchange_cluster(cores: int) -> Iterator[None]:
    """Three nodes with room for so many cores, the source and the reserve."""
    slots = -(-(cores + 1 + RESERVE) // NODES)
    with LocalCluster(workers=NODES, cores=slots, memory="1g") as cluster:
        spark = cluster.session("penstock-bench-exchange", {"spark.locality.wait": "1s"})
        try:
            yield
        finally:
            spark.stop()


def measure_exchange(
    result: BenchResult, policies: dict[str, str], guards: Guards, cores: int, warm_s: float, seconds: float
) -> None:
    """Run the exchange under each policy and add rate, latency, and bytes moved and read remotely in a second.

    Static keeps the cores that the topology declares: its own even share would starve the transactor.
    """
    # The transactor's share of the cores is what limits it; shuffles come about as often as said at that rate.
    own = cores - len(ANALYTICS)
    popularity = POPULARITY.shuffling(SHUFFLES_PER_MINUTE, own / ORDER_S)
    source = ShuffledOrders(popularity)
    hashed = shard_of_keys(STOCKS, SHARDS, pa.int32())
    result.add_figures(
        exchange_ceiling=mean_ceiling(popularity, range(10), hashed, np.arange(SHARDS) % own),
        exchange_transactor_cores=own,
    )
    for policy, registered in policies.items():
        stream = topology(source, emulated.UNBOUNDED_PER_S, cores)
        with running(stream, maxEpochSeconds=0.4, maxWaitingBytes=8 << 20) as query:
            await_rows(query, TRANSACTOR, 0)
            if policy != "static":
                query.elasticity.hold(SLA(SLA_S), registered, EVERY_S)
                query.elasticity._steering.loop.guards = guards
            time.sleep(warm_s)
            began, before = time.monotonic(), ask(query, _totals)
            time.sleep(seconds)
            passed, after = time.monotonic() - began, ask(query, _totals)
            rows, moved, remote = (now - was for was, now in zip(before, after, strict=True))
            latency = query.latency(ANALYTICS[0], began)
            result.add_figures(
                **{
                    f"exchange_{policy}_per_s": rows / passed,
                    f"exchange_{policy}_mean_ms": latency.mean_ms if latency is not None else float("inf"),
                    f"exchange_{policy}_moved_mb_per_s": moved / 1e6 / passed,
                    f"exchange_{policy}_remote_mb_per_s": remote / 1e6 / passed,
                    f"exchange_{policy}_actions": sum(one.acted for one in query.decisions()),
                }
            )
            result.figures[f"exchange_{policy}_journal"] = [
                str(one) for one in query.decisions() if one.acted
            ]
            result.write()


def _totals(engine: Any) -> tuple[int, int, int]:
    runs = [run for run in engine.runs.values() if run.spec.kind == "operator"]
    return (
        int(engine.runs[TRANSACTOR].counts.completed.sum()),
        sum(engine.placing.moves.bytes_of[run.spec.name] for run in runs),
        sum(run.counts.remote_bytes for run in runs),
    )
