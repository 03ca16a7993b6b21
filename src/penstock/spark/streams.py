"""`penstock.streams`: the queries of this process and those who listen to them, with `spark.streams`' names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark import running
from penstock.spark.listening import announcer

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    from penstock.spark.query import Query


class Streams:
    """What StreamingQueryManager is for Spark's queries. There is one per process."""

    @property
    def active(self) -> list[Query]:
        """The queries that run, in the order in which they were started."""
        return running.active()

    def get(self, id: str) -> Query | None:
        """Return the running query of this id, or of this name; None when there is none."""
        return next((one for one in running.active() if str(id) in (one.id, one.name)), None)

    def awaitAnyTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until any query has ended since the process began, or since `resetTerminated()`.

        Returns:
            Whether one did within `timeout` seconds; None without a timeout.

        Raises:
            QueryError: a query that has ended did so with an error.
            DeclarationError: the timeout is no positive number.
        """
        running.check_timeout("awaitAnyTermination", timeout)
        ended = running.await_any(timeout)
        return ended if timeout is not None else None

    def resetTerminated(self) -> None:
        """Forget the queries that have ended, so that `awaitAnyTermination()` waits for the next one."""
        running.reset_terminated()

    def addListener(self, listener: StreamingQueryListener) -> None:
        """Call a `StreamingQueryListener` for every Penstock query from now on.

        Its methods are called one at a time, from one thread: `onQueryStarted` before `start()` returns,
        `onQueryProgress` about once a second while rows flow and `onQueryIdle` while none do, `onQueryTerminated`
        last. What it raises is logged and ends no query.

        Raises:
            DeclarationError: it is no listener.
        """
        announcer.add(listener)

    def removeListener(self, listener: StreamingQueryListener) -> None:
        """Stop calling a listener."""
        announcer.remove(listener)

    def __repr__(self) -> str:
        names = ", ".join(one.name or one.id for one in self.active)
        return f"<penstock.streams: {names or 'no query runs'}>"


streams = Streams()
