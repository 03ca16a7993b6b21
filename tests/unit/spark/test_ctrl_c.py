"""Ctrl-C: one line, queries stopped in order whatever is pressed meanwhile, and the exit code of an interrupted process.

Programs of their own, since a signal concerns a whole process; `tests/spark/test_scripts.py` does it with Spark.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.spark import ctrl_c

APP = """
import atexit, contextlib, sys, threading, time
from penstock.spark import ctrl_c
from penstock.spark.running import remember

ctrl_c.take_over()

class Query:
    isActive = True
    awaited = staticmethod(contextlib.nullcontext)
    def exception(self):
        return None
    def awaitTermination(self, timeout=None):
        print("running", flush=True)
        threading.Event().wait()
    def stop(self):
        print("stopping", flush=True)
        time.sleep(float(sys.argv[1]))
        self.isActive = False
        print("stopped in order", flush=True)

remember(Query())
if sys.argv[2] == "await":
    Query().awaitTermination()
"""


def start(tmp_path: Path, stop_s: float, how: str) -> subprocess.Popen[str]:
    app = tmp_path / "app.py"
    app.write_text(APP)
    run = ["-m", "penstock.cli.main", "run"] if how == "run" else []
    command = [sys.executable, *run, str(app), str(stop_s), "await" if how == "script" else "leave"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )


def press(process: subprocess.Popen[str], *gaps_s: float, awaited: str = "running") -> tuple[str, str]:
    """Press Ctrl-C so many times once the query runs; return what was said."""
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == f"{awaited}\n"
        for gap_s in gaps_s:
            time.sleep(gap_s)
            process.send_signal(signal.SIGINT)
        return process.communicate(timeout=30)
    finally:
        process.kill()


@pytest.mark.parametrize("how", ["script", "run"])
@pytest.mark.parametrize("gaps_s", [(0.0,), (0.0, 0.1), (0.0, 0.05, 0.05, 0.3)])
def test_it_ends_in_one_line_with_the_queries_stopped_in_order(
    tmp_path: Path, how: str, gaps_s: tuple[float, ...]
) -> None:
    process = start(tmp_path, 0.6, how)
    said = press(process, *gaps_s)
    assert said == ("stopping\nstopped in order\n", "penstock: interrupted.\n")
    # A shell says 130 to both: an interrupted script dies of the signal, as Python has it.
    assert process.returncode in ((130,) if how == "run" else (-signal.SIGINT, 130))


def test_a_program_that_is_ending_by_itself_stops_its_queries_all_the_same(tmp_path: Path) -> None:
    process = start(tmp_path, 0.6, "ending")
    assert press(process, 0.1, 0.1, awaited="stopping") == ("stopped in order\n", "")
    assert process.returncode == 0


def test_who_will_not_wait_presses_again_later(tmp_path: Path) -> None:
    process = start(tmp_path, 60.0, "script")
    out, err = press(process, 0.0, ctrl_c.PATIENCE_S + 0.3)
    assert (out, process.returncode) == ("stopping\n", 130)
    assert err == (
        "penstock: interrupted.\npenstock: interrupted again; ended at once, without waiting for its queries.\n"
    )


def test_a_program_that_handles_it_keeps_its_own_way(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(
        "import signal, sys\nsignal.signal(signal.SIGINT, lambda *_: sys.exit(7))\n"
        "from penstock.spark import ctrl_c\nctrl_c.take_over()\nprint('up', flush=True)\nsignal.pause()\n"
    )
    with subprocess.Popen([sys.executable, str(app)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 7


def test_other_errors_are_shown_as_before(tmp_path: Path) -> None:
    code = "from penstock.spark import ctrl_c; ctrl_c.take_over(); raise ValueError('mine')"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert ran.returncode == 1 and "Traceback" in ran.stderr and "ValueError: mine" in ran.stderr


def test_presses_close_together_are_one() -> None:
    now = [0.0]
    presses = ctrl_c._Presses(lambda: now[0])
    assert presses.press() and not presses.press()
    now[0] = ctrl_c.PATIENCE_S
    assert presses.press()


def test_only_the_echo_of_ctrl_c_is_left_out_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def logged(path: str) -> logging.LogRecord:
        error = (KeyboardInterrupt, KeyboardInterrupt(), None)
        return logging.LogRecord("root", logging.ERROR, path, 1, "while sending command", (), error)

    py4j = "/site-packages/py4j/java_gateway.py"
    monkeypatch.setattr(ctrl_c, "_presses", presses := ctrl_c._Presses())
    assert ctrl_c._is_news(logged(py4j))
    presses.press()
    assert not ctrl_c._is_news(logged(py4j)) and ctrl_c._is_news(logged("/home/me/app.py"))
