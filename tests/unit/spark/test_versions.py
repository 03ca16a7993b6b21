from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from penstock.spark.leases import reason_in
from penstock.spark.versions import check_version, node_in
from penstock.version import __version__

FAILED = """org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, \
most recent failure: Lost task 0.0 in stage 3.0 (TID 7) (10.0.0.7 executor 3): org.apache.spark.SparkException:
Error from python worker:
  {}
"""


def test_a_node_with_the_drivers_version_is_fine() -> None:
    assert check_version("3", "host", __version__) is None


def test_a_node_with_another_version_is_named_with_the_command_that_ships_ours() -> None:
    told = check_version("3", "10.0.0.7", "0.0.9", ours="0.2.0")
    assert told is not None
    assert "node 3 on 10.0.0.7 has Penstock 0.0.9, the driver 0.2.0" in told
    assert "pip install 'penstock==0.2.0'" in told and "--archives" in told


def test_a_node_without_penstock_is_named_with_the_command_that_ships_it() -> None:
    told = reason_in(FAILED.format("ModuleNotFoundError: No module named 'penstock'"))
    assert told.startswith("node 3 on 10.0.0.7 has no Penstock")
    assert "No module named 'penstock'" in told and "pip install 'penstock" in told


def test_a_module_of_the_users_own_is_not_taken_for_penstock() -> None:
    told = reason_in(FAILED.format("ModuleNotFoundError: No module named 'pricing'"))
    assert told.startswith("node 3 on 10.0.0.7 cannot import 'pricing'")
    assert "install Penstock" not in told


def test_a_failure_that_names_no_executor_names_none() -> None:
    assert node_in("ModuleNotFoundError: No module named 'penstock'") is None
    assert reason_in("ModuleNotFoundError: No module named 'penstock'").startswith("a node has no Penstock")


def test_a_module_beside_the_program_is_said_to_stand_there_with_how_to_ship_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pricing_of_mine.py").write_text("fee = 1")
    (tmp_path / "tools_of_mine").mkdir()
    (tmp_path / "tools_of_mine" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, path, more in (
        ("pricing_of_mine", tmp_path / "pricing_of_mine.py", ""),
        ("tools_of_mine", tmp_path / "tools_of_mine", "as a zip file"),
    ):
        importlib.import_module(name)
        told = reason_in(FAILED.format(f"ModuleNotFoundError: No module named '{name}'"))
        monkeypatch.delitem(sys.modules, name)
        assert told.startswith(f"node 3 on 10.0.0.7 cannot import '{name}', which stands beside the program")
        assert f"spark.sparkContext.addPyFile('{path}') before start()" in told and more in told
