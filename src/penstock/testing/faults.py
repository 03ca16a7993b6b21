"""Fault plans for any disk: rules that fail, drop, delay or crash at chosen steps, and a trace of the steps.

Works on the simulated disk and on the real one, as the ``Faults`` that a ``StepDisk`` asks. Equal seeds, equal faults.
Never touches a file itself.
"""

from __future__ import annotations

import enum
import errno
import fnmatch
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from penstock.dataplane.disk import Faults, SkipStep, Step, StepDisk
from penstock.raised import ProcessEnds

EXIT_CODE = 77


class SimCrash(ProcessEnds):
    """The process died at a step. Not an ``Exception``: code under test must not survive it or clean up."""


class Action(enum.StrEnum):
    """What a rule does when it fires."""

    FAIL = "fail"
    CRASH = "crash"
    DELAY = "delay"
    DROP = "drop"


class When(enum.StrEnum):
    """On which side of the step a rule fires; after a step, its effect is there."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class FaultRule:
    """Fires at the ``nth`` matching step, once, or at each matching step with a ``probability``.

    Args:
        action: what happens.
        step: which step, ``None`` for any.
        path: a shell pattern for the whole path, as the step names it.
        nth: counts matching steps from 1.
        probability: used when ``nth`` is not given.
        when: ``DROP`` is always before.
        error: the errno of ``FAIL``.
        delay_s: the length of ``DELAY``.
    """

    action: Action
    step: Step | None = None
    path: str = "*"
    nth: int | None = None
    probability: float = 0.0
    when: When = When.BEFORE
    error: int = errno.EIO
    delay_s: float = 0.0

    def matches(self, step: Step, path: str, when: When) -> bool:
        """Whether this step counts for the rule."""
        return self.when is when and self.step in (None, step) and fnmatch.fnmatchcase(path, self.path)


@dataclass(frozen=True, slots=True)
class Fired:
    """One fault that happened."""

    action: Action
    when: When
    step: Step
    path: str


@dataclass
class FaultPlan:
    """The ``Faults`` of a test: rules tried in order, at most one failure or crash a step.

    Args:
        rules: what to do when.
        seed: of the probabilities.
        exit: crash by ending the process with code 77 instead of raising ``SimCrash``.
        sleep: what a delay calls, for tests on a virtual clock.
    """

    rules: Sequence[FaultRule]
    seed: int = 0
    exit: bool = False
    sleep: Callable[[float], None] = time.sleep
    fired: list[Fired] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._seen = [0] * len(self.rules)
        self._armed = True
        self._lock = threading.Lock()

    def disarm(self) -> None:
        """Let every step pass, uncounted, until ``arm``: for what comes before or after the disturbance."""
        self._armed = False

    def arm(self) -> None:
        """Go on with the rules."""
        self._armed = True

    def before(self, step: Step, path: str) -> None:
        self._apply(step, path, When.BEFORE)

    def after(self, step: Step, path: str) -> None:
        self._apply(step, path, When.AFTER)

    def _apply(self, step: Step, path: str, when: When) -> None:
        if not self._armed:
            return
        with self._lock:
            due = [
                rule for index, rule in enumerate(self.rules) if self._is_due(index, rule, step, path, when)
            ]
            self.fired.extend(Fired(rule.action, when, step, path) for rule in due)
        for rule in due:
            self._carry_out(rule, step, path)

    def _is_due(self, index: int, rule: FaultRule, step: Step, path: str, when: When) -> bool:
        if not rule.matches(step, path, when):
            return False
        self._seen[index] += 1
        if rule.nth is not None:
            return self._seen[index] == rule.nth
        return self._rng.random() < rule.probability

    def _carry_out(self, rule: FaultRule, step: Step, path: str) -> None:
        match rule.action:
            case Action.DELAY:
                self.sleep(rule.delay_s)
            case Action.DROP:
                raise SkipStep(f"{step} {path}")
            case Action.FAIL:
                raise OSError(rule.error, os.strerror(rule.error), path)
            case Action.CRASH:
                self._crash(rule.when, step, path)

    def _crash(self, when: When, step: Step, path: str) -> NoReturn:
        if self.exit:
            os._exit(EXIT_CODE)
        raise SimCrash(f"{when} {step} of {path}")


def fail(step: Step | None = None, nth: int = 1, *, error: int = errno.EIO, path: str = "*") -> FaultRule:
    """Fail the nth matching step with an errno; it has no effect."""
    return FaultRule(Action.FAIL, step, path, nth=nth, error=error)


def sometimes(
    probability: float, *, error: int = errno.EIO, step: Step | None = None, path: str = "*"
) -> FaultRule:
    """Fail each matching step with a probability."""
    return FaultRule(Action.FAIL, step, path, probability=probability, error=error)


def crash_before(step: Step | None = None, nth: int = 1, *, path: str = "*") -> FaultRule:
    """Crash when the nth matching step is about to happen."""
    return FaultRule(Action.CRASH, step, path, nth=nth)


def crash_after(step: Step | None = None, nth: int = 1, *, path: str = "*") -> FaultRule:
    """Crash when the nth matching step has just happened."""
    return FaultRule(Action.CRASH, step, path, nth=nth, when=When.AFTER)


def drop(step: Step, *, path: str = "*") -> FaultRule:
    """Report every matching sync or delete as done without doing it: a disk that lies."""
    return FaultRule(Action.DROP, step, path, probability=1.0)


def stall(
    delay_s: float, probability: float = 1.0, *, step: Step | None = None, path: str = "*"
) -> FaultRule:
    """Make matching steps slow."""
    return FaultRule(Action.DELAY, step, path, probability=probability, delay_s=delay_s)


def crash_plans(steps: int, *, exit: bool = False) -> Iterator[FaultPlan]:
    """Yield a plan for each side of each of a scenario's first ``steps`` steps (see ``TracingDisk``)."""
    for nth in range(1, steps + 1):
        yield FaultPlan([crash_before(nth=nth)], exit=exit)
        yield FaultPlan([crash_after(nth=nth)], exit=exit)


class Trace:
    """The ``Faults`` that only writes down the steps that happened, then asks the inner one."""

    def __init__(self, inner: Faults | None = None) -> None:
        self.steps: list[tuple[Step, str]] = []
        self._inner = inner

    def before(self, step: Step, path: str) -> None:
        if self._inner is not None:
            self._inner.before(step, path)

    def after(self, step: Step, path: str) -> None:
        self.steps.append((step, path))
        if self._inner is not None:
            self._inner.after(step, path)


class TracingDisk(StepDisk):
    """The same disk, with the sequence of its steps in ``steps``; sees only what is done through it."""

    def __init__(self, inner: StepDisk) -> None:
        self._trace = Trace(inner._faults)
        super().__init__(inner._calls, self._trace, lambda: f"{inner._writer()}-traced")

    @property
    def steps(self) -> list[tuple[Step, str]]:
        """The steps that happened so far, in order."""
        return self._trace.steps
