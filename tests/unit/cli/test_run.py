"""`penstock run`: how the process of a program ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from penstock.cli.ending import TERMINATED, in_order_on_sigterm

APP = """
import contextlib, os, signal, sys
from penstock.spark.running import remember

class Query:
    isActive, waits = True, 0
    def exception(self):
        return None
    def awaited(self):
        return contextlib.nullcontext()
    def awaitTermination(self, timeout):
        if self.isActive:
            print("running", flush=True)
            signal.pause()
    def stop(self):
        os.kill(os.getpid(), signal.SIGTERM)  # told twice: it still ends in order
        self.isActive = False
        print("stopped in order", flush=True)

remember(Query())
"""


def test_sigterm_stops_queries_in_order_and_the_exit_code_says_so(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP)
    command = [sys.executable, "-m", "penstock.cli.main", "run", str(app)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "running\n"
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=20)
        finally:
            process.kill()
    assert said == "stopped in order\n"
    assert process.returncode == TERMINATED == 143


def test_a_process_that_was_not_told_to_end_has_its_own_handling_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with in_order_on_sigterm():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
