"""The driver's one selector thread: all lease sockets, and every call into the engine.

Other threads (log, sinks, ingest, the user's) hand in work by `post`; nothing but this thread touches the
engine. Never blocks on a disk.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

import msgspec

from penstock.dataplane import messages
from penstock.errors import PlanError
from penstock.spark.wire import LENGTH, NONCE_BYTES, FrameBuffer, WireError, is_proof, proof

T = TypeVar("T")
_NAME_BYTES = 32


class HubOver(PlanError, RuntimeError):
    """The hub's thread does not run; nothing can be asked of it. A person who asks is told that the query has ended."""


class Connection:
    """One accepted socket: first a stranger, then a lease."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.frames = FrameBuffer()
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.lease: str | None = None
        self.out = bytearray()
        self.accepted_at = time.monotonic()


class Listener:
    """What the hub tells: all calls come on the hub's thread."""

    def lease_up(self, lease: str, hello: messages.Hello) -> None: ...

    def lease_down(self, lease: str, reason: str) -> None: ...

    def message(self, lease: str, message: messages.FromLease) -> None: ...

    def step(self) -> float:
        """Do what is due; return the seconds until the next call at the latest."""
        return 1.0


class Hub:
    """Owns the listening socket, the connections and the thread."""

    def __init__(self, host: str, listener: Listener, advertised: str | None = None) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._server = socket.create_server((host, 0), backlog=64)
        self._server.setblocking(False)
        self.address: tuple[str, int] = (advertised or host, self._server.getsockname()[1])
        self._wake_in, self._wake_out = os.pipe()
        self._wake_guard = threading.Lock()
        self._shut_down = False
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._selector.register(self._server, selectors.EVENT_READ, "server")
        self._selector.register(self._wake_in, selectors.EVENT_READ, "wake")
        self._tokens: dict[str, bytes] = {}
        self._connections: dict[str, Connection] = {}
        self._strangers: set[Connection] = set()
        self._posted: deque[Callable[[], None]] = deque()
        self._asking: set[Future[Any]] = set()
        self._over = False
        self._closing = False
        self._on_crash: Callable[[BaseException], None] = lambda error: None
        self._thread = threading.Thread(target=self._run, name="penstock-hub", daemon=True)
        self.cpu_s = 0.0

    def start(self, on_crash: Callable[[BaseException], None]) -> None:
        self._on_crash = on_crash
        self._thread.start()

    def expect(self, lease: str, token: bytes) -> None:
        """Accept one connection that proves this token as `lease`. Any thread."""
        self._tokens[lease] = token

    def forget(self, lease: str) -> None:
        self._tokens.pop(lease, None)

    def post(self, call: Callable[[], None]) -> None:
        """Run a call on the hub's thread, soon. Any thread."""
        self._posted.append(call)
        with self._wake_guard:
            # Once shut, the number may belong to another file of this process.
            if not self._shut_down:
                with contextlib.suppress(BlockingIOError, OSError):
                    os.write(self._wake_out, b"x")

    def ask(self, call: Callable[[], T], timeout: float | None = 60.0) -> T:
        """Run a call on the hub's thread and wait for what it returns. Any other thread.

        Raises:
            HubOver: the thread has ended, or ends before it comes to this call.
        """
        answer: Future[T] = Future()

        def run() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)

        self._asking.add(answer)
        try:
            self.post(run)
            if self._over or not self._thread.is_alive():  # looked at after the answer was made known
                answer.cancel()
            return answer.result(timeout)
        except CancelledError:
            raise HubOver("the query has ended") from None
        finally:
            self._asking.discard(answer)

    def send(self, lease: str, message: messages.ToLease) -> None:
        """Send to a lease; a lease that is gone is reported by its connection, not here. Hub's thread."""
        connection = self._connections.get(lease)
        if connection is None:
            return
        payload = messages.encode(message)
        connection.out += LENGTH.pack(len(payload)) + payload
        self._flush(connection)

    def drop(self, lease: str) -> None:
        """Close a lease's connection; nothing more is heard of it. Hub's thread."""
        self._tokens.pop(lease, None)
        connection = self._connections.pop(lease, None)
        if connection is not None:
            self._close(connection)

    def close(self, timeout: float = 5.0) -> None:
        """Stop the thread and close everything."""
        self._closing = True
        self.post(lambda: None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        elif self._thread.ident is None:
            self._shut()  # it was never started

    def _run(self) -> None:
        try:
            while not self._closing:
                wait = self._listener.step()
                self._turn(max(0.0, wait))
                self.cpu_s = time.thread_time()
        except BaseException as error:
            self._on_crash(error)
        finally:
            self._shut()

    def _turn(self, wait: float) -> None:
        if self._posted:
            wait = 0.0
        for key, events in self._selector.select(wait):
            if key.data == "server":
                self._accept()
            elif key.data == "wake":
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_in, 4096)
            else:
                self._serve(key.data, events)
        while self._posted:
            self._posted.popleft()()
        self._drop_silent_strangers()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            sock, _ = self._server.accept()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(sock)
            self._strangers.add(connection)
            self._selector.register(sock, selectors.EVENT_READ, connection)
            connection.out += LENGTH.pack(len(connection.nonce)) + connection.nonce
            self._flush(connection)

    def _serve(self, connection: Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(connection)
            if events & selectors.EVENT_READ:
                data = connection.sock.recv(1 << 18)
                if not data:
                    raise WireError("the lease's process ended")
                for frame in connection.frames.feed(data):
                    self._on_frame(connection, frame)
        except BlockingIOError:
            return
        except (WireError, OSError, msgspec.MsgspecError) as error:
            self._lost(connection, str(error))

    def _on_frame(self, connection: Connection, frame: bytes) -> None:
        if connection.lease is None:
            self._authenticate(connection, frame)
            return
        if self._connections.get(connection.lease) is not connection:
            return
        message = messages.decode_from_lease(frame)
        if isinstance(message, messages.Hello):
            self._listener.lease_up(connection.lease, message)
        else:
            self._listener.message(connection.lease, message)

    def _authenticate(self, connection: Connection, frame: bytes) -> None:
        lease = frame[:_NAME_BYTES].decode("ascii", "replace").strip()
        nonce, given = frame[_NAME_BYTES : _NAME_BYTES + NONCE_BYTES], frame[_NAME_BYTES + NONCE_BYTES :]
        token = self._tokens.get(lease)
        if token is None or not is_proof(given, token, b"lease", connection.nonce):
            raise WireError("a stranger knocked")
        del self._tokens[lease]
        connection.lease = lease
        self._strangers.discard(connection)
        self._connections[lease] = connection
        answer = proof(token, b"driver", nonce)
        connection.out += LENGTH.pack(len(answer)) + answer
        self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        try:
            while connection.out:
                sent = connection.sock.send(connection.out)
                del connection.out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            return  # the read side reports it
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.out else 0)
        with contextlib.suppress(KeyError, ValueError):
            if self._selector.get_key(connection.sock).events != events:
                self._selector.modify(connection.sock, events, connection)

    def _lost(self, connection: Connection, reason: str) -> None:
        self._close(connection)
        self._strangers.discard(connection)
        lease = connection.lease
        if lease is not None and self._connections.get(lease) is connection:
            del self._connections[lease]
            self._listener.lease_down(lease, reason)

    def _drop_silent_strangers(self) -> None:
        late = [c for c in self._strangers if time.monotonic() - c.accepted_at > 10.0]
        for connection in late:
            self._lost(connection, "never authenticated")

    def _close(self, connection: Connection) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.sock)
        connection.sock.close()

    def _shut(self) -> None:
        self._over = True
        for answer in list(self._asking):
            answer.cancel()
        for connection in [*self._connections.values(), *self._strangers]:
            self._close(connection)
        for closing in (self._server.close, self._selector.close):
            with contextlib.suppress(OSError):
                closing()
        with self._wake_guard:
            self._shut_down = True
            os.close(self._wake_in)
            os.close(self._wake_out)
