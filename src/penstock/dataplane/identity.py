"""What a checkpoint knows of its topology, and whether another topology may go on from it. Pure.

A stage's name is the identity of its state. A topology may gain stages, edges, nullable fields and states; whatever
would change the meaning of what is stored is refused with what to do. Edges keep their numbers for life, since
positions and waiting segments are kept by number; rows keep the schema of the driver generation that wrote them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa

from penstock.dataplane.channel import Deal, EdgeSpec, OlderSchema
from penstock.dataplane.logic.protocol import Logic
from penstock.dataplane.program import InputSpec, Program, StageSpec
from penstock.errors import CheckpointError
from penstock.topology.schema import parse_type
from penstock.topology.types import ddl_of

ELSE = "or use a new checkpointLocation"


class StageIdentity(msgspec.Struct, frozen=True):
    """What must stay the same for a stage's state to stay meaningful."""

    kind: str
    schema: str
    inputs: list[str] = []
    keys: list[str] = []
    shards: int = 1
    logic: dict[str, object] = {}
    arrow: bytes = b""
    """The schema of the rows it puts out, as Arrow encodes it."""
    key_types: list[str] = []
    ingested: bool = False
    bounded: bool = False
    clocked: bool = False
    stateful: bool = True


class SchemaVersion(msgspec.Struct, frozen=True):
    """A schema, and the first driver generation that writes it."""

    since: int
    arrow: bytes


class EdgeIdentity(msgspec.Struct, frozen=True):
    """One edge: between which stages, under which number, and the schemas its rows have had, oldest first."""

    number: int
    producer: str
    consumer: str
    slot: int
    ordinal: int
    """Of the edges between the same output and the same input, in declared order."""
    schemas: list[SchemaVersion]
    output: str = "main"
    dealt: list[str] = []
    """How its rows come to shards: the way, and the key columns with their types."""
    marked: bool = False
    delay_us: int | None = None
    feedback: bool = False


class Meta(msgspec.Struct, frozen=True):
    """The topology of a checkpoint. A changed one is a new file; the newest base says which one holds."""

    format: int
    query: str
    stages: dict[str, StageIdentity]
    edges: list[EdgeIdentity] = []
    next_edge: int = 0
    """Above every number that an edge has had."""
    generation: int = 0
    """Of the driver that noted it."""


@dataclass(frozen=True)
class Fitted:
    """A program with the edge numbers and older schemas of its checkpoint, and the topology to record."""

    program: Program
    meta: Meta
    changed: bool


Place = tuple[str, str, str, int, int]
"""Producer, its output, consumer, slot, ordinal."""


def encode_meta(meta: Meta) -> bytes:
    return msgspec.json.encode(meta)


def hash_meta(payload: bytes) -> bytes:
    """Return what a base carries to say that this topology holds."""
    return hashlib.blake2b(payload, digest_size=8).digest()


def describe(program: Program, format_: int, query: str) -> Meta:
    """Return the topology of a program on a checkpoint of its own."""
    edges = [
        _edge_identity(number, place, spec, given, [SchemaVersion(0, _encode_schema(given.schema))])
        for number, place, spec, given in _edges(program)
    ]
    stages = {name: _stage_identity(spec) for name, spec in program.stages.items()}
    return Meta(format_, query, stages, edges, 1 + max((edge.number for edge in edges), default=-1))


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
    known = {_place_of(edge): edge for edge in meta.edges}
    fresh = meta.next_edge
    edges: list[EdgeIdentity] = []
    numbers: dict[int, int] = {}
    for edge in now.edges:
        was_edge = known.get(_place_of(edge))
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


def skeleton(meta: Meta) -> Program:
    """Return the program without its logic and steps, enough to read records and rows by."""
    edges = meta.edges or _early_edges(meta)
    stages = {
        name: StageSpec(
            name,
            was.kind,
            read_schema(was.arrow),
            inputs=[_input_of(edge) for edge in edges if edge.consumer == name],
            edges=[
                EdgeSpec(
                    edge.number,
                    (),
                    meta.stages[edge.consumer].shards,
                    edge.consumer,
                    steps=(_UnknownStep(_schemas_of(edge)[0]),),
                    deal=Deal(edge.dealt[0]) if edge.dealt else Deal.KEY,
                    output=edge.output,
                    marked=edge.marked,
                    delay_us=edge.delay_us,
                )
                for edge in edges
                if edge.producer == name
            ],
            keys=tuple(was.keys),
            shards=was.shards,
            logic=_UnknownLogic(read_schema(was.arrow), was.clocked, was.stateful) if was.logic else None,
            ingested=was.ingested,
            bounded=was.bounded,
        )
        for name, was in meta.stages.items()
    }
    return Program(stages)


@dataclass(frozen=True)
class _UnknownStep:
    """Stands for whatever a topology does to rows between two stages."""

    schema: pa.Schema

    def apply(self, table: pa.Table) -> pa.Table:
        raise NotImplementedError("a checkpoint does not hold the functions of its topology")


@dataclass(frozen=True)
class _UnknownLogic:
    """Stands for the logic of an operator."""

    schema: pa.Schema
    clocked: bool
    stateful: bool

    def build(self, operator: str, *_: object) -> Logic:
        raise NotImplementedError(f"a checkpoint does not hold the function of operator '{operator}'")

    def identity(self) -> dict[str, object]:
        return {}


def _early_edges(meta: Meta) -> list[EdgeIdentity]:
    """The edges of a topology that an early release noted: numbered by consumer, in declared order."""
    ends = [(producer, name) for name, stage in meta.stages.items() for producer in stage.inputs]
    return [
        EdgeIdentity(number, producer, consumer, 0, 0, [SchemaVersion(0, b"")])
        for number, (producer, consumer) in enumerate(ends)
    ]


def read_schema(arrow: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(arrow)) if arrow else pa.schema([])


# -- describing ---------------------------------------------------------------------------------------------------


def _stage_identity(spec: StageSpec) -> StageIdentity:
    given = next((one.schema for one in spec.inputs if one.slot == 0), spec.schema)
    return StageIdentity(
        kind=spec.kind,
        schema=", ".join(f"{field.name} {field.type}" for field in spec.schema),
        inputs=[given.producer for given in spec.inputs],
        keys=list(spec.keys),
        shards=spec.shards,
        logic=_plain(spec.logic.identity()) if spec.logic is not None else {},
        arrow=_encode_schema(spec.schema),
        key_types=[str(given.field(key).type) for key in spec.keys],
        ingested=spec.ingested,
        bounded=spec.bounded,
        clocked=spec.clocked,
        stateful=spec.stateful,
    )


def _plain(identity: Mapping[str, object]) -> dict[str, object]:
    """An identity as it reads back from JSON, so that tuples and lists compare alike."""
    decoded: dict[str, object] = msgspec.json.decode(msgspec.json.encode(identity))
    return decoded


def _edges(program: Program) -> Iterator[tuple[int, Place, EdgeSpec, InputSpec]]:
    """Yield every edge by its consumer: number, place, and both its ends."""
    ends = {edge.edge: edge for stage in program.stages.values() for edge in stage.edges}
    for stage in program.stages.values():
        seen: dict[tuple[str, str, int], int] = {}
        for given in stage.inputs:
            spec = ends[given.edge]
            same = (given.producer, spec.output, given.slot)
            ordinal = seen.get(same, 0)
            seen[same] = ordinal + 1
            yield given.edge, (given.producer, spec.output, stage.name, given.slot, ordinal), spec, given


def _edge_identity(
    number: int, place: Place, spec: EdgeSpec, given: InputSpec, schemas: list[SchemaVersion]
) -> EdgeIdentity:
    producer, output, consumer, slot, ordinal = place
    keys = [f"{key} {given.schema.field(key).type}" for key in spec.keys]
    return EdgeIdentity(
        number, producer, consumer, slot, ordinal, schemas, output,
        dealt=[spec.deal.value, *keys], marked=spec.marked, delay_us=spec.delay_us, feedback=given.feedback,
    )  # fmt: skip


def _place_of(edge: EdgeIdentity) -> Place:
    return edge.producer, edge.output, edge.consumer, edge.slot, edge.ordinal


def _encode_schema(schema: pa.Schema) -> bytes:
    return bytes(schema.remove_metadata().serialize())


def _input_of(edge: EdgeIdentity) -> InputSpec:
    schema, older = _schemas_of(edge)
    return InputSpec(edge.number, edge.producer, schema, edge.slot, edge.marked, edge.feedback, older)


def _schemas_of(edge: EdgeIdentity) -> tuple[pa.Schema, tuple[OlderSchema, ...]]:
    schemas = [read_schema(version.arrow) for version in edge.schemas]
    ends = [version.since for version in edge.schemas[1:]]
    return schemas[-1], tuple(
        OlderSchema(end, schema) for end, schema in zip(ends, schemas[:-1], strict=True)
    )


def _renumbered(program: Program, numbers: Mapping[int, int], edges: Sequence[EdgeIdentity]) -> Program:
    older = {edge.number: _schemas_of(edge)[1] for edge in edges}
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


# -- comparing ----------------------------------------------------------------------------------------------------


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
            word = {"key_types": "key types", "ingested": "a DataFrame as its source"}.get(field, field)
            raise CheckpointError(
                f"{whose} had {word} {before!r} in the checkpoint {checkpoint} and now has {after!r}; "
                f"change it back, {ELSE}."
            )
    fault = _logic_fault(was.logic, now.logic, noted)
    if fault is None and noted and was.kind != "sink":  # what a sink takes is what its edges carry
        fault = schema_fault(read_schema(was.arrow), read_schema(now.arrow))
    if fault is not None:
        raise CheckpointError(f"{whose} does not fit the checkpoint {checkpoint}: {fault}, {ELSE}.")


def _logic_fault(was: Mapping[str, Any], now: Mapping[str, Any], noted: bool) -> str | None:
    apart = {"states", "shared"} | ({"schema"} if noted else set())  # the schema is compared field by field
    for key in sorted((was.keys() | now.keys()) - apart, key=lambda key: (key != "kind", key)):
        if was.get(key) != now.get(key):
            return f"its {key} was {was.get(key)!r} and is {now.get(key)!r}; change it back"
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


def _go_on(checkpoint: str, was: EdgeIdentity, now: EdgeIdentity, generation: int) -> EdgeIdentity:
    """Return an edge that goes on, with the schema that its rows have from this generation on."""
    where = f"Rows from '{was.producer}' to '{was.consumer}' do not fit the checkpoint {checkpoint}"
    if was.dealt != now.dealt:
        raise CheckpointError(
            f"{where}: they were dealt by {', '.join(was.dealt)} and are by {', '.join(now.dealt)}; change it back, {ELSE}."
        )
    before, after = read_schema(was.schemas[-1].arrow), read_schema(now.schemas[0].arrow)
    fault = schema_fault(before, after)
    if fault is not None:
        raise CheckpointError(f"{where}: {fault}, {ELSE}.")
    schemas = list(was.schemas)
    if not before.equals(after):
        schemas.append(SchemaVersion(generation, now.schemas[0].arrow))
    return msgspec.structs.replace(now, number=was.number, schemas=schemas)
