"""The plans that stages were given: a number for each, and why those were not carried out that were not. What came of one
is so never taken for what came of the next. Plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

KEPT = 200
"""Plans of a stage of which it is known why they were not carried out."""


SUPERSEDED = "superseded by a later plan"
"""How the reason begins where a plan was overtaken."""


def is_overtaken(reason: str) -> bool:
    """Whether a plan was not carried out for no other reason than that a later one was asked for."""
    return all(part.startswith(SUPERSEDED) for part in reason.split("; "))


class AskedPlans:
    """The plans of all stages of one engine, by the number of each."""

    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()
        self._why_not: dict[tuple[str, int], str] = {}

    def begin(self, stage: str, settled: bool) -> None:
        """A stage gets a plan. The one before it never will be carried out where it is not by now.

        Args:
            settled: whether the stage is as the plan before wants it.
        """
        number = self._numbers[stage]
        if number and not settled:
            self._why_not.setdefault((stage, number), f"{SUPERSEDED} for '{stage}'")
        self._numbers[stage] += 1
        self._why_not.pop((stage, number - KEPT), None)

    def give_up(self, stage: str, why: str) -> None:
        """The last plan of a stage cannot be carried out."""
        self._why_not[stage, self._numbers[stage]] = why

    def numbers_of(self, stages: Iterable[str]) -> dict[str, int]:
        """Return the number of the last plan of each of some stages."""
        return {stage: self._numbers[stage] for stage in stages}

    def is_last(self, stage: str, number: int) -> bool:
        """Whether a stage was given no plan since."""
        return self._numbers[stage] == number

    def why_not(self, stage: str, number: int | None = None) -> str | None:
        """Return why a plan, by default the last, was not carried out; None while it may be, and when it was."""
        return self._why_not.get((stage, self._numbers[stage] if number is None else number))
