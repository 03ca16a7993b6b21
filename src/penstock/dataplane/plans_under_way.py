"""The plans that are being carried out. What one plan asks of several stages stands or falls together.

Knows until when the leases of a plan may come up, which of its stages have been as it wants them, and what is put back if
it is given up. A stage that was given a later plan since is no concern of an earlier one any more. Plain data: `placing`
looks and acts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.dataplane.asked_plans import AskedPlans
from penstock.dataplane.undoing import Before


@dataclass
class UnderWay:
    """One plan, or the way back from one that was given up."""

    numbers: Mapping[str, int]
    """Of the plan of each of its stages."""
    deadline: float
    before: Mapping[str, Before]
    """Of each of its stages; of none where it is the way back."""
    reached: set[str] = field(default_factory=set)
    """Stages that have been as it wants them; a lease that is lost afterwards is no fault of the plan."""


class PlansUnderWay:
    """All plans under way in one engine; a stage is in one of them at most."""

    def __init__(self, asked: AskedPlans) -> None:
        self._asked = asked
        self._all: list[UnderWay] = []

    def begin(self, before: Mapping[str, Before], deadline: float) -> None:
        """The stages of a plan, which have their numbers by now, have until then to be as it wants them."""
        self._add(before, before, deadline)

    def turn_back(self, stage: str, deadline: float) -> None:
        """A stage has until then to be again as it was before a plan that was given up."""
        self._add([stage], {}, deadline)

    def _add(self, stages: Iterable[str], before: Mapping[str, Before], deadline: float) -> None:
        self._all.append(UnderWay(self._asked.numbers_of(stages), deadline, before))

    def stages_of(self, plan: UnderWay) -> list[str]:
        """Return the stages that were given no other plan since."""
        return [stage for stage, number in plan.numbers.items() if self._asked.is_last(stage, number)]

    def find(self, stage: str) -> UnderWay | None:
        """Return the plan that a stage is to be carried along with, until all of that is done."""
        return next((plan for plan in self._all if stage in self.stages_of(plan)), None)

    def find_awaited(self, stage: str) -> UnderWay | None:
        """Return the plan of a stage that has not been as the plan wants it yet."""
        plan = self.find(stage)
        return plan if plan is not None and stage not in plan.reached else None

    def note_reached(self, is_settled: Callable[[str], bool]) -> bool:
        """Take in which stages are as they should be; forget plans of which all are; return whether one was carried out."""
        over = []
        for plan in self._all:
            left = [stage for stage in self.stages_of(plan) if stage not in plan.reached]
            plan.reached.update(filter(is_settled, left))
            if plan.reached.issuperset(left):
                over.append(plan)
        for plan in over:
            self._all.remove(plan)
        return any(plan.reached for plan in over)

    def take_late(self, now: float) -> list[UnderWay]:
        """Return the plans whose time is up, and forget them."""
        late = [plan for plan in self._all if now >= plan.deadline]
        self._all = [plan for plan in self._all if now < plan.deadline]
        return late
