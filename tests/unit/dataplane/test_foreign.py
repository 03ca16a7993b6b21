"""A folder that something else has filled is refused by name, before anything is written to it, by whatever opens it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.faults.runs import fast_disk
from typer.testing import CliRunner

from penstock.cli.doctor import Level, check_checkpoint_folder
from penstock.cli.main import app
from penstock.dataplane.exports import read_head
from penstock.dataplane.foreign import sparks_part
from penstock.dataplane.opening import open_checkpoint
from penstock.dataplane.recordlog import Claim
from penstock.errors import CheckpointError
from penstock.sim.programs import memory_program
from penstock.spark.importing import look
from penstock.spark.journal_file import check_journal

ME = Claim(0, "host", 1, "boot", 1.0, 0.0)
AS_SPARK_LEAVES_IT = ("metadata", "offsets/0", "commits/0", "sources/0/0", "state/0/0/1.delta")


def filled(folder: Path, *files: str) -> str:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("x")
    return str(folder)


def contents(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).rglob("*"))


def opened(folder: str, beside: str = "") -> Any:
    return open_checkpoint(fast_disk(), folder, memory_program(), who=ME, beside=beside)


@pytest.mark.parametrize("files", [AS_SPARK_LEAVES_IT, AS_SPARK_LEAVES_IT[:2], AS_SPARK_LEAVES_IT[1:3]])
def test_a_spark_querys_checkpoint_is_refused_with_the_way_to_move(
    tmp_path: Path, files: tuple[str, ...]
) -> None:
    folder = filled(tmp_path / "old", *files)
    before = contents(folder)
    with pytest.raises(
        CheckpointError, match=r"old is the checkpoint of a Spark query .*`penstock import .*old NEW"
    ):
        opened(folder)
    assert contents(folder) == before


@pytest.mark.parametrize(
    "command",
    [
        ("checkpoint", "ls"), ("checkpoint", "show"), ("checkpoint", "verify"), ("checkpoint", "repair"),
        ("query", "tasks"), ("plan",),
    ],
)  # fmt: skip
def test_every_command_says_whose_checkpoint_it_is(tmp_path: Path, command: tuple[str, ...]) -> None:
    folder = filled(tmp_path / "old", *AS_SPARK_LEAVES_IT)
    ran = CliRunner().invoke(app, [*command, folder])
    assert ran.exit_code == 2, ran.output
    assert "is the checkpoint of a Spark query" in ran.output and "penstock import" in ran.output
    assert ran.output.count("\n") == 1


def test_so_do_a_reader_of_exports_the_doctor_and_the_target_of_an_import(tmp_path: Path) -> None:
    folder = filled(tmp_path / "old", *AS_SPARK_LEAVES_IT)
    with pytest.raises(CheckpointError, match="the checkpoint of a Spark query"):
        read_head(fast_disk(), folder, "counts")
    check = check_checkpoint_folder(folder)
    assert check.level is Level.FAIL and "the checkpoint of a Spark query" in check.found
    spark: Any = None
    with pytest.raises(CheckpointError, match="the checkpoint of a Spark query"):
        look(spark, folder, folder)


def test_a_folder_with_other_files_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    folder = filled(tmp_path / "home", "notes.txt", "draft.tmp", "src/a.py", "x1", "x2")
    before = contents(folder)
    with pytest.raises(
        CheckpointError, match=r"home is no checkpoint and not empty: it has notes.txt, src, x1 and 1 more"
    ):
        opened(folder)
    assert contents(folder) == before


@pytest.mark.parametrize(
    "files",
    [
        ("part-00000.parquet",), ("a.csv",), ("_SUCCESS",), ("rows.json", "README"), ("n1", "n2", "n3", "n4"), ("state",),
        ("notes/today.md",), ("README", "src/a.py"),
    ],
)  # fmt: skip
def test_a_folder_with_rows_or_folders_or_many_files_of_others_is_refused(
    tmp_path: Path, files: tuple[str, ...]
) -> None:
    folder = filled(tmp_path / "home", *files)
    before = contents(folder)
    with pytest.raises(CheckpointError, match="home is no checkpoint and not empty"):
        opened(folder)
    assert contents(folder) == before


@pytest.mark.parametrize("files", [("README.md",), ("decisions.jsonl",), ("README", "LICENSE", "notes.txt")])
def test_a_few_notes_do_not_make_a_folder_somebody_elses(tmp_path: Path, files: tuple[str, ...]) -> None:
    folder = filled(tmp_path / "prepared", *files)
    assert opened(folder).fresh
    assert all((Path(folder) / name).read_text() == "x" for name in files)
    assert opened(folder).claim.generation == 2


@pytest.mark.parametrize("journal", ["decisions.jsonl", "journals/counts/decisions.json"])
def test_the_querys_own_journal_in_a_new_checkpoint_is_no_stranger(tmp_path: Path, journal: str) -> None:
    folder = tmp_path / "new"
    check_journal(str(folder / journal))  # as a start does, before it opens the checkpoint
    assert opened(str(folder), beside=str(folder / journal)).fresh
    assert (folder / journal).exists()


def test_a_journal_elsewhere_excuses_nothing(tmp_path: Path) -> None:
    folder = filled(tmp_path / "home", "src/a.py")
    for journal in ("", str(tmp_path / "src/journal.jsonl"), str(tmp_path / "journal.jsonl")):
        with pytest.raises(CheckpointError, match="not empty: it has src"):
            opened(folder, beside=journal)


def test_what_a_start_an_import_or_a_file_system_leaves_is_no_stranger(tmp_path: Path) -> None:
    files = (
        "imported/op/manifest",
        "ingest/rows/offsets/0",
        "log/.keep",
        "lost+found/x",
        ".DS_Store",
        "meta.1.tmp",
    )
    (tmp_path / "new" / "lost+found").mkdir(parents=True)
    folder = filled(tmp_path / "new", *(file for file in files if not file.startswith("log")))
    assert opened(folder).fresh


def test_a_checkpoint_of_ours_stays_ours_whatever_else_is_in_it(tmp_path: Path) -> None:
    folder = str(tmp_path / "ours")
    opened(folder)
    filled(Path(folder), *AS_SPARK_LEAVES_IT, "notes.txt")
    assert opened(folder).claim.generation == 2


def test_one_name_alone_makes_no_spark_checkpoint() -> None:
    assert sparks_part(["state", "other"]) == [] and sparks_part(["metadata"]) == []
    assert sparks_part(["meta", "metadata", "offsets"]) == []
    assert sparks_part(["x", "offsets", "metadata"]) == ["metadata", "offsets"]
