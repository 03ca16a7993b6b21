"""What a local cluster refuses before it starts a process, and what its watch makes of paths. The rest is real."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.errors import SessionError
from penstock.spark.localcluster import LocalCluster
from penstock.spark.watching import LOG, read_trespasses, watch_settings


@pytest.mark.parametrize("asked", [{"workers": -1}, {"cores": 0}])
def test_a_cluster_that_cannot_be_is_refused(asked: dict[str, int]) -> None:
    with pytest.raises(SessionError, match=next(iter(asked))):
        LocalCluster(**asked)


@pytest.mark.parametrize("asked", [{"slow": 0.5}, {"cores": 0}, {"cores": -1}])
def test_a_worker_that_cannot_be_is_refused(asked: dict[str, int]) -> None:
    with pytest.raises(SessionError, match="at least 1"):
        LocalCluster(unlike=True).add_worker(**asked)


def test_workers_differ_in_cores_only_where_the_cluster_was_told_so() -> None:
    with pytest.raises(SessionError, match="unlike=True"):
        LocalCluster(cores=2).add_worker(cores=3)
    assert "spark.executor.cores" not in LocalCluster(unlike=True).conf()
    assert LocalCluster(cores=3).conf()["spark.executor.cores"] == "3"


def test_watched_workers_import_the_hook_first_and_keep_the_path_they_had(tmp_path: Path) -> None:
    settings = watch_settings(tmp_path, environ={"PYTHONPATH": f"src{os.pathsep}"})
    first, second = settings["spark.executorEnv.PYTHONPATH"].split(os.pathsep)
    assert (Path(first) / "sitecustomize.py").exists()
    assert second == os.path.abspath("src")
    assert settings["spark.executorEnv.PENSTOCK_TEST_NODES_LOG"] == str(tmp_path / LOG)


def test_what_the_hook_noted_is_a_trespass_and_a_process_that_has_ended_is_none(tmp_path: Path) -> None:
    assert read_trespasses(tmp_path, [2**22 + 1]) == []
    (tmp_path / LOG).write_text("open /x by 1 of /y\n")
    assert read_trespasses(tmp_path, []) == ["open /x by 1 of /y"]


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="reads /proc")
def test_an_open_file_of_a_worker_that_is_not_ones_own_is_a_trespass(tmp_path: Path) -> None:
    (tmp_path / "worker-2").mkdir()
    with (tmp_path / "worker-2" / "shard").open("w"):
        (found,) = read_trespasses(tmp_path, [os.getpid()])
    assert found.startswith(f"open: {tmp_path}/worker-2/shard by {os.getpid()}")
