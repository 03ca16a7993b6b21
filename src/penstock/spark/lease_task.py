"""What runs on a Spark executor while a lease lasts: connect back, prove the token, serve message after
message.

Waits without using CPU. Ends when the driver says so, when the connection ends, or after a failure was
reported; never later than that, so that a core is never held for nobody.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import select
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from penstock.dataplane import messages
from penstock.dataplane.allocator import return_large_blocks
from penstock.dataplane.collector import relax_collector
from penstock.dataplane.disk import PosixDisk
from penstock.dataplane.lease_home import LeaseIdentity
from penstock.dataplane.program import Program
from penstock.dataplane.speaking import Speaker
from penstock.dataplane.worker import Worker
from penstock.raised import noting_ctrl_c
from penstock.spark.node_load import NodeLoad, NodeMeter
from penstock.spark.preloading import preload
from penstock.spark.processes import derive_ancestors, derive_executor_id, read_processes
from penstock.spark.wire import NONCE_BYTES, WireError, is_proof, proof, receive_frame, send_frame
from penstock.version import __version__

CONNECT_TIMEOUT_S = 20.0
HEARTBEAT_S = 2.0
IDLE_FLUSH_S = 0.25
"""Silence after which a lease uses the pause to write state behind."""
IDLE_FLUSH_NEXT_S = 0.01
"""Between two parts of that, as long as some is left: a message waits for one of them at most."""
NODE_DIRECTORY = "PENSTOCK_NODE_DIRECTORY"
"""Environment variable by which a node's daemon tells its workers of the directory it made."""
EXECUTOR_ID = "SPARK_EXECUTOR_ID"
"""Environment variable with the executor's id: Kubernetes sets it, elsewhere the node's daemon does."""
MANY_FILES = 65_536


@dataclass(frozen=True)
class LeaseOffer:
    """All that a lease needs; shipped in the closure of its one-task job."""

    lease: str
    token: bytes
    address: tuple[str, int]
    generation: int
    checkpoint: str
    program: Program
    beat_s: float = HEARTBEAT_S
    log_level: int = logging.WARNING
    """Level from which on log records of user functions are sent to the driver."""
    echo: bool = True
    """Whether what they print also goes to this process's own standard error."""


Send = Callable[[messages.FromLease], None]


def serve(offer: LeaseOffer, _rows: Iterable[object]) -> Iterator[str]:
    """Serve one lease to its end; the body of a one-task Spark job."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        return iter(["a retried attempt: the token was good for the first one only"])
    with socket.create_connection(offer.address, timeout=CONNECT_TIMEOUT_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            _authenticate(sock, offer)
            sock.settimeout(None)
            with noting_ctrl_c():
                return iter([_serve(sock, offer)])
        except (WireError, OSError) as error:
            return iter([f"ended: {error}"])


def _authenticate(sock: socket.socket, offer: LeaseOffer) -> None:
    challenge = receive_frame(sock)
    nonce = os.urandom(NONCE_BYTES)
    send_frame(sock, offer.lease.encode().ljust(32) + nonce + proof(offer.token, b"lease", challenge))
    if not is_proof(receive_frame(sock), offer.token, b"driver", nonce):
        raise WireError("the driver does not know this lease.")


def _serve(sock: socket.socket, offer: LeaseOffer) -> str:
    preload()
    relax_collector()
    return_large_blocks()
    allow_many_files()
    guard = threading.Lock()
    over = threading.Event()

    def send(message: messages.FromLease) -> None:
        with guard:
            send_frame(sock, messages.encode(message))

    identity = LeaseIdentity(offer.lease, offer.generation, offer.checkpoint, node_directory())
    worker = Worker(identity, offer.program, PosixDisk(), later=send)
    hello = messages.Hello(offer.lease, node_name(), socket.gethostname(), os.getpid(), __version__)
    send(hello)
    threading.Thread(target=_beat, args=(send, over, offer.beat_s), daemon=True).start()
    voice = Voice(send, offer.echo)
    try:
        with voice.speaker.listening(offer.log_level):
            return _loop(sock, worker, send, voice)
    finally:
        voice.close()
        over.set()
        worker.close()


def _loop(sock: socket.socket, worker: Worker, send: Send, voice: Voice) -> str:
    idle, wait_s = False, IDLE_FLUSH_S
    while True:
        ready, _, _ = select.select([sock], [], [], None if idle else wait_s)
        if not ready:
            failed = worker.idle()
            if failed is not None:
                send(failed)
                return f"failed: {failed.message}"
            idle, wait_s = not worker.is_behind(), IDLE_FLUSH_NEXT_S
            continue
        idle, wait_s = False, IDLE_FLUSH_S
        message = messages.decode_to_lease(receive_frame(sock))
        if isinstance(message, messages.End):
            return f"ended: {message.reason}"
        voice.speaker.stage, voice.speaker.task = message.stage, message.task
        answer = worker.handle(message)
        voice.pass_on()
        if answer is not None:
            send(answer)
        if isinstance(answer, messages.Failed):
            return f"failed: {answer.message}"


def _beat(send: Send, over: threading.Event, every_s: float) -> None:
    meter = NodeMeter()
    meter.read()
    meter.read_own()
    while not over.wait(every_s):
        try:
            send(messages.Alive(_shares(meter.read()), _shares(meter.read_own())))
        except OSError:
            return


def _shares(load: NodeLoad | None) -> tuple[float, float, float] | None:
    return None if load is None else (load.cpu_ratio, load.memory_ratio, load.io_ratio)


class Voice:
    """Sends what user functions say: at once from a thread of its own, which starts with the first word, and the rest
    before the answer that it belongs to."""

    def __init__(self, send: Send, echo: bool) -> None:
        self.speaker = Speaker(self._wake, echo=echo)
        self._send = send
        self._due = threading.Event()
        self._sending = threading.Lock()
        self._thread: threading.Thread | None = None
        self._over = False

    def pass_on(self) -> None:
        """Send what was said so far, half lines too."""
        self.speaker.end_lines()
        self._send_all()

    def close(self) -> None:
        self._over = True
        self._due.set()
        self._send_all()

    def _wake(self) -> None:
        if self._thread is None and not self._over:
            thread = threading.Thread(target=self._run, name="penstock-voice", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads: it is said with the next answer
                thread.start()
                self._thread = thread
        self._due.set()

    def _run(self) -> None:
        while not self._over:
            self._due.wait(1.0 if self.speaker.owes else None)
            self._due.clear()
            self._send_all()

    def _send_all(self) -> None:
        with self._sending, contextlib.suppress(OSError):  # a driver that is gone is the main loop's news
            for said in self.speaker.take():
                self._send(said)


def node_name() -> str:
    """Name the Spark executor process that this task runs in: its executor id, where that can be found out."""
    told = os.environ.get(EXECUTOR_ID, "")
    return told or derive_executor_id(derive_ancestors(os.getpid(), read_processes())) or node_directory()


def node_directory() -> str:
    """Return this node's private directory: the one that the node's daemon made, or else one below what Spark
    made for this executor alone, and deletes with it."""
    made = os.environ.get(NODE_DIRECTORY)
    if made is not None and os.path.isdir(made):
        return made
    from pyspark import SparkFiles

    try:
        root = SparkFiles.getRootDirectory()
    except Exception:  # outside a Spark task there is no such directory
        root = tempfile.gettempdir()
    path = os.path.join(root, "penstock")
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def allow_many_files() -> None:
    """Raise this process's own limit on open files as far as the system lets it: every shard keeps some open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
