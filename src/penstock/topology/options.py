"""The options of a query: each defined once, with its kind, default and a sentence.

`writeStream` reads option values by this table, the data plane takes its defaults from it, and the table in
docs/options.md is the one that `options_table` gives. Carries out nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.errors import DeclarationError
from penstock.suggesting import nearest

T = TypeVar("T")


@dataclass(frozen=True)
class Kind(Generic[T]):
    """How the values of an option are written: in the reference, and by users."""

    words: str
    """What stands in the reference; the unit, where there is one."""
    read: Callable[[object], T]
    """Returns the value of what a user gave; raises ValueError, which says what it must be."""
    show: Callable[[T], str]


def _read_path(given: object) -> str:
    if not isinstance(given, str | os.PathLike) or not str(given).strip():
        raise ValueError("a path")
    return os.path.expanduser(str(given))


def _read_boolean(given: object) -> bool:
    word = str(given).strip().lower()
    if word not in ("true", "false"):
        raise ValueError("true or false")
    return word == "true"


def _read_names(given: object) -> tuple[str, ...]:
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(
        isinstance(name, str) and name.strip() for name in names
    ):
        raise ValueError("names separated by commas")
    return tuple(name.strip() for name in names)


def _read_whole(given: object) -> int:
    try:
        number = int(str(given))
    except ValueError:
        raise ValueError("a whole number") from None
    return _positive(number)


def _read_number(given: object) -> float:
    try:
        number = float(str(given))
    except ValueError:
        raise ValueError("a number") from None
    if not math.isfinite(number):
        raise ValueError("a number")
    return _positive(number)


def _read_truncate(given: object) -> bool | int:
    try:
        return _read_boolean(given)
    except ValueError:
        pass
    try:
        return _read_whole(given)
    except ValueError:
        raise ValueError("true, false or a number of characters") from None


def _read_compression(given: object) -> str:
    word = str(given).strip().lower()
    word = {"uncompressed": "none"}.get(word, word)
    if word not in COMPRESSIONS:
        raise ValueError(f"one of {', '.join(COMPRESSIONS)}")
    return word


COMPRESSIONS = ("snappy", "zstd", "gzip", "lz4", "none")
N = TypeVar("N", int, float)


def _positive(number: N) -> N:
    if number <= 0:
        raise ValueError("greater than 0")
    return number


PATH = Kind("path (`~` is your home) or `file:` URI", _read_path, str)
BOOLEAN = Kind("`true` / `false`", _read_boolean, lambda value: f"`{str(value).lower()}`")
ROWS = Kind("rows", _read_whole, lambda value: f"{value:,}")
COUNT = Kind("number", _read_whole, str)
BYTES = Kind("bytes", _read_whole, lambda value: f"{value:,}")
NAMES = Kind("names", _read_names, lambda value: ", ".join(value) or "none")
SECONDS = Kind("seconds", _read_number, lambda value: f"{value:g}")
TRUNCATE = Kind("`true` / `false` / characters", _read_truncate, lambda value: f"`{str(value).lower()}`")
COMPRESSION = Kind("name", _read_compression, lambda value: f"`{value}`")


@dataclass(frozen=True)
class Option(Generic[T]):
    """One option of `writeStream`.

    Args:
        default: the value of a query that does not give it; without meaning where it is required.
        setting: the field of the data plane's settings that it sets, if it sets one.
    """

    name: str
    kind: Kind[T]
    default: T
    meaning: str
    setting: str | None = None
    required: bool = False
    sink: str | None = None
    """The format that it belongs to; any query may give it when there is none."""

    def read(self, given: object) -> T:
        """Return the value of what a user gave.

        Raises:
            DeclarationError: it is none of this kind; names the option, what was given and what is wanted.
        """
        try:
            return self.kind.read(given)
        except ValueError as wanted:
            raise DeclarationError(f"option {self.name!r} must be {wanted}, not {given!r}.") from None

    def of(self, options: Mapping[str, Any]) -> T:
        """Return its value among read options, the default where it is not given."""
        value: T = options.get(self.name, self.default)
        return value


CHECKPOINT_LOCATION = Option(
    "checkpointLocation",
    PATH,
    "",
    "directory that the driver and all nodes reach under the same path",
    required=True,
)
TAKEOVER = Option(
    "takeover",
    BOOLEAN,
    False,
    "claim the checkpoint even while its holder seems alive; that query ends with a `FencedError`",
)
MAX_EPOCH_ROWS = Option(
    "maxEpochRows",
    ROWS,
    2_000_000,
    "rows that an epoch takes at most, or one of every shard where that is more",
    "max_epoch_rows",
)
MAX_EPOCH_SECONDS = Option(
    "maxEpochSeconds",
    SECONDS,
    0.2,
    "predicted time that an epoch may take; bounds its rows by the learned rate",
    "max_epoch_s",
)
MIN_EPOCH_SECONDS = Option(
    "minEpochSeconds",
    SECONDS,
    0.004,
    "shortest time between the starts of two epochs of a stage",
    "min_epoch_s",
)
CONTROL_SECONDS = Option(
    "controlSeconds",
    SECONDS,
    1.0,
    "time between two turns of the control loop of a query that has an SLA or a policy",
)
JOURNAL = Option(
    "journal",
    PATH,
    "",
    "file on the driver that every decision is appended to, with its inputs and what came of it; for `penstock replay`",
)
MAX_NODES = Option(
    "maxNodes",
    COUNT,
    0,
    "nodes that a policy may bring the application to; where it is not given, as many as were there at once so far",
)
LEASE_TIMEOUT_SECONDS = Option(
    "leaseTimeoutSeconds", SECONDS, 15.0, "silence after which a lease is taken as lost", "lease_timeout_s"
)
MEMORY_BYTES = Option(
    "memoryBytes", BYTES, 512 << 20, "bound of state kept in memory, per task", "memory_bytes"
)
MAX_WAITING_BYTES = Option(
    "maxWaitingBytes",
    BYTES,
    256 << 20,
    "bytes that wait unconsumed in all channels together before sources stop",
    "max_waiting_bytes",
)
EXECUTORS = Option(
    "executors",
    COUNT,
    1,
    "executors that share the shards of every operator as a new checkpoint begins; `query.split` and `query.merge` "
    "change it while the query runs, and a restart keeps what there was",
)
RETAIN_ALL = Option(
    "retainAll",
    BOOLEAN,
    False,
    "keep every log part and data file, to check a run from its records; the checkpoint grows without bound",
    "retain_all",
)
EXPORT = Option[tuple[str, ...]](
    "export",
    NAMES,
    (),
    "sources and operators whose rows `query.to_stream` reads, separated by commas; `*` for all; they belong to the "
    "topology and stay",
)
EXPORT_BYTES = Option(
    "exportBytes",
    BYTES,
    256 << 20,
    "rows of each export that are kept for its readers; the oldest go first, read or not",
)

SINK_PATH = Option(
    "path", PATH, "", "folder that the files go to; `start(path)` gives it too", required=True, sink="parquet"
)
ROLL_SECONDS = Option(
    "rollSeconds", SECONDS, 10.0, "time for which rows gather before they become a file", sink="parquet"
)
ROLL_BYTES = Option(
    "rollBytes",
    BYTES,
    64 << 20,
    "bytes of rows, as Arrow has them, that become a file before that time; the driver holds them in memory",
    sink="parquet",
)
PARQUET_COMPRESSION = Option(
    "compression", COMPRESSION, "snappy", f"of the files: {', '.join(COMPRESSIONS)}", sink="parquet"
)
NUM_ROWS = Option("numRows", ROWS, 20, "rows of a sink epoch that are printed", sink="console")
CONSOLE_TRUNCATE = Option(
    "truncate", TRUNCATE, True, "cut values to 20 characters, or to so many", sink="console"
)

OPTIONS: Mapping[str, Option[Any]] = {
    option.name: option
    for option in (
        CHECKPOINT_LOCATION,
        TAKEOVER,
        MAX_EPOCH_ROWS,
        MAX_EPOCH_SECONDS,
        MIN_EPOCH_SECONDS,
        CONTROL_SECONDS,
        JOURNAL,
        MAX_NODES,
        LEASE_TIMEOUT_SECONDS,
        MEMORY_BYTES,
        MAX_WAITING_BYTES,
        EXECUTORS,
        RETAIN_ALL,
        EXPORT,
        EXPORT_BYTES,
        SINK_PATH,
        ROLL_SECONDS,
        ROLL_BYTES,
        PARQUET_COMPRESSION,
        NUM_ROWS,
        CONSOLE_TRUNCATE,
    )
}
_BY_LOWER_NAME = {name.lower(): option for name, option in OPTIONS.items()}

_OF_SOURCE = (
    "it belongs to the source; give it to the reader of the DataFrame, before penstock.from_dataframe(df)"
)
_OF_FILES = "files are written as Parquet, without options of other formats; leave it out"
_SPARKS: dict[str, str] = {
    **dict.fromkeys(
        (
            "maxfilespertrigger", "maxbytespertrigger", "maxoffsetspertrigger", "minoffsetspertrigger",
            "startingoffsets", "endingoffsets", "subscribe", "subscribepattern", "kafka.bootstrap.servers",
            "failondataloss", "latestfirst", "maxfileage", "rowspersecond", "inferschema", "multiline",
        ),
        _OF_SOURCE,
    ),
    **dict.fromkeys(("header", "sep", "delimiter", "encoding", "mergeschema", "overwriteschema"), _OF_FILES),
    "topic": "write to Kafka with foreachBatch(function)",
    "queryname": "call queryName(name)",
    "outputmode": "call outputMode(mode)",
    "trigger": "call trigger(processingTime=...)",
    "processingtime": "call trigger(processingTime=...)",
    "availablenow": "call trigger(availableNow=True)",
    "format": "call format(name)",
    "cores": "give cores= to the operator, or to penstock.session(cores=...)",
    "shards": "give shards= to the operator",
    "name": "call queryName(name)",
}  # fmt: skip
"""By name in lower case: what to do instead of an option that others have."""


CONF_PREFIX = "spark.penstock."
"""Every option is also a Spark setting: this, and its name."""
NOT_OPTIONS = ("cores",)
"""Settings of that prefix that are no options of a query; `penstock.session` sets them."""


def find_option(name: object, prefix: str = "") -> Option[Any]:
    """Return the option of this name, whatever its case.

    Args:
        prefix: that the user wrote before the name, for the message.

    Raises:
        DeclarationError: there is none; the nearest one is named.
    """
    if not isinstance(name, str):
        raise DeclarationError(f"the name of an option is a string, not {name!r}.")
    found = _BY_LOWER_NAME.get(name.lower())
    if found is None:
        near = nearest(name, OPTIONS)
        hint = (
            f"{told}."
            if (told := _SPARKS.get(name.lower())) is not None
            else f"did you mean {prefix + near!r}?"
            if near is not None
            else f"known options: {', '.join(OPTIONS)}."
        )
        raise DeclarationError(f"{'setting' if prefix else 'option'} {prefix + name!r} is unknown; {hint}")
    return found


def merge_settings(
    given: Mapping[str, Any], settings: Mapping[str, str], query_name: str | None
) -> dict[str, Any]:
    """Return the options of a query: those that were given, and for the others what Spark's settings say.

    A `spark.penstock.checkpointLocation` is a root for all queries, as Spark's own is: each has the folder of its name
    in there.

    Args:
        given: options that were given with `writeStream`, read.
        settings: all settings of the session.

    Raises:
        DeclarationError: a setting is unknown or of another kind; or the query has neither a checkpoint nor a name.
    """
    merged = dict(given)
    for key, value in sorted(settings.items()):
        if not key.lower().startswith(CONF_PREFIX):
            continue
        name = key[len(CONF_PREFIX) :]
        if name.lower() in NOT_OPTIONS:
            continue
        option = find_option(name, CONF_PREFIX)
        if option.name in given:
            continue
        try:
            merged[option.name] = option.read(value)
        except DeclarationError as error:
            raise DeclarationError(f"setting {key}: {error}") from None
        if option is CHECKPOINT_LOCATION:
            merged[option.name] = _in_root(merged[option.name], query_name)
    if CHECKPOINT_LOCATION.name not in merged:
        raise DeclarationError(
            f"option({CHECKPOINT_LOCATION.name!r}, ...) is required: a directory that all nodes can reach; or set "
            f"{CONF_PREFIX}{CHECKPOINT_LOCATION.name} to a root for all queries."
        )
    return merged


def _in_root(root: str, query_name: str | None) -> str:
    if query_name is None:
        raise DeclarationError(
            f"{CONF_PREFIX}{CHECKPOINT_LOCATION.name} is a root with a folder for each query by its name; call "
            f"queryName(...), or option({CHECKPOINT_LOCATION.name!r}, ...)."
        )
    if "/" in query_name or query_name.startswith("."):
        raise DeclarationError(
            f"queryName {query_name!r} cannot be the name of a folder in {root}; give "
            f"option({CHECKPOINT_LOCATION.name!r}, ...)."
        )
    return f"{root.rstrip('/')}/{query_name}"


def derive_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the data plane's settings that read options set, with their values."""
    return {
        option.setting: options[name]
        for name, option in OPTIONS.items()
        if option.setting is not None and name in options
    }


def check_sink_options(options: Mapping[str, Any], sink: str) -> None:
    """Refuse options of another sink than this one, and a missing one that this sink needs."""
    for option in OPTIONS.values():
        if option.sink is None:
            continue
        if option.sink != sink and option.name in options:
            raise DeclarationError(
                f"option {option.name!r} belongs to format({option.sink!r}); leave it out."
            )
        if option.sink == sink and option.required and option.name not in options:
            raise DeclarationError(f"format({sink!r}) needs option({option.name!r}, ...): {option.meaning}.")


def options_table(sink: str | None = None) -> str:
    """Return the reference of the options of a query, or of those of one sink, as a table in Markdown."""
    head = ["| option | type | default | meaning |", "|---|---|---|---|"]
    rows = [
        f"| `{option.name}` | {option.kind.words} | "
        f"{'required' if option.required else option.kind.show(option.default)} | {option.meaning} |"
        for option in OPTIONS.values()
        if option.sink == sink
    ]
    return "\n".join([*head, *rows]) + "\n"
