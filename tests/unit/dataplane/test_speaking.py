from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.dataplane import speaking
from penstock.dataplane.logic.arrow import ArrowLogicSpec
from penstock.dataplane.logic.protocol import EpochInput, ShardedRows
from penstock.dataplane.logic.rows import RowLogicSpec
from penstock.dataplane.messages import Said, decode_from_lease, encode
from penstock.dataplane.speaking import LINE_CHARACTERS, LINES_PER_S, Handler, Speaker
from penstock.topology.schema import parse_schema
from penstock.topology.stateless import MapRows

ROWS = parse_schema("k long", "rows")


class Clock:
    now = 120.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def speaker(clock: Clock) -> Speaker:
    speaker = Speaker(echo=False, clock=clock)
    speaker.stage, speaker.task = "match", 2
    return speaker


def texts(speaker: Speaker) -> list[str]:
    return [said.text for said in speaker.take()]


def test_what_is_printed_and_logged_is_heard_line_by_line_with_its_level(speaker: Speaker) -> None:
    with speaker.listening(logging.WARNING):
        print("one\ntwo")
        print("three", file=sys.stderr)
        logging.getLogger("mine").warning("four %d", 4)
        logging.info("below the level")
        logging.error("five")
        assert [(said.level, said.text) for said in speaker.take()] == [
            (logging.INFO, "one"), (logging.INFO, "two"), (logging.WARNING, "three"),
            (logging.WARNING, "mine: four 4"), (logging.ERROR, "five"),
        ]  # fmt: skip
        assert speaker.take() == []


def test_a_logged_exception_brings_its_traceback(speaker: Speaker) -> None:
    with speaker.listening(logging.WARNING):
        try:
            raise ValueError("no")
        except ValueError:
            logging.exception("failed")
        (said,) = speaker.take()
        assert said.text.startswith("failed\nTraceback") and said.text.endswith("ValueError: no")


def test_half_a_line_waits_for_its_end_or_for_the_end_of_the_work(speaker: Speaker) -> None:
    with speaker.listening(logging.WARNING):
        print("half", end="")
        assert speaker.take() == []
        print(" whole")
        print("half", end="")
        speaker.end_lines()
        assert texts(speaker) == ["half whole", "half"]


def test_standard_output_logging_and_its_level_are_as_before_afterwards(speaker: Speaker) -> None:
    before = sys.stdout, sys.stderr, logging.getLogger().level, list(logging.getLogger().handlers)
    with speaker.listening(logging.DEBUG):
        logging.debug("heard")
    assert (sys.stdout, sys.stderr, logging.getLogger().level, logging.getLogger().handlers) == before
    assert texts(speaker) == ["heard"]


def test_an_echo_goes_where_it_would_have_gone(capsys: pytest.CaptureFixture[str]) -> None:
    for echo, expected in ((True, "out\n"), (False, "")):
        with Speaker(echo=echo).listening(logging.WARNING):
            print("out")
        assert capsys.readouterr().out == expected


def test_too_many_lines_are_left_out_and_counted(speaker: Speaker, clock: Clock) -> None:
    with speaker.listening(logging.WARNING):
        for line in range(LINES_PER_S + 30):
            print(line)
        assert len(texts(speaker)) == LINES_PER_S and speaker.owes
        clock.now += 1.0
        (note,) = speaker.take()
        assert note.text.startswith("30 lines left out") and note.level == logging.WARNING
        print("again")
        assert texts(speaker) == ["again"]


def test_too_many_bytes_in_a_minute_are_left_out(
    speaker: Speaker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with speaker.listening(logging.WARNING):
        monkeypatch.setattr(speaking, "BYTES_PER_MINUTE", 1000)
        print("x" * 900)
        print("y" * 900)
        assert [text[0] for text in texts(speaker)] == ["x", "1"]
        clock.now += 60.0
        print("z" * 900)
        assert [text[0] for text in texts(speaker)] == ["z"]


def test_a_line_without_end_is_cut(speaker: Speaker) -> None:
    with speaker.listening(logging.WARNING):
        print("x" * (LINE_CHARACTERS + 7))
        (text,) = texts(speaker)
        assert len(text) < LINE_CHARACTERS + 50 and text.endswith("x ... (cut)")


def test_a_record_that_cannot_be_formatted_fails_nobody(speaker: Speaker) -> None:
    record = logging.LogRecord("root", logging.WARNING, "", 0, "%d", ("no number",), None)
    Handler(speaker, sys.stderr).emit(record)
    assert "cannot be formatted" in texts(speaker)[0]


def run(logic: Any, tmp_path: Path) -> None:
    """One epoch with two keys in shard 17."""
    logic.state.open(17, str(tmp_path / "17"), None)
    assert logic.state.seal(17, 0, bytes(16))
    table = pa.table({"k": pa.array([5, 6], pa.int64())}, schema=ROWS)
    given = ShardedRows(np.array([17], np.uint16), np.array([0, 2]), table)
    logic.run(EpochInput(1, 0, [given]))


def test_a_row_function_speaks_for_its_key_and_shard(speaker: Speaker, tmp_path: Path) -> None:
    with speaker.listening(logging.WARNING):

        def speak(key: Any, rows: Any, state: Any) -> Any:
            print("called")
            yield (key.k,)

        run(RowLogicSpec(speak, ROWS, {}).build("match", ["k"], ROWS, 32, 1 << 20), tmp_path)
        assert [said.where for said in speaker.take()] == ["shard 17, key 5", "shard 17, key 6"]


def test_an_arrow_function_speaks_for_its_shard(speaker: Speaker, tmp_path: Path) -> None:
    with speaker.listening(logging.WARNING):

        def speak(table: pa.Table, state: Any) -> pa.Table:
            print("called")
            return table

        run(ArrowLogicSpec(speak, ROWS, {}).build("match", ["k"], ROWS, 32, 1 << 20), tmp_path)
        assert [said.where for said in speaker.take()] == ["shard 17"]


def test_a_step_between_stages_speaks_under_its_own_name(speaker: Speaker) -> None:
    with speaker.listening(logging.WARNING):

        def speak(row: Any) -> Any:
            print("called")
            return row

        MapRows("map(...) of 'orders'", speak, False, ROWS, ROWS).apply(pa.table({"k": [1]}, schema=ROWS))
        assert [said.where for said in speaker.take()] == ["map(...) of 'orders'"]


def test_somebody_is_woken_when_something_was_said_and_when_the_first_line_is_left_out(clock: Clock) -> None:
    woken: list[int] = []
    speaker = Speaker(lambda: woken.append(1), echo=False, clock=clock)
    for line in range(LINES_PER_S + 5):
        speaker.say(logging.INFO, str(line))
    assert len(woken) == LINES_PER_S + 1


def test_a_message_survives_the_wire() -> None:
    said = Said("match", 2, 20, "text", "shard 17, key 'IBM'")
    assert decode_from_lease(encode(said)) == said


# -- hostile words ----------------------------------------------------------------------------------------------------


class Text(str):
    """Text that fails whoever looks at it."""

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def split(self, *_: Any) -> Any:
        raise RuntimeError("no lines")


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def test_words_that_cannot_be_encoded_are_escaped(speaker: Speaker) -> None:
    with speaker.listening(logging.WARNING):
        print("name-\udcff")
        print(Text("one\ntwo"))
        logging.getLogger("mine").error("name-%s", "\ud800")
        print("half \udcff", end="")
    said = speaker.take()
    assert [one.text for one in said] == ["name-\\udcff", "one", "two", "mine: name-\\ud800", "half \\udcff"]
    assert [decode_from_lease(encode(one)) for one in said] == said


def test_a_log_record_that_nobody_can_format_is_said_as_such(speaker: Speaker) -> None:
    handler = Handler(speaker, sys.stderr)
    for level, text, given in ((40, "%d", (Shy(),)), (40, Shy(), ()), (10**30, "beyond all levels", ())):
        handler.emit(logging.LogRecord("root", level, "here", 1, text, given, None))
    said = speaker.take()
    assert [one.text[:38] for one in said] == ["a log record that cannot be formatted:"] * 2 + [
        "beyond all levels"
    ]
    assert [decode_from_lease(encode(one)) for one in said] == said


def test_a_print_of_any_size_costs_little_and_is_counted(speaker: Speaker, clock: Clock) -> None:
    with speaker.listening(logging.WARNING):
        began = time.process_time()
        print("\n" * 50_000_000)
        print("x" * 50_000_000)
        assert time.process_time() - began < 2.0
        clock.now += 1
        print("after")
        said = speaker.take()
    assert len(said) == LINES_PER_S + 2 and said[-1].text == "after"
    assert said[-2].text.startswith(f"{50_000_002 - LINES_PER_S} lines left out")


def test_bytes_below_a_stream_are_heard_as_text(speaker: Speaker) -> None:
    with speaker.listening(logging.WARNING):
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        sys.stdout.buffer.write("gr\u00fc".encode()[:-1])
        sys.stdout.buffer.write("gr\u00fc".encode()[-1:] + b"n \xff\n")
        sys.stdout.buffer.flush()
        assert texts(speaker) == ["gr\u00fcn \\xff"]


def test_what_prints_while_something_is_said_holds_nothing_up(speaker: Speaker) -> None:
    class Leaving:
        def __del__(self) -> None:
            print("and a last word")

    class Clock:
        def __init__(self) -> None:
            self.held: Any = Leaving()

        def __call__(self) -> float:
            self.held = None  # as the garbage collector might, at any moment
            return 1.0

    speaker = Speaker(echo=False, clock=Clock())
    with speaker.listening(logging.WARNING):
        print("a word")
        assert sorted(texts(speaker)) == ["a word", "and a last word"]


def test_a_program_may_call_its_module_what_it_likes(speaker: Speaker) -> None:
    with speaker.listening(logging.WARNING):
        exec("print('from nowhere')", {"__name__": 5})
        assert texts(speaker) == ["from nowhere"]
