"""A small program for tests that kill things: `penstock run spark_app.py CONFIG`, a driver process of its own on a cluster.

Prints a line of JSON about every twentieth of a second: rows committed, the processes of its leases, whether all is as
planned. Its sink writes every sink epoch to a file beside the checkpoint, as a sink that honours the sink epoch would.
What it is told to do while it runs it reads from files, one after the other.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

import penstock
from penstock.dataplane.program import operator_of
from penstock.errors import PlanError
from penstock.sim.plans import random_plan
from penstock.spark.applying import current_plans

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.scenario import shapes

# Workers on the cluster cannot import the tests.
cloudpickle.register_pickle_by_value(shapes)

SHARDS = (24, 12)
IN_A_ROW = 2
"""Watermarks in a row behind an operator of the topology of every shape."""


def make_bids(offset: int, count: int) -> pa.RecordBatch:
    ids = range(offset, offset + count)
    return pa.record_batch(
        {
            "id": pa.array(ids, pa.int64()),
            "bidder": pa.array([(i * 7919) % 97 for i in ids], pa.int64()),
            "item": pa.array([f"item {(i * 104_729) % 23}" for i in ids]),
            "price": pa.array([(i * 31) % 1009 / 4 for i in ids], pa.float64()),
        }
    )


def follow(key: Any, rows: list[Any], state: Any) -> Any:
    """Number a bidder's bids; keep the last ones, and the best price per item."""
    seen = state.seen.get() or 0
    for row in rows:
        seen += 1
        state.best[row.item] = max(row.price, state.best.get(row.item, 0.0))
        state.last.appendValue(row.id)
        if len(state.last) > 5:
            state.last.put(list(state.last)[1:])
        yield row.id, key.bidder, row.item, seen, state.best[row.item], sum(state.last)
    state.seen.update(seen)


def stream(rate: float, pause_s: float = 0.0, cores: int = 2) -> Any:
    """Bids, followed per bidder, then counted per item.

    Args:
        cores: tasks of each operator.
        pause_s: a time that each call of the row function takes, so that a process is likely stopped inside its work.
    """

    def slowly(key: Any, bids: list[Any], state: Any) -> Any:
        if pause_s:
            time.sleep(pause_s)
        return follow(key, bids, state)

    bids = penstock.generate(make_bids, schema="id long, bidder long, item string, price double", rate=rate,
                             name="bids")  # fmt: skip
    followed = bids.groupBy("bidder").apply_rows(
        slowly, name="followed", shards=SHARDS[0], cores=cores,
        schema="id long, bidder long, item string, seen long, best double, last long",
        state={"seen": penstock.ValueState("long"), "best": penstock.MapState("string", "double"),
               "last": penstock.ListState("long")},
    )  # fmt: skip
    return followed.groupBy("item").agg(
        penstock.count(), penstock.sum("last").alias("total"), penstock.max("best").alias("best"),
        name="items", shards=SHARDS[1], cores=cores,
    )  # fmt: skip


def all_shapes(rate: float) -> Any:
    """A topology of every shape, with windows, sessions, timers and watermarks in a row; its sources end when they are
    given a limit."""
    made = []
    for name, make, schema in (
        ("orders", shapes.make_orders, shapes.ORDERS),
        ("payments", shapes.make_payments, shapes.ORDERS),
        ("rules", shapes.make_rules, shapes.RULES),
    ):
        source = penstock.generate(make, schema=schema, rate=rate, name=name)
        made.append(penstock.Stream(replace(source.node, bounded=True)))
    return shapes.everything(*made, depth=IN_A_ROW)


TOPOLOGIES = {
    "bids": (lambda given: stream(given["rate"], given["pause_s"], given["cores"]), "items"),
    "shapes": (lambda given: all_shapes(given["rate"]), "total"),
}
"""How each is made, and its operator whose rows are counted."""


class KillAtStep:
    """Kills this process, as nothing but SIGKILL does, at the n-th step of its durable I/O."""

    def __init__(self, step: int) -> None:
        self._left = step
        self._guard = threading.Lock()

    def before(self, step: Any, path: str) -> None:
        self._count()

    def after(self, step: Any, path: str) -> None:
        self._count()

    def _count(self) -> None:
        with self._guard:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def sink_into(folder: Path) -> Any:
    def put(table: pa.Table, epoch: int) -> None:
        part = folder / f".{epoch}.{os.getpid()}"
        part.write_text(json.dumps(table.to_pylist()))
        target = folder / f"{epoch}.json"
        if target.exists() and target.read_text() != part.read_text():
            (folder / f"{epoch}.differs").write_text(part.read_text())
        part.rename(target)

    return put


def main() -> None:
    given = json.loads(Path(sys.argv[1]).read_text())
    if given.get("kill_at_step"):
        from penstock.dataplane.disk import PosixDisk
        from penstock.spark import starting

        kill = KillAtStep(given["kill_at_step"])
        starting.PosixDisk = lambda: PosixDisk(kill)  # type: ignore[assignment,misc]
    spark = penstock.session(conf=given["conf"])
    folder, finish, told = Path(given["sink"]), Path(given["finish"]), 0
    folder.mkdir(exist_ok=True)
    make, counted = TOPOLOGIES[given.get("topology", "bids")]
    writer = (
        make(given)
        .writeStream.foreach_arrow(sink_into(folder))
        .option("checkpointLocation", given["checkpoint"])
        .option("retainAll", True)
    )
    query = writer.options(**given.get("options", {})).start(spark)
    while query.isActive:
        seen = query._ask(lambda shell: look(shell, counted))
        if seen is None:
            continue  # it is ending
        print(json.dumps(seen), flush=True)
        order = finish.with_suffix(f".order-{told}")
        if order.exists():
            print(json.dumps({"told": told, **carry_out(query, json.loads(order.read_text()))}), flush=True)
            told += 1
        if finish.exists():
            total = query._ask(end_sources)
            while query.isActive and not query._ask(lambda shell: shell.engine.draining.is_drained()):
                time.sleep(0.02)
            query.stop()
            print(json.dumps({"done": total}), flush=True)
            break
        time.sleep(0.05)


def end_sources(shell: Any) -> int:
    """Let the sources end with the rows that are due now, as many of each; return how many."""
    chains, found = shell.engine.chains, shell.engine.sources.arrivals
    limit = max(max(chains[name].offset, arrivals.due(time.time())) for name, arrivals in found.items())
    for arrivals in found.values():
        arrivals.limit = limit
    return int(limit)


def carry_out(query: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Throw a random plan at the query, half of them through its handle, or drain a node and give it back; say what came
    of it."""
    try:
        if "drain" in order:
            return {"said": query.drain(order["drain"], release=True, timeout=order["seconds"])}
        draw = random.Random(order["plan"])
        if draw.random() < 0.5:
            return {"said": ask_by_hand(query, draw)}
        return {"said": query._shell.hub.ask(lambda: throw_plan(query._shell.engine, draw))}
    except PlanError as error:
        return {"refused": str(error)}


def throw_plan(engine: Any, draw: random.Random) -> str:
    """Give the engine a random plan for up to four stages."""
    plan = random_plan(engine, draw, 4)
    engine.place(plan, timeout_s=20.0)
    moved = sum(len(engine.runs[one.stage].shards.displaced()) for one in plan)
    return f"{', '.join(one.stage for one in plan)}: {moved} shards"


def ask_by_hand(query: Any, draw: random.Random) -> str:
    """Ask the handle for something at random, as a user would: other cores, moved shards, a split or a merge."""
    plans = query._ask(lambda shell: current_plans(shell.engine))
    name = draw.choice(sorted(plans))
    match draw.choice(("rescale", "move", "split", "merge")):
        case "rescale":
            return str(query.rescale(operator_of(name), draw.randint(1, 6)))
        case "move":
            mine = [shard for shard, task in enumerate(plans[name].task_of.tolist()) if task >= 0]
            shards = draw.sample(mine, draw.randint(1, len(mine)))
            return str(query.move(name, shards, draw.choice(sorted(plans[name].tasks))))
        case "split":
            return str(query.split(name))
        case _:
            return str(query.merge(name))


def look(shell: Any, counted: str) -> dict[str, Any]:
    engine = shell.engine
    placing = engine.placing
    return {
        "rows": sum(chain.rows_in for chain in engine.chains.of(counted)),
        "leases": dict(shell.lease_pids),
        "ready": all(bool(run.ready.all()) for run in engine.runs.values()),
        "settled": all(map(placing.is_settled, engine.runs))
        and not any(map(engine.redealing.is_under_way, engine.program.stages)),
        "nodes": sorted({lease.node for lease in engine.leases.values()}),
        "moves": placing.moves.made,
        "given_up": [why for name in engine.runs if (why := placing.why_not(name)) is not None],
        "bytes": sum(placing.moves.bytes_of.values()),
    }


if __name__ == "__main__":
    main()
