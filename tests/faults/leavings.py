"""Programs run as users run them, each under a mark that everything they start inherits, and what they leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
from tests.faults.spark_runs import HERE, Run

from penstock.spark.java import find_java, launch_environment
from penstock.spark.localcluster import LocalCluster

MARK = "PENSTOCK_TEST_MARK"
APP = HERE / "spark_app.py"
GONE_WITHIN_S = 20.0


@dataclass
class Traces:
    """What belongs to one program: processes by its mark, listening sockets by their inodes, its folders."""

    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    sockets: set[str] = field(default_factory=set)

    def processes(self) -> dict[int, str]:
        """Return the processes that run now under this mark."""
        found = {}
        for entry in Path("/proc").iterdir():
            # A process may end between the listing and the reading.
            with contextlib.suppress(OSError):
                if not entry.name.isdigit() or self.mark.encode() not in (entry / "environ").read_bytes():
                    continue
                if (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def note_sockets(self) -> None:
        """Remember which listening sockets these processes have."""
        listening = listening_inodes()
        for pid in self.processes():
            with contextlib.suppress(OSError):
                for entry in Path(f"/proc/{pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        target = os.readlink(entry)
                        if target.startswith("socket:[") and target[8:-1] in listening:
                            self.sockets.add(target[8:-1])

    def left(self) -> list[str]:
        """Return what is still there."""
        processes = [f"process {pid}: {command[:200]}" for pid, command in self.processes().items()]
        return processes + [f"port of socket {inode}" for inode in self.sockets & listening_inodes()]

    def kill(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def listening_inodes() -> set[str]:
    """Inodes of the TCP sockets that listen now."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                found.add(fields[9])
    return found


class Program:
    """`spark_app.py` on one checkpoint, started in one of the ways there are."""

    def __init__(self, run: Run) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        self.run = run
        self.traces = Traces()
        self.name = f"program-{self.traces.mark}"
        self.scratch = run.folder / self.name
        (self.scratch / "tmp").mkdir(parents=True)
        (self.scratch / "local").mkdir()
        self.config = self.scratch / "config.json"
        self.out, self.err = self.scratch / "out", self.scratch / "err"
        self.finish_file = self.scratch / "finish"
        self.process: Any = None

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **launch_environment(find_java()),
            MARK: self.traces.mark,
            "PYTHONPATH": os.pathsep.join(os.path.abspath(part) for part in sys.path if part),
            "PYSPARK_PYTHON": sys.executable,
            "TMPDIR": str(self.scratch / "tmp"),
            "SPARK_LOCAL_DIRS": str(self.scratch / "local"),
        }

    def write_config(self, **conf: str) -> None:
        given = {
            "conf": {"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.driver.memory": "512m", **conf},
            "checkpoint": str(self.run.checkpoint), "sink": str(self.run.folder / "sink"),
            "finish": str(self.finish_file), "rate": self.run.rate, "pause_s": self.run.pause_s,
            "cores": self.run.cores, "options": self.run.options,
        }  # fmt: skip
        self.config.write_text(json.dumps(given))

    def start_python(self) -> None:
        """`python app.py`."""
        self.write_config()
        self._launch([sys.executable, str(APP), str(self.config)])

    def start_submit(self, on: LocalCluster) -> None:
        """`spark-submit app.py` on a cluster, in client mode."""
        self.write_config()
        properties = self.scratch / "properties"
        properties.touch(mode=0o600)
        settings = {
            **on.conf(),
            f"spark.executorEnv.{MARK}": self.traces.mark,
            "spark.executor.memory": "512m",
        }
        properties.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        self._launch([str(submit), "--properties-file", str(properties), str(APP), str(self.config)])

    def _launch(self, command: list[str]) -> None:
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                command, env=self.environment(), stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                cwd=self.scratch, start_new_session=True,
            )  # fmt: skip

    def seen(self) -> dict[str, Any]:
        """Return the last line that the program wrote about itself."""
        text = self.out.read_text() if self.out.exists() else ""
        lines = [line for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
        return json.loads(lines[-1]) if lines else {}

    def await_rows(self, more: int = 500, seconds: float = 60.0) -> None:
        """Wait until it has committed more rows; note what it listens on."""
        self._wait(lambda: bool(self.seen().get("ready")), seconds)
        start = self.seen()["rows"]
        self._wait(lambda: self.seen()["rows"] >= start + more, seconds)
        self.traces.note_sockets()
        assert len(self.traces.processes()) >= 4 and self.traces.sockets, "the mark does not find the program"

    def finish(self, seconds: float = 60.0) -> None:
        """Let the source end and everything drain."""
        self.finish_file.touch()
        self._wait(lambda: "done" in self.seen(), seconds)
        self.run.rows = int(self.seen()["done"])

    def _wait(self, holds: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"did not happen in time: {self.seen()} {self.said()}"
            ended = self.process.poll() is not None
            assert not ended or holds(), f"it ended: {self.said()}"
            time.sleep(0.03)

    def said(self) -> str:
        """Return the end of what it wrote, without what it tells of its rows and what Spark tells of its work."""
        texts = [path.read_text(errors="replace") for path in (self.err, self.out) if path.exists()]
        lines = [line for text in texts for line in text.splitlines()]
        return "\n".join(line for line in lines if " INFO " not in line and not line.startswith("{"))[-3000:]

    def check_nothing_left(self, on: LocalCluster | None = None, folders: bool = True) -> float:
        """Wait until processes, ports and folders are gone; return how long it took.

        Args:
            folders: whether those of Spark's driver must be gone too; it cannot delete them when it is killed.
        """
        began, seconds = time.monotonic(), GONE_WITHIN_S
        while left := self.traces.left() + (self._folders() if folders else []) + _node_folders(on):
            assert time.monotonic() - began < seconds, f"left behind: {left} {self.said()}"
            time.sleep(0.05)
        return time.monotonic() - began

    def _folders(self) -> list[str]:
        """What Spark, its workers and ours made in the folders for what is temporary."""
        return [
            f"folder {folder}/{name}"
            for folder in ("tmp", "local")
            for name in os.listdir(self.scratch / folder)
        ]


def _node_folders(on: LocalCluster | None) -> list[str]:
    """What ours made on the nodes of a cluster."""
    root = str(on.directory) if on is not None else os.devnull
    return [
        f"folder {above}/{name}"
        for above, below, _ in os.walk(root)
        for name in below
        if name.startswith("penstock-")
    ]


class Notebook(Program):
    """The same program in a kernel, as a notebook runs it: its source is a cell."""

    def start_kernel(self) -> None:
        import jupyter_client  # brought by the dev extra; the other ways do without

        self.write_config()
        self.manager = jupyter_client.KernelManager(kernel_name="python3")
        self.manager.kernel_spec.argv[0] = sys.executable
        with self.err.open("wb") as err:
            self.manager.start_kernel(env=self.environment(), cwd=str(self.scratch), stderr=err)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=30)
        self.process = self

    def poll(self) -> None:
        """A kernel that died shows by its silence."""

    def as_cell(self, app: Path) -> str:
        """The program's source as a cell, with what it would get from a command line; what it prints goes to a file."""
        body = app.read_text().partition("if __name__")[0]
        return (
            f"import contextlib, sys\n__file__ = {str(app)!r}\nsys.argv = ['', {str(self.config)!r}]\n"
            f"{body}\ngiven = json.loads(Path(sys.argv[1]).read_text())\n"
            f"with open({str(self.out)!r}, 'w', buffering=1) as out, contextlib.redirect_stdout(out):\n    main()\n"
        )

    def kill(self) -> None:
        """kill -9 of the kernel."""
        os.kill(self.manager.provisioner.pid, signal.SIGKILL)

    def run_cell(self, code: str) -> str:
        """Send a cell; return the id by which `await_cell` knows it."""
        return str(self.client.execute(code))

    def await_cell(self, sent: str, seconds: float = 60.0) -> dict[str, Any]:
        """Wait for the end of a cell; return its reply, with what it printed as `text`."""
        deadline = time.monotonic() + seconds
        text = ""
        while True:
            message = self.client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
            if message["parent_header"].get("msg_id") != sent:
                continue
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                text += message["content"]["text"]
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
        reply = self.client.get_shell_msg(timeout=max(0.1, deadline - time.monotonic()))
        while reply["parent_header"].get("msg_id") != sent:
            reply = self.client.get_shell_msg(timeout=max(0.1, deadline - time.monotonic()))
        return {**reply["content"], "text": text}

    def close(self) -> None:
        self.client.stop_channels()
        with contextlib.suppress(Exception):
            self.manager.cleanup_resources()


@contextlib.contextmanager
def ending(program: Program) -> Iterator[Program]:
    """Whatever happens, nothing of the program is left when the block ends."""
    try:
        yield program
    finally:
        if isinstance(program, Notebook):
            program.close()
        program.traces.kill()
        if isinstance(program.process, subprocess.Popen):
            program.process.wait(10)
