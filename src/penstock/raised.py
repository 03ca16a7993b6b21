"""What a function of the user's raised: whether it is the function's at all, and its text, bounded and fit for UTF-8.

Whoever calls user code catches `BaseException`, hands it to `pass_on` and tells the rest with `describe` and
`describe_traceback`. Nothing here raises anything else, whatever `__str__`, `__repr__` or a traceback may do.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Final

from penstock.errors import CheckpointError, FencedError, OperatorError, StorageError

ERROR_CHARACTERS: Final = 4_000
"""Of the text of an error."""
TRACEBACK_CHARACTERS: Final = 40_000
VALUE_CHARACTERS: Final = 200
"""Of a key, row or value that a message shows."""
_SYS_EXIT: Final = "a function cannot end the process; return instead"


class ProcessEnds(BaseException):
    """The process ends here, as far as a simulation goes: no function raised it, and nobody may survive it."""


_NOT_OF_FUNCTIONS: Final = (StorageError, CheckpointError, FencedError, ProcessEnds)
"""Of the disk, of local state or of the end; a function was only on the way when it came up."""


def pass_on(error: BaseException) -> None:
    """Raise again what is no fault of the function that was called: failures of disk and state, and Ctrl-C."""
    if issubclass(type(error), _NOT_OF_FUNCTIONS) or _is_ctrl_c(error):
        raise error


def pass_on_end(error: BaseException) -> None:
    """Raise again what ends the process: Ctrl-C, and the death of a simulated one."""
    if issubclass(type(error), ProcessEnds) or _is_ctrl_c(error):
        raise error


def function_error(what: str, error: BaseException, after: str = "") -> OperatorError:
    """Return the error of a function that raised: what failed, what it raised, and what is to be said after that.

    Raises:
        BaseException: the error itself, where `pass_on` says that it is not the function's.
    """
    pass_on(error)
    return OperatorError(f"{what}: {describe(error)}{after}")


def describe(error: BaseException) -> str:
    """Return type and text of an error: `ValueError: no -1`."""
    name, text = type_name(error), _text_of(error, str)
    if text is None:
        text = "(its text cannot be had: its __str__ raised)"
    if issubclass(type(error), SystemExit):
        text = f"{text} ({_SYS_EXIT})"
    return f"{name}: {bounded(text, ERROR_CHARACTERS)}" if text else name


def describe_own(error: BaseException) -> str:
    """Return the text of an error of ours, which may quote what a function raised, without its type."""
    return bounded(_text_of(error, str) or type_name(error), ERROR_CHARACTERS + TRACEBACK_CHARACTERS)


def describe_traceback(error: BaseException) -> str:
    """Return the traceback of an error, with those of its causes; of a long one its beginning and its end."""
    try:
        trace = traceback.TracebackException(type(error), error, _trace_of(error), compact=True)
        return _join(trace.format())
    except BaseException as own:
        pass_on(own)
    return _join([*_frames_of(error), describe(error)])


def show(value: object, limit: int = VALUE_CHARACTERS) -> str:
    """Return a value as messages show it: its `repr`, as far as it can be had."""
    text = _text_of(value, repr)
    return bounded(f"<{type_name(value)} whose __repr__ raised>" if text is None else text, limit)


def bounded(text: str, limit: int) -> str:
    """Return a text that can be encoded, of about so many characters at most: of a long one its beginning and its end.

    What UTF-8 has no bytes for, lone surrogates, is written as an escape.
    """
    length = str.__len__(text)  # of a class derived from str, nothing of its own is called
    if length <= limit:
        return _encodable(str.__getitem__(text, slice(0, length)))
    half = limit // 2
    first, last = str.__getitem__(text, slice(0, half)), str.__getitem__(text, slice(length - half, length))
    return f"{_encodable(first)} ... ({length - 2 * half:,} characters left out) ... {_encodable(last)}"


def type_name(value: object) -> str:
    """Return the name of a value's class, which no metaclass can change."""
    return str(type.__dict__["__name__"].__get__(type(value)))


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _text_of(value: object, turn: Callable[[object], str]) -> str | None:
    try:
        return str.__getitem__(turn(value), slice(None))  # plain, whatever class the text is of
    except BaseException as own:
        pass_on(own)
        return None


def _frames_of(error: BaseException) -> list[str]:
    try:
        return ["Traceback (most recent call last):\n", *traceback.format_tb(_trace_of(error))]
    except BaseException as own:
        pass_on(own)
        return []


def _trace_of(error: BaseException) -> Any:
    return BaseException.__dict__["__traceback__"].__get__(error)  # no `__getattribute__` of its own is asked


def _join(parts: Any) -> str:
    """Put the parts of a traceback together, never holding much more of them than what is kept."""
    half = TRACEBACK_CHARACTERS // 2
    first, last, dropped = "", "", False
    for part in parts:
        text = bounded(part, TRACEBACK_CHARACTERS)
        room = max(0, half - len(first)) if not last else 0
        first, rest = first + text[:room], text[room:]
        last += rest
        dropped, last = dropped or len(last) > half, last[-half:]
    return f"{first}{' ... (left out) ... ' if dropped else ''}{last}".rstrip()


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------


class _Keys:
    """What is known of Ctrl-C in this process."""

    watchers = 0
    pressed = False


@contextlib.contextmanager
def noting_ctrl_c() -> Iterator[None]:
    """Tell the KeyboardInterrupt of a person from one that a function raises, while this lasts.

    Where nobody takes note, any in the main thread counts as a person's. Another thread never gets one from a person.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: Any) -> Any:
        _Keys.pressed = True
        return before(number, frame) if callable(before) else None

    if not _Keys.watchers:  # one that was pressed before this concerns nobody here
        _Keys.pressed = False
    if callable(before):  # otherwise no signal ever becomes an exception
        signal.signal(signal.SIGINT, note)
    _Keys.watchers += 1
    try:
        yield
    finally:
        _Keys.watchers -= 1
        if not _Keys.watchers:
            _Keys.pressed = False
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)


def _is_ctrl_c(error: BaseException) -> bool:
    if not issubclass(type(error), KeyboardInterrupt):
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    return _Keys.pressed or not _Keys.watchers
