"""What user functions print and log, inside the process that runs them, on its way to the driver.

While a `Speaker` listens, writes to standard output and error and records of `logging` become `Said` messages, with the
operator, the task and, where the function was called for a key or a shard, those too. Bounded, and it never fails the
work: what is too much is left out and counted. A function that says nothing pays nothing.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from penstock.dataplane.messages import Said
from penstock.dataplane.state.handles import KeyState

LINES_PER_S = 200
BYTES_PER_MINUTE = 1 << 20
LINE_CHARACTERS = 4000
"""A longer line is cut."""
KEY_CHARACTERS = 80
_FRAMES = 64
"""How far up the stack the key is looked for."""
_CALLERS = ("penstock.dataplane.", "penstock.topology.")


class Allowance:
    """How much may be said now: so many lines a second, so many bytes a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._second = self._minute = -1
        self._lines = self._bytes = 0

    def take(self, size: int) -> bool:
        """Return whether a line of so many bytes may be said, and count it."""
        now = self._clock()
        if int(now) != self._second:
            self._second, self._lines = int(now), 0
        if int(now / 60.0) != self._minute:
            self._minute, self._bytes = int(now / 60.0), 0
        if self._lines >= LINES_PER_S or self._bytes + size > BYTES_PER_MINUTE:
            return False
        self._lines += 1
        self._bytes += size
        return True


class Speaker:
    """Collects what is said until `take`. Any thread may speak.

    Args:
        woken: called after something was said, by whoever said it.
        echo: also write it where it would have gone.
    """

    def __init__(
        self,
        woken: Callable[[], None] = lambda: None,
        *,
        echo: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.echo = echo
        self.stage, self.task = "", 0
        """Whom the process works for now."""
        self._woken = woken
        self._allowance = Allowance(clock)
        self._guard = threading.Lock()
        self._said: deque[Said] = deque()
        self._left_out = 0
        self._streams: list[Stream] = []

    @property
    def owes(self) -> bool:
        """Whether lines were left out and this was not said yet."""
        return self._left_out > 0

    def say(self, level: int, text: str) -> None:
        """Keep one text for the driver, or count it as left out."""
        if len(text) > LINE_CHARACTERS:
            text = f"{text[:LINE_CHARACTERS]} ... (cut)"
        where = where_called(sys._getframe(1))
        with self._guard:
            if self._allowance.take(len(text)):
                self._note_left_out()
                self._said.append(Said(self.stage, self.task, level, text, where))
            else:
                self._left_out += 1
                if self._left_out > 1:
                    return
        self._woken()

    def end_lines(self) -> None:
        """Say what was written without an end of line."""
        for stream in self._streams:
            stream.end_line()

    def take(self) -> list[Said]:
        """Return what was said since the last call."""
        if not self._said and not self._left_out:
            return []
        with self._guard:
            if self._left_out and self._allowance.take(0):
                self._note_left_out()
            said = list(self._said)
            self._said.clear()
        return said

    def _note_left_out(self) -> None:
        if self._left_out:
            bound = f"{LINES_PER_S} a second or {BYTES_PER_MINUTE >> 20} MB a minute"
            note = f"{self._left_out} lines left out, which were more than {bound}"
            self._said.append(Said(self.stage, self.task, logging.WARNING, note))
            self._left_out = 0

    @contextlib.contextmanager
    def listening(self, level: int) -> Iterator[None]:
        """Stand in for standard output and error, and hear log records of this level and above."""
        before, root = (sys.stdout, sys.stderr), logging.getLogger()
        root_level, handler = root.level, Handler(self, before[1])
        self._streams = [Stream(self, logging.INFO, before[0]), Stream(self, logging.WARNING, before[1])]
        sys.stdout, sys.stderr = self._streams
        root.addHandler(handler)
        root.setLevel(level)
        try:
            yield
        finally:
            self.end_lines()
            sys.stdout, sys.stderr = before
            root.removeHandler(handler)
            root.setLevel(root_level)


class Stream(io.TextIOBase):
    """Standard output or error while a speaker listens."""

    def __init__(self, speaker: Speaker, level: int, instead_of: TextIO) -> None:
        self._speaker = speaker
        self._level = level
        self._under = instead_of
        self._begun = ""

    def write(self, text: str) -> int:
        if self._speaker.echo:
            with contextlib.suppress(Exception):
                self._under.write(text)
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._speaker.say(self._level, line)
        self._begun = self._begun[: LINE_CHARACTERS + 1]
        return len(text)

    def end_line(self) -> None:
        if self._begun:
            begun, self._begun = self._begun, ""
            self._speaker.say(self._level, begun)

    def flush(self) -> None:
        with contextlib.suppress(Exception):
            self._under.flush()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._under.fileno()

    @property
    def buffer(self) -> Any:
        """Bytes written here go where they would have gone; nothing is known of their lines."""
        return self._under.buffer

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._under.encoding


class Handler(logging.Handler):
    """Hands log records to a speaker; one of a named logger begins with the name."""

    def __init__(self, speaker: Speaker, stderr: TextIO) -> None:
        super().__init__()
        self._speaker = speaker
        self._stderr = stderr

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception as error:
            text = f"a log record that cannot be formatted: {record.msg!r} ({type(error).__name__}: {error})"
        if record.name != "root":
            text = f"{record.name}: {text}"
        if self._speaker.echo:
            with contextlib.suppress(Exception):
                self._stderr.write(f"{record.levelname}: {text}\n")
        self._speaker.say(record.levelno, text)


def where_called(frame: Any) -> str:
    """Return what the running function was called for, `shard 17, key 'IBM'`, as far as its caller knows.

    Looked up on the stack when something is said, so that nobody has to keep note of it for every key.
    """
    for _ in range(_FRAMES):
        if frame is None:
            return ""
        if frame.f_globals.get("__name__", "").startswith(_CALLERS):
            found = _where_in(frame.f_locals)
            if found:
                return found
        frame = frame.f_back
    return ""


def _where_in(variables: Mapping[str, Any]) -> str:
    state, shard = variables.get("state"), variables.get("shard")
    if isinstance(state, KeyState):
        return f"shard {state._shard}, key {_shown(state._key)}"
    if isinstance(shard, int):
        return f"shard {shard}"
    step = getattr(variables.get("self"), "where", None)
    return step if isinstance(step, str) else ""


def _shown(key: Any) -> str:
    try:
        parts = ", ".join(map(repr, key)) if isinstance(key, tuple) else repr(key)
    except Exception:
        return "?"
    return parts if len(parts) <= KEY_CHARACTERS else f"{parts[:KEY_CHARACTERS]}..."
