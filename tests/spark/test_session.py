from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from penstock.errors import SessionError
from penstock.spark.session import (
    LEASE_POOL,
    SPARE_SLOTS,
    PenstockWarning,
    check_session,
    nodes,
    real_cores,
    session,
    slots,
)
from penstock.spark.slots import Node, machine_cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_plain(master: str, settings: dict[str, str]) -> SparkSession:
    """Open a session as a user would, without our help."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def test_our_own_session_passes_its_check_without_a_warning(spark: SparkSession) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_session(spark)


def test_spare_slots_are_open_beyond_the_real_cores(spark: SparkSession) -> None:
    assert real_cores(spark) == machine_cores()
    assert slots(spark) == machine_cores() + SPARE_SLOTS
    assert nodes(spark) == [Node("driver", "127.0.0.1", slots(spark))]
    assert spark.sparkContext.defaultParallelism == machine_cores()


def test_workers_run_this_interpreter_through_unix_sockets(spark: SparkSession) -> None:
    def look(_: Iterator[int]) -> Iterator[tuple[str, str]]:
        import os
        import sys

        yield sys.executable, os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "").lower()

    seen = spark.sparkContext.parallelize([0], 1).mapPartitions(look).collect()
    assert seen == [(sys.executable, "true")]


def test_leases_have_a_pool_that_goes_before_other_jobs(spark: SparkSession) -> None:
    pool = spark.sparkContext._jsc.sc().getPoolForName(LEASE_POOL).get()
    assert pool.weight() > 100


def test_a_session_that_is_open_is_used_again_and_says_what_it_ignores(spark: SparkSession) -> None:
    assert session() is spark
    with pytest.warns(PenstockWarning, match=r"without spark\.x=1, cores=99"):
        assert session(cores=99, conf={"spark.x": "1"}) is spark


@pytest.mark.usefixtures("no_session")
def test_a_stopped_session_is_refused() -> None:
    spark = session()
    spark.stop()
    with pytest.raises(SessionError, match="stopped"):
        check_session(spark)


@pytest.mark.usefixtures("no_session")
def test_a_users_session_is_accepted_and_each_conflict_named() -> None:
    sockets = "spark.python.unix.domain.socket.enabled"
    asked = {"spark.speculation": "true", sockets: "false", "spark.scheduler.mode": "FIFO"}
    spark = open_plain("local[4,2]", asked)
    try:
        with pytest.warns(PenstockWarning) as caught:
            check_session(spark)
        (warning,) = caught
        assert warning.filename == __file__, "it names the user's line"
        told = str(warning.message)
        assert told.startswith("4 settings of this SparkSession work against leases")
        assert all(f"{name}=" in told for name in ("spark.task.maxFailures", *asked))
        assert spark.sparkContext.getConf().get("spark.speculation") == "true"
        assert (slots(spark), real_cores(spark)) == (4, min(4, machine_cores()))
    finally:
        spark.stop()


@pytest.mark.usefixtures("no_session")
def test_dynamic_allocation_is_refused_by_name() -> None:
    spark = open_plain("local[4]", {"spark.dynamicAllocation.enabled": "true"})
    try:
        with pytest.raises(SessionError, match=r"spark\.dynamicAllocation\.enabled"):
            check_session(spark)
    finally:
        spark.stop()


@pytest.mark.usefixtures("no_session")
def test_a_single_slot_is_refused() -> None:
    spark = open_plain("local[1]", {"spark.dynamicAllocation.enabled": "false"})
    try:
        with pytest.raises(SessionError, match="single slot"):
            check_session(spark)
    finally:
        spark.stop()
