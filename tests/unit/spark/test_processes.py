from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from penstock.spark import keeper
from penstock.spark.processes import (
    Process,
    derive_ancestors,
    derive_descendants,
    derive_executor_id,
    descendants,
    signal_group,
)

FAMILY = [
    Process(1, 0, ("init",)),
    Process(10, 1, ("worker",)),
    Process(12, 11, ("python", "-m", "pyspark.daemon")),
    Process(11, 10, ("java", "--executor-id", "3")),
    Process(20, 1, ("stranger",)),
]


def test_descendants_are_found_at_every_depth_and_strangers_left_out() -> None:
    assert [process.pid for process in derive_descendants(10, FAMILY)] == [11, 12]


def test_ancestors_lead_from_a_process_to_the_first_and_end_in_a_circle() -> None:
    assert [process.pid for process in derive_ancestors(12, FAMILY)] == [12, 11, 10, 1]
    assert derive_ancestors(99, FAMILY) == []
    circle = [Process(5, 6, ("a",)), Process(6, 5, ("b",))]
    assert [process.pid for process in derive_ancestors(5, circle)] == [5, 6]


def test_the_executor_is_named_on_the_command_line_of_the_nearest_jvm() -> None:
    assert derive_executor_id(derive_ancestors(12, FAMILY)) == "3"
    submit = Process(11, 10, ("/usr/bin/java", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"))
    assert derive_executor_id([FAMILY[2], submit, FAMILY[3]]) == "driver"
    assert derive_executor_id(derive_ancestors(20, FAMILY)) is None


def test_an_option_is_read_from_the_command_line() -> None:
    assert FAMILY[3].option("--executor-id") == "3"
    assert FAMILY[3].option("--missing") is None


def test_a_running_child_is_among_the_descendants() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            assert child.pid in [process.pid for process in descendants(os.getpid())]
        finally:
            child.kill()


def test_signalling_a_group_that_is_gone_is_no_error() -> None:
    child = subprocess.Popen(["true"], start_new_session=True)
    child.wait()
    signal_group(child.pid, signal.SIGTERM)


def test_the_keeper_clears_away_what_a_killed_starter_left(tmp_path: Path) -> None:
    left = tmp_path / "scratch"
    left.mkdir()
    (left / "file").touch()
    orphan = subprocess.Popen(["sleep", "60"], start_new_session=True)
    spared = subprocess.Popen(["sleep", "60"], start_new_session=True)
    lines = f"{left}\n+{orphan.pid}\n+{spared.pid}\n-{spared.pid}\n"
    try:
        keeping = subprocess.Popen([sys.executable, keeper.__file__], stdin=subprocess.PIPE, text=True)
        assert keeping.stdin is not None
        keeping.stdin.write(lines)
        keeping.stdin.flush()
        time.sleep(0.3)
        assert orphan.poll() is None
        keeping.stdin.close()  # as when the starter dies
        orphan.wait(timeout=10)
        keeping.wait(timeout=10)
        assert spared.poll() is None
        assert not left.exists()
    finally:
        for process in (orphan, spared):
            process.kill()
            process.wait()
