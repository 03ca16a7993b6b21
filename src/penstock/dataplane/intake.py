"""How much the next epoch of a stage may take, by what the rows of earlier ones took: so many that its predicted time and
its size stay within bounds, for the stage as a whole and for each of its tasks.

Learns from committed records alone. Which rows are then taken is `taking`'s and `levels`'.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.dataplane.levels import APART_RATIO, TaskRates
from penstock.dataplane.program import StageSpec
from penstock.dataplane.records import Record
from penstock.dataplane.rowtimes import FIRST_MOST_ROWS, RowTime
from penstock.dataplane.settings import Settings
from penstock.dataplane.taking import Budget

FIRST_ROWS = 60
"""Rows of an operator's first epoch: they may take long, and nothing takes effect before it ends; small batches fit."""
PORTION_RATIO = 0.46
"""Share of an epoch that a source publishes at once: two portions fill one, even when the rate falls a little."""
PORTION_S = 0.1
"""Time of work in a portion at least; smaller ones cost the source more epochs than they are worth."""
FIRST_PORTION_ROWS = 2_048
"""Rows that a source publishes at once for a stage whose rate is not known yet."""
_PORTION_ROWS = 64
_SIZE_WEIGHT = 0.2


class Intake:
    """What the epochs of one stage may take."""

    def __init__(self, spec: StageSpec, settings: Settings) -> None:
        self._kind = spec.kind
        self._settings = settings
        self.hold = (settings.sink_hold_s, settings.sink_bytes)
        """For how long a sink lets rows gather, and up to how many bytes."""
        if spec.hold_s is not None:
            self.hold = (spec.hold_s, spec.hold_bytes)
        self.rates = TaskRates()
        self._row_time = RowTime()
        """By the useful time of the busiest task."""
        self._epoch_time = RowTime()
        """By the whole time of epochs."""
        self._row_bytes = 0.0

    def learn(self, record: Record, rows: int, epoch_s: float) -> None:
        """Take in an epoch of so many rows, which is committed."""
        self._learn_rate(rows, epoch_s, max((part.busy_us for part in record.parts), default=0) / 1e6)
        few_rows = self._settings.min_epoch_rows // max(1, len(record.parts))
        self.rates.learn(record.parts, self._settings.max_epoch_s, few_rows)
        if self._kind == "source" and rows:
            self._learn_size(record, rows)

    def _learn_rate(self, rows: int, epoch_s: float, longest_task_s: float) -> None:
        longest_s, few_rows = self._settings.max_epoch_s, self._settings.min_epoch_rows
        busy_s = max(1e-6, longest_task_s)
        self._row_time.learn(rows, busy_s, longest_s, few_rows)
        self._epoch_time.learn(rows, busy_s, longest_s, few_rows, max(1e-6, epoch_s))

    def _learn_size(self, record: Record, rows: int) -> None:
        written = sum(segment.extent.length for part in record.parts for segment in part.segments)
        sample = written / rows
        self._row_bytes = max(sample, self._row_bytes + _SIZE_WEIGHT * (sample - self._row_bytes))

    def budget(self, in_step: bool = False) -> Budget:
        """What the next epoch may take so that its predicted time and its size stay within bounds.

        A sink takes what waits, since the cost of its side effect may not depend on the rows at all.

        Args:
            in_step: whether event times of its rows move a watermark: where a producer epoch is cut they count only when
                it is taken as a whole, so that no more is cut than has to be.
        """
        if self._kind == "sink":
            hold_s, hold_bytes = self.hold
            if hold_s:
                return Budget(1 << 62, hold_bytes)
            return Budget(self._settings.max_epoch_rows, self._settings.max_epoch_bytes)
        rows = min(self._predicted_rows(in_step), self._settings.max_epoch_rows)
        return Budget(rows, self._settings.max_epoch_bytes)

    def _predicted_rows(self, in_step: bool) -> int:
        longest_s, few_rows = self._settings.max_epoch_s, self._settings.min_epoch_rows
        if not self._epoch_time.rate:
            whole = in_step or self._kind == "source"
            return FIRST_MOST_ROWS if whole else self._row_time.first_rows(FIRST_ROWS, longest_s)
        least = few_rows if in_step else self._row_time.least(few_rows, longest_s)
        return int(max(self._epoch_time.rate * longest_s, least))

    def task_rows(self, row_bytes: float, tasks: Sequence[int], shards: int) -> dict[int, float] | None:
        """Rows of this size that each task may take in the next epoch; None where one budget is for all of them, since
        there is one task or nothing is known of what rows take, unless that is so small that a row of every shard is
        too many.

        Args:
            shards: how many can take part in it.
        """
        if self._kind != "operator":
            return None
        rates = self.rates.rows_in(1.0, tasks) if len(tasks) > 1 else None
        if rates is None:
            rows = self._predicted_rows(in_step=False)
            return dict.fromkeys(tasks, rows / len(tasks)) if APART_RATIO * rows < shards else None
        settings, together = self._settings, sum(rates.values())
        most = min(settings.max_epoch_rows, settings.max_epoch_bytes / max(row_bytes, 1e-9))
        few_rows, longest_s = settings.min_epoch_rows / len(tasks), settings.max_epoch_s
        return {
            task: max(
                min(rate * longest_s, most * rate / max(together, 1e-9)),
                min(self.rates.least(task, few_rows, longest_s), most),
            )
            for task, rate in rates.items()
        }

    def source_rows(self) -> int:
        """Rows that the next epoch of a source may make, by what its rows have come to in bytes so far."""
        return self.budget().rows_of(self._row_bytes)

    def portion_rows(self) -> int | None:
        """Rows that a source should publish at once for this stage; None for a sink, which takes what there is.

        An epoch takes whole portions while they fit. One that is larger than an epoch is cut at the same row of every
        shard, so that its last epochs hold rows of the hottest shards alone and keep few tasks busy.
        """
        if self._kind != "operator":
            return None
        if not self._epoch_time.rate:
            return FIRST_PORTION_ROWS
        portion_s = max(PORTION_RATIO * self._settings.max_epoch_s, PORTION_S)
        return max(_PORTION_ROWS, int(self._epoch_time.rate * portion_s))
