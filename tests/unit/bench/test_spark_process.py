"""The process of plain Spark, with the child replaced by a few lines of Python: no Spark is started here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from penstock.bench import spark_process
from penstock.bench.spark_process import PeerProcessError, SparkPeer

CHILD = """\
import json, os, sys, time
for line in sys.stdin:
    request = json.loads(line)
    if request["call"] == "session":
        answer = {"result": "21"}
    elif request["call"] == "idle_cpu":
        answer = {"result": {"seconds": request["arguments"]["seconds"], "cpu_s": 1.0}}
    elif request["call"] == "run_steady":
        answer = {"error": "PeerError: the steady query ended by itself"}
    else:
        os.write(int(sys.argv[-1]), b"out of memory")
        sys.exit(3)
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for the interpreter: runs the lines above whatever module it is asked to run."""
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return tmp_path


@pytest.mark.usefixtures("child")
def test_an_answer_comes_back_as_its_own_type() -> None:
    with SparkPeer() as peer:
        assert peer.java == "21"
        assert peer.idle_cpu(4.0).cores == 0.25


@pytest.mark.usefixtures("child")
def test_a_run_that_fails_is_an_error_and_the_process_goes_on() -> None:
    with SparkPeer() as peer:
        with pytest.raises(PeerProcessError, match="ended by itself"):
            peer.steady(20_000)
        assert peer.idle_cpu(2.0).cores == 0.5


@pytest.mark.usefixtures("child")
def test_a_process_that_dies_is_reported_with_its_last_words() -> None:
    with SparkPeer() as peer, pytest.raises(PeerProcessError, match=r"run_batches.*out of memory"):
        peer.batches(100_000)


@pytest.mark.usefixtures("child")
def test_the_process_is_gone_after_the_block() -> None:
    with SparkPeer() as peer:
        pid = peer.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_call_before_the_start_is_refused() -> None:
    with pytest.raises(PeerProcessError, match="context manager"):
        SparkPeer().idle_cpu()


def test_a_python_api_whose_package_is_missing_is_named_before_time_is_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark_process, "find_spec", lambda name: None)
    with pytest.raises(PeerProcessError, match=r"protobuf.*pip install"):
        spark_process.check_installed("with_state")
    spark_process.check_installed("in_pandas")
