"""What a person asks of a running query from outside its process: a file with the request, a file with the answer.

Whoever may write to the checkpoint may ask; there is no port to open and nothing to log in to. A request is taken once,
by the driver that owns the checkpoint, which leaves a mark that it has; what it asks is the business of whoever carries
it out.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection

import msgspec

from penstock.dataplane import paths
from penstock.dataplane.disk import Disk, is_temp
from penstock.errors import CheckpointError, PenstockError, StorageError

_log = logging.getLogger("penstock")
ASK, ANSWER, TAKEN = ".ask", ".answer", ".taken"
STALE_S = 600.0
"""Age after which files that nobody fetched are deleted."""


class Request(msgspec.Struct, frozen=True):
    """One thing asked: `rescale`, `move`, `drain`, `pause`, `resume`, `decisions`, ..."""

    verb: str
    asked_at: float
    operator: str = ""
    cores: int = 0
    nodes: dict[str, int] = {}
    """Cores by executor id; empty where it does not matter."""
    shards: list[int] = []
    task: int = -1
    node: str = ""
    release: bool = False
    latency_s: float = 0.0
    window_s: float = 1.0
    quantile: float | None = None
    """None: the mean."""
    scope: str = ""
    """Empty: end to end."""
    policy: str = ""
    wait_s: float = 0.0
    """How long the query may wait for what was asked for to be done; 0: as long as it waits by itself."""


class Answer(msgspec.Struct, frozen=True):
    """What came of it."""

    ok: bool
    text: str
    lines: list[str] = []
    refused: bool = False
    """It was asked for something that is not there or cannot be; False where it was tried and failed."""


class Mark(msgspec.Struct, frozen=True):
    """The driver has begun with a request and is at it."""

    busy_with: str
    at: float


def ask(
    disk: Disk,
    checkpoint: str,
    request: Request,
    timeout_s: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Answer:
    """Ask the running query and wait for its answer; the files are gone afterwards.

    Raises:
        CheckpointError: nobody answered in time; whether a query is busy, or none runs, is said.
    """
    if not 0 < timeout_s < float("inf"):
        raise CheckpointError(f"--timeout is a positive number of seconds, not {timeout_s:g}.")
    folder = paths.requests(checkpoint)
    disk.make_dirs(folder)
    name = secrets.token_hex(8)
    asked, answered, taken = (f"{folder}/{name}{suffix}" for suffix in (ASK, ANSWER, TAKEN))
    disk.put(asked, msgspec.json.encode(request))
    deadline = clock() + timeout_s
    try:
        while clock() < deadline:
            if disk.size(answered) is not None:
                return msgspec.json.decode(disk.read(answered), type=Answer)
            sleep(0.05)
        mine = _read_mark(disk, taken)
        busy = mine or _find_busy(disk, folder, request.asked_at)
    finally:
        for file in (asked, answered, taken):
            disk.delete(file)
    if busy is None:
        raise CheckpointError(
            f"no query that runs on {checkpoint} answered within {timeout_s:g} s; start it, or ask longer with --timeout."
        )
    goes_on = "what you asked for goes on" if mine is not None else "nothing of what you asked for was done"
    raise CheckpointError(
        f"the query on {checkpoint} runs and is busy with {busy.busy_with}: no answer within {timeout_s:g} s, {goes_on}; "
        "wait longer with --timeout."
    )


def _read_mark(disk: Disk, path: str) -> Mark | None:
    try:
        return msgspec.json.decode(disk.read(path), type=Mark)
    except (FileNotFoundError, StorageError, msgspec.MsgspecError):
        return None


def _find_busy(disk: Disk, folder: str, now: float) -> Mark | None:
    """What the driver has taken from others and not yet answered."""
    names = [name for name in disk.list(folder) if name.endswith(TAKEN)]
    marks = [_read_mark(disk, f"{folder}/{name}") for name in names]
    return next((mark for mark in marks if mark is not None and now - mark.at < STALE_S), None)


class Desk:
    """Takes the requests to one running query and answers each once, whatever comes of it. `look` is for one thread.

    Args:
        carry_out: does what is asked. Whatever it raises is the answer.
        slow: verbs that may take long. Each has a thread of its own, so that others do not wait; two of a kind come one
            after the other.
    """

    def __init__(
        self,
        disk: Disk,
        checkpoint: str,
        carry_out: Callable[[Request], Answer],
        slow: Collection[str] = (),
    ) -> None:
        self._disk = disk
        self._folder = paths.requests(checkpoint)
        self._carry_out = carry_out
        self._slow = slow
        self._threads: dict[str, threading.Thread] = {}
        self._answers: dict[str, Answer | None] = {}
        """Requests that were begun and whose file is still there; None while one is carried out."""
        self._told_at: dict[str, float] = {}
        """Requests that have an answer, and since when."""
        self._first = True

    def look(self, now: float) -> int:
        """Begin every request that waits and can be; return how many there were. Slow ones are not waited for."""
        names = {name for name in self._disk.list(self._folder) if not is_temp(name)}
        asked = sorted(name.removesuffix(ASK) for name in names if name.endswith(ASK))
        found_first = self._first
        self._clean(names, set(asked), now)
        count = 0
        for key in asked:
            if f"{key}{ANSWER}" in names:
                continue
            if key in self._answers:
                self._tell(key)
                continue
            request = self._read(key, now, found_first)
            if request is not None and not self._is_at(request.verb):
                self._begin(key, request, now)
                count += 1
        return count

    def _clean(self, names: set[str], asked: set[str], now: float) -> None:
        """Delete what nobody fetched for long and what an asker or a driver that died left; forget askers that left."""
        for key in [key for key, answer in self._answers.items() if answer is not None and key not in asked]:
            del self._answers[key]
        answered = {name.removesuffix(ANSWER) for name in names if name.endswith(ANSWER)}
        self._told_at = {key: self._told_at.get(key, now) for key in answered}
        left = {f"{key}{ANSWER}" for key in answered - asked}
        left |= {
            f"{key}{suffix}"
            for key, at in self._told_at.items()
            if now - at > STALE_S
            for suffix in (ASK, ANSWER)
        }
        if self._first:
            left |= {name for name in names if name.endswith(TAKEN)}
        self._first = False
        for name in left:
            self._disk.delete(f"{self._folder}/{name}")

    def _read(self, key: str, now: float, found_first: bool) -> Request | None:
        """Read a request. Only one that was there before the first look can be stale; of a later one, an old time tells of
        another machine's clock."""
        try:
            request = msgspec.json.decode(self._disk.read(f"{self._folder}/{key}{ASK}"), type=Request)
        except FileNotFoundError:
            return None  # whoever asked has given up
        except msgspec.MsgspecError as error:
            self._answers[key] = Answer(False, f"it cannot be read: {error}")
            self._tell(key)
            return None
        if found_first and now - request.asked_at > STALE_S:
            self._disk.delete(f"{self._folder}/{key}{ASK}")
            return None
        return request

    def _is_at(self, verb: str) -> bool:
        return verb in self._threads and self._threads[verb].is_alive()

    def _begin(self, key: str, request: Request, now: float) -> None:
        self._disk.put(f"{self._folder}/{key}{TAKEN}", msgspec.json.encode(Mark(request.verb, now)))
        self._answers[key] = None
        if request.verb not in self._slow:
            self._do(key, request)
            self._tell(key)
            return
        thread = threading.Thread(
            target=self._do, args=(key, request), name=f"penstock-{request.verb}", daemon=True
        )
        self._threads[request.verb] = thread
        thread.start()

    def _do(self, key: str, request: Request) -> None:
        try:
            answer = self._carry_out(request)
        except PenstockError as error:
            answer = Answer(False, str(error), refused=True)
        except Exception as error:
            _log.exception("the request '%s' failed.", request.verb)
            answer = Answer(False, f"'{request.verb}' failed with {type(error).__name__}: {error}")
        self._answers[key] = answer

    def _tell(self, key: str) -> None:
        """Write the answer, if there is one and somebody waits for it. Only `look` does, so that it is written once."""
        answer = self._answers.get(key)
        if answer is None:
            return
        if self._disk.size(f"{self._folder}/{key}{ASK}") is not None:
            self._disk.put(f"{self._folder}/{key}{ANSWER}", msgspec.json.encode(answer))
        self._disk.delete(f"{self._folder}/{key}{TAKEN}")
