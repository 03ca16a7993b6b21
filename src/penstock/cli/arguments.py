"""How the command line reads paths: `~` is the user's home, also where a shell leaves it as it is (`--json=~/out.json`)."""

from __future__ import annotations

import os
from pathlib import Path

import typer


def path(text: str) -> Path:
    """Read a path that need not be there."""
    return Path(os.path.expanduser(text))


def file(text: str) -> Path:
    """Read the path of a file that is there.

    Raises:
        BadParameter: it is not, or it is no file, or may not be read.
    """
    found = path(text)
    if not found.exists():
        raise typer.BadParameter(f"File {text!r} does not exist.")
    if found.is_dir():
        raise typer.BadParameter(f"File {text!r} is a directory.")
    if not os.access(found, os.R_OK):
        raise typer.BadParameter(f"File {text!r} is not readable.")
    return found


def place(text: str) -> str:
    """Read a path or `file:` URI."""
    return os.path.expanduser(text)
