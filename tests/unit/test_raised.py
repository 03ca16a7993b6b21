"""Whatever a function raises is told in bounded text that can be encoded; Ctrl-C and the end of a process are passed on."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import raised
from penstock.errors import CorruptFileError, OperatorError, StorageError
from penstock.raised import bounded, describe, describe_own, describe_traceback, function_error, show
from penstock.testing.faults import SimCrash

NAME = os.fsdecode(b"name-\xff")


class PanicException(BaseException):
    """What extensions written in Rust raise."""


class Odd(Exception):
    def __str__(self) -> str:
        raise KeyError("str raises")

    def __repr__(self) -> str:
        raise SystemExit("repr raises")


class Meta(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class Nameless(Exception, metaclass=Meta):
    pass


class TwoFaced(Exception):
    """Says that it is something else, and looks at nothing that it is asked."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no class")

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class Text(str):
    """Text that fails whoever looks at it."""

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def encode(self, *_: Any, **__: Any) -> bytes:
        raise RuntimeError("no encoding")

    def isascii(self) -> bool:
        raise RuntimeError("not known")


class Odder(Exception):
    def __str__(self) -> str:
        return Text("its text \udcff")


def raised_from(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


HOSTILE: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError(f"cannot parse {NAME}"),
    "Odd": Odd,
    "Odder": Odder,
    "Nameless": lambda: Nameless("x"),
    "TwoFaced": lambda: TwoFaced("x"),
    "PanicException": lambda: PanicException("rust"),
    "CancelledError": lambda: asyncio.CancelledError("the reason"),
    "GeneratorExit": lambda: GeneratorExit("done"),
    "StopIteration": lambda: StopIteration(3),
    "SystemExit": lambda: SystemExit(3),
    "Exception": Exception,
    "ExceptionGroup": lambda: ExceptionGroup("many", [ValueError(NAME)] * 1000),
    "SyntaxError": lambda: SyntaxError("bad", (NAME, 1, 1, NAME * 10, 1, 9)),
    "RecursionError": lambda: RecursionError("ä" * 5_000_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_any_error_is_told_in_bounded_text_that_can_be_encoded(name: str) -> None:
    caught = raised_from(HOSTILE[name]())
    told, trace = describe(caught), describe_traceback(caught)
    made = function_error("operator 'op' failed for key (1,)", caught)
    for text, limit in ((told, 5_000), (trace, 45_000), (str(made), 6_000)):
        text.encode()
        assert len(text) < limit
    assert type(made) is OperatorError and name in told
    assert "test_raised.py" in trace


def test_a_plain_error_is_told_as_python_does() -> None:
    error = raised_from(ValueError("no -1"))
    assert describe(error) == "ValueError: no -1" and describe(KeyError()) == "KeyError"
    assert describe_traceback(error).startswith("Traceback (most recent call last):\n")
    assert describe_traceback(error).endswith("ValueError: no -1")
    assert "return instead" in describe(SystemExit(3))
    assert describe_own(OperatorError("as it is")) == "as it is"


def test_of_a_long_traceback_the_beginning_and_the_end_are_kept() -> None:
    try:
        raise ValueError("x" * 20_000_000)
    except ValueError as cause:
        try:
            raise KeyError("y" * 20_000_000) from cause
        except KeyError as error:
            began = time.process_time()
            trace = describe_traceback(error)
    assert len(trace) < 45_000 and time.process_time() - began < 2
    assert trace.startswith("Traceback") and "xxx" in trace and trace.rstrip().endswith("yyy'")


def test_lone_surrogates_are_escaped_and_other_text_is_left_as_it_is() -> None:
    assert bounded("grüße \U0001f600", 100) == "grüße \U0001f600"
    assert bounded(f"{NAME}!", 100) == "name-\\udcff!"
    assert (
        bounded("a" * 50 + "\udcff" * 50, 20)
        == "a" * 10 + " ... (80 characters left out) ... " + "\\udcff" * 10
    )
    assert show(["a"]) == "['a']" and show(Odd()) == "<Odd whose __repr__ raised>"


@pytest.mark.parametrize("error", [StorageError("full"), CorruptFileError("torn"), SimCrash("dead")])
def test_what_is_of_the_disk_or_of_the_end_is_no_fault_of_a_function(error: BaseException) -> None:
    with pytest.raises(type(error)):
        function_error("operator 'op' failed", error)


@pytest.fixture
def _pythons_own() -> Iterator[None]:
    """Ctrl-C as in a program that has set nothing: commands that were tried in this process may have taken it over."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_pythons_own")
def test_an_interrupt_of_the_main_thread_is_a_persons_unless_none_was_pressed() -> None:
    interrupt = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        raised.pass_on(interrupt)
    with raised.noting_ctrl_c():
        raised.pass_on(interrupt)  # nobody pressed a key: a function has raised it
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        with pytest.raises(KeyboardInterrupt):
            raised.pass_on(interrupt)
    with raised.noting_ctrl_c():
        raised.pass_on(interrupt)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("_pythons_own")
def test_one_that_was_pressed_while_nobody_took_note_is_no_later_ones() -> None:
    with raised.noting_ctrl_c():
        kept = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, lambda number, frame: kept(number, frame))  # type: ignore[operator, misc]
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    with raised.noting_ctrl_c():
        raised.pass_on(KeyboardInterrupt())


def test_no_person_interrupts_another_thread() -> None:
    passed: list[bool] = []

    def look() -> None:
        with raised.noting_ctrl_c():
            raised.pass_on(KeyboardInterrupt())
        raised.pass_on(KeyboardInterrupt())
        passed.append(True)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert passed == [True]
