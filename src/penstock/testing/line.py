"""The reachable line of records of a checkpoint, from its first one on: what every check of a run starts from.

Needs a run with the setting `retain_all`. Collects the records through all generations; judges none of them.
Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.dataplane import paths, recordlog, records
from penstock.dataplane.disk import Disk, PosixDisk
from penstock.dataplane.program import operator_of
from penstock.dataplane.records import Base, Record, Redeal

Heads = Mapping[str, tuple[bytes, int | None]]
"""Hash of the newest record of each chain and its epoch, None where that is not known."""


class CheckFailure(AssertionError):
    """What a run committed is wrong; the message has one line per fault."""

    def __init__(self, faults: Sequence[str]) -> None:
        shown = [*faults[:20], *([f"and {len(faults) - 20} more"] if len(faults) > 20 else [])]
        super().__init__("\n".join(shown))
        self.faults = list(faults)


@dataclass(frozen=True)
class LinePart:
    """One log part of the line and those of its records that the next part took over."""

    part: paths.LogPart
    base: Base
    records: Sequence[tuple[Record, bytes]]


@dataclass(frozen=True)
class Line:
    """All that a checkpoint has committed, from its first record on."""

    checkpoint: str
    parts: Sequence[LinePart]
    disk: Disk

    def records(self) -> Iterator[Record]:
        """Yield all records in the order in which they were committed."""
        for part in self.parts:
            for record, _ in part.records:
                yield record

    def of(self, chain: str) -> list[Record]:
        """Return the records of one chain."""
        return [record for record in self.records() if record.chain == chain]

    def of_stage(self, stage: str) -> list[Record]:
        """Return the records of one stage, of all executors of an operator as they were committed."""
        return [record for record in self.records() if operator_of(record.chain) == stage]

    def events_of(self, stage: str) -> Iterator[Record | Redeal]:
        """Yield the records of one stage, and how its shards were dealt anew between them."""
        for part in self.parts:
            yield from (one for one in part.base.redeals if operator_of(one.giver) == stage)
            yield from (record for record, _ in part.records if operator_of(record.chain) == stage)

    def chains_of(self, stage: str) -> list[str]:
        """Return all chains that a stage has come to have."""
        return [one.chain for one in self.parts[-1].base.chains if operator_of(one.chain) == stage] or [stage]


def read_line(checkpoint: str, disk: Disk | None = None) -> Line:
    """Read the reachable line of records, from the first one to the newest.

    A driver takes over a prefix of what its predecessor's part held; what an older driver appended behind
    that, or a part it began after it had lost the checkpoint, is not reachable.

    Raises:
        CheckFailure: a base follows from no earlier part, or parts are missing because `retain_all` was off.
        CorruptFileError: names a damaged file.
    """
    disk = disk or PosixDisk()
    found = map(paths.parse_log, disk.list(paths.logs(checkpoint)))
    read = [recordlog.read_part(disk, checkpoint, part) for part in sorted(p for p in found if p is not None)]
    line: list[LinePart] = []
    wanted: Heads | None = None
    for tail in reversed(read):
        assert tail.base is not None and tail.part is not None
        kept = list(tail.records) if wanted is None else _prefix(tail.base, tail.records, wanted)
        if kept is None:
            continue
        line.append(LinePart(tail.part, tail.base, kept))
        wanted = _heads(tail.base, before=True)
    if wanted is None or any(head != records.NO_HASH for head, _ in wanted.values()):
        raise CheckFailure(
            [f"{checkpoint}: no log part leads to the first record; was the run made with retain_all?"]
        )
    return Line(checkpoint, line[::-1], disk)


def _heads(base: Base, before: bool = False) -> Heads:
    """Where all chains stand as a base begins; or stood before what it says was dealt anew, which moves epochs on."""
    dealt = {name for one in base.redeals for name in (one.giver, one.taker)} if before else set()
    return {
        chain.chain: (chain.hash, None if chain.chain in dealt else chain.epoch)
        for chain in base.chains
        if chain.hash != records.NO_HASH or chain.epoch
    }


def _agree(heads: Heads, wanted: Heads) -> bool:
    if heads.keys() - wanted.keys():
        return False
    none = (records.NO_HASH, 0)
    return all(
        heads.get(name, none)[0] == head and (epoch is None or heads.get(name, none)[1] == epoch)
        for name, (head, epoch) in wanted.items()
    )


def _prefix(
    base: Base, tail: Sequence[tuple[Record, bytes]], wanted: Heads
) -> list[tuple[Record, bytes]] | None:
    heads = dict(_heads(base))
    if _agree(heads, wanted):
        return []
    for number, (record, encoded) in enumerate(tail, 1):
        heads[record.chain] = (records.hash_of(encoded), record.epoch)
        if _agree(heads, wanted):
            return list(tail[:number])
    return None
