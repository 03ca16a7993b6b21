"""Nodes come and go on a real standalone cluster, and leases land on the node that is asked for.

One cluster for the whole file, one story: each test finds the nodes that the one before has left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.flows import running, two_steps

from penstock.control.measure.estimate import Estimate
from penstock.control.plan.plan import Plan
from penstock.control.policy.protocol import Limits, Proposal
from penstock.control.policy.registry import register, unregister
from penstock.control.sla import SLA
from penstock.dataplane import messages
from penstock.dataplane.program import Program
from penstock.spark.hub import Hub, Listener
from penstock.spark.leases import LeaseOffice
from penstock.spark.localcluster import LocalCluster
from penstock.spark.node_load import NodeLoad, NodeMeter
from penstock.spark.nodes import NodeChange, negotiator
from penstock.spark.slots import nodes
from penstock.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.cluster, pytest.mark.long]

CORES = 2
WITHOUT_PENSTOCK = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "penstock":
            raise ModuleNotFoundError("No module named 'penstock'", name="penstock")

sys.meta_path.insert(0, Absent())
"""


def wait_until(holds: Callable[[], bool], seconds: float = 30) -> float:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() < began + seconds, "did not happen in time"
        time.sleep(0.05)
    return time.monotonic() - began


@pytest.fixture(scope="module")
def cluster(_sessions: None) -> Iterator[LocalCluster]:
    from pyspark.sql import SparkSession

    left = SparkSession._instantiatedSession
    if left is not None:
        left.stop()
    with LocalCluster(workers=1, cores=CORES, memory="512m") as found:
        yield found
        assert found.trespasses() == []


@pytest.fixture(scope="module")
def spark(cluster: LocalCluster) -> Iterator[SparkSession]:
    session = cluster.session("nodes", {"spark.locality.wait": "1s"})
    yield session
    session.stop()


class Up(Listener):
    """Remembers which leases are up, and where."""

    def __init__(self) -> None:
        self.hellos: dict[str, messages.Hello] = {}

    def lease_up(self, lease: str, hello: messages.Hello) -> None:
        self.hellos[lease] = hello


class Leasing:
    """A query's hub and office, without its engine."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.up = Up()
        self.hub = Hub("127.0.0.1", self.up)
        self.hub.start(lambda error: None)
        self.office = LeaseOffice(spark, Program({}), self.hub.address, 1, str(folder), "orders")

    def submit(self, node: str | None) -> str:
        offer = self.office.prepare()
        self.hub.expect(offer.lease, offer.token)
        self.office.submit(offer, "test", node)
        return offer.lease

    def lease(self, node: str | None) -> messages.Hello:
        name = self.submit(node)
        wait_until(lambda: name in self.up.hellos)
        self.office.note_up(name, self.up.hellos[name].node)
        return self.up.hellos[name]

    def end_all(self) -> None:
        for name in list(self.office.asked):
            self.hub.ask(lambda name=name: self.hub.send(name, messages.End("done")))  # type: ignore[misc]
        wait_until(lambda: bool(self.office.ended() or True) and not self.office.jobs())


@pytest.fixture
def leasing(spark: SparkSession, tmp_path: Path) -> Iterator[Leasing]:
    found = Leasing(spark, tmp_path)
    yield found
    found.hub.close()
    found.office.close()


def ids(spark: SparkSession) -> list[str]:
    return [node.executor_id for node in nodes(spark)]


def told(change: NodeChange) -> NodeChange:
    print(change)
    return change


def test_a_worker_that_joins_gives_no_node_until_one_is_acquired(
    cluster: LocalCluster, spark: SparkSession
) -> None:
    negotiating = negotiator(spark)
    assert told(negotiating.settle()).done
    assert cluster.add_worker(slow=2.0) == 1
    assert ids(spark) == ["0"]
    change = told(negotiating.acquire(2))
    assert change.done and change.came == ("1",)
    assert cluster.node_of(1) == "1" and cluster.worker_of("0") == 0


def test_a_lease_lands_on_the_node_that_is_asked_for_and_elsewhere_when_that_is_full(
    leasing: Leasing,
) -> None:
    for node in ("1", "0", "1"):
        hello = leasing.lease(node)
        assert (hello.node, hello.version) == (node, __version__)
    assert (leasing.office.landed, leasing.office.landed_elsewhere) == (3, 0)
    assert leasing.lease("1").node == "0"
    assert (leasing.office.landed, leasing.office.landed_elsewhere) == (3, 1)
    assert "still serves orders" in negotiator(leasing.office._spark).release(["1"]).problem
    leasing.end_all()


def test_a_slow_node_knows_its_factor_and_every_node_its_load(spark: SparkSession) -> None:
    def look(_: Iterator[int]) -> Iterator[tuple[str, float, NodeLoad | None, float]]:
        import os
        import time

        from penstock.dataplane.emulation import read_slowness

        meter = NodeMeter()
        meter.read()
        time.sleep(0.3)
        began = time.perf_counter()
        load = meter.read()
        yield os.environ["SPARK_EXECUTOR_ID"], read_slowness().factor, load, time.perf_counter() - began

    found = spark.sparkContext.parallelize(range(4), 4).mapPartitions(look).collect()
    assert {(node, factor) for node, factor, _, _ in found} == {("0", 1.0), ("1", 2.0)}
    assert min(took for *_, took in found) < 0.002
    for _, _, load, took in found:
        print(load, took)
        assert load is not None and load.cpu_ratio < 3 and 0.05 < load.memory_ratio < 2


def test_a_node_without_penstock_is_named_and_released_without_replacement(
    cluster: LocalCluster, spark: SparkSession, leasing: Leasing, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_PENSTOCK)
    worker = cluster.add_worker(environment={"PYTHONPATH": str(tmp_path)})
    negotiating = negotiator(spark)
    assert told(negotiating.acquire(3)).came == ("2",)
    leasing.submit("2")
    over = []
    wait_until(lambda: bool(over.extend(leasing.office.ended()) or over))
    assert over[0].reason.startswith("node 2 on 127.0.0.1 has no Penstock"), over[0].reason
    assert "pip install 'penstock" in over[0].reason
    change = told(negotiating.release(["2"]))
    assert change.done and change.went == ("2",)
    time.sleep(1.0)
    assert ids(spark) == ["0", "1"], "the worker is there, and nobody has asked for a node of it"
    cluster.remove_worker(worker)
    assert cluster.workers == [0, 1]


def test_a_node_that_does_not_come_is_asked_for_no_longer(spark: SparkSession) -> None:
    change = told(negotiator(spark).acquire(3, timeout_s=1.0))
    assert "1 node did not come within 1 s" in change.problem
    assert negotiator(spark).target == 2


def test_a_killed_worker_takes_its_node_along_and_the_rest_goes_on(
    cluster: LocalCluster, spark: SparkSession, leasing: Leasing
) -> None:
    leasing.lease("1")
    cluster.kill_worker(1)
    took = wait_until(lambda: ids(spark) == ["0"])
    print(f"gone in {took:.2f} s")
    wait_until(lambda: bool(leasing.office.ended()))
    assert leasing.lease("1").node == "0"
    assert leasing.office.landed_elsewhere == 1
    assert negotiator(spark).release(["1"]).done
    assert negotiator(spark).target == 1
    leasing.end_all()


class Asking:
    """A policy that wants every node it may have."""

    name = "asking"

    def propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
        more = limits.max_nodes - len(now.nodes)
        plan = Plan({}, add_nodes=more) if more else None
        return Proposal(plan, "a node is missing", f"asked for {more}" if more else "no change", urgent=True)

    def note_failure(self, reason: str) -> None:
        pass


@pytest.mark.parametrize("given", [None, 2])
def test_a_policy_gets_nodes_up_to_what_the_query_allows(
    cluster: LocalCluster, spark: SparkSession, tmp_path: Path, given: int | None
) -> None:
    if len(cluster.workers) < 2:
        cluster.add_worker()
    if given is not None:
        assert len(ids(spark)) == 1
    register("asking", Asking)
    try:
        options = {"maxNodes": given} if given is not None else {}
        with running(two_steps(None, 500.0, cores=1), spark, tmp_path / "cp", **options) as query:
            query.elasticity.hold(SLA(latency=5.0), "asking", 0.2)
            wait_until(lambda: len(query.decisions()) > 1)
            if given is None:
                time.sleep(1.0)
                assert len(ids(spark)) == 1, "as many as were there"
            else:
                wait_until(lambda: len(ids(spark)) == 2)
                wait_until(lambda: any(one.acted for one in query.decisions()))
    finally:
        unregister("asking")
