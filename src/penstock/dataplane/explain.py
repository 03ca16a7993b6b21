"""A topology in words: stages, what they take in, how rows are dealt, and what works on each now. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.dataplane.exports import exported_by
from penstock.dataplane.program import Program, StageSpec, operator_of
from penstock.topology.type_words import schema_words
from penstock.words import counted

if TYPE_CHECKING:
    from penstock.dataplane.engine import Engine


def tasks_of(engine: Engine) -> dict[str, list[int]]:
    """Return how many tasks each executor of a stage has that are to stay; of an operator, those with shards."""
    found: dict[str, list[int]] = {}
    for name, run in engine.runs.items():
        if run.spec.kind == "source" or len(run.shards.mine()):
            tasks = sum(not slot.leaving for slot in run.slots.values())
            found.setdefault(operator_of(name), []).append(tasks)
    return found


def explain_program(
    program: Program, extended: bool = False, tasks: Mapping[str, Sequence[int]] | None = None
) -> str:
    """Return one block of lines per stage, in flow order.

    Args:
        extended: with the columns of every stage.
        tasks: by stage, of each of its executors; as declared where they are not given.
    """
    lines: list[str] = []
    for spec in program.stages.values():
        lines.append(_head(spec, (tasks or {}).get(spec.name) or _declared(spec)))
        lines.extend(f"    <- {one}" for one in _inputs(program, spec))
        if extended:
            lines.append(f"    columns: {schema_words(spec.schema)}")
    return "\n".join(lines)


def _declared(spec: StageSpec) -> list[int]:
    return [min(spec.tasks, spec.shards) if spec.kind == "operator" else spec.tasks]


def _head(spec: StageSpec, tasks: Sequence[int]) -> str:
    kind = spec.kind
    if kind == "source":
        return f"source '{spec.name}': " + (
            "a streaming DataFrame" if spec.ingested else f"native, {counted(sum(tasks), 'task')}"
        )
    if (exported := exported_by(spec.name)) is not None:
        return f"export of '{exported}': for to_stream"
    if kind == "sink":
        return f"sink '{spec.name}': on the driver"
    keys = f"keyed by {', '.join(spec.keys)}" if spec.keys else "unkeyed"
    executors = f"{counted(len(tasks), 'executor')}, " if len(tasks) > 1 else ""
    shards = counted(spec.shards, "shard")
    return f"operator '{spec.name}': {keys}, {shards}, {executors}{counted(sum(tasks), 'task')}"


def _inputs(program: Program, spec: StageSpec) -> list[str]:
    found = []
    for given in spec.inputs:
        edge = next(one for one in program.stages[given.producer].edges if one.edge == given.edge)
        how = f"hash of {', '.join(edge.keys)}" if edge.keys else "all rows"
        steps = f", after {counted(len(edge.steps), 'step')} in its tasks" if edge.steps else ""
        side = f" (input {given.slot + 1})" if spec.slots > 1 else ""
        found.append(f"'{given.producer}'{side}: {how} over {counted(edge.shards, 'shard')}{steps}")
    return found
