"""Event time of a run, derived again from its records: what each producer had said when, what the watermark of every
shard was, and which rows were late.

Arithmetic of its own, over records alone; the replay is given these clocks, and the records are compared with them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.dataplane.channel import EdgeSpec
from penstock.dataplane.program import Program, StageSpec, operator_of
from penstock.dataplane.records import END_US, IDLE_US, Range, Record, Redeal, unpack_u16
from penstock.testing.frontiers import Channel, Events, Frontiers
from penstock.testing.line import Line


@dataclass(frozen=True)
class Said:
    """What a producer said of event time on one edge, epoch by epoch."""

    epochs: list[int]
    marks: list[int | None]

    def before(self, epoch: int) -> int | None:
        """Return what held after all epochs before this one."""
        at = bisect_left(self.epochs, epoch)
        return self.marks[at - 1] if at else None


class Times:
    """Event time in one run."""

    def __init__(self, line: Line, program: Program) -> None:
        self.faults: list[str] = []
        self._said: dict[Channel, Said] = {}
        self._line = line
        self._program = program
        self._epochs: dict[str, int] = {}
        self._frontiers = Frontiers(program, self._has_ended)
        left = dict(program.stages)
        while left:  # a stage after all that feed it, loops aside
            ready = [
                spec
                for spec in left.values()
                if not any(given.producer in left for given in spec.inputs if not given.feedback)
            ]
            for spec in ready or list(left.values()):
                self._follow(spec)
                del left[spec.name]

    def late_us(
        self, spec: StageSpec, taken: Range, epoch: int, ranges: list[Range], prior: int | None
    ) -> int | None:
        """Return up to which event time the rows of one producer epoch in a range are late."""
        marks = {(one.edge, one.chain): self._before(one, one.start.epoch) for one in ranges}
        marks[(taken.edge, taken.chain)] = self._before(taken, epoch)
        return _least(spec, marks, prior)

    def _before(self, taken: Range, epoch: int) -> int | None:
        said = self._said.get((taken.edge, taken.chain))
        return said.before(epoch) if said is not None else None

    def _has_ended(self, channel: Channel, epoch: int) -> bool:
        said = self._said.get(channel)
        return said is not None and said.before(epoch) == END_US

    def _follow(self, spec: StageSpec) -> None:
        shards: list[int | None] = [None] * spec.shards
        channels = [
            (given.edge, chain)
            for given in spec.inputs
            for chain in self._epochs
            if operator_of(chain) == given.producer
        ]
        events = Events(spec, self._frontiers, channels)
        heard: dict[int, dict[Channel, int | None]] = {}
        owners = self._begin(spec)
        ended = False
        for event in self._line.events_of(spec.name):
            if isinstance(event, Redeal):
                epoch = 1 + max(self._epochs.get(event.giver, 0), self._epochs.get(event.taker, 0))
                events.deal(event.giver, event.taker, epoch, owners, unpack_u16(event.shards).tolist())
                if event.taker not in self._epochs:  # it had said that nothing came of it
                    self._say(spec, event.taker, 0, dict.fromkeys([edge.edge for edge in spec.edges], END_US))
                for chain in (event.giver, event.taker):
                    mine = [shard for shard, owner in owners.items() if owner == chain]
                    self._say(
                        spec,
                        chain,
                        epoch,
                        _marks(spec, mine, shards, heard, events.said(chain), ended, False),
                    )
                continue
            if spec.kind == "operator":
                self._move(spec, event, shards, heard)
            ended = ended or event.watermark_us == END_US
            mine = [shard for shard, owner in owners.items() if owner == event.chain]
            events.take(event, mine)
            said = events.said(event.chain)
            self._say(
                spec, event.chain, event.epoch, _marks(spec, mine, shards, heard, said, ended, event.idle)
            )

    def _begin(self, spec: StageSpec) -> dict[int, str]:
        """Note the chains that a stage begins with; return the one of each shard."""
        owners: dict[int, str] = {}
        for chain in self._line.parts[0].base.chains if self._line.parts else []:
            if operator_of(chain.chain) == spec.name:
                self._epochs[chain.chain] = 0
                for edge in spec.edges:
                    self._said[(edge.edge, chain.chain)] = Said([], [])
                for group in chain.groups:
                    owners.update(dict.fromkeys(unpack_u16(group.shards).tolist(), chain.chain))
        return owners

    def _say(self, spec: StageSpec, chain: str, epoch: int, marks: Mapping[int, int | None]) -> None:
        self._epochs[chain] = epoch
        for edge in spec.edges:
            if edge.marked:
                said = self._said.setdefault((edge.edge, chain), Said([], []))
                said.epochs.append(epoch)
                said.marks.append(marks[edge.edge])

    def _move(
        self,
        spec: StageSpec,
        record: Record,
        shards: list[int | None],
        heard: dict[int, dict[Channel, int | None]],
    ) -> None:
        marked = {given.edge for given in spec.inputs if given.marked}
        for group in record.groups:
            mine = unpack_u16(group.shards).tolist()
            marks = {(one.edge, one.chain): self._before(one, one.end.epoch) for one in group.ranges}
            told = {channel: mark for channel, mark in marks.items() if channel[0] in marked}
            heard.update(dict.fromkeys(mine, told))
            for prior in {shards[shard] for shard in mine}:
                expected = _least(spec, marks, prior)
                if expected != group.watermark_us:
                    self.faults.append(
                        f"'{spec.name}' epoch {record.epoch} has watermark {group.watermark_us}, its inputs give {expected}"
                    )
            for shard in mine:
                shards[shard] = group.watermark_us


def _marks(
    spec: StageSpec,
    mine: list[int],
    shards: list[int | None],
    heard: Mapping[int, Mapping[Channel, int | None]],
    events: Mapping[int, int],
    ended: bool,
    idle: bool,
) -> dict[int, int | None]:
    """What a chain with these shards says on each of its edges."""
    if spec.kind != "operator":
        return {edge.edge: _mark(edge, None, events, ended, idle) for edge in spec.edges}
    if not mine:
        return {edge.edge: END_US for edge in spec.edges}
    times = [shards[shard] for shard in mine]
    own = None if None in times else min(time for time in times if time is not None)
    idle = idle or all(shard in heard and _is_idle(heard[shard]) for shard in mine)
    return {edge.edge: _mark(edge, own, events, ended, idle) for edge in spec.edges}


def _mark(edge: EdgeSpec, own: int | None, events: Mapping[int, int], ended: bool, idle: bool) -> int | None:
    if ended or own == END_US:
        return END_US
    if idle:
        return IDLE_US
    if edge.delay_us is None:
        return own
    return events[edge.edge] - edge.delay_us if edge.edge in events else None


def _least(spec: StageSpec, marks: Mapping[Channel, int | None], prior: int | None) -> int | None:
    of = {given.edge: given for given in spec.inputs}
    timed = [mark for (edge, _), mark in marks.items() if of[edge].timed]
    others = [mark for (edge, _), mark in marks.items() if of[edge].marked and not of[edge].timed]
    if any(mark is None for mark in timed) or not (timed or others):
        return prior
    told = {
        number: {mark for (edge, _), mark in marks.items() if edge == number}
        for number in of
        if of[number].timed
    }
    if any(IDLE_US in said and said - {IDLE_US, END_US} for said in told.values()):
        return prior  # of executors of one operator, one is behind another
    least = min((mark for mark in timed if mark is not None), default=END_US)
    if least == IDLE_US or (least == END_US and set(others) - {END_US}):
        return prior
    return max(least, least if prior is None else prior)


def _is_idle(heard: Mapping[Channel, int | None]) -> bool:
    return IDLE_US in heard.values() and set(heard.values()) <= {IDLE_US, END_US}
