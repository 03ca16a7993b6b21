"""How ingest has Spark start its query, with a stand-in for Spark: beside a driver that was overtaken, and as one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.dataplane import paths, recordlog
from penstock.dataplane.disk import PosixDisk
from penstock.dataplane.recordlog import Claim
from penstock.errors import FencedError, OperatorError, PenstockError
from penstock.spark import ingest, starting
from penstock.spark.ingest import Ingest

WHO = Claim(0, "host", 7, "boot", 1.0, 100.0)
METADATA = (
    "SparkConcurrentModificationException: Multiple streaming queries are concurrently using cp/metadata."
)
LOG = "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 4."
CLEARED = "File file:/cp/ingest/orders/sources/0/..0.1876adf9-5345-431e-bdf9-1f0cecaf58be.tmp.crc does not exist"


class FakeSpark:
    """A streaming DataFrame whose query starts, fails or ends as told."""

    def __init__(self, outcomes: list[str]) -> None:
        self.outcomes = outcomes
        self.starts = 0
        self.sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))
        self.writeStream = self

    def foreachBatch(self, function: Any) -> FakeSpark:
        return self

    def option(self, name: str, value: str) -> FakeSpark:
        return self

    def start(self) -> Any:
        self.starts += 1
        error = self.outcomes.pop(0) if self.outcomes else ""
        if error.startswith("start: "):
            raise RuntimeError(error.removeprefix("start: "))
        ended = RuntimeError(error) if error else None
        return SimpleNamespace(isActive=ended is None, exception=lambda: ended)


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(ingest, "CONCURRENT_POLL_S", 0.001)
    monkeypatch.setattr(ingest, "RESTARTED_WITHIN_S", 0.05)
    monkeypatch.setattr(ingest, "is_local", lambda spark: True)
    monkeypatch.setattr(ingest, "is_alive", lambda spark: True)
    PosixDisk().make_dirs(paths.drivers(str(tmp_path)))
    yield str(tmp_path)


def make(checkpoint: str, spark: FakeSpark) -> Ingest:
    claim = recordlog.claim_generation(PosixDisk(), checkpoint, WHO)
    shell: Any = SimpleNamespace(
        opened=SimpleNamespace(checkpoint=checkpoint, claim=claim),
        label="q",
        hub=SimpleNamespace(ask=lambda question: question()),
        engine=SimpleNamespace(chains={"orders": SimpleNamespace(batch=None)}),
    )
    return Ingest(shell, "orders", spark, pa.schema([("n", pa.int64())]), None)


def overtake(checkpoint: str) -> None:
    recordlog.claim_generation(PosixDisk(), checkpoint, Claim(0, "elsewhere", 8, "boot", 1.0, 200.0))


@pytest.mark.parametrize("text", [METADATA, LOG, CLEARED])
def test_a_start_beside_an_overtaken_driver_waits_until_that_is_gone(checkpoint: str, text: str) -> None:
    spark = FakeSpark([f"start: {text}", f"start: {text}", ""])
    make(checkpoint, spark).start()
    assert spark.starts == 3


def test_a_folder_that_another_query_keeps_using_is_refused_with_the_source(checkpoint: str) -> None:
    spark = FakeSpark([f"start: {METADATA}"] * 1_000)
    with pytest.raises(
        OperatorError, match=r"source 'orders': Spark did not start its query: .*concurrently using"
    ):
        make(checkpoint, spark).start()


def test_what_spark_refuses_is_an_error_of_ours_with_the_source(checkpoint: str) -> None:
    spark = FakeSpark(["start: AnalysisException: no such mode"])
    with pytest.raises(OperatorError, match=r"source 'orders': .*no such mode"):
        make(checkpoint, spark).start()
    assert spark.starts == 1


def test_the_ingest_of_an_overtaken_driver_is_told_who_has_the_checkpoint(checkpoint: str) -> None:
    begun = make(checkpoint, FakeSpark([f"start: {METADATA}"]))
    overtake(checkpoint)
    with pytest.raises(FencedError, match="process 8 on elsewhere, since"):
        begun.start()


def test_a_query_that_met_a_batch_of_an_overtaken_driver_starts_again(checkpoint: str) -> None:
    spark = FakeSpark([LOG, ""])
    begun = make(checkpoint, spark)
    begun.start()
    assert begun.failure() is None and spark.starts == 2
    assert begun.failure() is None and spark.starts == 2, "the second one runs"


@pytest.mark.parametrize("text", [LOG, CLEARED])
def test_a_query_that_was_overtaken_is_told_who_has_the_checkpoint(checkpoint: str, text: str) -> None:
    begun = make(checkpoint, FakeSpark([text]))
    begun.start()
    overtake(checkpoint)
    failed = begun.failure()
    assert isinstance(failed, FencedError) and "process 8 on elsewhere, since" in str(failed)


def test_a_query_that_keeps_meeting_another_one_ends_with_the_source(checkpoint: str) -> None:
    spark = FakeSpark([LOG] * 100)
    begun = make(checkpoint, spark)
    begun.start()
    told = next(error for error in iter(begun.failure, 1) if error is not None)
    assert isinstance(told, OperatorError) and "source 'orders': its Spark query met" in str(told)
    assert spark.starts == ingest.MAX_RESTARTS + 1


def test_an_overtaken_driver_does_not_start_its_query_again(checkpoint: str) -> None:
    spark = FakeSpark([LOG, ""])
    begun = make(checkpoint, spark)
    begun.start()
    overtake(checkpoint)
    assert isinstance(begun.failure(), FencedError) and spark.starts == 1


class Py4JJavaError(Exception):
    """As Spark's own errors look from outside: told by the module they are of."""


Py4JJavaError.__module__ = "py4j.protocol"


def test_no_error_of_sparks_leaves_a_start(checkpoint: str) -> None:
    claim = recordlog.claim_generation(PosixDisk(), checkpoint, WHO)
    opened: Any = SimpleNamespace(checkpoint=checkpoint, claim=claim)
    told = starting._give_back(PosixDisk(), opened, Py4JJavaError("java.lang.IllegalStateException: stopped"))
    assert isinstance(told, PenstockError) and "IllegalStateException: stopped" in str(told)
    mine = KeyError("the user's own")
    assert starting._give_back(PosixDisk(), opened, mine) is mine
    overtake(checkpoint)
    told = starting._give_back(PosixDisk(), opened, Py4JJavaError("java.lang.IllegalStateException: stopped"))
    assert isinstance(told, FencedError) and "process 8 on elsewhere" in str(told)
