"""The turns that a journal folds into one entry: what a policy was given at each, as changes from turn to turn.

A policy that remembers earlier turns decides by all of them, so that none may be lacking when a run is decided again.
Exact to the last bit; opens no file.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.control.apply.codec import JournalError, pack, unpack
from penstock.control.measure.estimate import Estimate
from penstock.control.plan.plan import Plan
from penstock.control.policy.protocol import Limits
from penstock.control.sla import SLA

_NEW, _WITHIN = "=", "~"


@dataclass(frozen=True)
class Inputs:
    """All that a policy was given and what it wanted: enough to decide again."""

    estimate: Estimate
    sla: SLA
    limits: Limits
    plan: Plan | None = None
    """What the policy proposed, before the guards."""
    rolls_back: int | None = None
    """The decision that this one undoes; it was not the policy's."""
    failures: tuple[str, ...] = ()
    """Why plans failed, as far as that became known since the turn before: the policy was told."""


@dataclass(frozen=True)
class Turn:
    """One turn of the loop at which the same was decided as at the one before."""

    inputs: Inputs
    refused: str | None = None


def pack_turns(first: Turn, turns: Sequence[Turn]) -> str:
    """Return turns as text, each as what changed since the one before; the one before the first of them is `first`."""
    before, changes = pack(first), []
    for turn in turns:
        after = pack(turn)
        changes.append(_derive_change(before, after))
        before = after
    return base64.b64encode(zlib.compress(msgspec.json.encode(changes), 6)).decode()


def unpack_turns(first: Turn, packed: str) -> Iterator[Turn]:
    """Yield what `pack_turns` was given.

    Raises:
        JournalError: it is nothing of the kind.
    """
    try:
        before = pack(first)
        for change in msgspec.json.decode(zlib.decompress(base64.b64decode(packed))):
            before = _change(before, change)
            found: Turn = unpack(Turn, before)
            yield found
    except (msgspec.DecodeError, TypeError, ValueError, KeyError, AttributeError, zlib.error) as error:
        raise JournalError(f"the folded turns of a decision cannot be read: {error}.") from error


def _derive_change(before: Any, after: Any) -> dict[str, Any] | None:
    """Return what makes `after` of `before`; None where they are the same. Both are plain JSON values."""
    if type(before) is type(after):
        if isinstance(after, dict) and list(before) == list(after):
            return _within({key: _derive_change(before[key], after[key]) for key in after})
        if isinstance(after, list) and len(before) == len(after):
            pairs = zip(before, after, strict=True)
            return _within({str(at): _derive_change(*pair) for at, pair in enumerate(pairs)})
        if before == after:
            return None
    return {_NEW: after}


def _within(changes: dict[str, dict[str, Any] | None]) -> dict[str, Any] | None:
    kept = {key: change for key, change in changes.items() if change is not None}
    return {_WITHIN: kept} if kept else None


def _change(before: Any, change: dict[str, Any] | None) -> Any:
    if change is None:
        return before
    if _NEW in change:
        return change[_NEW]
    found = list(before) if isinstance(before, list) else dict(before)
    for key, one in change[_WITHIN].items():
        place: Any = int(key) if isinstance(found, list) else key
        found[place] = _change(found[place], one)
    return found
