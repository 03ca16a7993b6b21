"""The nodes of a topology: sources, operators and what lies between them, as immutable facts; and what may be named how.

A node knows where its rows come from, through steps, unions and loops. No engine here, and no user-facing methods: those
are of `Stream`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.topology.aggregates import Aggregate
from penstock.topology.processors import Processor
from penstock.topology.schema import parse_schema
from penstock.topology.stateless import FusedStep, Watermark
from penstock.topology.states import StateSpec
from penstock.topology.type_words import schema_words
from penstock.topology.windows import Window

DEFAULT_SHARDS = 256
DEFAULT_STATION_SHARDS = 64
MAX_SHARDS = 4096
AT_ONCE_PER_S = 1e12
"""Rate at which the rows of a bounded source arrive: all are there."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}$")


@dataclass(frozen=True)
class Node:
    """One source or operator of a topology."""

    name: str
    kind: str
    """generate | dataframe | rows | arrow | aggregate | windowed | cogrouped | broadcast | processor | station |
    stateless | union | loop | side"""
    schema: pa.Schema
    inputs: tuple[Node, ...] = ()
    keys: tuple[str, ...] = ()
    shards: int = DEFAULT_SHARDS
    cores: int | None = None
    function: Callable[..., Any] | None = None
    states: Mapping[str, StateSpec] | None = None
    aggregates: tuple[Aggregate, ...] = ()
    rate: tuple[tuple[float, float], ...] = ()
    limit: int | None = None
    dataframe: Any = None
    stamp: str | None = None
    bounded: bool = False
    """Of a source: it ends, and a query whose sources all do ends by itself after them."""
    faults: bool = False
    """Of a scripted source: something dies in it, which only `penstock.testing.run` can carry out."""
    right_keys: tuple[str, ...] = ()
    """Of an operator with a second input (cogrouped, or a processor's initial state): the key columns of that."""
    processor: Processor | None = None
    emitted_time: str | None = None
    """Of a processor: the column of its output that is the event time there."""
    initial: bool = False
    """Of a source: it holds initial state; no other source begins before all of it is taken in."""
    window: Window | None = None
    """Of a windowed operator: what it groups by beside its keys."""
    window_at: int = 0
    """Place of the window among the grouping columns."""
    output_mode: str | None = None
    """Of a windowed operator: append or update; append where it is not settled."""
    step: FusedStep | None = None
    """Of a stateless node: what it does to the rows of its one input, inside the stage that makes them."""
    steps: tuple[FusedStep, ...] = ()
    """Of a station: what it does to its rows."""
    keep_local: bool = False
    """Of a station: its rows stay on the node that makes them, where it has a task there."""
    on_broadcast: Callable[..., Any] | None = None
    shared: Mapping[str, StateSpec] | None = None
    """Of an operator with a broadcast input: what it does with those rows, and the states of a shard it keeps them in."""
    on_timer: Callable[..., Any] | None = None
    """Of a row function: what is called when a timer of a key is due."""
    dead_letters: bool = False
    """Of an operator: a function that raises ends its key's call as a dead letter, not the query."""
    output: str = "main"
    """Of a side: which output of the operator it is."""
    ring: Ring | None = None
    """Of a loop: where its rows come from."""

    def feeds(self) -> tuple[Feed, ...]:
        """Where the rows come from, in declared order: stages, and what happens to their rows on the way here."""
        if self.kind in ("union", "sinks"):
            return tuple(feed for given in self.inputs for feed in given.feeds())
        if self.kind == "stateless" and self.step is not None:
            step = self.step
            return tuple(replace(feed, steps=(*feed.steps, step)) for feed in self.inputs[0].feeds())
        if self.kind == "side":
            return (Feed(self.inputs[0], (), self.output),)
        if self.kind == "loop" and self.ring is not None:
            return self.ring.feeds(self.name)
        return (Feed(self, ()),)

    @property
    def watermarked(self) -> bool:
        """Whether a watermark is declared somewhere upstream, so that event time moves here."""
        if self.kind == "stateless" and isinstance(self.step, Watermark):
            return True
        return any(given.watermarked for given in self.inputs)

    @property
    def event_time(self) -> str | None:
        """The column with the event time of the rows, where a watermark is declared and the column is still there."""
        if self.kind == "loop":
            return None
        if self.kind == "stateless" and isinstance(self.step, Watermark):
            return self.step.column
        if self.emitted_time is not None:
            return self.emitted_time
        found = [given.event_time for given in self.inputs]
        name = next((one for one in found if one is not None and one in self.schema.names), None)
        return name if name is not None and pa.types.is_timestamp(self.schema.field(name).type) else None


class Ring:
    """The closing of a loop: declared first, known later."""

    def __init__(self) -> None:
        self.fed: Node | None = None

    def feeds(self, name: str) -> tuple[Feed, ...]:
        if self.fed is None:
            raise DeclarationError(
                f"loop '{name}' is never closed; call feed(stream) with what goes back into it."
            )
        return tuple(replace(feed, feedback=True) for feed in self.fed.feeds())


@dataclass(frozen=True)
class Feed:
    """One stage that a node takes rows from, with the stateless steps fused into it."""

    stage: Node
    steps: tuple[FusedStep, ...]
    output: str = "main"
    feedback: bool = False


DEAD_LETTERS = parse_schema(
    "operator string, key string, time timestamp, error string, traceback string, rows array<string>",
    "dead letters",
)
"""What a dead letter says: whose call it was, when, what was raised, and the rows it was called with, as JSON."""


def check_size(name: str, shards: object, cores: object) -> None:
    """Refuse a number of shards or cores that an operator cannot have."""
    if not isinstance(shards, int) or not 1 <= shards <= MAX_SHARDS:
        raise DeclarationError(f"operator '{name}': shards must be from 1 to {MAX_SHARDS}, not {shards!r}.")
    if cores is not None and (not isinstance(cores, int) or cores < 1):
        raise DeclarationError(f"operator '{name}': cores must be a positive number, not {cores!r}.")


def check_on_error(given: object, where: str) -> bool:
    """Return whether calls that raise become dead letters."""
    if given not in ("fail", "dead_letter"):
        raise DeclarationError(f"{where}: on_error is 'fail' or 'dead_letter', not {given!r}.")
    return given == "dead_letter"


def check_name(name: object, what: str) -> str:
    """Return a legal name or say what is wrong with it."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise DeclarationError(
            f"{what} name {name!r} must begin with a letter and have only letters, digits and underscores."
        )
    return name


def operator_name(name: str | None, default: str, keys: Sequence[str]) -> str:
    """Return the name of an operator: the one given, or one made of what it does and its keys."""
    if name is not None:
        return check_name(name, "operator")
    made = re.sub(r"[^A-Za-z0-9_]", "_", f"{default}_by_{'_'.join(keys)}").lstrip("_0123456789")[:60]
    return check_name(made or "operator", "operator")


def shown(schema: pa.Schema) -> str:
    """Return a schema for an error."""
    return f"({schema_words(schema)})"
