"""What is PySpark's in a running processor: rows, timer values, the handle, GroupState. Shipped to the tasks with the
program, so it holds no session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import itemgetter
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from penstock.dataplane.logic.processor import ProcessorSpec
from penstock.dataplane.logic.processor_times import zone_named
from penstock.dataplane.program import Program
from penstock.errors import OperatorError
from penstock.spark.initial import initial_rows
from penstock.topology.stream import Stream


def with_zone(program: Program, zone: str) -> Program:
    """Return the program with the session's time zone in its processors.

    Raises:
        SessionError: there are processors, and Python does not know the zone.
    """
    stages = dict(program.stages)
    for name, spec in stages.items():
        if isinstance(spec.logic, ProcessorSpec):
            zone_named(zone)
            declared = replace(spec.logic.declared, zone=zone)
            stages[name] = replace(spec, logic=replace(spec.logic, declared=declared))
    return replace(program, stages=stages)


class SparkKit:
    """PySpark's classes, as `penstock.topology.processors.Kit` asks for them."""

    def row_class(self, names: Sequence[str]) -> type[tuple[Any, ...]]:
        return _row_class(tuple(names))

    def timer_values(self, processing_ms: int, watermark_ms: int) -> TimerValues:
        return TimerValues(processing_ms, watermark_ms)

    def expired_timer(self, expiry_ms: int) -> ExpiredTimerInfo:
        return ExpiredTimerInfo(expiry_ms)

    def handle(self, tools: Any) -> StatefulProcessorHandle:
        return Handle(tools)

    def deleted_error(self, what: str, told: str) -> OperatorError:
        return DeletedStateError(f"Error {what}: {told}")

    def group_function(
        self, function: Callable[..., Any], timeout: str, watermarked: bool
    ) -> StatefulProcessor:
        return GroupFunction(function, timeout, watermarked)

    def initial_rows(self, given: Any, operator: str) -> tuple[Stream, tuple[str, ...]]:
        return initial_rows(given, operator)


@lru_cache(maxsize=1024)
def _row_class(names: tuple[str, ...]) -> type[Row]:
    """Return a class of `Row`s with these fields, held by the class and not by every row.

    Fields are found by C code where `Row` would search; a name that `Row` has for itself, such as `count`, stays a
    method and is read as row["count"], as with any `Row`.
    """
    places: dict[Any, int] = {name: at for at, name in enumerate(names)}
    places |= {at: at for at in range(len(names))}
    taken = Row.__getitem__

    def getitem(self: Any, item: Any) -> Any:
        try:
            return tuple.__getitem__(self, places[item])
        except (KeyError, TypeError):
            return taken(self, item)

    fields: dict[str, Any] = {
        name: property(itemgetter(at))
        for at, name in enumerate(names)
        if not hasattr(Row, name) and not name.startswith("__")
    }
    fields |= {
        "__slots__": (),
        "__fields__": list(names),
        "__getitem__": getitem,
        "__module__": Row.__module__,
    }
    made: type[Row] = type("Row", (Row,), fields)
    return made


class DeletedStateError(OperatorError, PySparkRuntimeError):
    """A processor uses a state that its `init` deleted; code written for PySpark's error finds it here too."""

    def __init__(self, told: str) -> None:
        PySparkRuntimeError.__init__(self, message=told)


class Handle(StatefulProcessorHandle):
    """The handle that a task's processor gets."""

    def __init__(self, tools: Any) -> None:
        self._tools = tools

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._tools.variable(stateName, "value")

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._tools.variable(stateName, "list")

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> Any:
        return self._tools.variable(stateName, "map")

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._tools.register_timer(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._tools.delete_timer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        timers: Iterator[int] = self._tools.list_timers()
        return timers

    def deleteIfExists(self, stateName: str) -> None:
        self._tools.delete(stateName)


class GroupFunction(StatefulProcessor):
    """An `applyInPandasWithState` function as a processor: one value state, at most one timer per key."""

    def __init__(self, function: Callable[..., Any], timeout: str, watermarked: bool) -> None:
        self._function = function
        self._timeout = timeout
        self._watermarked = watermarked

    def init(self, handle: Any) -> None:
        self._tools = handle._tools
        self._state = handle.getValueState("state", "")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return self._call(key, rows, False)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        return self._call(tuple(key), self._tools.nothing(), True)

    def close(self) -> None:
        pass

    def _call(self, key: Any, frames: Any, timed_out: bool) -> list[Any]:
        timers = [] if self._timeout == GroupStateTimeout.NoTimeout else list(self._tools.list_timers())
        value = self._state.get()
        watermark_ms = self._tools.watermark_ms if self._watermarked else GroupState.NO_TIMESTAMP
        state = GroupState(
            optionalValue=Row(*(value or ())),
            batchProcessingTimeMs=self._tools.time_ms,
            eventTimeWatermarkMs=watermark_ms,
            timeoutConf=self._timeout,
            hasTimedOut=timed_out,
            watermarkPresent=self._watermarked,
            defined=value is not None,
            updated=False,
            removed=False,
            timeoutTimestamp=GroupState.NO_TIMESTAMP,
            keyAsUnsafe=b"",
            valueSchema=None,  # type: ignore[arg-type]
        )
        made = list(self._function(key, frames, state))
        self._keep(state, timers)
        return made

    def _keep(self, state: Any, timers: list[int]) -> None:
        """A call without a new time-out has none, and one set now replaces the old."""
        if state._updated:
            self._state.update(tuple(state._value))
        elif state._removed:
            self._state.clear()
        for expiry_ms in timers:
            self._tools.delete_timer(expiry_ms)
        if state._timeout_timestamp != GroupState.NO_TIMESTAMP:
            # Spark's time-outs are over when their time has passed, timers when it has come.
            self._tools.register_timer(int(state._timeout_timestamp) + 1)
