"""A batch DataFrame as a bounded source: all its rows are one batch, hence one record, committed once.

Before that record nothing of them counts, and a restart computes the DataFrame again; after it they are in the
checkpoint, and a restart does not look at the DataFrame any more.
"""

from __future__ import annotations

import contextlib
import threading

from penstock.dataplane.records import Batch
from penstock.errors import CheckpointError, OperatorError, PenstockError
from penstock.spark.ingest import _OURS, MAX_RESTARTS, Ingest, is_cancelled
from penstock.spark.judging import OF_A_BATCH_DATAFRAME
from penstock.spark.leases import reason_in
from penstock.spark.session import is_alive

THE_BATCH = Batch(OF_A_BATCH_DATAFRAME, 0)
"""Key of the one batch of such a source."""


class BatchIngest(Ingest):
    """Feeds one source of a running query from a batch DataFrame."""

    def prepare(self) -> None:
        """There is no folder of Spark's."""

    def start(self) -> None:
        self._done = threading.Event()
        self._error: PenstockError | None = None
        self._cancelled = 0
        opened = self._shell.opened
        self._group = f"penstock-{opened.query}-{opened.claim.generation}-{self._source}"
        threading.Thread(target=self._run, name=f"penstock-{self._source}", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        if not self._done.is_set():
            with contextlib.suppress(Exception):  # Spark may be gone
                self._dataframe.sparkSession.sparkContext.cancelJobGroup(self._group)

    def failure(self) -> PenstockError | None:
        return None if self._stopped.is_set() else self._error

    @property
    def finished(self) -> bool:
        return self._done.is_set() and self._error is None

    def drain(self) -> None:
        """Wait until all rows are committed."""
        while not self._done.wait(0.05) and not self._shell.over:
            pass
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._is_known(THE_BATCH):
                self._take_all()
            hub, engine = self._shell.hub, self._shell.engine
            hub.ask(lambda: engine.sources.on_source_over(self._source))
        except PenstockError as error:
            self._error = error
        except Exception as error:
            told = _OURS.search(str(error))
            reason = told.group(1) if told is not None else reason_in(str(error))
            self._error = OperatorError(
                f"source '{self._source}': its DataFrame cannot be computed: {reason}"
            )
        finally:
            self._done.set()

    def _take_all(self) -> None:
        """Commit all rows; a job that somebody cancelled is run again, as the batches of a streaming DataFrame are."""
        spark = self._dataframe.sparkSession
        spark.sparkContext.setJobGroup(self._group, f"penstock {self._shell.label}, ingest {self._source}")
        try:
            self._commit(self._dataframe, THE_BATCH)
        except Exception as error:
            if self._stopped.is_set() or not (is_cancelled(str(error)) and is_alive(spark)):
                raise
            self._cancelled += 1
            if self._cancelled > MAX_RESTARTS:
                raise

    def _plan(self, batch: Batch, writer: str) -> Batch:
        """Nothing is planned outside our own records."""
        return batch

    def _is_known(self, batch: Batch) -> bool:
        """Whether all rows are committed. Any thread but the hub's."""
        known = self._known()
        if known is not None and known.query != batch.query:
            raise CheckpointError(
                f"source '{self._source}' was a streaming DataFrame in this checkpoint and is a batch DataFrame now; give "
                "it another name, or start with an empty checkpointLocation."
            )
        return known is not None
