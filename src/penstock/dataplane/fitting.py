"""Whether a topology may go on from a checkpoint, and with which edge numbers and older schemas. Pure.

It may gain stages, edges, nullable fields and states; whatever would change the meaning of what is stored is refused
with what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa

from penstock.dataplane.identity import (
    EdgeIdentity,
    Meta,
    SchemaVersion,
    StageIdentity,
    describe,
    place_of,
    read_schema,
    schemas_of,
)
from penstock.dataplane.identity_words import say_change
from penstock.dataplane.program import Program
from penstock.errors import CheckpointError
from penstock.topology.schema import parse_type
from penstock.topology.type_words import in_sparks_words
from penstock.topology.types import ddl_of

ELSE = "or use a new checkpointLocation"
_GROWING = frozenset({"rows", "arrow", "cogrouped", "broadcast", "processor"})
"""Kinds of logic whose declared states come first and alone, so that one more at their end moves no other."""


@dataclass(frozen=True)
class Fitted:
    """A program with the edge numbers and older schemas of its checkpoint, and the topology to record."""

    program: Program
    meta: Meta
    changed: bool


def fit_program(checkpoint: str, meta: Meta, program: Program, generation: int) -> Fitted:
    """Let a program go on from a checkpoint, if it may.

    Args:
        generation: of the driver that will run it.

    Raises:
        CheckpointError: names the stage, what changed, and what to do.
    """
    now = describe(program, meta.format, meta.query)
    for name, was in meta.stages.items():
        if name not in now.stages:
            raise CheckpointError(_missing(checkpoint, meta, now, name))
        _check_stage(checkpoint, name, was, now.stages[name], bool(meta.edges))
    if not meta.edges:  # written by an early release, and the same topology in every respect it noted
        return Fitted(program, now, True)
    known = {place_of(edge): edge for edge in meta.edges}
    fresh = meta.next_edge
    edges: list[EdgeIdentity] = []
    numbers: dict[int, int] = {}
    for edge in now.edges:
        was_edge = known.get(place_of(edge))
        if was_edge is None:
            numbers[edge.number], fresh = fresh, fresh + 1
            edges.append(
                msgspec.structs.replace(
                    edge,
                    number=numbers[edge.number],
                    schemas=[SchemaVersion(generation, edge.schemas[0].arrow)],
                )
            )
        else:
            numbers[edge.number] = was_edge.number
            edges.append(_go_on(checkpoint, was_edge, edge, generation))
    goes_on = msgspec.structs.replace(now, edges=edges, next_edge=fresh, generation=meta.generation)
    changed = goes_on != meta
    if changed:
        goes_on = msgspec.structs.replace(goes_on, generation=generation)
    return Fitted(_renumbered(program, numbers, edges), goes_on, changed)


def _renumbered(program: Program, numbers: Mapping[int, int], edges: Sequence[EdgeIdentity]) -> Program:
    older = {edge.number: schemas_of(edge)[1] for edge in edges}
    stages = {
        name: replace(
            stage,
            inputs=[
                replace(given, edge=numbers[given.edge], older=older[numbers[given.edge]])
                for given in stage.inputs
            ],
            edges=[replace(edge, edge=numbers[edge.edge]) for edge in stage.edges],
        )
        for name, stage in program.stages.items()
    }
    return replace(program, stages=stages)


def _missing(checkpoint: str, meta: Meta, now: Meta, name: str) -> str:
    was = meta.stages[name]
    alike = [
        new
        for new, stage in now.stages.items()
        if new not in meta.stages and (stage.kind, stage.keys) == (was.kind, was.keys)
    ]
    hint = (
        f"if it is '{alike[0]}' now, name it '{name}' again, for the name is the identity of its state"
        if len(alike) == 1
        else "keep it under its name"
    )
    return (
        f"The checkpoint {checkpoint} has {was.kind} '{name}', which this topology lacks (it has "
        f"{', '.join(sorted(now.stages))}); {hint}, {ELSE}."
    )


def _check_stage(checkpoint: str, name: str, was: StageIdentity, now: StageIdentity, noted: bool) -> None:
    whose = f"{was.kind.capitalize()} '{name}'"
    exact = ["kind", "keys", "shards"] + (["key_types", "ingested"] if noted else ["schema", "inputs"])
    for field in exact:
        before, after = getattr(was, field), getattr(now, field)
        if before != after:
            if field == "ingested":
                kinds = {True: "fed by a DataFrame", False: "native"}
                raise CheckpointError(
                    f"{whose} was {kinds[before]} in the checkpoint {checkpoint} and is {kinds[after]} now; change it "
                    f"back, {ELSE}."
                )
            word = {"key_types": "key types"}.get(field, field)
            raise CheckpointError(
                f"{whose} had {word} {in_sparks_words(_listed(before))} in the checkpoint {checkpoint} and now has "
                f"{in_sparks_words(_listed(after))}; change it back, {ELSE}."
            )
    fault = _logic_fault(was.logic, now.logic, noted)
    if fault is None and noted and was.kind != "sink":  # what a sink takes is what its edges carry
        fault = schema_fault(read_schema(was.arrow), read_schema(now.arrow))
    if fault is not None:
        raise CheckpointError(f"{whose} does not fit the checkpoint {checkpoint}: {fault}, {ELSE}.")


def _listed(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(repr, value)) or "none"
    return repr(value)


def _logic_fault(was: Mapping[str, Any], now: Mapping[str, Any], noted: bool) -> str | None:
    apart = {"schema"} if noted else set()  # it is compared field by field
    if was.get("kind") in _GROWING:
        apart |= {"states", "shared"}
    for key in sorted((was.keys() | now.keys()) - apart, key=lambda key: (key != "kind", key)):
        if was.get(key) != now.get(key):
            return say_change(key, was.get(key), now.get(key))
    if was.get("kind") not in _GROWING:
        return None
    return state_fault(was.get("states", []), now.get("states", [])) or state_fault(
        was.get("shared", []), now.get("shared", [])
    )


def state_fault(was: Sequence[Sequence[Any]], now: Sequence[Sequence[Any]]) -> str | None:
    """Say why declared states, as (name, identity), cannot go on from what is stored; None when they can.

    Entries are stored by the ordinal of their state, and structs by position: both may only grow at their end.
    """
    for at, (name, stored) in enumerate(was):
        names = [one for one, _ in now]
        if name not in names:
            return f"state '{name}' is gone; declare it again (it may stay unused)"
        if names.index(name) != at:
            return f"state '{name}' was number {at + 1} and is number {names.index(name) + 1}; add states behind the others"
        declared = now[at][1]
        if stored == declared:
            continue
        if {**stored, "value": ""} != {**declared, "value": ""}:
            return f"state '{name}' was {_state(stored)} and is {_state(declared)}; change it back, or add a state for it"
        fault = _value_fault(stored, declared)
        if fault is not None:
            return f"state '{name}' was {_state(stored)} and is {_state(declared)}: {fault}"
    return None


def _state(identity: Mapping[str, Any]) -> str:
    return " ".join(str(identity[key]) for key in ("kind", "key", "value") if key in identity)


def _value_fault(stored: Mapping[str, Any], declared: Mapping[str, Any]) -> str | None:
    was, now = parse_type(stored["value"], "stored state"), parse_type(declared["value"], "state")
    if not pa.types.is_struct(was) or not pa.types.is_struct(now):
        return "a state cannot change its type; change it back, or add a state for it"
    if stored["kind"] == "map":
        return "values of a map cannot gain fields; change it back, or add a state for it"
    fields, grown = list(was), list(now)
    for before, after in zip(fields, grown, strict=False):
        if not before.equals(after):
            return (
                f"field '{before.name}' is not where or what it was; add fields at the end of the struct only"
            )
    if len(grown) < len(fields):
        return f"field '{fields[len(grown)].name}' is gone; put it back"
    strict = [field.name for field in grown[len(fields) :] if not field.nullable]
    return (
        f"the added field '{strict[0]}' must be nullable; what is stored has no value for it"
        if strict
        else None
    )


def schema_fault(was: pa.Schema, now: pa.Schema) -> str | None:
    """Say why rows of one schema cannot be read as rows of another by filling in nulls; None when they can."""
    for field in was:
        at = now.get_field_index(field.name)
        if at < 0:
            return f"field '{field.name}' ({ddl_of(field.type)}) is gone; put it back"
        after = now.field(at)
        if after.type != field.type:
            return (
                f"field '{field.name}' was {ddl_of(field.type)} and is {ddl_of(after.type)}; change it back, or add a "
                "field for it"
            )
        if field.nullable and not after.nullable:
            return f"field '{field.name}' was nullable and is NOT NULL; let it be nullable"
    for field in now:
        if field.name not in was.names and not field.nullable:
            return f"the added field '{field.name}' must be nullable; rows that were written before have no value for it"
    return None


def _dealt(edge: EdgeIdentity) -> str:
    return in_sparks_words(", ".join(edge.dealt))


def _go_on(checkpoint: str, was: EdgeIdentity, now: EdgeIdentity, generation: int) -> EdgeIdentity:
    """Return an edge that goes on, with the schema that its rows have from this generation on."""
    where = f"Rows from '{was.producer}' to '{was.consumer}' do not fit the checkpoint {checkpoint}"
    if was.dealt != now.dealt:
        raise CheckpointError(
            f"{where}: they were dealt by {_dealt(was)} and are by {_dealt(now)}; change it back, {ELSE}."
        )
    before, after = read_schema(was.schemas[-1].arrow), read_schema(now.schemas[0].arrow)
    fault = schema_fault(before, after)
    if fault is not None:
        raise CheckpointError(f"{where}: {fault}, {ELSE}.")
    schemas = list(was.schemas)
    if not before.equals(after):
        schemas.append(SchemaVersion(generation, now.schemas[0].arrow))
    return msgspec.structs.replace(now, number=was.number, schemas=schemas)
