"""What user functions print and log, inside the process that runs them, on its way to the driver.

While a `Speaker` listens, writes to standard output and error and records of `logging` become `Said` messages, with the
operator, the task and, where the function was called for a key or a shard, those too. Bounded, and it never fails the
work, whatever is said: what is too much is left out and counted, what cannot be encoded is escaped. A function that says
nothing pays nothing.
"""

from __future__ import annotations

import codecs
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
from penstock.raised import bounded, describe, show

LINES_PER_S = 200
BYTES_PER_MINUTE = 1 << 20
LINE_CHARACTERS = 4000
"""A longer line is cut."""
KEY_CHARACTERS = 80
_MOST_LEVEL = 1_000
"""A level above is told as this one."""
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
        self._guard = threading.RLock()  # a `__del__` that prints may run while this thread has it
        self._said: deque[Said] = deque()
        self._left_out = 0
        self._streams: list[Stream] = []

    @property
    def owes(self) -> bool:
        """Whether lines were left out and this was not said yet."""
        return self._left_out > 0

    def say(self, level: int, text: str) -> bool:
        """Keep one text for the driver, or count it as left out; say which."""
        if len(text) > LINE_CHARACTERS:
            text = f"{text[:LINE_CHARACTERS]} ... (cut)"
        text, level = bounded(text, 2 * LINE_CHARACTERS), max(0, min(int(level), _MOST_LEVEL))
        where = where_called(sys._getframe(1))
        with self._guard:
            if not self._allowance.take(len(text)):
                self._leave_out(1)
                return False
            self._note_left_out()
            self._said.append(Said(self.stage, self.task, level, text, where))
        self._woken()
        return True

    def leave_out(self, lines: int) -> None:
        """Count lines as left out that came with others which were too many."""
        if lines:
            with self._guard:
                self._leave_out(lines)

    def _leave_out(self, lines: int) -> None:
        first = not self._left_out
        self._left_out += lines
        if first:
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
        self.decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, text: str) -> int:
        text = str.__getitem__(text, slice(None))  # of a class derived from str, nothing of its own is called
        if self._speaker.echo:
            with contextlib.suppress(Exception):
                self._under.write(text.encode("utf-8", "backslashreplace").decode("utf-8"))
        self.hear(text)
        return len(text)

    def hear(self, text: str) -> None:
        """Say the lines that end in a text, as many as may be said, and keep the half one at its end."""
        start = 0
        while (end := text.find("\n", start)) >= 0:
            line = self._begun + text[start : min(end, start + LINE_CHARACTERS + 1)]
            self._begun, start = "", end + 1
            if not self._speaker.say(self._level, line):
                self._speaker.leave_out(text.count("\n", start))
                start = text.rfind("\n") + 1
        self._begun = (self._begun + text[start : start + LINE_CHARACTERS + 1])[: LINE_CHARACTERS + 1]

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
        """Bytes written here are heard as text, too."""
        return StreamBytes(self)

    def echo_bytes(self, data: bytes) -> None:
        if self._speaker.echo:
            with contextlib.suppress(Exception):
                self._under.buffer.write(data)

    def reconfigure(self, **_: Any) -> None:
        """Programs set the encoding of their output; here it is always UTF-8."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._under.encoding


class StreamBytes(io.RawIOBase):
    """The bytes below such a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        given = bytes(data)
        self._stream.echo_bytes(given)
        self._stream.hear(self._stream.decoder.decode(given))
        return len(given)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def flush(self) -> None:
        self._stream.flush()


class Handler(logging.Handler):
    """Hands log records to a speaker; one of a named logger begins with the name."""

    def __init__(self, speaker: Speaker, stderr: TextIO) -> None:
        super().__init__()
        self._speaker = speaker
        self._stderr = stderr

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = str.__getitem__(self.format(record), slice(None))
        except Exception as error:
            text = f"a log record that cannot be formatted: {show(record.msg)} ({describe(error)})"
        if record.name != "root":
            text = f"{record.name}: {text}"
        if self._speaker.echo:
            with contextlib.suppress(Exception):
                self._stderr.write(f"{record.levelname}: {bounded(text, len(text))}\n")
        self._speaker.say(record.levelno, text)


def where_called(frame: Any) -> str:
    """Return what the running function was called for, `shard 17, key 'IBM'`, as far as its caller knows.

    Looked up on the stack when something is said, so that nobody has to keep note of it for every key.
    """
    for _ in range(_FRAMES):
        if frame is None:
            return ""
        name = frame.f_globals.get("__name__")
        if isinstance(name, str) and name.startswith(_CALLERS):
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
    values = key if isinstance(key, tuple) else (key,)
    return bounded(", ".join([show(value, KEY_CHARACTERS) for value in values]), KEY_CHARACTERS)
