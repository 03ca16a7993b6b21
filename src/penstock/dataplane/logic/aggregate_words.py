"""State words of the built-in aggregates: which they are, how a column is read into them, how partials fold.

Everything here is vectorised and pure but for `combine_words`, which changes the rows it is given. A value of
any type of at most 64 bits is one word; a presence bit says whether the word holds a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.dataplane.logic.key_groups import ROWS, Grouper, KeyGroups, Partial
from penstock.dataplane.logic.protocol import ShardedRows
from penstock.dataplane.state.column_entries import BITS, MAX_BITS, WORDS, EntryFormat
from penstock.dataplane.state.protocol import I64, U64
from penstock.topology.aggregates import Aggregate, AggregateKind, is_word_type

_SIGN: Final = np.uint64(1 << 63)
_LEAST: Final = -(1 << 63)
_GREATEST: Final = (1 << 63) - 1
_NAN_BITS: Final = np.int64(0x7FF8_0000_0000_0000)
_CLEAR_NAN: Final = np.float64("nan")


class Fold(Enum):
    """How a partial word joins a state word."""

    ADD_INT = "add_int"
    ADD_FLOAT = "add_float"
    MIN = "min"
    MAX = "max"
    LAST = "last"


class View(Enum):
    """How a column is read before it is grouped."""

    ROWS = "rows"  # no column: the rows themselves
    AS_IS = "as_is"
    FLOAT = "float"  # as double
    ORDERED = "ordered"  # as bigint that orders as the value does, NaN last
    PLAIN = "plain"  # as bigint that holds the value's bits


@dataclass(frozen=True)
class Word:
    """One state word: where its partial comes from, and the bit that says whether it holds a value."""

    column: str | None
    view: View
    function: str
    fold: Fold
    bit: int | None

    @property
    def initial(self) -> int:
        return {Fold.MIN: _GREATEST, Fold.MAX: _LEAST}.get(self.fold, 0)


def is_fixed_width(aggregates: Sequence[Aggregate], types: Sequence[pa.DataType]) -> bool:
    """Whether all state of these aggregates fits words and presence bits."""
    counts = (AggregateKind.COUNT, AggregateKind.COUNT_ROWS)
    fits = all(
        one.kind in counts or (one.kind is not AggregateKind.TOP_N and is_word_type(type_))
        for one, type_ in zip(aggregates, types, strict=True)
    )
    return fits and sum(one.kind not in (*counts, AggregateKind.MEAN) for one in aggregates) <= MAX_BITS


def derive_words(
    aggregates: Sequence[Aggregate], types: Sequence[pa.DataType]
) -> tuple[list[Word], list[int]]:
    """Return the state words of fixed-width aggregates, and at which of them each aggregate begins."""
    words: list[Word] = []
    begins: list[int] = []
    bits = 0
    for one, type_ in zip(aggregates, types, strict=True):
        begins.append(len(words))
        kind, column = one.kind, one.column
        if kind is AggregateKind.COUNT_ROWS:
            words.append(Word(None, View.ROWS, "count_all", Fold.ADD_INT, None))
        elif kind is AggregateKind.COUNT:
            words.append(Word(column, View.AS_IS, "count", Fold.ADD_INT, None))
        elif kind is AggregateKind.MEAN:
            words.append(Word(column, View.FLOAT, "sum", Fold.ADD_FLOAT, None))
            words.append(Word(column, View.FLOAT, "count", Fold.ADD_INT, None))
        else:
            words.append(_nullable_word(kind, column, type_, bits))
            bits += 1
    return words, begins


def _nullable_word(kind: AggregateKind, column: str | None, type_: pa.DataType, bit: int) -> Word:
    if kind is AggregateKind.SUM:
        if pa.types.is_integer(type_):
            return Word(column, View.PLAIN, "sum", Fold.ADD_INT, bit)
        return Word(column, View.FLOAT, "sum", Fold.ADD_FLOAT, bit)
    if kind is AggregateKind.LAST:
        return Word(column, View.PLAIN, "last", Fold.LAST, bit)
    if kind is AggregateKind.MIN:
        return Word(column, View.ORDERED, "min", Fold.MIN, bit)
    return Word(column, View.ORDERED, "max", Fold.MAX, bit)


def combine_words(rows: U64, words: Sequence[Word], partials: Sequence[Partial]) -> None:
    """Fold partials into rows (key hash, bits, words ...), in place."""
    always = 0
    for at, (word, partial) in enumerate(zip(words, partials, strict=True), start=WORDS):
        _fold(rows, at, word.fold, partial.values)
        if word.bit is None:
            continue
        if partial.present is None:
            always |= 1 << word.bit
            continue
        if word.fold is Fold.LAST:
            rows[:, BITS] &= ~np.uint64(1 << word.bit)
        rows[:, BITS] |= partial.present.astype(np.uint64) << np.uint64(word.bit)
    if always:
        rows[:, BITS] |= np.uint64(always)


def _fold(rows: U64, at: int, fold: Fold, values: npt.NDArray[Any]) -> None:
    if fold is Fold.ADD_FLOAT:
        totals = rows.view(np.float64)[:, at]
        with np.errstate(invalid="ignore"):  # infinities of both signs add up to NaN, as they should
            totals += values
        undefined = np.isnan(totals)
        if undefined.any():
            totals[undefined] = _CLEAR_NAN  # processors differ in the bits of a NaN they make
        return
    column = rows.view(np.int64)[:, at]
    if fold is Fold.ADD_INT:
        column += values
    elif fold is Fold.LAST:
        column[:] = values
    elif fold is Fold.MIN:
        np.minimum(column, values, out=column)
    else:
        np.maximum(column, values, out=column)


# ------------------------------------------------------------------------------ columns and words


def view_column(column: pa.ChunkedArray, view: View) -> pa.Array | pa.ChunkedArray:
    """Read a column of a word type as the view asks, nulls kept."""
    type_ = column.type
    if view is View.AS_IS:
        return column
    if view is View.FLOAT:
        return column if pa.types.is_float64(type_) else column.cast(pa.float64(), safe=False)
    if pa.types.is_int64(type_):
        return column
    if pa.types.is_floating(type_):
        bits = _zero_for_null(column.cast(pa.float64())).view(np.uint64)
        return _with_nulls_of(_ordered(bits) if view is View.ORDERED else bits.view(np.int64), column)
    array = column.combine_chunks()
    if pa.types.is_uint64(type_):
        words = _zero_for_null(array).view(np.uint64)
        return _with_nulls_of((words ^ _SIGN if view is View.ORDERED else words).view(np.int64), column)
    if pa.types.is_date32(type_) or pa.types.is_time32(type_):
        return array.view(pa.int32()).cast(pa.int64())
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_):
        return (
            array.cast(pa.int8()).cast(pa.int64()) if pa.types.is_boolean(type_) else array.cast(pa.int64())
        )
    return array.view(pa.int64())


def read_words(words: U64, view: View, type_: pa.DataType, absent: npt.NDArray[np.bool_] | None) -> pa.Array:
    """Undo `view_column`: the values that words of a column of this type hold, null where absent."""
    if pa.types.is_floating(type_):
        bits = _flipped(words.view(np.int64)).view(np.uint64) if view is View.ORDERED else words
        return pa.array(bits.view(np.float64), mask=absent).cast(type_, safe=False)
    if pa.types.is_uint64(type_):
        return pa.array(words ^ _SIGN if view is View.ORDERED else words, mask=absent)
    if absent is not None:
        words = np.where(absent, np.uint64(0), words)  # what an absent word holds may not fit the type
    array = pa.array(words.view(np.int64), mask=absent)
    if pa.types.is_date32(type_) or pa.types.is_time32(type_):
        return array.cast(pa.int32()).view(type_)
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_):
        return array if pa.types.is_int64(type_) else array.cast(type_)
    return array.view(type_)


def _ordered(bits: U64) -> I64:
    """Map the bits of doubles to bigints in the order of the doubles, every NaN to the one that is last."""
    ordered = _flipped(bits.view(np.int64))
    ordered[np.isnan(bits.view(np.float64))] = _NAN_BITS
    return ordered


def _flipped(signed: I64) -> I64:
    """Flip all bits but the sign of negative words; its own inverse."""
    return signed ^ ((signed >> np.int64(63)) & np.int64(_GREATEST))


def _zero_for_null(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    filled = column.fill_null(0) if column.null_count else column
    return np.ascontiguousarray(filled.to_numpy())


def _with_nulls_of(values: I64, column: pa.ChunkedArray) -> pa.Array:
    return pa.array(values, mask=column.is_null().to_numpy() if column.null_count else None)


class WordReader:
    """Turns the columns of an epoch into the partials of state words."""

    def __init__(self, words: Sequence[Word], prefix: str = "v") -> None:
        read = dict.fromkeys((word.column, word.view) for word in words if word.column is not None)
        self._names = {source: f"{prefix}{at}" for at, source in enumerate(read)}
        self._words = words
        self._asked = [
            ROWS if word.column is None else (self._names[word.column, word.view], word.function)
            for word in words
        ]
        self.questions = [question for question in self._asked if question != ROWS]

    def columns(self, rows: pa.Table) -> dict[str, Any]:
        """Return the columns that the questions are about."""
        return {name: view_column(rows.column(column), view) for (column, view), name in self._names.items()}

    def partials(self, groups: KeyGroups) -> list[Partial]:
        """Return the partials of each word."""
        pairs = zip(self._asked, self._words, strict=True)
        return [groups.partial(question, word.initial) for question, word in pairs]


class WordAggregates:
    """Fixed-width aggregates as columnar state holds them: how rows are asked, folded in and read out.

    Args:
        fields: the output column of each aggregate.
    """

    def __init__(
        self, aggregates: Sequence[Aggregate], types: Sequence[pa.DataType], fields: Sequence[pa.Field]
    ) -> None:
        self._aggregates, self._types, self._fields = aggregates, types, fields
        self._words, self._begins = derive_words(aggregates, types)
        self._reader = WordReader(self._words)
        self.format = format_of(self._words)
        self.initial: U64 = np.array([word.initial for word in self._words], np.int64).view(np.uint64)
        """The words of a key that had no rows yet."""

    def group(self, grouper: Grouper, taken: ShardedRows) -> KeyGroups:
        """Group rows and ask for what the words need."""
        return grouper.group(taken, self._reader.columns(taken.rows), self._reader.questions)

    def combiner(self, groups: KeyGroups) -> Callable[[U64], None]:
        """Return what folds the partials of groups into their rows, in place."""
        partials = self._reader.partials(groups)
        return lambda rows: combine_words(rows, self._words, partials)

    def outputs(self, rows: U64) -> list[pa.Array]:
        """Return the output column of each aggregate from rows (key hash, bits, words ...)."""
        outputs = []
        columns = zip(self._aggregates, self._types, self._begins, self._fields, strict=True)
        for one, type_, at, field in columns:
            column = np.ascontiguousarray(rows[:, WORDS + at])
            if one.kind is AggregateKind.MEAN:
                outputs.append(mean_of(column.view(np.float64), rows.view(np.int64)[:, WORDS + at + 1]))
                continue
            word = self._words[at]
            held = field.type if word.fold in (Fold.ADD_INT, Fold.ADD_FLOAT) else type_
            outputs.append(read_words(column, word.view, held, _absent(rows, word.bit)))
        return outputs


def format_of(words: Sequence[Word]) -> EntryFormat:
    """Return the shape of the entries that hold these words."""
    return EntryFormat(len(words), sum(word.bit is not None for word in words))


def aggregates_identity(aggregates: Sequence[Aggregate], types: Sequence[pa.DataType]) -> list[list[object]]:
    """Return what a checkpoint says of declared aggregates."""
    kept = zip(aggregates, types, strict=True)
    return [[one.kind.value, one.column, str(type_), one.n] for one, type_ in kept]


def mean_of(totals: npt.NDArray[np.float64], counts: I64) -> pa.Array:
    """Return averages from sums and counts, null where nothing was counted."""
    empty = counts == 0
    if not empty.any():
        return pa.array(totals / counts)
    return pa.array(totals / np.where(empty, 1, counts), mask=empty)


def _absent(rows: U64, bit: int | None) -> npt.NDArray[np.bool_] | None:
    if bit is None:
        return None
    absent: npt.NDArray[np.bool_] = (rows[:, BITS] & np.uint64(1 << bit)) == 0
    return absent if absent.any() else None
