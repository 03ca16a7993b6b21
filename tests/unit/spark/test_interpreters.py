"""A local session whose workers would run another Python is refused by name, before Spark prints pages of Java."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import SessionError
from penstock.spark.interpreters import ask_interpreter, check_interpreter


def session(python: str, master: str = "local[4]") -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(pythonExec=python, master=master))


def script(folder: Path, body: str) -> str:
    path = folder / "python3"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_the_interpreter_of_the_program_is_taken_without_asking_it() -> None:
    check_interpreter(session(sys.executable))


def test_a_cluster_has_interpreters_of_its_own() -> None:
    check_interpreter(session("/nowhere/python", "spark://host:7077"))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo 3.7; echo 1.0", "that is Python 3.7 and this program runs"),
        (
            f"echo {sys.version_info[0]}.{sys.version_info[1]}; echo \"No module named 'penstock'\" >&2; exit 1",
            "that cannot import penstock .*No module named 'penstock'",
        ),
    ],
)
def test_what_is_wrong_with_another_one_is_said_with_what_to_set(
    tmp_path: Path, body: str, said: str
) -> None:
    path = script(tmp_path, body)
    with pytest.raises(SessionError, match=said) as raised:
        check_interpreter(session(path))
    text = str(raised.value)
    assert path in text and sys.executable in text and "PYSPARK_PYTHON" in text and "\n" not in text


def test_one_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="there is no python-of-nobody on the PATH"):
        check_interpreter(session("python-of-nobody"))


def test_another_one_that_can_run_penstock_is_taken(tmp_path: Path) -> None:
    assert ask_interpreter(script(tmp_path, f'exec {sys.executable} "$@"')) is None
