"""Dead letters of a processor: a call that raises is taken back and kept, and the other keys go on.

What is taken back is what the call changed in the key's states and timers; earlier calls of the epoch for the same key,
rows before timers, are settled by then and count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from penstock.dataplane.logic.letters import Letters
from penstock.dataplane.state.entries import EntryState
from penstock.dataplane.state.handles import KeyState
from penstock.dataplane.state.timers import Due
from penstock.errors import OperatorError


class LetteredCalls:
    """The calls of one epoch of a processor.

    Args:
        fits: raises when rows that a call gave do not fit the output.
    """

    def __init__(
        self, operator: str, time_us: int, state: EntryState, fits: Callable[[list[Any]], object]
    ) -> None:
        self._state = state
        self._fits = fits
        self.letters = Letters(operator, time_us)

    def take_rows(
        self,
        states: Sequence[KeyState],
        keys: Sequence[bytes],
        call: Callable[[int], list[Any]],
        rows: Callable[[int], list[Any]],
    ) -> list[list[Any]]:
        """Call for one key after the other and return what each gave: nothing where it raised or does not fit.

        Args:
            call: hands the key at this place its rows.
            rows: of the key at this place, for its letter.
        """
        results: list[list[Any]] = []
        for at, state in enumerate(states):
            results.append([])
            try:
                results[at] = call(at)
            except BaseException as error:
                self._take_back(state, keys[at], rows(at), error)
        if self._all_fit(results):
            return results
        for at, state in enumerate(states):  # seldom; only then is it asked call by call
            try:
                self._fits(results[at])
            except BaseException as error:
                self._take_back(state, keys[at], rows(at), error)
                results[at] = []
        return results

    def fire(
        self,
        due: Sequence[Due],
        states: Mapping[bytes, KeyState],
        call: Callable[[KeyState, int], list[Any] | None],
        drop: Callable[[KeyState, int], None],
    ) -> dict[Due, list[Any]]:
        """Fire timers in order and return what each gave; one whose call raised is gone.

        What a call changed is settled at once, so that a later one of the same key is taken back alone.

        Args:
            call: fires a timer; None where it was taken back meanwhile.
            drop: takes a timer of a key away.
        """
        made: dict[Due, list[Any]] = {}
        for one in due:
            state = states[one.key]
            try:
                result = call(state, one.time_us)
                self._fits(result or [])
                if result is not None:
                    made[one] = result
            except BaseException as error:
                self._take_back(state, one.key, [{"timer_ms": one.time_us // 1000}], error)
                drop(state, one.time_us)
            self._state.settle([state])
        return made

    def _take_back(self, state: KeyState, key: bytes, rows: list[Any], error: BaseException) -> None:
        self.letters.add(state._key, rows, error)
        self._state.roll_back(state, key)

    def _all_fit(self, results: list[list[Any]]) -> bool:
        try:
            self._fits(list(chain.from_iterable(results)))
        except OperatorError:
            return False
        return True
