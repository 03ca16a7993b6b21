"""The options of a query: each defined once, with its kind, default and a sentence.

`writeStream` reads option values by this table, the data plane takes its defaults from it, and the table in
docs/options.md is the one that `options_table` gives. Carries out nothing.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.errors import DeclarationError

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
    if not isinstance(given, str | os.PathLike):
        raise ValueError("a path")
    return str(given)


def _read_boolean(given: object) -> bool:
    word = str(given).strip().lower()
    if word not in ("true", "false"):
        raise ValueError("true or false")
    return word == "true"


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


PATH = Kind("path or `file:` URI", _read_path, str)
BOOLEAN = Kind("`true` / `false`", _read_boolean, lambda value: f"`{str(value).lower()}`")
ROWS = Kind("rows", _read_whole, lambda value: f"{value:,}")
BYTES = Kind("bytes", _read_whole, lambda value: f"{value:,}")
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
LEASE_TIMEOUT_SECONDS = Option(
    "leaseTimeoutSeconds", SECONDS, 15.0, "silence after which a lease is taken as lost", "lease_timeout_s"
)
MEMORY_BYTES = Option(
    "memoryBytes", BYTES, 512 << 20, "bound of state kept in memory, per task", "memory_bytes"
)
RETAIN_ALL = Option(
    "retainAll",
    BOOLEAN,
    False,
    "keep every log part and data file, to check a run from its records; the checkpoint grows without bound",
    "retain_all",
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
        LEASE_TIMEOUT_SECONDS,
        MEMORY_BYTES,
        RETAIN_ALL,
        SINK_PATH,
        ROLL_SECONDS,
        ROLL_BYTES,
        PARQUET_COMPRESSION,
        NUM_ROWS,
        CONSOLE_TRUNCATE,
    )
}
_BY_LOWER_NAME = {name.lower(): option for name, option in OPTIONS.items()}
_NEAR = 0.3
"""How alike a name must be to be suggested; low, since the list is short."""


def find_option(name: object) -> Option[Any]:
    """Return the option of this name, whatever its case.

    Raises:
        DeclarationError: there is none; the nearest one is named.
    """
    if not isinstance(name, str):
        raise DeclarationError(f"the name of an option is a string, not {name!r}.")
    found = _BY_LOWER_NAME.get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), _BY_LOWER_NAME, n=1, cutoff=_NEAR)
        hint = (
            f"did you mean {_BY_LOWER_NAME[near[0]].name!r}?"
            if near
            else f"known options: {', '.join(OPTIONS)}."
        )
        raise DeclarationError(f"option {name!r} is unknown; {hint}")
    return found


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
