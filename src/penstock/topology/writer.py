"""Where rows go and how the query is run: the declaration behind `writeStream`, with PySpark's names. Starts
nothing by itself.

The engine registers itself with `set_starter`, so that declaring a topology needs neither Spark nor the data
plane.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.errors import DeclarationError
from penstock.suggesting import did_you_mean
from penstock.topology.calling import checks_arguments
from penstock.topology.file_columns import check_file_columns, partition_columns
from penstock.topology.functions import check_function
from penstock.topology.nodes import Node, check_name
from penstock.topology.options import (
    CHECKPOINT_LOCATION,
    MIN_EPOCH_SECONDS,
    OPTIONS,
    SINK_PATH,
    check_sink_options,
    find_option,
)
from penstock.topology.output_modes import read_output_mode, resolve_output_mode
from penstock.topology.sla import SLA
from penstock.topology.stream import Stream
from penstock.topology.substitutes import WRITER, refuse_missing
from penstock.topology.triggers import Trigger, read_trigger

FORMATS = ("console", "memory", "noop", "parquet")
BATCH_FUNCTION = "foreachBatch"
ARROW_FUNCTION = "foreach_arrow"
_SINKS = f"format(...) with one of {', '.join(FORMATS)}, foreachBatch(function) or foreach_arrow(function)"
_VIEW = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")


@dataclass(frozen=True)
class Declared:
    """A whole query, ready to be started."""

    node: Node
    sink: str
    """A format, or the method that took the function."""
    function: Callable[..., Any] | None
    name: str | None
    options: dict[str, Any] = field(default_factory=dict)
    """The options that were given, by their full names, with read values."""
    trigger: Trigger = field(default_factory=Trigger)
    partition_by: tuple[str, ...] = ()
    also: tuple[Declared, ...] = ()
    """Further sinks; the name of each is what tells them apart."""
    sla: SLA | None = None
    policy: str | None = None
    policy_options: dict[str, Any] = field(default_factory=dict)

    @property
    def root(self) -> Node:
        """All that goes to the sinks, as one node."""
        return Node("sinks", "sinks", self.node.schema, (self.node, *(one.node for one in self.also)))

    def with_root(self, root: Node) -> Declared:
        """Return the same query over a topology that was rebuilt."""
        further = tuple(replace(one, node=node) for one, node in zip(self.also, root.inputs[1:], strict=True))
        return replace(self, node=root.inputs[0], also=further)


Starter = Callable[[Declared, Any], Any]
_starter: list[Starter] = []


def set_starter(starter: Starter) -> None:
    """Register what `start()` calls."""
    _starter[:] = [starter]


@checks_arguments
class StreamWriter:
    """Collects sink, name and options; `start()` runs the query. Methods return the writer, as PySpark's
    do."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._sink = ""
        self._function: Callable[..., Any] | None = None
        self._name: str | None = None
        self._mode: str | None = None
        self._options: dict[str, Any] = {}
        self._trigger = Trigger()
        self._partition_by: tuple[str, ...] = ()
        self._also: dict[str, StreamWriter] = {}
        self._sla: SLA | None = None
        self._policy: str | None = None
        self._policy_options: dict[str, Any] = {}

    def also(self, name: str, writer: StreamWriter) -> StreamWriter:
        """Give the query a further sink: another stream of the same topology, such as the dead letters of an operator.

        Each sink has sink epochs of its own. Checkpoint, trigger, output mode and name are those of the query.

        Args:
            name: of the sink; it is part of the checkpoint's identity.
            writer: `stream.writeStream` with a format or a function, and the options of that sink.

        Raises:
            DeclarationError: the name is taken, or the writer has what only a query has.
        """
        check_name(name, "sink")
        where = f"also({name!r}, ...)"
        if name in self._also:
            raise DeclarationError(f"{where}: the query has a sink of that name; give this one another.")
        if not isinstance(writer, StreamWriter):
            raise DeclarationError(f"{where} takes stream.writeStream with a sink, not {writer!r}.")
        of_query = writer._given_of_query()
        if of_query:
            raise DeclarationError(
                f"{where}: {', '.join(of_query)} belong{'s' if len(of_query) == 1 else ''} to the query, not to one sink; "
                "set it on the writer that is started."
            )
        self._also[name] = writer
        return self

    def _given_of_query(self) -> list[str]:
        """What was set here that only a query has."""
        parts = {
            "queryName": self._name,
            "outputMode": self._mode,
            "trigger": self._trigger != Trigger(),
            "also": self._also,
            "sla": self._sla,
        }
        options = [name for name in self._options if OPTIONS[name].sink is None]
        return [*options, *(name for name, given in parts.items() if given)]

    def sla(self, sla: SLA, policy: str = "penstock", **options: Any) -> StreamWriter:
        """Hold a latency bound while the query runs: shards move, cores and nodes come and go as it takes.

        Args:
            sla: the bound.
            policy: by which it is held; "advise" says what the default one would do, and does nothing. Options may stand
                behind it, as in "drs:k_max=8".
            options: of the policy; the start checks whether there is such a policy, and what its options may be.

        Raises:
            DeclarationError: it is no `SLA`, or the policy is not named by text.
        """
        if not isinstance(sla, SLA):
            raise DeclarationError(f"sla(...) takes penstock.SLA(latency=...), not {sla!r}.")
        if not isinstance(policy, str) or not policy:
            raise DeclarationError(
                f"sla(...): a policy is named by text, such as 'penstock' or 'drs:k_max=8', not {policy!r}."
            )
        self._sla, self._policy, self._policy_options = sla, policy, options
        return self

    def queryName(self, queryName: str) -> StreamWriter:
        """Name the query."""
        if not isinstance(queryName, str) or not queryName.strip():
            raise DeclarationError(f"queryName must be a non-empty string, not {queryName!r}.")
        self._name = queryName
        return self

    def format(self, source: str) -> StreamWriter:
        """Choose a built-in sink: 'parquet' adds files to a folder, 'console' prints, 'memory' keeps the rows
        on the driver as a view named like the query, 'noop' drops them.

        Raises:
            DeclarationError: there is no such sink; the nearest one is named.
        """
        if source not in FORMATS:
            raise DeclarationError(_unknown_format(source))
        self._sink, self._function = source, None
        return self

    def foreachBatch(self, func: Callable[..., Any]) -> StreamWriter:
        """Call `func(DataFrame, sink_epoch)` on the driver for every sink epoch, in order.

        A sink epoch always means the same rows: after a failure it may be handed over again, with the same
        number and the same rows, so a function that remembers the last number it finished never applies a row
        twice.
        """
        return self._with_function(BATCH_FUNCTION, func, "DataFrame")

    def foreach_arrow(self, func: Callable[..., Any]) -> StreamWriter:
        """Call `func(table, sink_epoch)` on the driver for every sink epoch, in order, with a `pyarrow.Table`.

        What `foreachBatch` promises of the sink epoch holds here too; no Spark job is run.
        """
        return self._with_function(ARROW_FUNCTION, func, "table")

    def _with_function(self, sink: str, func: Callable[..., Any], what: str) -> StreamWriter:
        check_function(func, (what, "sink_epoch"), f"{sink}(...)")
        self._sink, self._function = sink, func
        return self

    def outputMode(self, outputMode: str) -> StreamWriter:
        """Choose what windowed aggregates put out: 'append', the default, a window once when it closes; 'update'
        the windows that changed.

        Plain aggregates put out the keys that changed ('update'); functions put out what they return. Upper and lower
        case are the same, as in Spark.

        Raises:
            DeclarationError: an operator whose rows reach the sink cannot have the mode.
        """
        self._mode = read_output_mode(outputMode, self._stream.node)
        return self

    def partitionBy(self, *cols: Any) -> StreamWriter:
        """Let the values of columns be folders `column=value` of a Parquet sink."""
        names = cols[0] if len(cols) == 1 and isinstance(cols[0], list | tuple) else cols
        self._partition_by = partition_columns(names, self._stream.schema)
        return self

    def trigger(
        self,
        *,
        processingTime: str | None = None,
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,
        realTime: str | None = None,
    ) -> StreamWriter:
        """Space epochs, or end the query after what is there.

        Args:
            processingTime: shortest time between two epochs of a stage, such as "5 seconds"; "0 seconds" is
                the default: epochs start as soon as rows wait.
            once, availableNow: process what is available at start, then end.

        Raises:
            DeclarationError: none or several were given, or one that cannot be had (continuous, realTime).
        """
        self._trigger = read_trigger(
            {
                "processingTime": processingTime,
                "once": once,
                "continuous": continuous,
                "availableNow": availableNow,
                "realTime": realTime,
            }
        )
        return self

    def option(self, key: str, value: object) -> StreamWriter:
        """Set one option.

        Raises:
            DeclarationError: the option is unknown (the nearest name is given), or the value is none of its kind.
        """
        found = find_option(key)
        self._options[found.name] = found.read(value)
        return self

    def options(self, **options: object) -> StreamWriter:
        """Set several options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def start(
        self,
        path: Any = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: Any = None,
        queryName: str | None = None,
        *,
        spark: Any = None,
        **options: object,
    ) -> Any:
        """Start the query and return its handle, which has StreamingQuery's names.

        Args:
            path: folder of a Parquet sink; or the SparkSession to run on.
            format, outputMode, partitionBy, queryName, options: as the methods of these names.
            spark: the SparkSession to run on; the active one when not given.
        """
        if path is not None and not isinstance(path, str | os.PathLike):
            path, spark = None, path
        if path is not None:
            self.option(SINK_PATH.name, path)
        if format is not None:
            self.format(format)
        if outputMode is not None:
            self.outputMode(outputMode)
        if partitionBy is not None:
            self.partitionBy(partitionBy)
        if queryName is not None:
            self.queryName(queryName)
        declared = self.options(**options).declare(complete=False)
        if not _starter:
            raise DeclarationError("nothing can start a query in this process; import penstock first.")
        return _starter[0](declared, spark)

    def declare(self, complete: bool = True) -> Declared:
        """Return the declaration after checking that it is complete.

        Args:
            complete: whether Spark's settings cannot supply options that are missing here.
        """
        declared = self._collected(complete)
        return declared.with_root(resolve_output_mode(declared.root, self._mode))

    def _collected(self, complete: bool) -> Declared:
        node = self._stream.node
        if not self._sink:
            raise DeclarationError(f"'{node.name}' has no sink; call {_SINKS}.")
        if complete and CHECKPOINT_LOCATION.name not in self._options:
            raise DeclarationError(
                f"option({CHECKPOINT_LOCATION.name!r}, ...) is required: a directory that all nodes can reach."
            )
        check_sink_options(self._options, self._sink)
        self._check_sink()
        further = tuple(
            replace(writer._collected(complete=False), name=name) for name, writer in self._also.items()
        )
        declared = Declared(
            node,
            self._sink,
            self._function,
            self._name,
            dict(self._options),
            self._trigger,
            self._partition_by,
            further,
            self._sla,
            self._policy,
            dict(self._policy_options),
        )
        self._check_trigger(declared.root)
        _check_folders(declared)
        return declared

    if not TYPE_CHECKING:  # type checkers are to find what is not there

        def __getattr__(self, name: str) -> NoReturn:
            refuse_missing(self, name, WRITER)

    def _check_sink(self) -> None:
        if self._sink == "parquet":
            check_file_columns(self._stream.schema)
        if self._partition_by and self._sink != "parquet":
            raise DeclarationError("partitionBy(...) belongs to format('parquet'); leave it out.")
        if self._sink == "memory" and self._name is not None and not _VIEW.match(self._name):
            raise DeclarationError(
                f"queryName {self._name!r} cannot be the name of a view, which a memory sink makes of it; use letters, "
                "digits and underscores."
            )

    def _check_trigger(self, root: Node) -> None:
        trigger = self._trigger
        if trigger.interval_s is not None and MIN_EPOCH_SECONDS.name in self._options:
            raise DeclarationError(
                f"trigger(processingTime=...) and option({MIN_EPOCH_SECONDS.name!r}, ...) set the same; give one of them."
            )
        if trigger.ends is None:
            return
        for source in sources_of(root):
            if source.kind == "generate" and source.limit is None:
                raise DeclarationError(
                    f"source '{source.name}' makes rows without an end, so trigger({trigger.ends}=True) has nothing to end "
                    "after; give it a limit."
                )


def sources_of(node: Node) -> list[Node]:
    """Return all sources above a node, each once."""
    seen: dict[int, Node] = {}
    ahead = [feed.stage for feed in node.feeds()]
    while ahead:
        one = ahead.pop()
        if id(one) not in seen:
            seen[id(one)] = one
            ahead.extend(feed.stage for given in one.inputs for feed in given.feeds())
    return [one for one in seen.values() if not one.inputs]


def _check_folders(declared: Declared) -> None:
    """Refuse two sinks in one folder: the names of their files would be the same."""
    folders: dict[str, str] = {}
    for one in (declared, *declared.also):
        if one.sink == "parquet":
            path = os.path.normpath(SINK_PATH.of(one.options).removeprefix("file:"))
            if path in folders:
                raise DeclarationError(
                    f"two sinks of the query write to the folder {path}; give also({one.name!r}, ...) another path."
                )
            folders[path] = path


def _unknown_format(given: object) -> str:
    hint = did_you_mean(given, FORMATS, f"use one of {', '.join(FORMATS)}.")
    return f"sink format {given!r} is unknown; {hint} foreachBatch(function) writes to anything that Spark can write to."
