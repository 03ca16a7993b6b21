"""Which of the names there are was probably meant: one that differs by a slip of the fingers, or none at all.

A wrong proposal costs more than none, so likeness alone never counts: what is proposed has the same letters but for one
or two, or is the same word written longer. Imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Iterable

_SHORT = 4
"""Names up to this length are proposed only where a letter is missing, doubled or swapped, not where one is another:
'map' is no slip for 'max'."""


def nearest(given: object, names: Iterable[str]) -> str | None:
    """Return the name that was probably meant, None where none is near enough."""
    name = _plain(str(given))
    ranked = [
        (rank, at, one) for at, one in enumerate(names) if (rank := _rank(name, _plain(one))) is not None
    ]
    return min(ranked)[2] if ranked else None


def did_you_mean(given: object, names: Iterable[str], otherwise: str = "") -> str:
    """Return the end of a sentence: `did you mean 'user'?`, or what to say where nothing is near."""
    near = nearest(given, names)
    return f"did you mean {near!r}?" if near is not None else otherwise


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(".", "")


def _rank(given: str, name: str) -> int | None:
    """Return how far a name is from what was given, None where it is too far."""
    if given == name:
        return 0
    short, long = sorted((given, name), key=len)
    if len(short) < 2:
        return None
    slips = _slips(given, name, swaps_only=len(long) <= _SHORT)
    allowed = 1 if len(long) <= 5 else 2 if len(long) <= 11 else 3
    if slips is not None and slips <= allowed:
        return slips
    longer = len(short) >= _SHORT and 2 * len(short) > len(long)
    return 4 if longer and (long.startswith(short) or long.endswith(short)) else None


def _slips(given: str, name: str, swaps_only: bool) -> int | None:
    """Return how many letters were left out, added, swapped with their neighbour or (unless `swaps_only`) mistaken."""
    far = len(given) + len(name)
    before: list[int] = []
    row = list(range(len(name) + 1))
    for at, letter in enumerate(given, 1):
        older, before, row = before, row, [at]
        for to, other in enumerate(name, 1):
            mistaken = before[to - 1] + (0 if letter == other else far if swaps_only else 1)
            best = min(row[to - 1] + 1, before[to] + 1, mistaken)
            if at > 1 and to > 1 and (letter, given[at - 2]) == (name[to - 2], other):
                best = min(best, older[to - 2] + 1)
            row.append(best)
    return row[-1] if row[-1] < far else None
