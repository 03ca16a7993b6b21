from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from penstock.spark import keeper
from penstock.spark.processes import Process, derive_descendants, descendants, signal_group

FAMILY = [
    Process(1, 0, ("init",)),
    Process(10, 1, ("worker",)),
    Process(12, 11, ("python", "-m", "pyspark.daemon")),
    Process(11, 10, ("java", "--executor-id", "3")),
    Process(20, 1, ("stranger",)),
]


def test_descendants_are_found_at_every_depth_and_strangers_left_out() -> None:
    assert [process.pid for process in derive_descendants(10, FAMILY)] == [11, 12]


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
