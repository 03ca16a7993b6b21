"""`penstock import`: brings the state and the source position of a plain Spark query into a new checkpoint.

Looks first and says what can be carried and what cannot; only then writes. Reads the old checkpoint through Spark's
own readers (`state-metadata`, `statestore`) and never changes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.dataplane import paths
from penstock.dataplane.disk import Disk, PosixDisk
from penstock.dataplane.foreign import check_not_foreign
from penstock.dataplane.imported import TIMER, ImportedVariable, Manifest, read_manifests, write_imported
from penstock.dataplane.importing import nullable_ddl
from penstock.errors import CheckpointError
from penstock.spark.reasons import in_one_sentence
from penstock.suggesting import did_you_mean
from penstock.topology.processors import EXPIRES
from penstock.topology.schema import parse_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KINDS: Final = {"ValueState": "value", "ListState": "list", "MapState": "map"}
_PROCESSORS: Final = (
    "transformWithStateInPySparkExec",
    "transformWithStateInPandasExec",
    "transformWithStateExec",
)
_GROUPS: Final = "flatMapGroupsInPandasWithState"
_TIMEOUT: Final = "timeoutTimestamp"
_LOGS: Final = ("offsets", "commits", "sources")
_SECONDS: Final = "the new query's watermark begins with its first rows"


@dataclass(frozen=True)
class ImportPlan:
    """What was found in an old checkpoint."""

    origin: str
    batch: int
    """The last committed batch."""
    query: str
    variables: dict[str, tuple[str, bool]]
    """Name -> kind and whether it has a time to live; empty for the state of a group function."""
    timers: bool
    """Whether there may be timers, or time-outs of a group function."""
    group_function: bool
    offsets: list[Any]
    """Of the sources after that batch, as Spark wrote them."""
    not_carried: list[str] = field(default_factory=list)

    def told(self) -> list[str]:
        """Say what will happen, line by line."""
        lines = [f"last committed batch: {self.batch} of query {self.query}"]
        if self.group_function:
            lines.append(f"carried: the state of every group{', and its time-out' if self.timers else ''}")
        for name, (kind, ttl) in self.variables.items():
            lines.append(f"carried: {kind} state '{name}'{', with the end of each entry' if ttl else ''}")
        if self.timers and not self.group_function:
            lines.append("carried: registered timers")
        lines.append(
            "carried: offset, commit and source logs; the next batch is the one after the last committed"
        )
        return lines + [f"not carried: {what}" for what in self.not_carried]


def look(spark: SparkSession, origin: str, checkpoint: str, without: tuple[str, ...] = ()) -> ImportPlan:
    """Read what an old checkpoint has, and whether it can be carried into a new one. Writes nothing.

    Raises:
        CheckpointError: it is no checkpoint of one stateful Python operator and one source with a committed batch; it
            cannot be read; the new one is in use; or a state to leave out is not there.
    """
    with in_one_sentence(spark, origin):
        return _look(spark, origin, checkpoint, without)


def _look(spark: SparkSession, origin: str, checkpoint: str, without: tuple[str, ...]) -> ImportPlan:
    batch = _last_commit(origin)
    _check_unused(PosixDisk(), checkpoint)
    _check_sources(origin, batch)
    rows = (
        spark.read.format("state-metadata").load(origin).collect() if os.path.isdir(f"{origin}/state") else []
    )
    operators = len({row.operatorId for row in rows})
    if operators == 0:
        raise CheckpointError(
            f"{origin} has no stateful operator, so there is no state to import; start the new query from where the "
            "old one ended in its source."
        )
    if operators != 1:
        raise CheckpointError(
            f"{origin} has {operators} stateful operators; only a query with exactly one can be imported."
        )
    operator = rows[0].operatorName
    more = ["the event-time watermark: " + _SECONDS] if _watermark(origin, batch) else []
    more += [f"state '{name}', as asked" for name in without]
    offsets = _offsets(origin, batch)
    query = _query_id(origin)
    if operator in _PROCESSORS:
        properties = json.loads(rows[0].operatorProperties)
        _check_without(origin, without, [one["stateName"] for one in properties["stateVariables"]])
        known = [one for one in properties["stateVariables"] if one["stateName"] not in without]
        variables = {
            one["stateName"]: (_KINDS[one["stateVariableType"]], bool(one["ttlEnabled"]))
            for one in known
            if one["stateVariableType"] in _KINDS
        }
        timers = any(one["stateVariableType"] == "TimerState" for one in known)
        return ImportPlan(origin, batch, query, variables, timers, False, offsets, more)
    if operator.lower().startswith(("applyinpandaswithstate", "flatmapgroups")):
        _check_without(origin, without, [])
        has_timeouts = _TIMEOUT in _group_fields(_read_state(spark, origin, batch))
        return ImportPlan(origin, batch, query, {}, has_timeouts, True, offsets, more)
    raise CheckpointError(
        f"{origin} holds the state of {operator}, which Penstock cannot read; transformWithState, "
        "transformWithStateInPandas and applyInPandasWithState can be imported."
    )


def carry_out(spark: SparkSession, plan: ImportPlan, checkpoint: str, operator: str, source: str) -> Manifest:
    """Write the state and copy the logs into the checkpoint that `look` found unused.

    Raises:
        CheckpointError: the state cannot be read; nothing has been written.
    """
    disk = PosixDisk()
    with in_one_sentence(spark, plan.origin):
        read = _read_group(spark, plan) if plan.group_function else _read_variables(spark, plan)
        table = pa.concat_tables(read.tables, promote_options="default").combine_chunks()
    manifest = Manifest(operator, plan.origin, plan.batch, read.keys, read.variables, plan.timers)
    copy_logs(disk, plan.origin, paths.ingest(checkpoint, source))
    return write_imported(disk, checkpoint, manifest, table)


def _check_unused(disk: Disk, checkpoint: str) -> None:
    if disk.size(paths.meta(checkpoint)) is not None:
        raise CheckpointError(f"{checkpoint} is the checkpoint of a query already; import into a new one.")
    check_not_foreign(disk, checkpoint)
    for manifest in read_manifests(disk, checkpoint):
        raise CheckpointError(
            f"{checkpoint} has imported state of operator '{manifest.operator}' already; import into a new one."
        )


def _check_sources(origin: str, batch: int) -> None:
    count = len(_offset_lines(origin, batch))
    if count == 0:
        raise CheckpointError(
            f"{origin}/offsets/{batch} names no source, so it is damaged or of a newer Spark; restore it from a copy."
        )
    if count != 1:
        raise CheckpointError(
            f"{origin} reads {count} sources; only the logs of a query with one can be copied."
        )


def _check_without(origin: str, without: Sequence[str], known: Sequence[str]) -> None:
    for name in without:
        if name in known:
            continue
        listed = f"it has {', '.join(known)}." if known else "the state of a group function has no names."
        raise CheckpointError(
            f"--without: {origin} has no state {name!r}; {did_you_mean(name, known, listed)}"
        )


def copy_logs(disk: Disk, origin: str, target: str) -> None:
    """Copy what a Structured Streaming query needs to go on at its next batch; its state stays behind."""
    for folder, names in _log_files(origin):
        into = f"{target}/{os.path.relpath(folder, origin)}" if folder != origin else target
        disk.make_dirs(into)
        for name in names:
            with open(f"{folder}/{name}", "rb") as file:
                disk.put(f"{into}/{name}", file.read())


def _log_files(origin: str) -> Iterator[tuple[str, list[str]]]:
    yield origin, [name for name in ("metadata", ".metadata.crc") if os.path.exists(f"{origin}/{name}")]
    for log in _LOGS:
        for folder, _, names in os.walk(f"{origin}/{log}"):
            yield folder, sorted(name for name in names if not name.endswith(".tmp"))


# -- state ------------------------------------------------------------------------------------------------------------


@dataclass
class _Read:
    keys: list[str] = field(default_factory=list)
    variables: list[ImportedVariable] = field(default_factory=list)
    tables: list[pa.Table] = field(default_factory=list)


def _state(spark: SparkSession, plan: ImportPlan, **options: Any) -> DataFrame:
    return _read_state(spark, plan.origin, plan.batch, **options)


def _read_state(spark: SparkSession, origin: str, batch: int, **options: Any) -> DataFrame:
    reader = spark.read.format("statestore").option("batchId", batch)
    return reduce(lambda so_far, item: so_far.option(*item), options.items(), reader).load(origin)


def _group_fields(state: DataFrame) -> list[str]:
    """What Spark keeps for each group of a function: the state, and its time-out where the query has one."""
    return list(state.schema["value"].dataType.names)  # type: ignore[attr-defined]


def _read_variables(spark: SparkSession, plan: ImportPlan) -> _Read:
    read = _Read()
    for at, (name, (kind, ttl)) in enumerate(plan.variables.items()):
        frame = _state(spark, plan, stateVarName=name, flattenCollectionTypes=kind == "map")
        columns = {"value": ["value"], "list": ["list_value"], "map": ["user_map_value", "user_map_key"]}[
            kind
        ]
        taken = _taken(frame, columns, read)
        value = taken.schema.field(columns[0]).type
        element = value.value_type if kind == "list" else value
        if ttl:
            fields = [pa.field("value", element.field(0).type), pa.field(EXPIRES, pa.int64())]
            held: pa.DataType = pa.struct(fields)
            taken = taken.set_column(
                taken.schema.get_field_index(columns[0]),
                columns[0],
                _recast(taken.column(columns[0]), pa.list_(held) if kind == "list" else held),
            )
            element = element.field(0).type
        key = taken.schema.field("user_map_key").type if kind == "map" else None
        read.variables.append(
            ImportedVariable(
                name,
                kind,
                ttl,
                nullable_ddl(pa.schema(list(element))),
                None if key is None else nullable_ddl(pa.schema(list(key))),
            )
        )
        renamed = {columns[0]: f"v{at}", "user_map_key": f"m{at}"}
        read.tables.append(taken.rename_columns([renamed.get(one, one) for one in taken.schema.names]))
    timers = (
        _taken(_state(spark, plan, readRegisteredTimers=True), ["expiration_timestamp_ms"], read)
        if plan.timers
        else None
    )
    if timers is not None:
        read.tables.append(timers.rename_columns([*timers.schema.names[:-1], TIMER]))
    return _with_timers(read)


def _read_group(spark: SparkSession, plan: ImportPlan) -> _Read:
    """The state of an `applyInPandasWithState` function: a value, and when the group times out."""
    read = _Read()
    taken = _taken(_state(spark, plan), ["value"], read)
    state = taken.column("value").combine_chunks()
    value = state.field("groupState")
    read.variables.append(
        ImportedVariable("state", "value", False, nullable_ddl(pa.schema(list(value.type))))
    )
    timers = _timers_of(state.field(_TIMEOUT)) if plan.timers else pa.nulls(len(state), pa.int64())
    keys = taken.drop_columns(["value"])
    read.tables.append(keys.append_column("v0", value).append_column(TIMER, timers))
    return read


def _timers_of(timeouts: pa.Array) -> pa.Array:
    """A time-out is over when its time has passed, a timer when it has come; -1 stands for none."""
    return pa.array([None if ms is None or ms < 0 else ms + 1 for ms in timeouts.to_pylist()], pa.int64())


def _with_timers(read: _Read) -> _Read:
    if not read.tables:
        raise CheckpointError("the old query declares no state, so there is nothing to import.")
    if not any(TIMER in table.schema.names for table in read.tables):
        first = read.tables[0]
        read.tables[0] = first.append_column(TIMER, pa.nulls(first.num_rows, pa.int64()))
    return read


def _taken(frame: DataFrame, columns: list[str], read: _Read) -> pa.Table:
    """Return key fields as k0, k1, ... and the columns asked for, in the types that state has here."""
    from pyspark.sql import functions as f

    keys = frame.select("key.*").columns
    read.keys = keys
    picked = [f.col("key").getField(name).alias(f"k{at}") for at, name in enumerate(keys)]
    frame = frame.select(*picked, *columns)
    return frame.toArrow().cast(parse_schema(frame.schema, "imported state"))


def _recast(column: pa.ChunkedArray, type_: pa.DataType) -> pa.Array:
    """Name the fields of entries with a time to live as state here does; types stay."""
    array = column.combine_chunks()
    if pa.types.is_list(type_):
        values = _recast(pa.chunked_array([array.values]), type_.value_type)
        return pa.ListArray.from_arrays(
            array.offsets, values, mask=array.is_null() if array.null_count else None
        )
    return pa.StructArray.from_arrays(
        [array.field(0), array.field(1)],
        fields=list(type_),
        mask=array.is_null() if array.null_count else None,
    )


# -- logs -------------------------------------------------------------------------------------------------------------


def _last_commit(origin: str) -> int:
    try:
        numbers = [int(name) for name in os.listdir(f"{origin}/commits") if name.isdigit()]
    except (FileNotFoundError, NotADirectoryError):
        numbers = []
    if not numbers:
        raise CheckpointError(
            f"{origin} is no checkpoint of a Structured Streaming query with a committed batch; give the folder that the "
            "query had as checkpointLocation."
        )
    return max(numbers)


def _lines(path: str) -> list[str]:
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()[1:]


def _watermark(origin: str, batch: int) -> bool:
    found = json.loads(_lines(f"{origin}/commits/{batch}")[0])
    return int(found.get("nextBatchWatermarkMs", 0)) > 0


def _offset_lines(origin: str, batch: int) -> list[str]:
    """One line for each source; "-" where the batch took nothing of it yet."""
    return [line for line in _lines(f"{origin}/offsets/{batch}")[1:] if line.strip()]


def _offsets(origin: str, batch: int) -> list[Any]:
    return [json.loads(line) for line in _offset_lines(origin, batch) if line.strip() != "-"]


def _query_id(origin: str) -> str:
    with open(f"{origin}/metadata", encoding="utf-8") as file:
        return str(json.load(file)["id"])


def starting_options(plan: ImportPlan) -> list[str]:
    """Return what to set on the new query's source should Spark refuse the copied logs."""
    lines = []
    for offset in plan.offsets:
        if isinstance(offset, dict) and all(isinstance(one, dict) for one in offset.values()):
            lines.append(f".option('startingOffsets', '{json.dumps(offset)}')")
        else:
            lines.append(f"the source stood at {json.dumps(offset)}")
    return lines
