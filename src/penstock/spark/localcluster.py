"""A real Spark cluster on this machine, from the pip package: a master and n workers, each its own process.

For tests and benchmarks. Everything listens on loopback and is authenticated; the secret stands in a file of
mode 0600, never on a command line. Whatever ends this process, the cluster ends with it, and its
directories are deleted.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.dataplane.emulation import SLOW
from penstock.errors import SessionError
from penstock.spark.java import find_java, launch_environment
from penstock.spark.processes import descendants, find_python_workers, signal_group
from penstock.spark.slots import nodes
from penstock.spark.watching import read_trespasses, watch_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_TIMEOUT_S = 90.0
_LOOPBACK = "127.0.0.1"
_EXECUTOR_CLASS = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


@dataclass(frozen=True)
class NodeProcess:
    """The JVM of one Spark executor: process id, executor id, and the index of the worker that runs it."""

    pid: int
    executor_id: str
    worker: int


@dataclass
class _Daemon:
    """A master or worker: its process (leader of a group of its own), its log, its private directory."""

    process: subprocess.Popen[bytes]
    log: Path
    directory: Path


class LocalCluster:
    """A master and ``workers`` workers of ``cores`` slots each; a context manager.

    Each worker runs one node of an application, with all its slots, and has a private directory (random name,
    mode 0700), deleted when it goes. Workers join and leave while it runs; how many nodes an application has of them
    is a matter of the negotiator (`spark/nodes.py`).

    Args:
        workers: how many workers to start with.
        cores: slots of each worker; they may exceed the machine's cores.
        memory: memory of each worker and of the node that it runs, as Spark writes it.
        unlike: whether workers may differ in slots: a node then takes all that its worker has.
        watched: whether Python workers that touch the directory of another node get an error; see ``trespasses``.

    Raises:
        SessionError: no PySpark, no Java, or a process did not come up; the message has the end of its log.
    """

    def __init__(
        self,
        workers: int = 2,
        cores: int = 2,
        memory: str = "1g",
        *,
        unlike: bool = False,
        watched: bool = False,
    ) -> None:
        if workers < 0 or cores < 1:
            raise SessionError(f"A local cluster cannot have workers={workers}, cores={cores}.")
        self._unlike = unlike
        self._watched = watched
        self._initial_workers = workers
        self._cores = cores
        self._memory = memory
        self._secret = secrets.token_hex(32)
        self._root = Path()
        self._master: _Daemon | None = None
        self._workers: list[_Daemon | None] = []
        self._keeper: subprocess.Popen[str] | None = None
        self._master_url = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def master_url(self) -> str:
        """The ``spark://`` address of the master."""
        return self._master_url

    @property
    def directory(self) -> Path:
        """The scratch directory of the whole cluster, with the logs; gone after ``stop``."""
        return self._root

    @property
    def workers(self) -> list[int]:
        """The indexes of the workers that have not been killed."""
        return [index for index, worker in enumerate(self._workers) if worker is not None]

    def start(self) -> None:
        """Start master and workers and wait until every worker has registered."""
        self._root = Path(tempfile.mkdtemp(prefix="penstock-"))  # mode 0700
        self._keeper = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "keeper.py")],
            stdin=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._tell_keeper(str(self._root))
        atexit.register(self.stop)
        try:
            self._write_private("cluster.properties", _properties(self._daemon_settings()))
            self._start_master()
            started = [self._start_worker(self._cores, {}) for _ in range(self._initial_workers)]
            for daemon in started:
                self._await_registered(daemon)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process of the cluster and delete its directories; may be called twice."""
        atexit.unregister(self.stop)
        daemons = [daemon for daemon in (*self._workers, self._master) if daemon is not None]
        for daemon in daemons:
            signal_group(daemon.process.pid, signal.SIGTERM)
        for daemon in daemons:
            self._finish(daemon)
        self._workers = [None] * len(self._workers)
        self._master = None
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.stdin.close()
            self._keeper.wait(timeout=30)
            self._keeper = None
            shutil.rmtree(self._root, ignore_errors=True)

    def add_worker(
        self, cores: int | None = None, slow: float = 1.0, environment: Mapping[str, str] | None = None
    ) -> int:
        """Start one more worker, wait until it has registered, and return its index.

        Args:
            cores: its slots; by default as many as the others have. Other numbers need ``unlike``.
            slow: how many times as long as elsewhere work takes on its node (``dataplane/emulation.py``).
            environment: further variables for its node.
        """
        slots = self._cores if cores is None else cores
        if slow < 1.0 or slots < 1:
            raise SessionError(
                f"A worker cannot have cores={cores}, slow={slow}: both are at least 1, and the fastest node is one with "
                "slow=1."
            )
        if slots != self._cores and not self._unlike:
            raise SessionError(
                f"A worker cannot have cores={cores} where the others have {self._cores}; use LocalCluster(unlike=True)."
            )
        given = {SLOW: str(slow)} if slow > 1.0 else {}
        worker = self._start_worker(slots, {**given, **(environment or {})})
        self._await_registered(worker)
        return self._workers.index(worker)

    def remove_worker(self, index: int) -> None:
        """End a worker in order, its node with it, and delete its directory.

        Release its node first (``node_of``, the negotiator): what still runs there is lost as when it is killed.
        """
        worker = self._worker(index)
        left = [process.pid for process in descendants(worker.process.pid)]
        signal_group(worker.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(timeout=5)
        self._end_all(worker, left)
        self._workers[index] = None

    def node_of(self, index: int) -> str | None:
        """Return the executor id of the node that a worker runs; None where it runs none."""
        return next((node.executor_id for node in self.executors() if node.worker == index), None)

    def worker_of(self, executor_id: str) -> int | None:
        """Return the index of the worker that runs a node; None where none does."""
        return next((node.worker for node in self.executors() if node.executor_id == executor_id), None)

    def trespasses(self) -> list[str]:
        """Return what Python workers touched of other nodes, a line each; one that is not watched may hide some."""
        return read_trespasses(self._root, self.python_worker_pids())

    def signal_worker(self, index: int, number: int) -> None:
        """Send a signal to every process of a worker and of its node: SIGSTOP makes it as silent as a host that hangs."""
        pid = self._worker(index).process.pid
        for one in (pid, *(process.pid for process in descendants(pid))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, number)

    def kill_worker(self, index: int) -> None:
        """Kill a worker and its node (SIGKILL), as when a machine is lost, and delete its directory."""
        worker = self._worker(index)
        left = [process.pid for process in descendants(worker.process.pid)]
        signal_group(worker.process.pid, signal.SIGKILL)
        self._end_all(worker, left)
        self._workers[index] = None

    def executors(self) -> list[NodeProcess]:
        """Return the JVMs of the Spark executors that run now, of all applications."""
        found = []
        for index in self.workers:
            for process in descendants(self._worker(index).process.pid):
                if _EXECUTOR_CLASS in process.command:
                    executor_id = process.option("--executor-id") or ""
                    found.append(NodeProcess(process.pid, executor_id, index))
        return found

    def executor_pids(self) -> list[int]:
        """Return the process ids of the Spark executors that run now."""
        return [executor.pid for executor in self.executors()]

    def python_worker_pids(self) -> list[int]:
        """Return the process ids of the Python workers that run on the nodes now, without Spark's daemons."""
        return [worker.pid for executor in self.executors() for worker in find_python_workers(executor.pid)]

    def conf(self) -> dict[str, str]:
        """Return the settings a SparkSession on this cluster needs, the secret among them.

        ``session`` keeps the secret off the command line; a builder of your own that starts the JVM does not.
        """
        return {
            "spark.master": self._master_url,
            "spark.authenticate": "true",
            "spark.authenticate.secret": self._secret,
            "spark.driver.host": self._address(None),
            "spark.driver.bindAddress": self._address(None),
            "spark.executor.memory": self._memory,
            **({} if self._unlike else {"spark.executor.cores": str(self._cores)}),
            **(watch_settings(self._root) if self._watched else {}),
        }

    def session(self, app_name: str = "penstock", conf: Mapping[str, str] | None = None) -> SparkSession:
        """Open a SparkSession on this cluster and wait until a node of every worker has registered.

        It gets a node of each worker that joins later, until its negotiator is told otherwise.
        """
        from penstock.spark.session import session

        spark = session(app_name, conf={**self.conf(), **(conf or {})})
        if spark.sparkContext.master != self._master_url:
            raise SessionError(
                f"A SparkSession on {spark.sparkContext.master} is open; stop it before you open one here."
            )
        self._wait_for(
            lambda: len(nodes(spark)) >= len(self.workers),
            lambda: f"only {len(nodes(spark))} of {len(self.workers)} nodes registered with the driver",
        )
        return spark

    def _start_master(self) -> None:
        command = ["org.apache.spark.deploy.master.Master", "--host", self._address(None), "--port", "0"]
        self._master = self._launch("master", command, {}, None)
        found = self._await_log(self._master, r"Starting Spark master at (spark://\S+:\d+)")
        self._master_url = found.group(1)
        self._await_log(self._master, r"New state: ALIVE")

    def _start_worker(self, cores: int, environment: Mapping[str, str]) -> _Daemon:
        index = len(self._workers)
        daemon = self._launch(
            f"worker-{secrets.token_hex(8)}",
            ["org.apache.spark.deploy.worker.Worker", "--host", self._address(index), "--port", "0",
             "--cores", str(cores), "--memory", self._memory, self._master_url],
            environment, index,
        )  # fmt: skip
        self._workers.append(daemon)
        return daemon

    def _address(self, worker: int | None) -> str:
        """Return where a worker listens, or with None the master and the driver."""
        return _LOOPBACK

    def _inside(self, worker: int | None) -> list[str]:
        """Return what stands before the command of a worker, or with None of the master."""
        return []

    def _launch(self, name: str, command: list[str], extra: Mapping[str, str], worker: int | None) -> _Daemon:
        directory = self._root / name
        for part in (directory, directory / "work", directory / "local", directory / "tmp"):
            part.mkdir(mode=0o700)
        log = directory / "log"
        options = ["--webui-port", "0", "--properties-file", str(self._root / "cluster.properties")]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*self._inside(worker), str(_spark_home() / "bin" / "spark-class"), command[0], *options, *command[1:]],
                cwd=directory, env={**self._environment(directory, worker), **extra}, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._tell_keeper(f"+{process.pid}")
        return _Daemon(process, log, directory)

    def _environment(self, directory: Path, worker: int | None) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
        return {
            **inherited,
            **launch_environment(find_java()),
            "SPARK_HOME": str(_spark_home()),
            "SPARK_CONF_DIR": str(self._root),
            "SPARK_LOCAL_IP": self._address(worker),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_WORKER_DIR": str(directory / "work"),
            "SPARK_LOCAL_DIRS": str(directory / "local"),
            "TMPDIR": str(directory / "tmp"),
        }

    def _daemon_settings(self) -> dict[str, str]:
        return {
            "spark.authenticate": "true",
            "spark.authenticate.secret": self._secret,
            "spark.master.rest.enabled": "false",
            "spark.ui.killEnabled": "false",
            "spark.worker.cleanup.enabled": "true",
        }

    def _write_private(self, name: str, text: str) -> None:
        descriptor = os.open(self._root / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)

    def _await_registered(self, worker: _Daemon) -> None:
        self._await_log(worker, r"Successfully registered with master")

    def _await_log(self, daemon: _Daemon, pattern: str) -> re.Match[str]:
        expression = re.compile(pattern)
        matches: list[re.Match[str]] = []

        def looked_for() -> bool:
            if daemon.process.poll() is not None:
                raise SessionError(f"A process of the local cluster ended; its log ends: {_tail(daemon)}")
            matches.extend(expression.finditer(daemon.log.read_text(errors="replace")))
            return bool(matches)

        self._wait_for(looked_for, lambda: f"no '{pattern}' in the log, which ends: {_tail(daemon)}")
        return matches[0]

    def _wait_for(self, holds: Callable[[], bool], complaint: Callable[[], str]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not holds():
            if time.monotonic() > deadline:
                raise SessionError(
                    f"The local cluster did not come up within {START_TIMEOUT_S:.0f} s: {complaint()}"
                )
            time.sleep(0.05)

    def _worker(self, index: int) -> _Daemon:
        worker = self._workers[index] if 0 <= index < len(self._workers) else None
        if worker is None:
            raise SessionError(f"The local cluster has no worker {index}; it has {self.workers}.")
        return worker

    def _end_all(self, worker: _Daemon, below: Sequence[int]) -> None:
        """End what a worker has left: Spark's Python daemon leads a group of its own."""
        for pid in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._finish(worker)

    def _finish(self, daemon: _Daemon) -> None:
        """Wait for a process that was told to end, kill what its group left, and delete its directory."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.process.wait(timeout=5)
        signal_group(daemon.process.pid, signal.SIGKILL)
        daemon.process.wait(timeout=10)
        self._tell_keeper(f"-{daemon.process.pid}")
        shutil.rmtree(daemon.directory, ignore_errors=True)

    def _tell_keeper(self, line: str) -> None:
        if self._keeper is not None and self._keeper.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._keeper.stdin.write(line + "\n")
                self._keeper.stdin.flush()


def _spark_home() -> Path:
    try:
        import pyspark
    except ImportError as error:
        raise SessionError("PySpark is not installed; run: pip install 'penstock[spark]'") from error
    return Path(pyspark.__file__).parent


def _properties(settings: Mapping[str, str]) -> str:
    return "".join(f"{name} {value}\n" for name, value in settings.items())


def _tail(daemon: _Daemon, characters: int = 1500) -> str:
    return daemon.log.read_text(errors="replace")[-characters:]
