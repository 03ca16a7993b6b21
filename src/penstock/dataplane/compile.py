"""Turns a declared topology into the program that tasks run: stages, edges, logic. Pure; names every conflict
it finds."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import pyarrow as pa

from penstock.dataplane.channel import EdgeSpec
from penstock.dataplane.logic.aggregates import AggregateSpec
from penstock.dataplane.logic.arrow import ArrowLogicSpec
from penstock.dataplane.logic.cogrouped import CogroupedLogicSpec
from penstock.dataplane.logic.processor import ProcessorSpec
from penstock.dataplane.logic.protocol import LogicSpec
from penstock.dataplane.logic.rows import RowLogicSpec
from penstock.dataplane.program import InputSpec, Program, StageSpec
from penstock.errors import DeclarationError
from penstock.topology.stream import Feed, Node

SINK = "sink"


def compile_program(node: Node, *, tasks: int, memory_bytes: int) -> Program:
    """Compile everything upstream of `node`, and a sink behind it.

    Args:
        tasks: tasks of an operator that does not say how many cores it starts with.
    """
    nodes = _upstream_first(node)
    links = _links(nodes, node)
    stages = {one.name: _stage(one, links, tasks) for one in nodes}
    stages[SINK] = StageSpec(SINK, "sink", node.schema, inputs=_inputs(links, SINK))
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


def _upstream_first(node: Node) -> list[Node]:
    found: dict[str, Node] = {}

    def visit(one: Node) -> None:
        known = found.get(one.name)
        if known is not None and known is not one:
            raise DeclarationError(
                f"two parts of the topology are named '{one.name}'; give one of them another name."
            )
        if known is None:
            for given in one.inputs:
                for feed in given.feeds():
                    visit(feed.stage)
            found[one.name] = one

    for feed in node.feeds():
        visit(feed.stage)
    if SINK in found:
        raise DeclarationError(f"'{SINK}' is the name of the sink; give the {found[SINK].kind} another name.")
    return list(found.values())


def _links(nodes: list[Node], last: Node) -> list[_Link]:
    """All edges, numbered in declared order, those to the sink last."""
    ends = [
        (feed, one.name, given.schema, slot, one.right_keys if slot else one.keys, one.shards)
        for one in nodes
        for slot, given in enumerate(one.inputs)
        for feed in given.feeds()
    ]
    ends.extend((feed, SINK, last.schema, 0, (), 1) for feed in last.feeds())
    return [_Link(edge, *end) for edge, end in enumerate(ends)]


def _inputs(links: list[_Link], consumer: str) -> list[InputSpec]:
    return [
        InputSpec(link.edge, link.feed.stage.name, link.schema, link.slot)
        for link in links
        if link.consumer == consumer
    ]


def _stage(node: Node, links: list[_Link], tasks: int) -> StageSpec:
    out = [
        EdgeSpec(link.edge, link.keys, link.shards, link.consumer, steps=link.feed.steps)
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


def _logic(node: Node) -> LogicSpec:
    if node.kind == "aggregate":
        return AggregateSpec.declare(node.aggregates, node.keys, node.inputs[0].schema, node.name)
    if node.processor is not None:
        return ProcessorSpec(node.processor, node.schema, node.right_keys)
    assert node.function is not None
    if node.kind == "cogrouped":
        right = node.inputs[1].schema
        return CogroupedLogicSpec(node.function, node.schema, node.right_keys, right, dict(node.states or {}))
    if node.kind == "rows":
        return RowLogicSpec(node.function, node.schema, dict(node.states or {}))
    return ArrowLogicSpec(node.function, node.schema, dict(node.states or {}))
