"""Plain Spark in a process of its own, so that a bench can alternate it with our session and keep both warm.

A JVM holds one SparkContext, and ours and the peer's want different settings. The child runs `spark_peer`'s
functions on request, a JSON line each way; this side imports no pyspark. Between calls the child is idle.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Literal, TypeVar

import msgspec

from penstock.bench.machine import CpuUse
from penstock.bench.spark_feed import remove_leftovers
from penstock.bench.spark_figures import BatchRun, HeldRate, SteadyRun

Api = Literal["native", "in_pandas", "with_state"]
T = TypeVar("T")

START_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 30.0


class PeerProcessError(Exception):
    """The process of plain Spark failed, answered with an error or took too long; the message says which."""


class SparkPeer:
    """Plain Spark as a context manager; calls run one at a time and are bounded in time.

    `quick_files` on a call adds the internal setting of Spark's that suits a checkpoint on a local disk best.
    """

    def __init__(self, cores: int = 2, heap: str = "8g", partitions: int = 2) -> None:
        self._arguments = {"cores": cores, "heap": heap, "partitions": partitions}
        self._process: subprocess.Popen[bytes] | None = None
        self._noise = -1
        self._buffer = b""
        self.java = "unknown"

    def __enter__(self) -> SparkPeer:
        root = str(Path(__file__).parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        # Spark's Python workers must find this package wherever the bench is started from.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self._noise, path = tempfile.mkstemp(prefix="penstock-bench-")
        os.unlink(path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.bench.spark_process", str(self._noise)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            pass_fds=[self._noise],
        )
        try:
            self.java = self._call("session", self._arguments, str, START_TIMEOUT_S)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def pid(self) -> int:
        """The root of the process tree whose CPU and memory are plain Spark's."""
        if self._process is None:
            raise PeerProcessError("plain Spark is not started; use it as a context manager")
        return self._process.pid

    def batches(
        self,
        rows_per_batch: int,
        api: Api = "native",
        batches: int = 20,
        timeout_s: float = 180.0,
        quick_files: bool = False,
    ) -> BatchRun:
        """Run prepared batches as fast as they go; the last half counts."""
        arguments = {
            "rows_per_batch": rows_per_batch,
            "build": api,
            "batches": batches,
            "timeout_s": timeout_s,
        }
        return self._call("run_batches", arguments, BatchRun, timeout_s + 60, quick_files)

    def sizes(
        self, sizes: Sequence[tuple[int, int]], api: Api, warm_batches: int = 0, timeout_s: float = 420.0
    ) -> list[BatchRun]:
        """Run (rows a batch, batches) one after the other in one query; the last half of each counts.

        Raises:
            PeerProcessError: also when what the API needs is not installed.
        """
        check_installed(api)
        arguments = {"sizes": sizes, "build": api, "warm_batches": warm_batches, "timeout_s": timeout_s}
        return self._call("run_sizes", arguments, list[BatchRun], timeout_s + 60)

    def many_keys(
        self,
        rows_per_batch: int = 1_000_000,
        batches: int = 20,
        timeout_s: float = 420.0,
        keys: int = 10_000_000,
    ) -> BatchRun:
        """Run prepared batches of uniform keys on state that holds them all; the last half counts."""
        arguments = {
            "rows_per_batch": rows_per_batch,
            "spec": {"keys": keys, "zipf": 0.0},
            "batches": batches,
            "timeout_s": timeout_s,
        }
        return self._call("run_many_keys", arguments, BatchRun, timeout_s + 60)

    def steady(
        self, rate_per_s: float, batches: int = 20, timeout_s: float = 40.0, quick_files: bool = False
    ) -> SteadyRun:
        """Feed rows at a set rate; the last half of the batches counts."""
        arguments = {"rate_per_s": rate_per_s, "batches": batches, "timeout_s": timeout_s}
        return self._call("run_steady", arguments, SteadyRun, timeout_s + 30, quick_files)

    def held_rate(
        self,
        known: Sequence[BatchRun],
        bound_ms: float = 500.0,
        probes: int = 4,
        first_per_s: float | None = None,
        quick_files: bool = False,
    ) -> HeldRate:
        """Search the highest rate within a mean latency by feeding rates and measuring."""
        arguments = {"known": known, "bound_ms": bound_ms, "probes": probes, "first_per_s": first_per_s}
        return self._call("find_held_rate", arguments, HeldRate, 60 + 40 * probes, quick_files)

    def batch_size(
        self,
        known: Sequence[BatchRun],
        api: Api,
        bound_ms: float = 10_000.0,
        batches: int = 6,
        tries: int = 2,
        warm_batches: int = 0,
    ) -> list[BatchRun]:
        """Run batches of the sizes that promise the highest rate within a mean latency; return all runs."""
        arguments = {
            "known": known,
            "build": api,
            "bound_ms": bound_ms,
            "batches": batches,
            "tries": tries,
            "warm_batches": warm_batches,
        }
        timeout_s = 60 + tries * (60 + batches * bound_ms / 400)
        return self._call("find_batch_size", arguments, list[BatchRun], timeout_s)

    def idle_cpu(self, seconds: float = 5.0) -> CpuUse:
        """Measure the CPU of all of plain Spark's processes while a warmed query has nothing to do."""
        return self._call("idle_cpu", {"seconds": seconds}, CpuUse, seconds + 60)

    def _call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        kind: type[T],
        timeout_s: float,
        quick_files: bool = False,
    ) -> T:
        request = {"call": name, "arguments": arguments, "quick_files": quick_files}
        if self._process is None or self._process.stdin is None:
            raise PeerProcessError("plain Spark is not started; use it as a context manager")
        try:
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerProcessError(
                f"the process of plain Spark ended before {name!r}; see its output"
            ) from None
        answer = msgspec.json.decode(self._read_line(name, time.monotonic() + timeout_s))
        if "error" in answer:
            raise PeerProcessError(f"{name}: {answer['error']}")
        return msgspec.convert(answer["result"], kind)

    def _read_line(self, name: str, deadline_s: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([pipe], [], [], left_s)[0]:
                raise PeerProcessError(
                    f"plain Spark gave no answer to {name!r} in time; stop other work and retry"
                )
            received = os.read(pipe, 1 << 16)
            if not received:
                raise self._ended(f"during {name!r}")
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        os.close(self._noise)
        remove_leftovers(process.pid)

    def _ended(self, moment: str) -> PeerProcessError:
        # Not a seek: the child writes through the same position.
        end = os.fstat(self._noise).st_size
        last = os.pread(self._noise, 1000, max(0, end - 1000)).decode(errors="replace").strip()
        return PeerProcessError(f"the process of plain Spark ended {moment}; its last words: {last}")


def check_installed(api: Api) -> None:
    """Raise PeerProcessError, before any time is spent, when an API lacks what it needs."""
    if api == "with_state" and (find_spec("google") is None or find_spec("google.protobuf") is None):
        raise PeerProcessError(
            "PySpark's transformWithState needs the package protobuf beside it, and it is not installed; "
            "pip install 'penstock[dev]' or protobuf."
        )


def serve(requests: IO[bytes], answer: Callable[[bytes], None]) -> None:
    """Answer requests until they end; an error of a run is an answer, not the end."""
    from penstock.bench import spark_peer  # only the child needs pyspark

    spark = None
    for line in requests:
        request = msgspec.json.decode(line)
        try:
            if request["call"] == "session":
                spark = spark_peer.session(**request["arguments"])
                _die_silently()  # Spark has set a handler
                result: Any = spark_peer.java_version(spark)
            else:
                result = spark_peer.call(spark, request["call"], request["arguments"], request["quick_files"])
            answer(msgspec.json.encode({"result": result}))
        except Exception as error:
            answer(msgspec.json.encode({"error": f"{type(error).__name__}: {error}"}))
    if spark is not None:
        spark.stop()


def _die_silently() -> None:
    """Ctrl-C reaches this process too, and it is the bench that says so."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> None:
    """Serve on standard input and output; what Spark and its workers print goes to the file that was named.

    Progress still goes to standard error, which is worth reading only without the rest.
    """
    _die_silently()
    noise, out = int(sys.argv[1]), os.dup(1)
    sys.stderr = os.fdopen(os.dup(2), "w")
    os.dup2(noise, 1)
    os.dup2(noise, 2)

    def answer(line: bytes) -> None:
        data = line + b"\n"
        while data:
            data = data[os.write(out, data) :]

    serve(sys.stdin.buffer, answer)


if __name__ == "__main__":
    main()
