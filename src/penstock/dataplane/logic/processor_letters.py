"""Dead letters of a processor: a call that raises is taken back and kept, and the other keys go on.

What is taken back is what the key's state held when the epoch began, so it can only be done while no earlier call of
the epoch has been settled for that key; where one has, the error ends the query as it would without letters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from penstock.dataplane.logic.letters import Letters
from penstock.dataplane.logic.rows import operator_error
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
        self._operator = operator
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
            except Exception as error:
                self._take_back(state, keys[at], rows(at), error)
        if self._all_fit(results):
            return results
        for at, state in enumerate(states):  # seldom; only then is it asked call by call
            try:
                self._fits(results[at])
            except Exception as error:
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
        """Fire timers in order and return what each gave; those of a call that raised are gone.

        Taking a timer's call back takes the key's earlier ones of this epoch back too, so they are fired again.

        Args:
            call: fires a timer; None where it was taken back meanwhile.
            drop: takes a timer of a key away.
        """
        made: dict[Due, list[Any]] = {}
        alive: dict[bytes, list[Due]] = {}
        dead: dict[bytes, list[Due]] = {}
        for next_one in due:
            key, todo = next_one.key, [next_one]
            mine, state = alive.setdefault(key, []), states[key]
            while todo:
                one = todo.pop(0)
                try:
                    result = call(state, one.time_us)
                    self._fits(result or [])
                except Exception as error:
                    self._take_back(state, key, [{"timer_ms": one.time_us // 1000}], error)
                    dead.setdefault(key, []).append(one)
                    for gone in dead[key]:
                        drop(state, gone.time_us)
                    again = [other for other in mine if other != one]
                    todo = again + [other for other in todo if other not in again]
                    mine.clear()
                    continue
                if one not in mine:
                    mine.append(one)
                if result is None:
                    made.pop(one, None)
                else:
                    made[one] = result
            for gone in dead.get(key, ()):
                made.pop(gone, None)
        return {one: made[one] for one in due if one in made}

    def _take_back(self, state: KeyState, key: bytes, rows: list[Any], error: Exception) -> None:
        if self._state.is_settled(state):
            told = operator_error(self._operator, state._key, error)
            raise OperatorError(
                f"{told}\nNo dead letter is kept: an earlier call for this key in the same epoch counts already."
            ) from error
        self.letters.add(state._key, rows, error)
        self._state.roll_back(state, key)

    def _all_fit(self, results: list[list[Any]]) -> bool:
        try:
            self._fits(list(chain.from_iterable(results)))
        except Exception:
            return False
        return True
