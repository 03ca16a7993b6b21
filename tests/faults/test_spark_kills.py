"""Kills on a real cluster, at small counts; `make torture` runs the same scenarios at full ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults import spark_kills
from tests.faults.spark_runs import Run, cluster, violations, watched_settings

from penstock.errors import PenstockError
from penstock.spark.localcluster import LocalCluster
from penstock.testing.line import CheckFailure
from penstock.testing.replay import replay
from penstock.testing.schedule import check_schedule
from penstock.testing.tamper import Tampering, tamper_rows

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def on() -> Iterator[LocalCluster]:
    with cluster() as found:
        yield found
        assert not violations(found)


def test_a_driver_killed_at_any_point_leaves_what_the_next_one_goes_on_with(
    on: LocalCluster, tmp_path: Path
) -> None:
    assert len(list(spark_kills.kill_drivers(on, tmp_path, 2, seed=1))) == 2


def test_killed_leases_and_executors_change_nothing_and_tampering_would_show(
    on: LocalCluster, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert len(list(spark_kills.kill_leases(on, folder, 3, seed=2))) == 3
    run = Run(folder, rate=1500.0)
    for how in Tampering:
        for stage in ("bids", "followed"):
            forged = tmp_path / f"{how.name}-{stage}"
            tamper_rows(str(run.checkpoint), run.program(), str(forged), stage, how)
            with pytest.raises((CheckFailure, PenstockError)):
                check_schedule(str(forged), run.program(), complete=True)
                replay(str(forged), run.program())


@pytest.mark.long
def test_a_lease_that_was_stopped_and_goes_on_after_it_was_replaced_changes_nothing(
    on: LocalCluster, tmp_path: Path
) -> None:
    assert len(list(spark_kills.stop_leases(on, tmp_path, 2, seed=3))) == 2


@pytest.mark.long
def test_of_two_drivers_the_paused_one_ends_with_the_winners_name_and_one_line_is_left(
    on: LocalCluster, tmp_path: Path
) -> None:
    spark_kills.two_drivers(on, tmp_path, pause_s=5.0)


@pytest.mark.long
def test_a_task_that_opens_a_path_of_another_node_is_caught(on: LocalCluster, tmp_path: Path) -> None:
    program = tmp_path / "trespass.py"
    program.write_text(TRESPASS)
    settings = {
        **on.conf(),
        **watched_settings(on, on.directory / "planted"),
        "spark.executor.memory": "512m",
        "spark.cores.max": "3",
    }
    (tmp_path / "conf").touch(mode=0o600)
    (tmp_path / "conf").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "conf"), str(on.directory)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "belongs to another node" in done.stdout, done.stderr[-2000:]
    assert "open " in (on.directory / "planted").read_text()


TRESPASS = """
import json, os, sys
import penstock
spark = penstock.session(conf=json.load(open(sys.argv[1])))
def look(rows):
    own = os.path.dirname(os.path.realpath(os.environ["TMPDIR"]))
    try:
        open("own", "w").close()
        open(os.path.join(own, "tmp", "own"), "w").close()
        others = [d for d in os.listdir(sys_root) if d.startswith("worker-") and d != os.path.basename(own)]
        open(os.path.join(sys_root, others[0], "tmp", "x"), "w")
        return iter(["nothing happened"])
    except PermissionError as error:
        return iter([str(error)])
sys_root = sys.argv[2]
print(spark.sparkContext.parallelize([0], 1).mapPartitions(look).collect())
spark.stop()
"""
