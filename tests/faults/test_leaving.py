"""One query, ended in every way a user or an accident ends it: nothing is left behind, and the next start goes on.

The same program and the same checkpoint go from `python app.py` to a notebook to `spark-submit` on a cluster and back.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.leavings import APP, Notebook, Program, ending
from tests.faults.spark_runs import Run, cluster

from penstock.dataplane import recordlog
from penstock.dataplane.disk import PosixDisk
from penstock.spark.localcluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.long]


@pytest.fixture(scope="module")
def on() -> Iterator[LocalCluster]:
    with cluster() as found:
        yield found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("leaving"), rate=1500.0)


def was_given_back(checkpoint: Path) -> bool:
    heartbeat = recordlog.read_heartbeat(PosixDisk(), str(checkpoint))
    return heartbeat is not None and heartbeat.released


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_ends_a_program_in_order_and_in_one_line(run: Run, presses: int) -> None:
    with ending(Program(run)) as program:
        program.start_python()
        program.await_rows()
        for _ in range(presses):
            os.killpg(program.process.pid, signal.SIGINT)
            time.sleep(0.2)
        assert program.process.wait(30) == -signal.SIGINT
        program.check_nothing_left()
        said = program.said()
        assert said.count("penstock: interrupted.") == 1 and "Traceback" not in said, said
        assert was_given_back(run.checkpoint)


def test_a_query_in_a_notebook_outlives_an_interrupt_and_goes_with_its_kernel(run: Run) -> None:
    with ending(Notebook(run)) as notebook:
        notebook.start_kernel()
        cell = notebook.run_cell(notebook.as_cell(APP))
        notebook.await_rows()
        notebook.manager.interrupt_kernel()
        assert notebook.await_cell(cell)["ename"] == "KeyboardInterrupt"
        after = notebook.await_cell(notebook.run_cell(LOOK_AGAIN))
        assert after["text"].strip() == "it goes on", after
        notebook.kill()
        notebook.check_nothing_left()
        assert not was_given_back(run.checkpoint)


LOOK_AGAIN = """
from penstock.spark.running import active_on
query = active_on(given["checkpoint"])
rows = lambda: query.lastProgress["inputs"]["bids"]["rows"]
start, deadline = rows(), time.monotonic() + 30
while query.isActive and rows() < start + 500 and time.monotonic() < deadline:
    time.sleep(0.05)
print("it goes on" if rows() >= start + 500 else query.exception())
"""


@pytest.mark.parametrize("how", ["by Ctrl-C", "by kill -9"])
def test_a_submitted_program_leaves_nothing_on_the_cluster(on: LocalCluster, run: Run, how: str) -> None:
    with ending(Program(run)) as program:
        program.start_submit(on)
        program.await_rows()
        if how == "by Ctrl-C":
            os.killpg(program.process.pid, signal.SIGINT)
            assert program.process.wait(30) == 128 + signal.SIGINT
        else:
            os.kill(program.process.pid, signal.SIGKILL)  # Spark's JVM; the program itself is its child
            program.process.wait(30)
        program.check_nothing_left(on, folders=how == "by Ctrl-C")


def test_after_all_that_every_row_counts_once(run: Run) -> None:
    with ending(Program(run)) as program:
        program.start_python()
        program.finish()
        assert program.process.wait(30) == 0
        program.check_nothing_left()
    run.check()
