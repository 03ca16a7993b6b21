"""A compiled topology in words: stages, what they take in, how rows are dealt. Pure."""

from __future__ import annotations

from penstock.dataplane.exports import exported_by
from penstock.dataplane.program import Program, StageSpec


def explain_program(program: Program, extended: bool = False) -> str:
    """Return one block of lines per stage, in flow order.

    Args:
        extended: with the columns of every stage.
    """
    lines: list[str] = []
    for spec in program.stages.values():
        lines.append(_head(spec))
        lines.extend(f"    <- {one}" for one in _inputs(program, spec))
        if extended:
            lines.append("    columns: " + ", ".join(f"{field.name} {field.type}" for field in spec.schema))
    return "\n".join(lines)


def _head(spec: StageSpec) -> str:
    kind = spec.kind
    if kind == "source":
        return f"source '{spec.name}': " + (
            "a streaming DataFrame" if spec.ingested else f"native, {_count(spec.tasks, 'task')}"
        )
    if (exported := exported_by(spec.name)) is not None:
        return f"export of '{exported}': for to_stream"
    if kind == "sink":
        return f"sink '{spec.name}': on the driver"
    keys = f"keyed by {', '.join(spec.keys)}" if spec.keys else "unkeyed"
    tasks = min(spec.tasks, spec.shards)
    return f"operator '{spec.name}': {keys}, {_count(spec.shards, 'shard')}, {_count(tasks, 'task')}"


def _inputs(program: Program, spec: StageSpec) -> list[str]:
    found = []
    for given in spec.inputs:
        edge = next(one for one in program.stages[given.producer].edges if one.edge == given.edge)
        how = f"hash of {', '.join(edge.keys)}" if edge.keys else "all rows"
        steps = f", after {_count(len(edge.steps), 'step')} in its tasks" if edge.steps else ""
        side = f" (input {given.slot + 1})" if spec.slots > 1 else ""
        found.append(f"'{given.producer}'{side}: {how} over {_count(edge.shards, 'shard')}{steps}")
    return found


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
