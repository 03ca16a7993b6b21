"""Who goes first: ours and theirs in alternation, so that neither always gets the quieter machine.

Owns the order of runs only; measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


class Turns:
    """Hands out turns. The side that goes first changes with every round, and goes on changing from one part
    of a bench to the next, so that a run of single rounds alternates too."""

    def __init__(self) -> None:
        self._theirs_first = True

    def alternate(
        self, rounds: int, ours: Callable[[], A], theirs: Callable[[], B]
    ) -> tuple[list[A], list[B]]:
        """Run both sides `rounds` times; what stands at the same place in both lists was run as a pair."""
        mine: list[A] = []
        other: list[B] = []
        for _ in range(rounds):
            if self._theirs_first:
                other.append(theirs())
                mine.append(ours())
            else:
                mine.append(ours())
                other.append(theirs())
            self._theirs_first = not self._theirs_first
        return mine, other
