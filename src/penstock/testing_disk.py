"""A disk for tests: in memory, with a model of what a power loss takes away, and fault plans for any disk.

``SimDisk`` runs the very steps of ``PosixDisk`` on a ``SimDevice`` that remembers what was synced and what
was not. ``FaultPlan`` fails, drops, delays or crashes at chosen steps of either. Equal seeds, equal losses.
The simulation never opens a real file.
"""

from __future__ import annotations

import enum
import errno
import fnmatch
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from penstock.dataplane.disk import Faults, SkipStep, Step, StepDisk

EXIT_CODE = 77
BLOCK_BYTES = 512


class SimCrash(BaseException):
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


class _File:
    """The contents that readers see, and how much of them a power loss cannot touch. Files only grow."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced_bytes = 0

    def lose_power(self, rng: random.Random, stale_blocks: bool = True) -> None:
        torn = _keep_stale_blocks if stale_blocks else _keep_zero_blocks
        kept = rng.choice((_lose_tail, _keep_tail, _keep_prefix, torn))
        self.data[self.synced_bytes :] = kept(bytes(self.data[self.synced_bytes :]), self.synced_bytes, rng)
        self.synced_bytes = len(self.data)


def _lose_tail(tail: bytes, start: int, rng: random.Random) -> bytes:
    return b""


def _keep_tail(tail: bytes, start: int, rng: random.Random) -> bytes:
    return tail


def _keep_prefix(tail: bytes, start: int, rng: random.Random) -> bytes:
    return tail[: rng.randint(0, len(tail))]


def _keep_zero_blocks(tail: bytes, start: int, rng: random.Random) -> bytes:
    return _keep_torn_blocks(tail, start, rng, lambda size: bytes(size))


def _keep_stale_blocks(tail: bytes, start: int, rng: random.Random) -> bytes:
    return _keep_torn_blocks(tail, start, rng, rng.randbytes)


def _keep_torn_blocks(tail: bytes, start: int, rng: random.Random, stale: Callable[[int], bytes]) -> bytes:
    """Keep the length of a prefix, but only some of its blocks; the others hold zeros or old bytes."""
    torn = bytearray(_keep_prefix(tail, start, rng))
    for block in range(start // BLOCK_BYTES, (start + len(torn)) // BLOCK_BYTES + 1):
        low, high = max(0, block * BLOCK_BYTES - start), min(len(torn), (block + 1) * BLOCK_BYTES - start)
        match rng.randrange(4):
            case 0:
                torn[low:high] = bytes(high - low)
            case 1:
                torn[low:high] = stale(high - low)
    return bytes(torn)


@dataclass(frozen=True, slots=True)
class _Change:
    """One change of a folder, whole or not at all."""

    removed: str | None = None
    added: str | None = None
    node: _File | _Folder | None = None

    def apply(self, entries: dict[str, _File | _Folder]) -> None:
        if self.removed is not None:
            entries.pop(self.removed, None)
        if self.added is not None and self.node is not None:
            entries[self.added] = self.node


class _Folder:
    """The entries that readers see, those a power loss cannot touch, and the changes between the two."""

    def __init__(self) -> None:
        self.entries: dict[str, _File | _Folder] = {}
        self._synced: dict[str, _File | _Folder] = {}
        self._unsynced: list[_Change] = []

    def change(self, change: _Change) -> None:
        change.apply(self.entries)
        self._unsynced.append(change)

    def sync(self) -> None:
        self._synced = dict(self.entries)
        self._unsynced.clear()

    def lose_power(self, rng: random.Random) -> None:
        self.entries = dict(self._synced)
        for change in self._survivors(rng):
            change.apply(self.entries)
        self.sync()

    def _survivors(self, rng: random.Random) -> Iterable[_Change]:
        """A journal keeps the changes up to some point; other file systems keep any of them."""
        if rng.random() < 0.5:
            return self._unsynced[: rng.randint(0, len(self._unsynced))]
        return [change for change in self._unsynced if rng.random() < 0.5]


class SimDevice:
    """The files of one simulated machine, shared by the disks of all its processes."""

    def __init__(
        self, seed: int, capacity_bytes: int | None, short_write_ratio: float, stale_blocks: bool = True
    ) -> None:
        self.rng = random.Random(seed)
        self.stale_blocks = stale_blocks
        self.root = _Folder()
        self.lock = threading.RLock()
        self.boots = 0
        self.processes = 0
        self.capacity_bytes = capacity_bytes
        self.short_write_ratio = short_write_ratio

    def find(self, path: str) -> _File | _Folder:
        node: _File | _Folder = self.root
        for name in _names(path):
            if isinstance(node, _File):
                raise _os_error(errno.ENOTDIR, path)
            if name not in node.entries:
                raise _os_error(errno.ENOENT, path)
            node = node.entries[name]
        return node

    def folder(self, path: str) -> _Folder:
        node = self.find(path)
        if isinstance(node, _File):
            raise _os_error(errno.ENOTDIR, path)
        return node

    def file(self, path: str) -> _File:
        node = self.find(path)
        if isinstance(node, _Folder):
            raise _os_error(errno.EISDIR, path)
        return node

    def add(self, path: str, node: _File | _Folder) -> None:
        parent, name = self.folder(os.path.dirname(path)), os.path.basename(path)
        if name in parent.entries:
            raise _os_error(errno.EEXIST, path)
        parent.change(_Change(added=name, node=node))

    def room(self, wanted_bytes: int) -> int:
        """How much of a write fits."""
        if self.capacity_bytes is None:
            return wanted_bytes
        used = sum(len(file.data) for file in self.files())
        return max(0, min(wanted_bytes, self.capacity_bytes - used))

    def files(self) -> list[_File]:
        """Every file once, whatever the number of its names, in a fixed order."""
        found: dict[int, _File] = {}
        for folder in self.folders():
            for name in sorted(folder.entries):
                node = folder.entries[name]
                if isinstance(node, _File):
                    found.setdefault(id(node), node)
        return list(found.values())

    def folders(self) -> Iterator[_Folder]:
        """Every folder, parents first: what a parent loses is never visited."""
        waiting = [self.root]
        while waiting:
            folder = waiting.pop()
            yield folder
            children = (folder.entries[name] for name in sorted(folder.entries))
            waiting.extend(child for child in children if isinstance(child, _Folder))

    def lose_power(self, rng: random.Random) -> None:
        self.boots += 1
        for folder in self.folders():
            folder.lose_power(rng)
        for file in self.files():
            file.lose_power(rng, self.stale_blocks)


class SimCalls:
    """The calls of one simulated process; its open files die with it and with the power."""

    def __init__(self, device: SimDevice) -> None:
        self.device = device
        self._open: dict[int, _File] = {}
        self._next_file = 0
        self._boot = device.boots

    def crash(self) -> None:
        self._open.clear()

    def mkdir(self, path: str) -> None:
        with self.device.lock:
            self.device.add(path, _Folder())

    def create(self, path: str) -> int:
        with self.device.lock:
            self._after_boot()
            file = _File()
            self.device.add(path, file)
            self._next_file += 1
            self._open[self._next_file] = file
            return self._next_file

    def write(self, file: int, parts: Sequence[memoryview]) -> int:
        with self.device.lock:
            target = self._opened(file)
            data = b"".join(parts)
            room = self.device.room(len(data))
            if room == 0:
                raise _os_error(errno.ENOSPC, "write")
            if self.device.short_write_ratio and self.device.rng.random() < self.device.short_write_ratio:
                room = self.device.rng.randint(1, room)
            target.data += data[:room]
            return room

    def sync(self, file: int) -> None:
        with self.device.lock:
            target = self._opened(file)
            target.synced_bytes = len(target.data)

    def close(self, file: int) -> None:
        self._open.pop(file, None)

    def sync_dir(self, path: str) -> None:
        with self.device.lock:
            self.device.folder(path).sync()

    def link(self, source: str, target: str) -> None:
        with self.device.lock:
            self.device.add(target, self.device.file(source))

    def rename(self, source: str, target: str) -> None:
        with self.device.lock:
            if os.path.dirname(source) != os.path.dirname(target):
                raise _os_error(errno.EXDEV, target)
            names = os.path.basename(source), os.path.basename(target)
            self.device.folder(os.path.dirname(source)).change(_Change(*names, self.device.file(source)))

    def unlink(self, path: str) -> None:
        with self.device.lock:
            self.device.file(path)
            self.device.folder(os.path.dirname(path)).change(_Change(removed=os.path.basename(path)))

    def is_dir(self, path: str) -> bool:
        try:
            return isinstance(self.device.find(path), _Folder)
        except OSError:
            return False

    def read(self, path: str, offset: int, length: int | None) -> bytes:
        with self.device.lock:
            data = self.device.file(path).data
            return bytes(data[offset:] if length is None else data[offset : offset + length])

    def size(self, path: str) -> int:
        with self.device.lock:
            return len(self.device.file(path).data)

    def list(self, path: str) -> list[str]:
        with self.device.lock:
            return list(self.device.folder(path).entries)

    def _opened(self, file: int) -> _File:
        self._after_boot()
        if file not in self._open:
            raise _os_error(errno.EBADF, "a file opened before the crash")
        return self._open[file]

    def _after_boot(self) -> None:
        if self._boot != self.device.boots:
            self._boot = self.device.boots
            self._open.clear()


class SimDisk(StepDisk):
    """The ``Disk`` of one simulated process.

    Args:
        seed: of everything random on its device.
        faults: interferes with the steps of this process.
        capacity_bytes: writes past it are cut short, then fail with ENOSPC.
        short_write_ratio: part of the writes that take only some of the bytes, as a write may at any time.
        stale_blocks: after a power loss, lost blocks may read as any bytes, as on a file system that does not order
            data before sizes; otherwise they read as zeros.
    """

    def __init__(
        self,
        seed: int = 0,
        faults: Faults | None = None,
        *,
        capacity_bytes: int | None = None,
        short_write_ratio: float = 0.0,
        stale_blocks: bool = True,
        device: SimDevice | None = None,
    ) -> None:
        self.device = device or SimDevice(seed, capacity_bytes, short_write_ratio, stale_blocks)
        self.device.processes += 1
        name = f"p{self.device.processes}"
        self._sim_calls = SimCalls(self.device)
        super().__init__(self._sim_calls, faults, lambda: name)

    def another(self, faults: Faults | None = None) -> SimDisk:
        """Return the disk of another process on the same machine."""
        return SimDisk(faults=faults, device=self.device)

    def crash(self, rng: random.Random | None = None) -> None:
        """End this process: its open files are gone, everything it wrote is still there."""
        self._sim_calls.crash()

    def power_loss(self, rng: random.Random | None = None) -> None:
        """End all processes of the machine; lose any part of what was not synced, names and deletions too."""
        with self.device.lock:
            self.device.lose_power(rng or self.device.rng)

    def overwrite(self, path: str, data: bytes) -> None:
        """Damage a file behind everybody's back; what it holds now is durable."""
        with self.device.lock:
            file = self.device.file(path)
            file.data[:] = data
            file.synced_bytes = len(data)


def _names(path: str) -> list[str]:
    if not path.startswith("/"):
        raise _os_error(errno.EINVAL, path)
    return [name for name in path.split("/") if name]


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
