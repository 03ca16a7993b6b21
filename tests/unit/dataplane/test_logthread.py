"""The log's thread: in order, together what waits together, nothing told before it is durable, failures told."""

from __future__ import annotations

import threading
from typing import Any

from penstock.dataplane.logthread import LogThread
from penstock.dataplane.records import Base


class Recording:
    """A log that notes what it is asked, and fails when told to."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.gate = threading.Event()
        self.broken: Exception | None = None

    def append(self, encoded: list[bytes]) -> None:
        self.gate.wait(5.0)
        if self.broken is not None:
            raise self.broken
        self.calls.append(list(encoded))

    def start_part(self, base: Base) -> Any:
        self.calls.append(base.part)
        return base.part

    def close(self) -> None:
        self.calls.append("closed")


def thread_over(log: Recording, told: list[object]) -> LogThread:
    made = LogThread(log, told.append, lambda part: told.append(f"part {part}"), told.append)  # type: ignore[arg-type]
    made.start()
    return made


def base(part: int) -> Base:
    return Base(1, "q", 1, part, b"", 0, [])


def test_records_that_wait_together_are_written_together_and_a_part_comes_between() -> None:
    log, told = Recording(), []  # type: tuple[Recording, list[object]]
    thread = thread_over(log, told)
    thread.append([b"first"])  # held at the gate, so that the rest waits together
    for one in (b"a", b"b"):
        thread.append([one])
    thread.start_part(base(2))
    thread.append([b"c"])
    thread.end()
    assert told == [], "nothing is told before it is durable"
    log.gate.set()
    thread.close(5.0)
    written = [one for one in log.calls if isinstance(one, list)]
    assert [record for append in written for record in append] == [b"first", b"a", b"b", b"c"]
    assert log.calls[-3:] == [2, [b"c"], "closed"]
    assert told[-2:] == ["part 2", 1] and sum(n for n in told if isinstance(n, int)) == 4
    assert thread.appends == len(written) < 4


def test_what_ends_the_thread_is_told() -> None:
    log, told = Recording(), []  # type: tuple[Recording, list[object]]
    log.broken = OSError("gone")
    log.gate.set()
    thread = thread_over(log, told)
    thread.append([b"x"])
    thread.end()
    thread.close(5.0)
    assert told == [log.broken]
