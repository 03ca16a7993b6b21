"""Where rows go and how the query is run: the declaration behind `writeStream`, with PySpark's names. Starts
nothing by itself.

The engine registers itself with `set_starter`, so that declaring a topology needs neither Spark nor the data
plane.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import DeclarationError
from penstock.topology.options import CHECKPOINT_LOCATION, find_option
from penstock.topology.stream import Node, Stream
from penstock.topology.windowed import resolve_output_mode

FORMATS = ("memory", "noop")


@dataclass(frozen=True)
class Declared:
    """A whole query, ready to be started."""

    node: Node
    sink: str
    function: Callable[..., Any] | None
    name: str | None
    options: dict[str, Any] = field(default_factory=dict)
    """The options that were given, by their full names, with read values."""


Starter = Callable[[Declared, Any], Any]
_starter: list[Starter] = []


def set_starter(starter: Starter) -> None:
    """Register what `start()` calls."""
    _starter[:] = [starter]


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

    def queryName(self, queryName: str) -> StreamWriter:
        """Name the query."""
        if not isinstance(queryName, str) or not queryName.strip():
            raise DeclarationError(f"queryName must be a non-empty string, not {queryName!r}.")
        self._name = queryName
        return self

    def format(self, source: str) -> StreamWriter:
        """Choose a built-in sink: 'memory' keeps the rows on the driver, 'noop' drops them."""
        if source not in FORMATS:
            raise DeclarationError(
                f"sink format {source!r} is unknown; use one of {', '.join(FORMATS)}, or foreachBatch(function)."
            )
        self._sink = source
        return self

    def foreachBatch(self, func: Callable[..., Any]) -> StreamWriter:
        """Call `func(table, sink_epoch)` on the driver for every sink epoch, in order.

        A sink epoch always means the same rows: after a failure it may be handed over again, with the same
        number and the same rows, so a function that remembers the last number it finished never applies a row
        twice.
        """
        if not callable(func):
            raise DeclarationError(f"foreachBatch(...) takes a function (table, sink_epoch), not {func!r}.")
        self._sink, self._function = "function", func
        return self

    def outputMode(self, outputMode: str) -> StreamWriter:
        """Choose what windowed aggregates put out: 'append', the default, a window once when it closes; 'update'
        the windows that changed.

        Plain aggregates put out the keys that changed ('update'); functions put out what they return."""
        allowed = ("update",) if self._stream.node.kind == "aggregate" else ("append", "update")
        if outputMode not in allowed:
            raise DeclarationError(
                f"operator '{self._stream.node.name}': outputMode {outputMode!r} is not available here; use "
                f"{' or '.join(allowed)}."
            )
        self._mode = outputMode
        return self

    def trigger(self, **settings: object) -> StreamWriter:
        """Refuse: epochs follow the load by themselves.

        Raises:
            DeclarationError: always; it names the options to use instead.
        """
        raise DeclarationError(
            f"trigger({', '.join(settings)}) is not available: epochs start as soon as rows wait; use "
            "option('minEpochSeconds', ...) to space them, or processAllAvailable() and stop() to end."
        )

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

    def start(self, spark: Any = None) -> Any:
        """Start the query and return its handle, which has StreamingQuery's names.

        Args:
            spark: the SparkSession to run on; the active one when not given.
        """
        declared = self.declare(complete=False)
        if not _starter:
            raise DeclarationError("nothing can start a query in this process; import penstock first.")
        return _starter[0](declared, spark)

    def declare(self, complete: bool = True) -> Declared:
        """Return the declaration after checking that it is complete.

        Args:
            complete: whether Spark's settings cannot supply options that are missing here.
        """
        if not self._sink:
            raise DeclarationError(
                f"'{self._stream.node.name}' has no sink; call format('memory'), format('noop') or foreachBatch(function)."
            )
        if complete and CHECKPOINT_LOCATION.name not in self._options:
            raise DeclarationError(
                f"option({CHECKPOINT_LOCATION.name!r}, ...) is required: a directory that all nodes can reach."
            )
        node = resolve_output_mode(self._stream.node, self._mode)
        return Declared(node, self._sink, self._function, self._name, dict(self._options))
