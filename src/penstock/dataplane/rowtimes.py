"""What rows take, learned from epochs that were committed: rates that follow what is measured, however wrong they were, and
how many rows an epoch may take where few of them take long. Arithmetic only."""

from __future__ import annotations

_WEIGHT = 0.2
_WEIGHT_UP = 0.6
SLOW_RATIO = 0.05
"""Share of the longest epoch that few rows must take to tell what rows take: no overhead is that large."""
LATE_RATIO = 2.0
"""Times the longest epoch from which on rows took so long that a rate by which they should not have is given up."""
BELIEVED_RATIO = 1.5
"""Times what such an epoch has shown that a rate is then believed to be at most."""
POOLED_RATIO = 0.5
"""Share of the longest epoch that epochs of few rows are taken together for: one row may have been a cheap one."""
POOLED_EPOCHS = 8
"""Epochs that are taken together at most."""
TRIED_EPOCHS = 8
"""Epochs of few rows, as many in each, after which more are tried."""
FIRST_MOST_ROWS = 16_384
"""Rows that an epoch takes at most while the rate is not known."""
FIRST_RATIO = 16.0
"""How much faster than a few rows have shown many of them may turn out to be: most of what a few take is overhead."""


def follow(known: float, sample: float, late: bool = False) -> float:
    """Return a rate that has taken in a sample. Small epochs are mostly overhead and hide the rate: growth is followed
    faster than decline, unless the epoch was much too long: a rate that makes such epochs is given up at once."""
    known = min(known, BELIEVED_RATIO * sample) if late else known
    return known + (_WEIGHT_UP if sample > known else _WEIGHT) * (sample - known)


class RowTime:
    """Rows per second of useful time.

    A few rows tell nothing unless they took long: then it was they and no overhead. But no overhead makes rows seem faster
    than they are, so what is faster than known is believed of few rows too, taken together over some epochs: of rows that
    differ in cost the cheap ones would else say how fast all are.
    """

    def __init__(self) -> None:
        self.rate = 0.0
        """0 while nothing is known."""
        self._rows = 0
        self._busy_s = 0.0
        self._more_s: float | None = None
        """What one more row took, where two epochs of few rows differed."""
        self._alike = 0
        """Epochs of as many rows each since then: they tell nothing of one more."""
        self._pooled: list[tuple[int, float, bool]] = []
        """Epochs of few rows that are taken together: rows, time, and whether they took long."""

    def learn(
        self, rows: int, busy_s: float, longest_s: float, few_rows: float, whole_s: float | None = None
    ) -> None:
        """Take in an epoch of so many rows that a task was busy with; one without rows tells nothing of them.

        Args:
            whole_s: what the rate is to be over, where that is not the time the task was busy.
        """
        if rows <= 0 or busy_s <= 0:
            return
        self._follow(rows, busy_s, busy_s if whole_s is None else whole_s, longest_s, few_rows)
        if rows > few_rows:
            self._more_s = None
        elif self._rows and rows != self._rows:
            self._more_s = max(0.0, (busy_s - self._busy_s) / (rows - self._rows))
        self._alike = self._alike + 1 if rows == self._rows else 0
        self._rows, self._busy_s = (rows, busy_s) if rows <= few_rows else (0, 0.0)

    def _follow(self, rows: int, busy_s: float, whole_s: float, longest_s: float, few_rows: float) -> None:
        late, slow = busy_s > LATE_RATIO * longest_s, busy_s >= SLOW_RATIO * longest_s
        if rows >= few_rows or late or (slow and not self.rate):
            self._pooled.clear()
            self.rate = follow(self.rate or rows / whole_s, rows / whole_s, late)
            return
        self._pooled.append((rows, whole_s, slow))
        pooled_s = sum(one_s for _, one_s, _ in self._pooled)
        if len(self._pooled) < POOLED_EPOCHS and pooled_s < POOLED_RATIO * longest_s:
            return
        sample = sum(some for some, _, _ in self._pooled) / pooled_s
        slow_s = sum(one_s for _, one_s, took_long in self._pooled if took_long)
        if self.rate and (sample > self.rate or slow_s > pooled_s / 2):
            self.rate = follow(self.rate, sample)
        self._pooled.clear()

    def least(self, few_rows: float, longest_s: float) -> float:
        """Return how many rows an epoch may always take: `few_rows`, or fewer where they are known to take longer than an
        epoch may, down to one.

        Where fewer rows did not take less time it is not the rows that take it: then twice as many may follow. So they do
        now and then, to see.
        """
        sure = self.rate * longest_s if self.rate else few_rows
        free = self._more_s is not None and self._more_s * sure < longest_s / 2
        if free or self._alike >= TRIED_EPOCHS:
            sure = max(sure, 2.0 * self._rows)
        return max(1.0, min(few_rows, sure))

    def first_rows(self, rows: int, longest_s: float) -> int:
        """Return how many rows an epoch may take while the rate is not known: so many at first, then what the last few
        have shown."""
        if not self._rows:
            return rows
        shown = FIRST_RATIO * self._rows / self._busy_s * longest_s
        return int(max(1.0, min(shown, FIRST_MOST_ROWS)))
