"""What a checkpoint knows of its topology: stages, edges and their schemas, as JSON. Pure.

A stage's name is the identity of its state. Edges keep their numbers for life, since positions and waiting segments
are kept by number; rows keep the schema of the driver generation that wrote them. `fitting` says whether another
topology may go on from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from penstock.dataplane.channel import Deal, EdgeSpec, OlderSchema
from penstock.dataplane.logic.protocol import Logic
from penstock.dataplane.program import InputSpec, Program, StageSpec


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
    timed: bool = False


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
                    steps=(_UnknownStep(schemas_of(edge)[0]),),
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
        timed=given.timed,
    )  # fmt: skip


def place_of(edge: EdgeIdentity) -> Place:
    return edge.producer, edge.output, edge.consumer, edge.slot, edge.ordinal


def _encode_schema(schema: pa.Schema) -> bytes:
    return bytes(schema.remove_metadata().serialize())


def _input_of(edge: EdgeIdentity) -> InputSpec:
    schema, older = schemas_of(edge)
    return InputSpec(
        edge.number, edge.producer, schema, edge.slot, edge.marked, edge.feedback, older, edge.timed
    )


def schemas_of(edge: EdgeIdentity) -> tuple[pa.Schema, tuple[OlderSchema, ...]]:
    schemas = [read_schema(version.arrow) for version in edge.schemas]
    ends = [version.since for version in edge.schemas[1:]]
    return schemas[-1], tuple(
        OlderSchema(end, schema) for end, schema in zip(ends, schemas[:-1], strict=True)
    )
