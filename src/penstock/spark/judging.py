"""What becomes of a batch, and of Spark's folder at a start: pure decisions, each with its reason.

Penstock's log is what counts. A folder that says less than it, or what cannot be read, is put back where that is sure to
change no row; one that says more, or something else, is refused. Nothing here reads a file.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.dataplane.records import Batch, BatchPlan

METADATA: Final = "metadata"
OF_A_BATCH_DATAFRAME: Final = "dataframe"
"""Stands for the Spark query in the record of a batch DataFrame, which has none."""


class Likeness(enum.Enum):
    """How a file in Spark's folder compares with what a record says of it."""

    SAME = "is what was recorded"
    GONE = "is gone"
    TORN = "is torn or damaged"
    OTHER = "has other bytes than were recorded"


@dataclass(frozen=True)
class Found:
    """What stands in Spark's folder of a source."""

    query: str | None = None
    """Id of the Spark query, None where it cannot be read."""
    has_metadata: bool = False
    last_offsets: int = -1
    last_commit: int = -1
    likeness: Mapping[str, Likeness] = field(default_factory=dict)
    """Of each file that the last committed batch was planned in, by path."""
    torn: str | None = None
    """A file besides these that Spark is going to read and cannot."""
    droppable: tuple[str, ...] = ()
    """Files without which nothing besides these is torn; none where dropping some is not enough."""


class Verdict(enum.Enum):
    """What is done about a folder, and why."""

    BEGIN = "no batch of it is committed"
    CLEAR = "no batch of it is committed, and what stands there cannot be read"
    GO_ON = "it is where the log is"
    PUT_BACK = "it says less than the log"
    MEND = "what is torn of it Spark can do without, or only says which query it is of"
    FOREIGN = "it is of another Spark query"
    NEWER = "it says more than the log"
    PLANNED_ANEW = "it plans a committed batch otherwise"
    STATEFUL = "it says less than the log, and its state cannot be put back"
    NOT_KEPT = "it says less than the log, which has no plan to put it back from"


REFUSALS = frozenset(
    {Verdict.FOREIGN, Verdict.NEWER, Verdict.PLANNED_ANEW, Verdict.STATEFUL, Verdict.NOT_KEPT}
)


@dataclass(frozen=True)
class Judgement:
    """A verdict, and what it rests on."""

    verdict: Verdict
    what: str = ""
    """What is wrong with the folder: follows its name in a sentence."""


def judge_folder(known: Batch | None, found: Found, imported: Collection[int] = ()) -> Judgement:
    """Decide what is done about Spark's folder before a Spark query begins on it.

    Args:
        known: the last committed batch of the source.
        imported: last batches of the queries whose logs were imported into this checkpoint.
    """
    if known is None:
        return _judge_new(found, imported)
    if found.query is not None and found.query != known.query:
        of = f"the Spark query whose batch {known.number} was committed last"
        return Judgement(Verdict.FOREIGN, f"is not the folder of {of}")
    if found.last_commit > known.number:
        return Judgement(Verdict.NEWER, f"has committed batch {found.last_commit}")
    if found.last_offsets > known.number + 1:
        return Judgement(Verdict.NEWER, f"has planned batch {found.last_offsets}")
    wrong = _fault(known, found)
    if wrong is None:
        return Judgement(Verdict.GO_ON)
    other = [path for path, like in found.likeness.items() if like is Likeness.OTHER]
    if other and found.last_offsets >= known.number:
        return Judgement(
            Verdict.PLANNED_ANEW, f"has another {other[0]} than was recorded with batch {known.number}"
        )
    plan = known.plan if known.plan is not None and is_complete(known.plan, known.number) else None
    if plan is not None and not plan.stateful:
        return Judgement(Verdict.PUT_BACK, wrong)
    if _fault(known, _mended(known, found)) is None:
        return Judgement(Verdict.MEND, wrong)
    return Judgement(Verdict.STATEFUL if plan is not None else Verdict.NOT_KEPT, wrong)


def _mended(known: Batch, found: Found) -> Found:
    """What a folder would be without what can be dropped, and with its metadata as they were recorded."""
    planned_past = f"offsets/{found.last_offsets}" in found.droppable
    lost = needs_metadata(found)
    return replace(
        found,
        query=known.query if lost else found.query,
        last_offsets=known.number if planned_past else found.last_offsets,
        likeness={**found.likeness, **({METADATA: Likeness.SAME} if lost else {})},
        torn=None if found.droppable else found.torn,
    )


def needs_metadata(found: Found) -> bool:
    """Whether the metadata of a folder, which a record names, are gone or torn."""
    return found.likeness.get(METADATA) in (Likeness.GONE, Likeness.TORN)


def _judge_new(found: Found, imported: Collection[int]) -> Judgement:
    if found.last_commit >= 0 and found.last_commit not in imported:
        return Judgement(Verdict.NEWER, f"has committed batch {found.last_commit}")
    if found.last_offsets > max(imported, default=-1) + 1:
        return Judgement(Verdict.NEWER, f"has planned batch {found.last_offsets}")
    if found.torn is not None and not imported:
        return Judgement(Verdict.CLEAR, f"has {found.torn}, which is torn")
    return Judgement(Verdict.BEGIN)


def _fault(known: Batch, found: Found) -> str | None:
    """What is missing in a folder for Spark to run the last committed batch again, or the one after it."""
    if found.last_offsets < 0:
        return "has lost its offsets" if found.has_metadata else "is lost"
    if found.last_offsets < known.number:
        return f"is older than the log: it knows no batch after {found.last_offsets}"
    passed = f"offsets/{known.number - 1}" if found.last_offsets > known.number else None
    for path, like in found.likeness.items():
        # Spark reads two batches back and no further, and drops what it does not read.
        if like is not Likeness.SAME and not (path == passed and like is Likeness.GONE):
            return f"has a file that {like.value}: {path}"
    if found.query is None:
        return "has lost its metadata"
    return f"has a file that is torn: {found.torn}" if found.torn is not None else None


def is_complete(plan: BatchPlan, number: int) -> bool:
    """Whether a plan is all that Spark needs; it reads the offsets before those of the batch it runs again."""
    paths = {file.path for file in plan.files}
    return {METADATA, f"offsets/{number}"} <= paths and (number == 0 or f"offsets/{number - 1}" in paths)


def refusal(source: str, folder: str, known: Batch | None, judged: Judgement) -> str:
    """Say in one sentence why a folder is refused, and the ways out."""
    batch = f"batch {known.number}" if known is not None else "its first batch"
    last = f"{batch} is the last one committed" if known is not None else "no batch of it is committed"
    why = {
        Verdict.FOREIGN: "so rows would be counted twice",
        Verdict.NEWER: f"but {last}: the log is older than that folder, and rows would be lost",
        Verdict.PLANNED_ANEW: "so rows would be lost that Spark has put into it since",
        Verdict.STATEFUL: (
            "and the state that its streaming DataFrame has there (dropDuplicates, an aggregate, a join) is Spark's own "
            "and cannot be put back"
        ),
        Verdict.NOT_KEPT: f"and Penstock has not kept what Spark planned for {batch}, so it cannot be put back",
    }[judged.verdict]
    return f"source '{source}': {folder} {judged.what}, {why}; {_ways_out(batch, known, judged.verdict)}."


def _ways_out(batch: str, known: Batch | None, verdict: Verdict) -> str:
    if known is None:
        return "restore the whole checkpoint from one copy, or move that folder away to read the source from its beginning"
    plan = known.plan
    can_be_put_back = plan is not None and not plan.stateful and is_complete(plan, known.number)
    if can_be_put_back and verdict is Verdict.NEWER:
        return f"restore the whole checkpoint from one copy, or move that folder away to go on after {batch}"
    if can_be_put_back:
        return f"move that folder away and start again, and Penstock puts back what was planned for {batch}"
    return f"restore that folder from a copy made after {batch} was committed, or start with an empty checkpointLocation"


class Turn(enum.Enum):
    """What a batch is that Spark runs, beside what is committed."""

    NEXT = "it is the next one"
    AGAIN = "it is the last one again"
    OUT_OF_TURN = "it is neither the next one nor the last one again"


def judge_turn(known: Batch | None, number: int, imported: Collection[int] = ()) -> Turn:
    """Decide whether a batch counts. The first one has the number 0, or follows those of an imported query."""
    if known is None:
        return Turn.NEXT if number in {0, *(last + 1 for last in imported)} else Turn.OUT_OF_TURN
    return {known.number + 1: Turn.NEXT, known.number: Turn.AGAIN}.get(number, Turn.OUT_OF_TURN)
