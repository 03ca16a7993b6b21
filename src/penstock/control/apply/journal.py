"""The journal: every decision with its reason, its inputs, and what came of it. Bounded; opens no file.

Lines for a file go to a callback. An entry is written when it is made and again, without its inputs, whenever more is
known about it; `read_entries` puts them together. Several runs may write to one file, one after another.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from penstock.control.apply.actuator import Outcome
from penstock.control.apply.codec import JournalError, decode, encode, is_complete
from penstock.control.apply.turns import Inputs as Inputs
from penstock.control.apply.turns import Turn, pack_turns, unpack_turns
from penstock.control.policy.protocol import Option
from penstock.words import in_local_time


@dataclass(frozen=True)
class Decision:
    """What was decided at one turn of the loop, and why; `str()` is one sentence, with the local time where it is known."""

    number: int
    at_s: float
    policy: str
    symptom: str
    action: str
    acted: bool = False
    """Whether a plan was handed to the actuator."""
    refused: str | None = None
    """Why the plan was held back: a guard, or the actuator."""
    options: tuple[Option, ...] = ()
    predicted_s: float | None = None
    model: str = ""
    """What predicted it; the policy's name unless it says otherwise."""
    outcome: Outcome | None = None
    """What came of the plan; None while it is being carried out, and where there is none."""
    observed_s: float | None = None
    """Measured latency afterwards, to stand beside the predicted one."""
    count: int = 1
    """Turns in a row with the same decision, this one the first."""
    until_s: float | None = None
    """When the last of them was."""
    nodes: Outcome | None = None
    """What came of the nodes that the plan asked for beside its cores; None while they come or go, and without any."""
    stated: str = ""
    """The policy with its options, as `make_policy` reads it: `drs:k_max=8`; empty where that is not known."""
    unix_s: float | None = None
    """When it was taken, in seconds since 1970; None where the journal has no clock."""

    def __str__(self) -> str:
        parts = [part for part in (self.symptom, self._what()) if part]
        if self.outcome is not None and not self.outcome.ok:
            parts.append(f"failed: {self.outcome.reason}")
        if self.nodes is not None and not self.nodes.ok:
            parts.append(f"its nodes failed: {self.nodes.reason}")
        if self.count > 1 and self.until_s is not None:
            parts.append(f"{self.count} times in {self.until_s - self.at_s:.0f} s")
        when = "" if self.unix_s is None else f"{in_local_time(self.unix_s)} "
        return when + "; ".join(parts)

    def _what(self) -> str:
        return self.action if self.refused is None else f"held back ({self.action}): {self.refused}"


@dataclass(frozen=True)
class Entry:
    """One entry of the journal."""

    decision: Decision
    inputs: Inputs | None = None
    """Those of the first turn; None for a change by hand, and in a line that only adds what came of it."""
    run: str = ""
    """Which run of the loop it is of; numbers begin at 1 in each."""
    turns: tuple[str, ...] = ()
    """The turns after the first, as `pack_turns` writes them, each part by itself; none in memory, only in lines."""

    def all_turns(self) -> Iterator[Turn]:
        """Yield what was given at every turn, the first included, as far as it was written.

        Raises:
            JournalError: a part cannot be read.
        """
        if self.inputs is not None:
            first = Turn(self.inputs, self.decision.refused)
            yield first
            for part in self.turns:
                yield from unpack_turns(first, part)


@dataclass(frozen=True)
class ModelError:
    """How far predictions were off, over the decisions that had one and were observed."""

    count: int
    mean_absolute_ratio: float
    """Mean of |predicted - observed| / observed."""
    mean_ratio: float
    """Mean of (predicted - observed) / observed: above zero where latency is predicted too high."""


_TURNS_PER_LINE = 300
"""Folded turns that are written at once: together they take less room."""


class Journal:
    """Keeps the last entries.

    Args:
        capacity: how many entries are kept.
        write: is given every line, without its end.
        fold_s: the longest run of equal decisions that becomes one entry.
        run: stands in every line; tells this run from others in one file.
        clock: tells the time of day, in seconds since 1970; without one decisions have only that of samples.
    """

    def __init__(
        self,
        capacity: int = 1000,
        write: Callable[[bytes], None] | None = None,
        fold_s: float = 300.0,
        run: str = "",
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._entries: deque[Entry] = deque(maxlen=capacity)
        self._write = write
        self._fold_s = fold_s
        self._run = run
        self._clock = clock
        self._turns: list[Turn] = []
        """Folded and not written yet."""
        self._failures: list[str] = []
        """Since the last turn."""
        self._next = 1
        self._open_run = False
        self._kind: tuple[str, str] | None = None
        """Of the last entry."""
        self._errors: dict[str, tuple[int, float, float]] = {}

    def add(self, decision: Decision, inputs: Inputs | None) -> Decision:
        """Take a decision, number it, and return it as it stands in the journal: folded into the last one, maybe.

        Args:
            inputs: None for what was not decided by a policy: nothing can be decided again.
        """
        if self._failures and inputs is not None:
            inputs, self._failures = replace(inputs, failures=tuple(self._failures)), []
        last = self._entries[-1].decision if self._entries else None
        kind = _kind(decision)
        if last is not None and self._folds(last, decision, kind):
            self._open_run = True
            longer = _changed(
                last, count=last.count + 1, until_s=decision.at_s, predicted_s=decision.predicted_s
            )
            self._replace(-1, longer, write=False)
            if inputs is not None:
                self._keep_turn(Turn(inputs, decision.refused))
            return longer
        self.close_run()
        self._kind = kind
        numbered = _changed(decision, number=self._next, unix_s=self._clock() if self._clock else None)
        self._next += 1
        entry = Entry(numbered, inputs, self._run)
        self._entries.append(entry)
        self._send(entry)
        return numbered

    def note_outcome(self, number: int, outcome: Outcome) -> None:
        """Add what came of a plan; an entry that is no longer kept is left alone."""
        if not outcome.ok:
            self._failures.append(outcome.reason)
        at = self._find(number)
        if at is not None:
            self._replace(at, _changed(self._entries[at].decision, outcome=outcome))

    def note_nodes(self, number: int, outcome: Outcome) -> None:
        """Add what came of the nodes that a plan asked for beside its cores."""
        if not outcome.ok:
            self._failures.append(outcome.reason)
        at = self._find(number)
        if at is not None:
            self._replace(at, _changed(self._entries[at].decision, nodes=outcome))

    def note_observed(self, number: int, observed_s: float) -> None:
        """Add the latency measured afterwards, and count the error of what was predicted."""
        at = self._find(number)
        if at is None:
            return
        decision = self._entries[at].decision
        if decision.predicted_s is not None and math.isfinite(decision.predicted_s) and observed_s > 0:
            error = (decision.predicted_s - observed_s) / observed_s
            count, absolute, signed = self._errors.get(decision.model, (0, 0.0, 0.0))
            self._errors[decision.model] = (count + 1, absolute + abs(error), signed + error)
        # Turns that were folded say the same thing again and again: one line each would fill the file.
        self._replace(at, _changed(decision, observed_s=observed_s), write=decision.acted)

    def close_run(self) -> None:
        """Write how long the last run of equal decisions lasted; to be called when the loop ends."""
        if self._open_run:
            self._open_run = False
            self._send_turns()

    def entries(self) -> tuple[Entry, ...]:
        """Return what is kept, oldest first."""
        return tuple(self._entries)

    def decisions(self) -> tuple[Decision, ...]:
        """Return what was decided, oldest first; each reads as one sentence."""
        # A copy first: another thread may be adding.
        return tuple(entry.decision for entry in tuple(self._entries))

    def model_errors(self) -> dict[str, ModelError]:
        """Return the error of each model, over everything observed so far."""
        return {
            model: ModelError(count, absolute / count, signed / count)
            for model, (count, absolute, signed) in self._errors.items()
        }

    def _folds(self, last: Decision, new: Decision, kind: tuple[str, str]) -> bool:
        same = not last.acted and not new.acted and self._kind == kind
        return same and new.at_s - last.at_s <= self._fold_s

    def _keep_turn(self, turn: Turn) -> None:
        if self._write is not None:
            self._turns.append(turn)
            if len(self._turns) >= _TURNS_PER_LINE:
                self._send_turns()

    def _send_turns(self) -> None:
        last, turns = self._entries[-1], self._turns
        self._turns = []
        packed: tuple[str, ...] = ()
        if turns and last.inputs is not None:
            packed = (pack_turns(Turn(last.inputs, last.decision.refused), turns),)
        self._send(Entry(last.decision, run=self._run, turns=packed))

    def _find(self, number: int) -> int | None:
        if not self._entries:
            return None
        at = number - self._entries[0].decision.number
        return at if 0 <= at < len(self._entries) else None

    def _replace(self, at: int, decision: Decision, write: bool = True) -> Decision:
        self._entries[at] = Entry(decision, self._entries[at].inputs, self._run)
        if write:
            self._send(Entry(decision, run=self._run))
        return decision

    def _send(self, entry: Entry) -> None:
        if self._write is not None:
            self._write(encode_entry(entry))


def encode_entry(entry: Entry) -> bytes:
    """Return an entry as one line of JSON, without the line's end."""
    return encode(entry)


def decode_entry(line: bytes | str) -> Entry:
    """Return the entry of a line.

    Raises:
        JournalError: it is none.
    """
    return decode(Entry, line)


def read_entries(lines: Iterable[bytes | str]) -> list[Entry]:
    """Return the entries of a journal's lines, each with all that became known of it, one run after the other.

    A line that was cut off in the middle is left out where it is the last one of its run. Where lines do not say which run
    they are of, one begins where numbers do not go on.

    Raises:
        JournalError: another line is no entry; the message begins with its number.
    """
    kept = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    found: dict[tuple[str, int], Entry] = {}
    unnamed, last = 0, 0
    for at, (number, line) in enumerate(kept):
        if _is_cut_off(line) and _may_be_cut(kept[at + 1 :], found):
            continue
        try:
            entry = decode_entry(line)
        except JournalError as error:
            raise JournalError(f"line {number} is no decision of a journal.") from error
        if not entry.run:
            if entry.inputs is not None:
                unnamed, last = unnamed + (entry.decision.number <= last), entry.decision.number
            entry = replace(entry, run=f"{unnamed + 1}" if unnamed else "")
        place = entry.run, entry.decision.number
        known = found.get(place)
        if known is not None:
            entry = replace(known, decision=entry.decision, turns=known.turns + entry.turns)
        found[place] = entry
    return list(found.values())


def _may_be_cut(after: list[tuple[int, bytes | str]], found: Mapping[tuple[str, int], Entry]) -> bool:
    """Say whether a run may have ended before some lines: there are none, or the first that is whole begins another one."""
    whole = next((line for _, line in after if not _is_cut_off(line)), None)
    if whole is None:
        return True
    try:
        run = decode_entry(whole).run
    except JournalError:
        return False
    return bool(run) and all(run != known for known, _ in found)


def _is_cut_off(line: bytes | str) -> bool:
    """Say whether a line has a beginning and no end, as the last one of a journal that is being written may."""
    text = line if isinstance(line, bytes) else line.encode()
    return text.lstrip().startswith(b"{") and not is_complete(text)


def _changed(decision: Decision, **changes: object) -> Decision:
    """Return a decision with some fields changed: `replace`, without asking a class that checks nothing; every turn of
    the loop does it twice."""
    found = object.__new__(Decision)
    found.__dict__.update(decision.__dict__)
    found.__dict__.update(changes)
    return found


_NUMBER = re.compile(r"(?<![\w#.-])-?\d+(,\d{3})*(\.\d+)?(e[+-]?\d+)?(?![\w#])")
"""One that stands for itself: those of `stats1`, `match#2`, `p99` and `node-3` are part of a name."""


def _kind(decision: Decision) -> tuple[str, str]:
    """What makes two decisions the same: who decided, and its words without the numbers between them."""
    words = "\n".join((decision.symptom, decision.action, decision.refused or ""))
    return decision.stated or decision.policy, _NUMBER.sub("#", words)
