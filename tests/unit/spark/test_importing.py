"""What `penstock import` refuses, it refuses when it looks: before anything is written, and on a dry run too."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.faults.runs import fast_disk

import penstock
from penstock.cli.importing import run_import
from penstock.dataplane.opening import open_checkpoint
from penstock.dataplane.recordlog import Claim
from penstock.errors import CheckpointError
from penstock.sim.programs import memory_program
from penstock.spark.importing import look

VARIABLES = [
    {"stateName": "count", "stateVariableType": "ValueState", "ttlEnabled": False},
    {"stateName": "seen", "stateVariableType": "MapState", "ttlEnabled": True},
]


class Reader:
    """`spark.read` over one operator."""

    def __init__(self, operator: str) -> None:
        row = SimpleNamespace(
            operatorId=0,
            operatorName=operator,
            operatorProperties=json.dumps({"stateVariables": VARIABLES}),
        )
        self.read = SimpleNamespace(
            format=lambda name: SimpleNamespace(load=lambda path: SimpleNamespace(collect=lambda: [row]))
        )


def plain(folder: Path, *offsets: str) -> str:
    """The logs of a Spark query with these sources after its first batch."""
    for name in ("commits", "offsets", "state"):
        (folder / name).mkdir(parents=True)
    (folder / "commits/0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    (folder / "offsets/0").write_text("\n".join(['v1\n{"batchWatermarkMs":0}', *offsets]))
    (folder / "metadata").write_text('{"id":"old"}')
    return str(folder)


def looked(origin: str, to: Path, *without: str, operator: str = "transformWithStateInPySparkExec") -> Any:
    spark: Any = Reader(operator)
    return look(spark, origin, str(to), without)


def test_what_can_be_carried_is_told_by_name(tmp_path: Path) -> None:
    plan = looked(plain(tmp_path / "old", '{"logOffset":0}'), tmp_path / "new", "seen")
    assert plan.variables == {"count": ("value", False)} and plan.offsets == [{"logOffset": 0}]
    assert "not carried: state 'seen', as asked" in plan.told()


def test_a_query_of_several_sources_is_refused_even_when_one_gave_nothing_yet(tmp_path: Path) -> None:
    origin = plain(tmp_path / "old", '{"logOffset":0}', "-")
    with pytest.raises(CheckpointError, match="old reads 2 sources; only the logs of a query with one"):
        looked(origin, tmp_path / "new")


def test_a_checkpoint_in_use_is_refused(tmp_path: Path) -> None:
    origin = plain(tmp_path / "old", '{"logOffset":0}')
    me = Claim(0, "host", 1, "boot", 1.0, 0.0)
    open_checkpoint(fast_disk(), str(tmp_path / "new"), memory_program(), who=me)
    with pytest.raises(CheckpointError, match="new is the checkpoint of a query already; import into a new"):
        looked(origin, tmp_path / "new")


def test_a_state_to_leave_out_that_is_not_there_is_refused_with_the_nearest(tmp_path: Path) -> None:
    origin = plain(tmp_path / "old", '{"logOffset":0}')
    with pytest.raises(CheckpointError, match=r"--without: .*has no state 'seeen'; did you mean 'seen'"):
        looked(origin, tmp_path / "new", "seeen")
    with pytest.raises(CheckpointError, match=r"no state 'xyz'; it has count, seen\."):
        looked(origin, tmp_path / "new", "xyz")
    with pytest.raises(CheckpointError, match="the state of a group function has no names"):
        looked(origin, tmp_path / "new", "state", operator="applyInPandasWithState")


def test_a_dry_run_refuses_what_the_run_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = plain(tmp_path / "old", '{"logOffset":0}', '{"logOffset":3}')
    monkeypatch.setattr(penstock, "session", lambda name: Reader("transformWithStateInPySparkExec"))
    assert run_import(origin, str(tmp_path / "new"), "op", "rows", dry_run=True) == 1
    said = capsys.readouterr()
    assert "reads 2 sources" in said.err and "carried" not in said.out
