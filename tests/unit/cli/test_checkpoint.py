"""`penstock checkpoint`: what it prints, what it writes for machines, and how it exits."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.runs import fast_disk, scratch
from tests.unit.dataplane.looked_at import left_behind
from typer.testing import CliRunner, Result

from penstock.cli.main import app
from penstock.cli.output import ago, plain, size
from penstock.dataplane import recordlog
from penstock.dataplane.holding import this_process
from penstock.dataplane.recordlog import Heartbeat
from penstock.sim.programs import local_program


@pytest.fixture(scope="module")
def made() -> Iterator[str]:
    with scratch() as folder:
        yield left_behind(folder, local_program(), kept=True)


@pytest.fixture
def checkpoint(made: str, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "cp")
    return tmp_path / "cp"


def penstock(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["checkpoint", *map(str, arguments)])


def as_json(*arguments: object) -> Any:
    return json.loads(penstock(*arguments, "--json", "-").stdout)


def test_ls_lists_checkpoints_and_the_parts_of_one(checkpoint: Path) -> None:
    listed = penstock("ls", checkpoint.parent)
    assert listed.exit_code == 0
    assert listed.stdout.splitlines()[1].split()[0] == "cp" and "fold " in listed.stdout
    (found,) = as_json("ls", checkpoint.parent)
    assert found["path"] == str(checkpoint) and found["stages"]["fold"] > 0 and found["problem"] is None
    assert found["holder"]["generation"] == 1 and not found["holder"]["alive"]
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    assert (found["files"], found["size_bytes"]) == (len(files), sum(path.stat().st_size for path in files))
    parts = {part["name"]: part for part in as_json("ls", checkpoint)}
    assert parts["data *.seg"]["files"] >= parts["data *.seg"]["needed_files"] > 0
    assert sum(part["files"] for part in parts.values()) == len(files)


def test_ls_names_a_checkpoint_that_cannot_be_read_and_goes_on(checkpoint: Path) -> None:
    shutil.copytree(checkpoint, checkpoint.parent / "other")
    (checkpoint / "meta").write_bytes(b"nonsense")
    broken, whole = as_json("ls", checkpoint.parent)
    assert "meta is damaged" in broken["problem"] and whole["problem"] is None


def test_show_says_where_every_stage_stands(checkpoint: Path) -> None:
    shown = penstock("show", checkpoint)
    assert shown.exit_code == 0
    for word in ("source", "fold", "gather", "sink", "waiting rows", "digest", "generation 1, part"):
        assert word in shown.stdout
    stages = {stage["name"]: stage for stage in as_json("show", checkpoint)["stages"]}
    assert (
        stages["fold"]["inputs"][0]["waiting_rows"]
        == stages["source"]["rows_out"] - stages["fold"]["rows_in"]
    )
    assert len(stages["gather"]["state"]["digest"]) == 32


def test_show_shows_shards_and_the_state_of_a_key(checkpoint: Path) -> None:
    one = as_json("show", checkpoint, "--operator", "gather")
    assert [stage["name"] for stage in one["stages"]] == ["gather"]
    assert [row["shard"] for row in one["shards"]] == list(range(12))
    assert "shard" in penstock("show", checkpoint, "--operator", "gather").stdout
    key = as_json("show", checkpoint, "--operator", "gather", "--key", "3")["key"]
    assert key["key"] == {"g": 3} and sum(key["states"]["seen"].values()) == key["states"]["count"]
    assert "seen" in penstock("show", checkpoint, "--operator", "gather", "--key", "3").stdout


def test_verify_exits_with_0_on_a_whole_checkpoint_and_with_1_naming_the_damaged_file(
    checkpoint: Path,
) -> None:
    whole = penstock("verify", checkpoint)
    assert whole.exit_code == 0 and "no damage" in whole.stdout and "20 shards rebuilt" in whole.stdout
    assert "not retained" not in whole.stdout
    segment = next(path for path in (checkpoint / "data").iterdir() if path.suffix == ".snp")
    data = bytearray(segment.read_bytes())
    data[100] ^= 4
    segment.write_bytes(bytes(data))
    found = penstock("verify", checkpoint)
    assert found.exit_code == 1 and segment.name in found.stdout
    report = as_json("verify", checkpoint)
    assert report["damaged"] and {f"data/{segment.name}"} == {
        one["file"] for one in report["findings"] if one["level"] == "damage"
    }


def test_verify_finds_records_that_contradict_each_other(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "penstock.cli.checkpoint.find_schedule_faults", lambda line, program: ["a row is lost"]
    )
    found = penstock("verify", checkpoint)
    assert found.exit_code == 1 and "a row is lost" in found.stdout


def test_repair_shows_the_plan_and_does_it_only_when_told(checkpoint: Path) -> None:
    orphan = checkpoint / "data" / "g000001-left-000009.seg"
    orphan.write_bytes(b"x" * 2000)
    planned = penstock("repair", checkpoint)
    assert planned.exit_code == 0 and orphan.exists()
    assert f"delete  data/{orphan.name} (2.0 kB): no record names it" in planned.stdout
    assert "nothing was changed; run again with --yes" in planned.stdout
    done = penstock("repair", checkpoint, "--yes")
    assert done.exit_code == 0 and not orphan.exists() and "done" in done.stdout
    assert "nothing to repair" in penstock("repair", checkpoint).stdout
    assert penstock("verify", checkpoint).exit_code == 0


def test_repair_names_what_it_cannot_mend_and_exits_with_1(checkpoint: Path) -> None:
    (checkpoint / "meta").write_bytes(b"nonsense")
    found = penstock("repair", checkpoint, "--yes")
    assert found.exit_code == 1 and "cannot be repaired" in found.stdout and "meta is damaged" in found.stdout
    assert (checkpoint / "meta").read_bytes() == b"nonsense"


def test_repair_is_refused_while_the_holder_is_alive(checkpoint: Path) -> None:
    claim = this_process()
    alive = Heartbeat(type(claim)(1, claim.host, os.getppid(), claim.boot, 0.0, claim.time), 0.0)
    recordlog.write_heartbeat(fast_disk(), str(checkpoint), alive)
    refused = penstock("repair", checkpoint, "--yes")
    assert refused.exit_code == 2 and "stop that query before repairing it" in refused.stderr
    assert "alive" in penstock("show", checkpoint).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "/no/such/folder"], "is no folder"),
        (["show", "{empty}"], "is no Penstock checkpoint"),
        (["verify", "{empty}"], "is no Penstock checkpoint"),
        (["show", "s3://bucket/x"], "uses s3:, which is not supported"),
        (["show", "{cp}", "--operator", "none"], "there is no 'none'; the checkpoint has source, fold"),
        (["show", "{cp}", "--key", "1"], "--key needs --operator"),
        (["show", "{cp}", "--operator", "fold", "--key", "one"], "no key of operator 'fold'"),
        (["show", "{cp}", "--operator", "source", "--key", "1"], "has no input and no state"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    checkpoint: Path, tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "empty").mkdir()
    filled = [word.format(cp=checkpoint, empty=tmp_path / "empty") for word in arguments]
    found = penstock(*filled)
    assert found.exit_code == 2, found.output
    assert said in found.stderr and len(found.stderr.splitlines()) == 1


def test_a_folder_without_checkpoints_says_so(tmp_path: Path) -> None:
    found = penstock("ls", tmp_path)
    assert found.exit_code == 1 and "holds no checkpoint" in found.stderr


def test_json_is_also_written_to_a_file(checkpoint: Path, tmp_path: Path) -> None:
    found = penstock("verify", checkpoint, "--json", tmp_path / "report.json")
    assert "no damage" in found.stdout
    assert json.loads((tmp_path / "report.json").read_text())["damaged"] is False


def test_sizes_and_times_read_well() -> None:
    assert [size(n) for n in (0, 999, 1500, 2_500_000)] == ["0 B", "999 B", "1.5 kB", "2.5 MB"]
    assert [ago(t, 100_000.0) for t in (None, 99_990.0, 99_000.0, 1.0)] == [
        "never",
        "10 s ago",
        "17 min ago",
        "1 d ago",
    ]
    assert plain({1: (b"\x01", {2})}) == {"1": ["01", [2]]}
