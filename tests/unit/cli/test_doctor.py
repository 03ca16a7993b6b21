"""`penstock doctor`: every check says OK, warns or fails with the fix, and the exit code follows."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import doctor
from penstock.cli.doctor import Check, Level
from penstock.cli.main import app


def absent(name: str) -> str:
    raise importlib.metadata.PackageNotFoundError(name)


def spark_home(folder: Path, version: str | None) -> dict[str, str]:
    (folder / "jars").mkdir(exist_ok=True)
    if version:
        (folder / "jars" / f"spark-core_2.13-{version}.jar").write_text("")
    return {"SPARK_HOME": str(folder)}


def test_every_failure_has_a_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    bad = [
        doctor.check_python((3, 10)),
        doctor.check_platform("win32"),
        doctor.check_package("pandas", "2.2", absent),
        doctor.check_package("pandas", "2.2", lambda name: "1.5.3"),
        doctor.check_spark_home(spark_home(tmp_path, None)),
        doctor.check_spark_home(spark_home(tmp_path, "3.5.1")),
        doctor.check_disk("disk", str(tmp_path), 1000),
        doctor.check_open_files(256),
        doctor.check_checkpoint_folder(str(tmp_path / "file" / "cp")),
        doctor.check_checkpoint_folder("s3://bucket/cp"),
        *doctor.check_defaults({"spark.dynamicAllocation.enabled": "true"}),
    ]
    assert [check.level for check in bad] == [Level.FAIL] * len(bad)
    assert all(check.fix for check in bad)


def test_what_is_worth_a_word_is_a_warning(tmp_path: Path) -> None:
    warned = [
        doctor.check_disk("disk", str(tmp_path), 5 << 30),
        doctor.check_open_files(2048),
        doctor.check_shared_memory(str(tmp_path / "none")),
        *doctor.check_defaults({"spark.speculation": "true"}),
    ]
    assert [check.level for check in warned] == [Level.WARN] * len(warned) and all(
        check.fix for check in warned
    )


def test_java_that_is_missing_or_passed_over_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("penstock.spark.java._shipped_java", lambda: None)
    none = doctor.check_java({"PATH": str(tmp_path)})
    assert none.level is Level.FAIL and "pip install" in none.fix
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    passed = doctor.check_java({"PATH": str(tmp_path), "JAVA_HOME": "/no/java"})
    assert passed.level is Level.WARN and "JAVA_HOME=/no/java" in passed.fix
    assert doctor.check_java({"PATH": str(tmp_path)}).level is Level.OK


def test_sparks_defaults_are_read_as_spark_reads_them(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# a comment\nspark.speculation   true\nspark.task.maxFailures=1\n\n"
    )
    read = doctor.read_defaults({"SPARK_CONF_DIR": str(tmp_path)})
    assert read == {"spark.speculation": "true", "spark.task.maxFailures": "1"}
    assert doctor.read_defaults({}) == doctor.read_defaults({"SPARK_HOME": str(tmp_path)}) == {}


def test_a_folder_that_was_made_to_try_it_is_gone_again(tmp_path: Path) -> None:
    assert doctor.check_checkpoint_folder(str(tmp_path / "new")).level in (Level.OK, Level.WARN)
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    doctor.check_checkpoint_folder(str(tmp_path / "old"))
    assert list((tmp_path / "old").iterdir()) == []


def test_a_session_that_does_not_start_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("no JVM\nfor you")

    monkeypatch.setattr("penstock.spark.session.session", broken)
    (found,) = doctor.check_session()
    assert found.level is Level.FAIL and found.found == "RuntimeError: no JVM for you"


def test_the_command_prints_a_line_each_and_exits_with_1_when_something_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick = CliRunner().invoke(app, ["doctor", "--quick"])
    assert "Python: 3." in quick.stdout and "Spark session" not in quick.stdout
    assert len(quick.stdout.splitlines()) == len(list(doctor.run_checks(quick=True)))
    monkeypatch.setattr(
        "penstock.cli.doctor.run_checks", lambda *_: iter([Check("Java", Level.FAIL, "none", "get one")])
    )
    failed = CliRunner().invoke(app, ["doctor"])
    assert failed.exit_code == 1 and failed.stdout == "fail  Java: none; get one\n"
    machine = CliRunner().invoke(app, ["doctor", "--json", "-"])
    assert machine.exit_code == 1
    assert json.loads(machine.stdout) == [
        {"what": "Java", "level": "fail", "found": "none", "fix": "get one"}
    ]
