"""What a person asks of a running query from outside its process: a file with the request, a file with the answer.

Whoever may write to the checkpoint may ask; there is no port to open and nothing to log in to. A request is taken once,
by the driver that owns the checkpoint, which leaves a mark that it has; what it asks is the business of whoever carries
it out. Anything may stand in the folder: what is no request costs its own answer, and nothing else.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Annotated, Final

import msgspec

from penstock.dataplane import paths
from penstock.dataplane.disk import Disk
from penstock.dataplane.small_files import LARGE_BYTES, decode, read_whole
from penstock.errors import CheckpointError, PenstockError

_log = logging.getLogger("penstock")
ASK, ANSWER, TAKEN = ".ask", ".answer", ".taken"
STALE_S = 600.0
"""Age after which files that nobody fetched are deleted."""
REFUSED_AT_ONCE: Final = 32
"""Answers to what is no request that one look writes: thousands of such files hold up nobody who asks."""
_OURS = re.compile(r"([0-9A-Za-z_-]{1,64})(\.ask|\.answer|\.taken)")
_Count = Annotated[int, msgspec.Meta(ge=-1, le=1 << 31)]
_Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
_Text = Annotated[str, msgspec.Meta(max_length=4096)]


class Request(msgspec.Struct, frozen=True):
    """One thing asked: `rescale`, `move`, `drain`, `pause`, `resume`, `decisions`, ..."""

    verb: _Text
    asked_at: float
    operator: _Text = ""
    cores: _Count = 0
    nodes: dict[_Text, _Count] = {}
    """Cores by executor id; empty where it does not matter."""
    shards: list[_Count] = []
    task: _Count = -1
    node: _Text = ""
    release: bool = False
    latency_s: _Seconds = 0.0
    window_s: _Seconds = 1.0
    quantile: float | None = None
    """None: the mean."""
    scope: _Text = ""
    """Empty: end to end."""
    policy: _Text = ""
    wait_s: _Seconds = 0.0
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


_request = msgspec.json.Decoder(Request)
_answer = msgspec.json.Decoder(Answer)
_mark = msgspec.json.Decoder(Mark)


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
                return decode(_answer, read_whole(disk, answered, LARGE_BYTES), answered, "answer")
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
        return decode(_mark, read_whole(disk, path), path, "mark")
    except (FileNotFoundError, PenstockError):
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
        self._refused: set[str] = set()
        """Of those that have no answer yet: what is no request."""
        self._first = True

    def look(self, now: float) -> int:
        """Begin every request that waits and can be; return how many there were. Slow ones are not waited for.

        What is no request, or cannot be read, answered or deleted, is passed over for those that can.

        Raises:
            StorageError: the folder cannot be listed.
        """
        found = [match for match in map(_OURS.fullmatch, self._disk.list(self._folder)) if match is not None]
        asked, answered, taken = ({one[1] for one in found if one[2] == end} for end in (ASK, ANSWER, TAKEN))
        found_first = self._first
        self._clean(asked, answered, taken, now)
        self._refused &= asked - answered
        count = 0
        for key in sorted(asked - answered - self._refused):
            if key in self._answers:
                self._tell(key)
                continue
            request = self._read(key, now, found_first)
            if request is not None and not self._is_at(request.verb):
                self._begin(key, request, now)
                count += 1
        for key in sorted(self._refused)[:REFUSED_AT_ONCE]:
            self._tell(key)
        return count

    def _clean(self, asked: set[str], answered: set[str], taken: set[str], now: float) -> None:
        """Delete what nobody fetched for long and what an asker or a driver that died left; forget askers that left."""
        for key in [key for key, answer in self._answers.items() if answer is not None and key not in asked]:
            del self._answers[key]
        self._told_at = {key: self._told_at.get(key, now) for key in answered}
        stale = {key for key, at in self._told_at.items() if now - at > STALE_S}
        left = {f"{key}{ANSWER}" for key in (answered - asked) | stale} | {f"{key}{ASK}" for key in stale}
        if self._first:
            left |= {f"{key}{TAKEN}" for key in taken}
        self._first = False
        for name in left:
            self._drop(name)

    def _read(self, key: str, now: float, found_first: bool) -> Request | None:
        """Read a request. Only one that was there before the first look can be stale; of a later one, an old time tells of
        another machine's clock."""
        path = f"{self._folder}/{key}{ASK}"
        try:
            request = decode(_request, read_whole(self._disk, path), path, "request")
        except FileNotFoundError:
            return None  # whoever asked has given up
        except PenstockError as error:
            why = str(error).replace("restore the file from a copy", "ask again")
            self._answers[key] = Answer(False, f"it cannot be read: {why}")
            self._refused.add(key)
            return None
        if found_first and now - request.asked_at > STALE_S:
            self._drop(f"{key}{ASK}")
            return None
        return request

    def _is_at(self, verb: str) -> bool:
        return verb in self._threads and self._threads[verb].is_alive()

    def _begin(self, key: str, request: Request, now: float) -> None:
        try:
            mark = msgspec.json.encode(Mark(request.verb, now))
            self._disk.put(f"{self._folder}/{key}{TAKEN}", mark)
        except PenstockError as error:
            self._answers[key] = Answer(False, f"nothing of it was done: {error}")
            self._refused.add(key)
            return
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
        """Write the answer, if there is one and somebody waits for it; again with the next look where the disk fails.
        Only `look` does, so that it is written once."""
        answer = self._answers.get(key)
        if answer is None:
            return
        try:
            if self._disk.size(f"{self._folder}/{key}{ASK}") is not None:
                self._disk.put(f"{self._folder}/{key}{ANSWER}", _encode(answer))
        except PenstockError as error:
            _log.debug("the answer %s could not be written: %s", key, error)
            return
        self._drop(f"{key}{TAKEN}")

    def _drop(self, name: str) -> None:
        with suppress(PenstockError):  # a folder of this name stays where it is
            self._disk.delete(f"{self._folder}/{name}")


def _encode(answer: Answer) -> bytes:
    """An answer as it is written; text that is none, as of a broken name, is told with its odd parts escaped."""
    try:
        return msgspec.json.encode(answer)
    except UnicodeEncodeError:
        text, *lines = (
            one.encode(errors="backslashreplace").decode() for one in (answer.text, *answer.lines)
        )
        return msgspec.json.encode(msgspec.structs.replace(answer, text=text, lines=lines))
