"""A batch DataFrame as a source: what happens when its job is cancelled or cannot be run. No Spark here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.dataplane.records import Batch
from penstock.errors import OperatorError
from penstock.spark import batch_ingest
from penstock.spark.batch_ingest import BatchIngest

CANCELLED = "[SPARK_JOB_CANCELLED] Job 3 cancelled as part of cancellation of all jobs"


class Feed(BatchIngest):
    """Fails with these texts, one after the other, then commits."""

    def __init__(self, failures: list[str]) -> None:
        opened = SimpleNamespace(checkpoint="/c", query="q", claim=SimpleNamespace(generation=1))
        self.over: list[str] = []
        shell: Any = SimpleNamespace(
            label="q",
            opened=opened,
            over=False,
            hub=SimpleNamespace(ask=lambda question: question()),
            engine=SimpleNamespace(sources=SimpleNamespace(on_source_over=self.over.append)),
        )
        context = SimpleNamespace(
            master="local[2]", setJobGroup=lambda *given: None, cancelJobGroup=lambda group: None
        )
        frame = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context))
        super().__init__(shell, "numbers", frame, pa.schema([]), None)
        self.failures = failures
        self.known = False

    def _is_known(self, batch: Batch) -> bool:
        return self.known

    def _commit(self, dataframe: Any, batch: Batch) -> None:
        if self.failures:
            raise RuntimeError(self.failures.pop(0))
        self.known = True


@pytest.fixture(autouse=True)
def alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_ingest, "is_alive", lambda spark: True)


def ran(failures: list[str]) -> Feed:
    feed = Feed(failures)
    feed.start()
    assert feed._done.wait(10)
    return feed


def test_a_cancelled_job_is_run_again_and_the_engine_hears_of_the_end() -> None:
    feed = ran([CANCELLED, CANCELLED])
    assert feed.finished and feed.failure() is None and feed.over == ["numbers"]


def test_a_job_that_is_cancelled_every_time_ends_the_query() -> None:
    feed = ran([CANCELLED] * 100)
    assert len(feed.failures) > 90 and not feed.finished and not feed.over
    assert "source 'numbers': its DataFrame cannot be computed" in str(feed.failure())


def test_any_other_failure_ends_the_query_at_once() -> None:
    feed = ran(["java.lang.ArithmeticException: Exception: divided by zero", CANCELLED])
    assert len(feed.failures) == 1 and isinstance(feed.failure(), OperatorError)
    with pytest.raises(OperatorError, match="divided by zero"):
        feed.drain()
