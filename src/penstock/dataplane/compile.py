"""Turns a declared topology into the program that tasks run: stages, edges, logic. Pure; names every conflict
it finds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.dataplane.channel import Deal, EdgeSpec
from penstock.dataplane.logic.aggregates import AggregateSpec
from penstock.dataplane.logic.arrow import ArrowLogicSpec
from penstock.dataplane.logic.broadcast import BroadcastLogicSpec
from penstock.dataplane.logic.cogrouped import CogroupedLogicSpec
from penstock.dataplane.logic.processor import ProcessorSpec
from penstock.dataplane.logic.protocol import LogicSpec
from penstock.dataplane.logic.rows import RowLogicSpec
from penstock.dataplane.logic.station import StationSpec
from penstock.dataplane.logic.timed_rows import TimedRowLogicSpec
from penstock.dataplane.logic.windows import WindowLogicSpec
from penstock.dataplane.program import InputSpec, Program, StageSpec
from penstock.errors import DeclarationError
from penstock.topology.nodes import Feed, Node
from penstock.topology.stateless import Watermark
from penstock.topology.types import ddl_of
from penstock.topology.windows import APPEND

SINK = "sink"


def compile_program(
    node: Node,
    *,
    tasks: int,
    memory_bytes: int,
    may_die: bool = False,
    also: Mapping[str, Node] | None = None,
    executors: int = 1,
) -> Program:
    """Compile everything upstream of `node`, and a sink behind it.

    Args:
        also: further sinks by name, with what goes to them.
        executors: how many share the shards of an operator on a new checkpoint.
        tasks: tasks of an operator that does not say how many cores it starts with.
        may_die: whether whoever runs it can let processes die where a scripted source says so.

    Raises:
        DeclarationError: parts of the topology do not go together.
    """
    sinks = {SINK: node, **{sink_stage(name): given for name, given in (also or {}).items()}}
    nodes = stages_of(Node(SINK, "sinks", node.schema, tuple(sinks.values())))
    for one in nodes:
        if one.faults and not may_die:
            raise DeclarationError(
                f"source '{one.name}' has Crash() or LoseLease() in its script, which only penstock.testing.run(...) can "
                "carry out; leave them out of a query that is started."
            )
    links = _with_time(_links(nodes, sinks), nodes)
    stages = {one.name: replace(_stage(one, links, tasks), executors=executors) for one in nodes}
    for name, given in sinks.items():
        stages[name] = StageSpec(name, "sink", given.schema, inputs=_inputs(links, name))
    identity = {
        name: [spec.kind, str(spec.schema), spec.logic.identity() if spec.logic else None]
        for name, spec in stages.items()
    }
    code = hashlib.blake2b(json.dumps(identity, sort_keys=True, default=str).encode(), digest_size=8).digest()
    return Program(stages, memory_bytes, code)


@dataclass(frozen=True)
class _Link:
    """One edge: rows of a stage, through stateless steps, to one input of another."""

    edge: int
    feed: Feed
    consumer: str
    schema: pa.Schema
    slot: int
    keys: tuple[str, ...]
    shards: int
    deal: Deal
    marked: bool = False
    """Whether ends and idleness are told over it."""
    timed: bool = False
    """Whether a watermark is."""

    @property
    def watermark(self) -> Watermark | None:
        """The last watermark that is declared on the way."""
        declared = [step for step in self.feed.steps if isinstance(step, Watermark)]
        return declared[-1] if declared else None


def stages_of(node: Node) -> list[Node]:
    """Return the sources and operators that a node's rows come from, upstream first.

    Raises:
        DeclarationError: two of them have one name, or a loop is not closed.
    """
    found: dict[str, Node] = {}
    begun: dict[str, Node] = {}

    def visit(one: Node) -> None:
        known = begun.get(one.name)
        if known is not None and known is not one:
            raise DeclarationError(
                f"two parts of the topology are named '{one.name}'; give one of them another name."
            )
        if known is None:
            begun[one.name] = one
            for given in one.inputs:
                for feed in given.feeds():
                    visit(feed.stage)
            found[one.name] = one

    for feed in node.feeds():
        visit(feed.stage)
    if SINK in found:
        raise DeclarationError(f"'{SINK}' is the name of the sink; give the {found[SINK].kind} another name.")
    return list(found.values())


def sink_stage(name: str) -> str:
    """Return the name of the stage of a further sink."""
    return f"{SINK}.{name}"


def _links(nodes: list[Node], sinks: Mapping[str, Node]) -> list[_Link]:
    """All edges, numbered in declared order, those to the sinks last."""
    ends = [
        (feed, one.name, given.schema, slot, _keys_of(one, slot), one.shards, _deal_of(one, slot))
        for one in nodes
        for slot, given in enumerate(one.inputs)
        for feed in given.feeds()
    ]
    for name, last in sinks.items():
        ends.extend((feed, name, last.schema, 0, (), 1, Deal.KEY) for feed in last.feeds())
    return [_Link(edge, *end) for edge, end in enumerate(ends)]


def _keys_of(node: Node, slot: int) -> tuple[str, ...]:
    if node.kind == "broadcast" and slot:
        return ()
    return node.right_keys if slot else node.keys


def _deal_of(node: Node, slot: int) -> Deal:
    if node.kind == "station":
        return Deal.LOCAL if node.keep_local else Deal.TURN
    return Deal.BROADCAST if node.kind == "broadcast" and slot else Deal.KEY


def _with_time(links: list[_Link], nodes: list[Node]) -> list[_Link]:
    """Say over which edges event time goes. All on the way to whoever acts on it are told of ends and of idleness; those
    behind a declared watermark of that too.

    Raises:
        DeclarationError: an operator that acts on event time is inside a loop, or behind one.
    """
    acting = {node.name for node in nodes if node.inputs and _logic(node).clocked}
    _check_loops(links, acting)
    wanting = _closure(acting, [(link.consumer, link.feed.stage.name) for link in links])
    forward = [link for link in links if not link.feed.feedback]
    told = {link.consumer for link in forward if link.watermark is not None}
    telling = _closure(told, [(link.feed.stage.name, link.consumer) for link in forward])
    return [
        replace(
            link,
            marked=not link.feed.feedback and link.consumer in wanting,
            timed=link.watermark is not None or link.feed.stage.name in telling,
        )
        for link in links
    ]


def _check_loops(links: list[_Link], acting: set[str]) -> None:
    steps = [(link.feed.stage.name, link.consumer) for link in links]
    for link in links:
        if link.feed.feedback:
            behind = sorted(_closure({link.consumer}, steps) & acting)
            if behind:
                raise DeclarationError(
                    f"operator '{behind[0]}' has windows or timers and takes rows that go round in a loop, where event "
                    "time does not follow them; put it before the loop, or beside it."
                )


def _closure(start: set[str], steps: list[tuple[str, str]]) -> set[str]:
    """All that can be reached from some names."""
    found = set(start)
    while more := {after for before, after in steps if before in found} - found:
        found |= more
    return found


def _inputs(links: list[_Link], consumer: str) -> list[InputSpec]:
    """The inputs of a stage, those of loops first: their rows are taken before any others."""
    mine = sorted(
        (link for link in links if link.consumer == consumer), key=lambda link: not link.feed.feedback
    )
    return [
        InputSpec(
            link.edge,
            link.feed.stage.name,
            link.schema,
            link.slot,
            link.marked,
            link.feed.feedback,
            timed=link.marked and link.timed,
        )
        for link in mine
    ]


def _stage(node: Node, links: list[_Link], tasks: int) -> StageSpec:
    out = [
        EdgeSpec(
            link.edge,
            link.keys,
            link.shards,
            link.consumer,
            steps=link.feed.steps,
            deal=link.deal,
            output=link.feed.output,
            marked=link.marked,
            delay_us=link.watermark.delay_us if link.watermark is not None else None,
        )
        for link in links
        if link.feed.stage is node
    ]
    if not node.inputs:
        native = node.kind == "generate"
        return StageSpec(
            node.name,
            "source",
            node.schema,
            edges=out,
            generate=node.function if native else None,
            ingested=not native,
            bounded=node.bounded,
            initial=node.initial,
            idle_s=_idle_s(node, links),
        )
    return StageSpec(
        node.name,
        "operator",
        node.schema,
        inputs=_inputs(links, node.name),
        edges=out,
        keys=node.keys,
        shards=node.shards,
        tasks=node.cores or tasks,
        logic=_logic(node),
    )


def _idle_s(source: Node, links: list[_Link]) -> float | None:
    """Seconds without rows after which a source counts as idle: the longest that is declared behind it."""
    steps = [(link.feed.stage.name, link.consumer) for link in links if not link.feed.feedback]
    behind = _closure({source.name}, steps)
    found = [
        link.watermark.idle_s
        for link in links
        if link.feed.stage.name in behind and link.watermark is not None
    ]
    return max((idle_s for idle_s in found if idle_s is not None), default=None)


def _logic(node: Node) -> LogicSpec:
    states = dict(node.states or {})
    if node.kind == "aggregate":
        return AggregateSpec.declare(node.aggregates, node.keys, node.inputs[0].schema, node.name)
    if node.processor is not None:
        return ProcessorSpec(node.processor, node.schema, node.right_keys, node.dead_letters)
    if node.kind == "station":
        return StationSpec(node.steps, node.schema)
    if node.kind == "windowed":
        return _window_logic(node)
    assert node.function is not None
    if node.kind == "cogrouped":
        right = node.inputs[1].schema
        return CogroupedLogicSpec(
            node.function, node.schema, node.right_keys, right, states, node.dead_letters
        )
    if node.kind == "broadcast":
        assert node.on_broadcast is not None
        shared, rows = dict(node.shared or {}), node.inputs[1].schema
        return BroadcastLogicSpec(
            node.function, node.on_broadcast, node.schema, rows, states, shared, node.dead_letters
        )
    if node.kind == "rows" and node.on_timer is not None:
        return TimedRowLogicSpec(
            node.function, node.schema, states, node.dead_letters, node.on_timer, node.watermarked
        )
    if node.kind == "rows":
        return RowLogicSpec(node.function, node.schema, states, node.dead_letters)
    return ArrowLogicSpec(node.function, node.schema, dict(node.states or {}))


def _window_logic(node: Node) -> WindowLogicSpec:
    assert node.window is not None
    types = tuple(one.input_type(node.inputs[0].schema, node.name) for one in node.aggregates)
    return WindowLogicSpec(
        node.window,
        node.window_at,
        node.schema,
        node.output_mode or APPEND,
        node.aggregates,
        types,
        node.function,
        dict(node.states or {}),
        ddl_of(node.inputs[0].schema) if node.function is not None else "",
    )
