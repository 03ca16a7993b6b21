"""From a declared stream to the program that the kit runs: what `start()` would check is checked, and the topology is
made small. Runs nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.dataplane.compile import compile_program, stages_of
from penstock.dataplane.program import Program
from penstock.errors import DeclarationError
from penstock.topology.nodes import Node
from penstock.topology.stream import Stream

MEMORY_BYTES = 16 << 20


def compile_stream(
    stream: object, where: str, outputMode: str | None, tasks: int = 1
) -> tuple[list[Node], Program]:
    """Return the sources and operators of a stream, and its program with a sink behind it.

    Raises:
        DeclarationError: it is no stream, or a query over it could not be started.
    """
    if not isinstance(stream, Stream):
        raise DeclarationError(f"{where} takes a stream, not {stream!r}.")
    writer: Any = stream.writeStream.format("noop").option("checkpointLocation", "unused")
    node = (writer if outputMode is None else writer.outputMode(outputMode)).declare().node
    return stages_of(node), compile_program(node, tasks=tasks, memory_bytes=MEMORY_BYTES, may_die=True)


def with_few_shards(program: Program, at_most: int) -> Program:
    """Return the program with fewer shards, which no result depends on and a short run is quicker with."""
    stages = {
        name: replace(
            spec,
            shards=min(spec.shards, at_most),
            edges=[replace(edge, shards=min(edge.shards, at_most)) for edge in spec.edges],
        )
        for name, spec in program.stages.items()
    }
    return replace(program, stages=stages)
