"""Lets a declared topology begin with state that was imported into its checkpoint. Pure but for reading manifests.

An operator with imported state gets one more input, a bounded source that is taken in before any other source begins.
The state has to fit what the processor declares; what does not is refused by name.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from penstock.dataplane.disk import Disk
from penstock.dataplane.imported import ImportedRows, ImportedVariable, Manifest, read_manifests
from penstock.errors import CheckpointError, DeclarationError
from penstock.topology.processors import DeclaredState, Processor
from penstock.topology.stream import _AT_ONCE_PER_S, Node
from penstock.topology.types import ddl_of


def with_imported(node: Node, disk: Disk, checkpoint: str) -> Node:
    """Return the topology with the imported state of its checkpoint as a further input.

    Raises:
        CheckpointError: state was imported for an operator that the topology lacks.
        DeclarationError: the state does not fit the operator.
    """
    manifests = {manifest.operator: manifest for manifest in read_manifests(disk, checkpoint)}
    if not manifests:
        return node
    made: dict[int, Node] = {}
    used: set[str] = set()

    def rebuilt(one: Node) -> Node:
        if id(one) not in made:
            if one.kind == "loop":
                raise DeclarationError(f"loop '{one.name}': imported state and loops do not go together.")
            inputs = tuple(rebuilt(given) for given in one.inputs)
            fresh = (
                one
                if all(a is b for a, b in zip(inputs, one.inputs, strict=True))
                else replace(one, inputs=inputs)
            )
            if one.name in manifests and one.inputs and one.kind not in ("stateless", "union", "side"):
                used.add(one.name)
                fresh = _begun(fresh, manifests[one.name], checkpoint)
            made[id(one)] = fresh
        return made[id(one)]

    found = rebuilt(node)
    for name in sorted(set(manifests) - used):
        raise CheckpointError(
            f"The checkpoint {checkpoint} has imported state of operator '{name}', which this topology lacks; give the "
            f"processor name='{name}'."
        )
    return found


def _begun(node: Node, manifest: Manifest, checkpoint: str) -> Node:
    if node.processor is None or len(node.inputs) != 1:
        raise DeclarationError(
            f"operator '{node.name}': state was imported for it, so it must be a processor without initialState."
        )
    rows = ImportedRows(checkpoint, manifest.operator, manifest.part_rows)
    schema = rows.schema()
    _check_keys(node, manifest, schema)
    for variable in manifest.variables:
        _check_variable(node.processor, variable, node.name)
    if manifest.timers and node.processor.time_mode == "none":
        raise DeclarationError(f"operator '{node.name}': timers were imported, but its time mode is none.")
    source = Node(
        f"{node.name}_imported",
        "generate",
        schema,
        function=rows,
        rate=((0.0, _AT_ONCE_PER_S),),
        limit=sum(manifest.part_rows),
        bounded=True,
        initial=True,
    )
    keys = tuple(f"k{at}" for at in range(len(node.keys)))
    names = tuple(variable.name for variable in manifest.variables)
    declared = replace(node.processor, imported=names)
    return replace(node, inputs=(*node.inputs, source), right_keys=keys, processor=declared)


def _check_keys(node: Node, manifest: Manifest, schema: pa.Schema) -> None:
    mine = [ddl_of(node.inputs[0].schema.field(key).type) for key in node.keys]
    theirs = [ddl_of(schema.field(f"k{at}").type) for at in range(len(manifest.keys))]
    if mine != theirs:
        raise DeclarationError(
            f"operator '{node.name}' is keyed by {', '.join(mine)}, the imported state by {', '.join(theirs)} "
            f"({', '.join(manifest.keys)}); group by the same columns."
        )


def _check_variable(processor: Processor, variable: ImportedVariable, operator: str) -> None:
    state = next((state for state in processor.states if state.name == variable.name), None)
    if state is None:
        raise DeclarationError(
            f"operator '{operator}': the imported state {variable.name!r} is not declared by init(handle); declare it, or "
            "import without it (--without)."
        )
    mine = _told(state)
    theirs = (variable.kind, variable.value, variable.key, variable.ttl)
    if mine != theirs:
        raise DeclarationError(
            f"operator '{operator}': state {variable.name!r} was {_shown(theirs)} in the old query and is {_shown(mine)} "
            "here; declare it as it was."
        )


def _told(state: DeclaredState) -> tuple[str, str, str | None, bool]:
    key = None if state.key_schema is None else nullable_ddl(state.key_schema)
    return state.kind, nullable_ddl(state.schema), key, state.ttl_ms is not None


def nullable_ddl(schema: pa.Schema) -> str:
    """Return a schema as DDL without saying what may be null, which Spark's state does not keep."""
    return ddl_of(pa.schema([pa.field(field.name, field.type) for field in schema]))


def _shown(told: tuple[str, str, str | None, bool]) -> str:
    kind, value, key, ttl = told
    return f"a {kind} of ({value}){f' by ({key})' if key else ''}{' with a time to live' if ttl else ''}"
