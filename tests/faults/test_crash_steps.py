"""Crash before and after named I/O steps, and proof that there is no other I/O than named steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.faults.crash_runs import (
    Sides,
    Trial,
    crash_by_exception,
    crash_by_exit,
    some_points,
    trace_steps,
)
from tests.faults.zombie_runs import scratch

from penstock.dataplane.disk import PosixCalls, Step, StepDisk
from penstock.dataplane.recordlog import LogWriter
from penstock.testing.faults import When

STEP_OF = {
    "mkdir": Step.MKDIR, "create": Step.CREATE, "write": Step.WRITE, "sync": Step.SYNC, "sync_dir": Step.SYNC_DIR,
    "link": Step.LINK, "rename": Step.LINK, "unlink": Step.DELETE, "read": Step.READ, "size": Step.READ,
    "list": Step.LIST, "open": Step.READ,
}  # fmt: skip
NO_STEP = {"close", "is_dir"}
"""Calls that change nothing and promise nothing."""


def test_the_run_takes_every_named_step_so_that_a_new_one_cannot_go_untested() -> None:
    for when, steps in trace_steps().items():
        assert set(steps) == set(Step), f"{when}: {set(Step) - set(steps)} have no fail point in this run"


def test_every_call_to_the_system_stands_between_two_fail_points() -> None:
    sides, calls = Sides(), Counter[Step]()

    class Counted(PosixCalls):
        def __getattribute__(self, name: str) -> Any:
            found = object.__getattribute__(self, name)
            if name.startswith("_") or name in NO_STEP:
                return found
            assert name in STEP_OF, f"the call '{name}' belongs to no step"
            return counted(found, STEP_OF[name])

    def counted(call: Callable[..., Any], step: Step) -> Callable[..., Any]:
        def made(*given: Any) -> Any:
            calls[step] += 1
            assert sides.seen[When.BEFORE][-1:] == [step], f"{step} is called without its fail point"
            return call(*given)

        return made

    with scratch() as folder:
        disk = StepDisk(Counted(), sides, lambda: "w")
        Trial(
            lambda _name: disk, StepDisk(PosixCalls(), None, lambda: "o"), str(folder / "checkpoint")
        ).live()
    assert calls == Counter(sides.seen[When.BEFORE])
    assert set(calls) == set(Step)


def failures(points: Sequence[tuple[int, When]], crash: Callable[[int, When], str | None]) -> list[str]:
    found = ((nth, when, crash(nth, when)) for nth, when in points)
    return [f"{when} step {nth}: {wrong}" for nth, when, wrong in found if wrong is not None]


def test_a_process_that_dies_at_a_step_loses_nothing_and_repeats_nothing() -> None:
    assert not failures(some_points(3), crash_by_exception)


def test_a_process_that_exits_at_a_step_loses_nothing_and_repeats_nothing() -> None:
    def crash(nth: int, when: When) -> str | None:
        with scratch() as folder:
            return crash_by_exit(nth, when, folder)

    assert not failures(some_points(1), crash)


def test_records_that_were_acknowledged_and_never_written_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LogWriter, "append", lambda self, encoded: None)
    assert failures([(200, When.BEFORE)], crash_by_exception)
