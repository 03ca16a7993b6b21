"""Loops: streams whose rows are made further down. Declared first, closed later."""

from __future__ import annotations

from penstock.errors import DeclarationError
from penstock.topology.expressions import col as column
from penstock.topology.nodes import (
    Node,
    Ring,
    check_name,
    shown,
)
from penstock.topology.schema import parse_schema
from penstock.topology.stateless import retype_step
from penstock.topology.stream import Stream, checked_stream


class Loop(Stream):
    """Rows that come back: declared with `penstock.loop`, used like any stream, closed with `feed`."""

    def feed(self, stream: Stream) -> None:
        """Let the rows of a stream go back into the loop.

        Raises:
            DeclarationError: the loop is closed already, the rows have another schema, or they go through no operator.
        """
        where, ring = f"feed(...) of loop '{self._node.name}'", self._node.ring
        assert ring is not None
        given = checked_stream(stream, where).node
        if ring.fed is not None:
            raise DeclarationError(
                f"{where}: the loop is closed already; use union(...) to let several streams in."
            )
        if [field.type for field in given.schema] != [field.type for field in self.schema]:
            raise DeclarationError(
                f"{where}: the loop has {shown(self.schema)} and is fed {shown(given.schema)}; select the same types in "
                "the same order first."
            )
        if not _goes_through_an_operator(given, self._node):
            raise DeclarationError(
                f"{where}: its rows go through no operator on the way; nothing could end them."
            )
        columns = [
            column(theirs).alias(mine) for theirs, mine in zip(stream.columns, self.columns, strict=True)
        ]
        shaped = stream.select(*columns)
        ring.fed = shaped._step(retype_step(where, self.columns, shaped.schema, self.schema)).node


def loop(name: str, *, schema: object) -> Loop:
    """Declare a loop: a stream whose rows are made further down, and named later with `feed`.

    Rows that come back are taken before any others. Windows and timers are refused inside a loop: event time does not
    go round.

    Args:
        name: of the loop, for errors.
        schema: of the rows that come back.
    """
    check_name(name, "loop")
    parsed = parse_schema(schema, f"schema of loop '{name}'")
    return Loop(Node(name, "loop", parsed, ring=Ring()))


def _goes_through_an_operator(node: Node, ring: Node) -> bool:
    """Whether a loop's rows are made by stages, rather than being the loop's own."""
    if node is ring:
        return False
    if node.kind in ("stateless", "union"):
        return all(_goes_through_an_operator(given, ring) for given in node.inputs)
    return True
