"""One operator in the hand of a test: rows in, rows out, time stepped by the test.

Takes the compiled operator as tasks get it and goes through the epochs of a worker with it: run, stage, commit. There is
one shard and no file of a checkpoint; what a real run cuts into epochs by load, the test cuts by its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa

from penstock.dataplane.compile import SINK
from penstock.dataplane.logic.aggregates import AggregateSpec
from penstock.dataplane.logic.protocol import DEAD, MAIN, EpochInput, Logic, ShardClock, ShardedRows
from penstock.dataplane.program import Program, StageSpec
from penstock.dataplane.records import END_US
from penstock.dataplane.state.entries import EntryState
from penstock.dataplane.state.handles import KeyState
from penstock.dataplane.state.list_handles import ListHandle
from penstock.dataplane.state.map_handles import MapHandle
from penstock.errors import DeclarationError, PenstockError
from penstock.raised import noting_ctrl_c
from penstock.testing.clocks import ManualClock, parse_positive, parse_time
from penstock.testing.declared import MEMORY_BYTES, compile_stream
from penstock.testing.intake import SHARD, Intake
from penstock.topology.sources import from_rows
from penstock.topology.states import StateSpec
from penstock.topology.stream import Stream

Row = dict[str, Any]
_MAX_FIRINGS: Final = 10_000


def operator(
    stream: Stream,
    *,
    name: str | None = None,
    clock: ManualClock | None = None,
    outputMode: str | None = None,
) -> OperatorHarness:
    """Take the last operator of a stream by itself, to call it from a test.

    ```python
    with operator(totals) as op:
        assert op.send([("ann", 5)]) == [{"user": "ann", "total": 5}]
    ```

    Stateless steps right before it and after it are part of it; what stands further up is not run.

    Args:
        name: takes this operator of the topology instead of the last.
        clock: what it sees as the epoch time; shared with the test, which may advance it between calls.
        outputMode: as of `writeStream`.

    Raises:
        DeclarationError: there is no such operator, or the stream ends in a union of several.
    """
    _, program = compile_stream(stream, "operator(...)", outputMode)
    chosen = _choose(program, name)
    return OperatorHarness(program, program.stages[chosen], clock or ManualClock())


def outputs_of(
    tested: Stream | Callable[..., Any],
    *rows: object,
    groupBy: str | tuple[str, ...] = (),
    input_schema: object = None,
    schema: object = None,
    state: Mapping[str, StateSpec] | None = None,
) -> list[Row]:
    """Return all that an operator puts out when these rows are all it ever gets: one epoch, then the end of the input.

    Args:
        tested: a stream, whose last operator is meant; or a row function, as `apply_rows` takes it.
        rows: of each input of the operator, one list per input.
        groupBy, input_schema: of a function: its key columns, and the schema of its rows.
        schema, state: of a function: what `apply_rows` takes.

    Raises:
        DeclarationError: what a function needs is missing.
        OperatorError: the operator failed.
    """
    if not isinstance(tested, Stream):
        if not groupBy or input_schema is None or schema is None:
            raise DeclarationError(
                "outputs_of(...) of a function needs groupBy=, input_schema= and schema=, for example groupBy='user', "
                "input_schema='user string, amount long', schema='user string, total long'."
            )
        keys = (groupBy,) if isinstance(groupBy, str) else groupBy
        source = from_rows([], schema=input_schema, name="rows")
        tested = source.groupBy(*keys).apply_rows(tested, schema=schema, state=state)
    with operator(tested) as op:
        return [*op.send(*rows), *op.end()]


class OperatorHarness:
    """An operator with its state. Made by `operator(...)`; use it in a `with` statement, which cleans up after it.

    Every call that returns rows is one epoch, or as many as there are moments at which timers are due. Rows come back as
    dicts. When the operator raises, so does the call, and the harness is of no further use, as a task would be.
    """

    def __init__(self, program: Program, spec: StageSpec, clock: ManualClock) -> None:
        self.name = spec.name
        self.clock = clock
        self.late_rows = 0
        """Rows left out so far because they were behind the watermark."""
        self._spec = spec
        self._inputs = [Intake(program, spec, slot) for slot in range(spec.slots)] or [
            Intake(program, spec, 0)
        ]
        self._out = next((edge for edge in spec.edges if edge.consumer == SINK), None)
        self._folder = TemporaryDirectory(prefix="penstock-test-", ignore_cleanup_errors=True)
        self._logic = self._build()
        self._epoch = 0
        self._time_us = 0
        self._watermark_us: int | None = None
        self._letters: list[Row] = []
        self._last: dict[tuple[Any, ...], Row] = {}
        self._over = ""

    def __enter__(self) -> OperatorHarness:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the operator and its state go."""
        logic, self._logic = self._logic, None
        self._over = self._over or "it is closed"
        try:
            close = getattr(logic, "close", None)
            if close is not None:
                with noting_ctrl_c():
                    close()
        finally:
            if logic is not None and logic.state is not None:
                logic.state.close()
            self._folder.cleanup()

    # -- what a test does ---------------------------------------------------------------------------------------------

    def send(self, *rows: object) -> list[Row]:
        """Give the operator rows, as one epoch, and return what it puts out.

        Where a watermark is declared right before the operator it follows the rows, as in a run: rows of one call are
        late by what the calls before it have said.

        Args:
            rows: one list (or table, or pandas frame) per input of the operator, in declared order; inputs that are
                left out get none. Of one stream before the operator, its rows before the stateless steps; of a union,
                rows as they come to the operator.

        Raises:
            DeclarationError: the rows do not fit, or there are more lists than inputs.
            OperatorError: the operator failed.
        """
        if len(rows) > len(self._inputs):
            raise DeclarationError(
                f"operator '{self.name}' has {len(self._inputs)} input(s), and send(...) was given {len(rows)} lists."
            )
        self._check()
        if self._watermark_us == END_US:
            raise PenstockError(f"operator '{self.name}' was told the end of its input; make a new harness.")
        taken = [
            one.take(rows[at] if at < len(rows) else [], self._watermark_us if self._spec.clocked else None)
            for at, one in enumerate(self._inputs)
        ]
        marks = [one.mark_us for one in self._inputs if one.marked]
        if marks and all(mark is not None for mark in marks):
            self._move_watermark(min(mark for mark in marks if mark is not None))
        return self._run(taken)

    def advance(self, duration: object) -> list[Row]:
        """Let processing time pass and return what the timers that fall due meanwhile put out, each at its own time."""
        until_us = self.clock.time_us + parse_positive(duration, "advance(...)")
        self._check()
        made: list[Row] = []
        for _ in range(_MAX_FIRINGS):
            due_us = self._next_timer_us()
            if due_us is None or due_us > until_us:
                self.clock.time_us = until_us
                return made
            self.clock.time_us = max(self.clock.time_us, due_us)
            made.extend(self._run(self._nothing()))
        raise PenstockError(
            f"operator '{self.name}': timers were due {_MAX_FIRINGS} times within {duration}; one sets itself again."
        )

    def watermark(self, time: object) -> list[Row]:
        """Move the watermark and return what that puts out: closed windows, event-time timers.

        Args:
            time: a datetime, or text such as "2026-01-01 00:10:00", UTC where it has no zone. A watermark never goes
                back: an earlier one does nothing.

        Raises:
            DeclarationError: it is no time.
        """
        time_us = parse_time(time, "watermark(...)")
        self._check()
        self._move_watermark(time_us)
        return self._run(self._nothing())

    def end(self) -> list[Row]:
        """Tell the operator that its input has ended and return what that puts out: every window closes."""
        self._check()
        self._move_watermark(END_US)
        return self._run(self._nothing())

    # -- what a test looks at -----------------------------------------------------------------------------------------

    def state(self, *key: object) -> Row:
        """Return the states of a key by name: a value or None, a list, a dict. Without a key, those shared by a shard
        that has a broadcast input. Of built-in aggregates, their values; {} for a key without rows.

        Raises:
            DeclarationError: the operator keeps no state that can be read like this.
            OperatorError: it is no key of the operator.
        """
        self._check()
        held = self._logic.state if self._logic is not None else None
        values = tuple(key[0]) if len(key) == 1 and isinstance(key[0], tuple) else key
        if self._keeps_last:
            return dict(self._last.get(values, {}))
        found: Row = {}
        if isinstance(held, EntryState):
            found = _read(held.touch(0, [held.key_codec.encode(values)])[0] if values else held.shared(0))
            found = {self._state_names.get(name, name): value for name, value in found.items()}
        if not found:
            raise DeclarationError(
                f"operator '{self.name}' has no {'state by key' if values else 'shared state'} that could be read; look at "
                "what it puts out."
            )
        return found

    def dead_letters(self) -> list[Row]:
        """Return all dead letters so far; there are none unless the operator has on_error="dead_letter"."""
        return list(self._letters)

    # -- epochs -------------------------------------------------------------------------------------------------------

    @property
    def _state_names(self) -> Mapping[str, str]:
        """Of a processor: its own names of its states, which inside the engine have others."""
        declared = getattr(self._spec.logic, "declared", None)
        if declared is None:
            return {}
        return dict(zip(declared.slots(), (state.name for state in declared.states), strict=True))

    @property
    def _keeps_last(self) -> bool:
        """Whether the operator puts out the whole of a key's state whenever that changes."""
        return isinstance(self._spec.logic, AggregateSpec)

    def _build(self) -> Logic | None:
        spec = self._spec
        if spec.logic is None:
            return None
        schema = self._inputs[0].schema
        with noting_ctrl_c():
            logic = spec.logic.build(spec.name, spec.keys, schema, 1, MEMORY_BYTES)
        if logic.state is not None:
            logic.state.open(0, f"{self._folder.name}/state", None)
            logic.state.seal(0, 0, bytes(16))
        return logic

    def _nothing(self) -> list[ShardedRows]:
        return [one.take([], None) for one in self._inputs]

    def _run(self, inputs: list[ShardedRows]) -> list[Row]:
        self._epoch += 1
        self._time_us = max(self.clock.time_us, self._time_us + 1)
        out: Mapping[str, pa.Table] = {MAIN: inputs[0].rows}
        rows = sum(given.rows.num_rows for given in inputs)
        if self._logic is not None:
            out = {MAIN: self._spec.schema.empty_table()}
            if rows or self._spec.clocked:
                clocks = [ShardClock(SHARD, self._watermark_us)]
                try:
                    made = self._called(EpochInput(self._epoch, self._time_us, inputs, clocks))
                except BaseException:
                    self._over = "it failed in an earlier call"
                    raise
                out = {**self._logic.sides, MAIN: made}
                self.late_rows += self._logic.late_rows
            if self._logic.state is not None:
                self._logic.state.stage(self._epoch)
                self._logic.state.commit()
        self._note(out)
        return self._shaped(out)

    def _called(self, given: EpochInput) -> pa.Table:
        assert self._logic is not None
        with noting_ctrl_c():
            return self._logic.run(given)

    def _note(self, out: Mapping[str, pa.Table]) -> None:
        if DEAD in out:
            self._letters.extend(out[DEAD].to_pylist())
        if self._keeps_last:
            for row in out[MAIN].to_pylist():
                key = tuple(row[name] for name in self._spec.keys)
                self._last[key] = {name: value for name, value in row.items() if name not in self._spec.keys}

    def _shaped(self, out: Mapping[str, pa.Table]) -> list[Row]:
        if self._out is None:
            rows = out[MAIN]
        else:
            rows = out.get(self._out.output)
            rows = self._out.shape(rows) if rows is not None and rows.num_rows else None
        return [] if rows is None else rows.to_pylist()

    def _move_watermark(self, time_us: int) -> None:
        self._watermark_us = time_us if self._watermark_us is None else max(time_us, self._watermark_us)

    def _next_timer_us(self) -> int | None:
        next_of = getattr(self._logic.state if self._logic is not None else None, "next_timer_us", None)
        found: int | None = next_of() if next_of is not None and self._spec.clocked else None
        return found

    def _check(self) -> None:
        if self._over:
            raise PenstockError(
                f"the harness of operator '{self.name}' is of no further use: {self._over}; make a new one."
            )


def _choose(program: Program, name: str | None) -> str:
    operators = [spec.name for spec in program.stages.values() if spec.kind == "operator"]
    if name is not None:
        if name not in operators:
            known = ", ".join(f"'{one}'" for one in operators) or "none"
            raise DeclarationError(f"operator(name={name!r}): there is no such operator; there are {known}.")
        return name
    last = {given.producer for given in program.stages[SINK].inputs}
    if len(last) != 1:
        shown = " and ".join(f"'{one}'" for one in sorted(last))
        raise DeclarationError(
            f"operator(...): the stream is a union of {shown}; say which is meant with name=, or use run(...)."
        )
    return last.pop()


def _read(state: KeyState) -> Row:
    """Return what the handles of a state hold; names that begin with an underscore are the engine's."""
    found: Row = {}
    for name in type(state).__slots__:
        if not name.startswith("_"):
            handle = getattr(state, name)
            if isinstance(handle, MapHandle):
                found[name] = dict(handle.items())
            else:
                found[name] = list(handle) if isinstance(handle, ListHandle) else handle.get()
    return found
