"""How commands answer: a table for a person, JSON for a machine, one line for an error."""

from __future__ import annotations

import dataclasses
import io
import json as json_format
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console

from penstock.errors import DeclarationError, PenstockError

USAGE, FOUND = 2, 1
"""Exit codes: asked for something that is not there; something was found."""
_WIDTH = 140
"""Of tables that go to a file or another program."""
_UNITS = ("B", "kB", "MB", "GB", "TB")


def answer(payload: Any, json: str | None, show: Callable[[Console], None]) -> None:
    """Show a result; with `json` also write it to that file, or only print it as JSON for `-`."""
    text = json_format.dumps(plain(payload), indent=2, default=str)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name of a file may be no text
        sys.stdout.reconfigure(errors="backslashreplace")
    if json == "-":
        typer.echo(text)
        return
    show(Console() if sys.stdout.isatty() else Console(width=_WIDTH))
    if json is not None:
        try:
            Path(json).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise DeclarationError(f"{json} cannot be written: {error.strerror}.") from error


def check_writable(path: str | Path | None) -> None:
    """Refuse a file that cannot be written before what it is for has taken its time; `-` and None are none.

    Raises:
        DeclarationError: its folder is not there, or it is a folder itself, or may not be written to.
    """
    if path is None or str(path) == "-":
        return
    file = Path(path)
    if not file.parent.is_dir():
        raise DeclarationError(f"{file} cannot be written: there is no folder {file.parent}; make it first.")
    if file.is_dir():
        raise DeclarationError(f"{file} is a folder; name a file.")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise DeclarationError(f"{file} cannot be written: permission denied.")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn an error of ours into one line and the exit code for wrong usage."""
    try:
        yield
    except PenstockError as error:
        end_with(str(error), USAGE)
    except PermissionError as error:
        end_with(f"{error.filename} cannot be read: permission denied.", USAGE)


def end_with(message: str, code: int) -> NoReturn:
    typer.echo(f"penstock: {' '.join(message.split())}", err=True)
    raise typer.Exit(code)


def plain(value: Any) -> Any:
    """A result as JSON has it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if hasattr(value, "__struct_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plain(one) for name, one in zip(value._fields, value, strict=True)}
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no word for it
    return value.hex() if isinstance(value, bytes) else value


def size(count: float) -> str:
    """Bytes as a person reads them."""
    for unit in _UNITS:
        if count < 1000 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def ago(then: float | None, now: float | None = None) -> str:
    """How long ago something was."""
    if then is None:
        return "never"
    seconds = max(0.0, (time.time() if now is None else now) - then)
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
