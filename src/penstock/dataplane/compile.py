"""Turns a declared topology into the program that tasks run: stages, edges, logic. Pure; names every conflict
it finds."""

from __future__ import annotations

import hashlib
import json

from penstock.dataplane.channel import EdgeSpec
from penstock.dataplane.logic.aggregates import AggregateSpec
from penstock.dataplane.logic.arrow import ArrowLogicSpec
from penstock.dataplane.logic.protocol import LogicSpec
from penstock.dataplane.logic.rows import RowLogicSpec
from penstock.dataplane.program import InputSpec, Program, StageSpec
from penstock.errors import DeclarationError
from penstock.topology.stream import Node

SINK = "sink"


def compile_program(node: Node, *, tasks: int, memory_bytes: int) -> Program:
    """Compile everything upstream of `node`, and a sink behind it.

    Args:
        tasks: tasks of an operator that does not say how many cores it starts with.
    """
    nodes = _upstream_first(node)
    edges = _edges(nodes, node)
    stages: dict[str, StageSpec] = {}
    consumers = {one.name: one for one in nodes}
    for one in nodes:
        stages[one.name] = _stage(one, edges, consumers, node, tasks)
    producer = node.stage.name
    stages[SINK] = StageSpec(
        SINK, "sink", node.schema, inputs=[InputSpec(edges[(producer, SINK)], producer, node.schema)]
    )
    identity = {
        name: [spec.kind, str(spec.schema), spec.logic.identity() if spec.logic else None]
        for name, spec in stages.items()
    }
    code = hashlib.blake2b(json.dumps(identity, sort_keys=True, default=str).encode(), digest_size=8).digest()
    return Program(stages, memory_bytes, code)


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
                visit(given.stage)
            found[one.name] = one

    visit(node.stage)
    if SINK in found:
        raise DeclarationError(f"'{SINK}' is the name of the sink; give the {found[SINK].kind} another name.")
    return list(found.values())


def _edges(nodes: list[Node], last: Node) -> dict[tuple[str, str], int]:
    pairs = [(given.stage.name, one.name) for one in nodes for given in one.inputs]
    return {pair: number for number, pair in enumerate([*pairs, (last.stage.name, SINK)])}


def _stage(
    node: Node, edges: dict[tuple[str, str], int], consumers: dict[str, Node], last: Node, tasks: int
) -> StageSpec:
    out = [
        _edge_spec(consumers.get(consumer), number, consumer, node, last)
        for (producer, consumer), number in edges.items()
        if producer == node.name
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
        inputs=[
            InputSpec(edges[(given.stage.name, node.name)], given.stage.name, given.schema)
            for given in node.inputs
        ],
        edges=out,
        keys=node.keys,
        shards=node.shards,
        tasks=node.cores or tasks,
        logic=_logic(node),
    )


def _edge_spec(consumer: Node | None, number: int, name: str, producer: Node, last: Node) -> EdgeSpec:
    if consumer is None:
        return EdgeSpec(number, (), 1, name, steps=last.steps)
    given = next(one for one in consumer.inputs if one.stage is producer)
    return EdgeSpec(number, consumer.keys, consumer.shards, name, steps=given.steps)


def _logic(node: Node) -> LogicSpec:
    if node.kind == "aggregate":
        return AggregateSpec.declare(node.aggregates, node.keys, node.inputs[0].schema, node.name)
    assert node.function is not None
    if node.kind == "rows":
        return RowLogicSpec(node.function, node.schema, dict(node.states or {}))
    return ArrowLogicSpec(node.function, node.schema, dict(node.states or {}))
