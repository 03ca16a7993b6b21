from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.errors import SessionError
from penstock.spark.localcluster import LocalCluster
from penstock.spark.processes import read_processes
from penstock.spark.session import check_session, nodes, real_cores, slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.cluster, pytest.mark.long]


def wait_until(holds: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    return any(process.pid == pid and process.command for process in read_processes())


@pytest.mark.usefixtures("no_session")
def test_a_cluster_comes_up_loses_and_gains_nodes_and_leaves_nothing_behind() -> None:
    with LocalCluster(workers=2, cores=2) as cluster:
        root = cluster.directory
        spark = cluster.session()
        try:
            started = cluster.executor_pids()
            assert len(started) == 2
            check_offer(spark)
            check_private(cluster, spark)
            check_secret_is_hidden(cluster)
            check_node_loss(cluster, spark)
            left = cluster.executor_pids()
        finally:
            spark.stop()
    wait_until(lambda: not any(is_running(pid) for pid in started + left), 10)
    assert not root.exists()


def check_offer(spark: SparkSession) -> None:
    check_session(spark)
    assert slots(spark) == real_cores(spark) == 4
    assert [(node.executor_id, node.cores) for node in nodes(spark)] == [("0", 2), ("1", 2)]


def check_private(cluster: LocalCluster, spark: SparkSession) -> None:
    def look(_: Iterator[int]) -> Iterator[str]:
        import tempfile

        yield tempfile.gettempdir()

    places = set(spark.sparkContext.parallelize(range(4), 4).mapPartitions(look).collect())
    assert len(places) == 2
    assert len(cluster.python_worker_pids()) >= 2
    for place in places:
        assert Path(place).parent.parent == cluster.directory
        assert mode(Path(place)) == mode(Path(place).parent) == 0o700
    assert mode(cluster.directory) == 0o700
    assert mode(cluster.directory / "cluster.properties") == 0o600


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def check_secret_is_hidden(cluster: LocalCluster) -> None:
    secret = cluster.conf()["spark.authenticate.secret"]
    assert not [process.pid for process in read_processes() if secret in " ".join(process.command)]


def check_node_loss(cluster: LocalCluster, spark: SparkSession) -> None:
    cluster.kill_worker(0)
    assert cluster.workers == [1]
    wait_until(lambda: len(nodes(spark)) == 1)
    assert cluster.add_worker() == 2
    wait_until(lambda: len(nodes(spark)) == 2)
    os.kill(cluster.executor_pids()[0], signal.SIGKILL)
    wait_until(lambda: len(nodes(spark)) == 1)
    with pytest.raises(SessionError, match="no worker 0"):
        cluster.kill_worker(0)
