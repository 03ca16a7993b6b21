"""PySpark's short forms of one aggregate after `groupBy`: `sum`, `avg`, `min`, `max`, `count`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.topology import aggregates
from penstock.topology.aggregates import Aggregate

if TYPE_CHECKING:
    from penstock.topology.nodes import Node
    from penstock.topology.stream import Stream


class AggregateMethods:
    """The methods; grouped and windowed streams have them. Each takes columns, or none for all numbers that are no key."""

    _node: Node
    _keys: tuple[str, ...]

    def agg(self, *aggregates: Aggregate, name: str | None = None) -> Stream:
        raise NotImplementedError

    def count(self, name: str | None = None) -> Stream:
        """Count the rows of each group."""
        return self.agg(aggregates.count(), name=name)

    def sum(self, *cols: str, name: str | None = None) -> Stream:
        """Add up columns; `name` is that of the operator."""
        return self._each(aggregates.sum, "sum", cols, name)

    def avg(self, *cols: str, name: str | None = None) -> Stream:
        """Average columns."""
        return self._each(aggregates.mean, "avg", cols, name)

    def mean(self, *cols: str, name: str | None = None) -> Stream:
        """Average columns; the same as `avg`."""
        return self._each(aggregates.mean, "mean", cols, name)

    def min(self, *cols: str, name: str | None = None) -> Stream:
        """Keep the least value of columns."""
        return self._each(aggregates.min, "min", cols, name)

    def max(self, *cols: str, name: str | None = None) -> Stream:
        """Keep the greatest value of columns."""
        return self._each(aggregates.max, "max", cols, name)

    def _each(
        self, make: Callable[[str], Aggregate], what: str, cols: tuple[str, ...], name: str | None
    ) -> Stream:
        given = list(cols) or [
            field.name
            for field in self._node.schema
            if field.name not in self._keys and _is_number(field.type)
        ]
        if not given:
            raise DeclarationError(
                f"{what}() after groupBy(...) on '{self._node.name}': it has no column of numbers beside the keys; name "
                "the columns."
            )
        return self.agg(*map(make, given), name=name)


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))
