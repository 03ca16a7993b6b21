"""What the output mode of a writer means for the operators whose rows reach its sinks. Pure; no engine here.

The mode concerns those operators whose rows reach a sink through stateless steps alone, whatever order they are named
in; windows further upstream are put out once, when they close.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.errors import DeclarationError
from penstock.topology.nodes import Node, Ring
from penstock.topology.windows import APPEND, UPDATE
from penstock.topology.windows import check_output_mode as check_window_mode

_PASSING: Final = ("stateless", "station", "union", "sinks")
"""Kinds of nodes that only pass on what an operator puts out, row by row."""


def read_output_mode(given: object, node: Node) -> str:
    """Return an output mode in lower case, as Spark takes it in any.

    Raises:
        DeclarationError: it is none, or an operator whose rows reach `node` cannot have it.
    """
    mode = given.lower() if isinstance(given, str) else given
    if mode == "complete":
        raise DeclarationError(
            f"operator '{node.name}': outputMode 'complete' is not available, since it puts out every key each time; use "
            "update and keep the last row of each key."
        )
    if mode not in (APPEND, UPDATE):
        raise DeclarationError(
            f"operator '{node.name}': outputMode {given!r} is not available here; use append or update."
        )
    check_aggregates(node, mode)
    return mode


def check_aggregates(node: Node, mode: str | None) -> None:
    """Refuse append for aggregates without a window: their values never become final."""
    for one in reaching(node):
        if one.kind == "aggregate" and mode == APPEND:
            raise DeclarationError(
                f"operator '{one.name}': outputMode 'append' is not available, since an aggregate puts out a key again "
                "when it changes; use update, or group by penstock.window(...) too."
            )


def reaching(node: Node) -> list[Node]:
    """Return the sources and operators whose rows come to a node through stateless steps alone, each once."""
    found: dict[int, Node] = {}
    seen: set[int] = set()
    ahead = [node]
    while ahead:
        one = ahead.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if one.kind in _PASSING:
            ahead.extend(one.inputs)
        else:
            found[id(one)] = one
    return list(found.values())


def resolve_output_mode(node: Node, mode: str | None) -> Node:
    """Return the topology with the output mode of each windowed operator settled.

    A windowed operator whose rows reach the sink through stateless steps and go to other operators too has the
    writer's mode for all of them.

    Raises:
        DeclarationError: an operator cannot have the mode, or has no watermark and needs one.
    """
    check_aggregates(node, mode)
    direct = {id(one) for one in reaching(node)}
    done: dict[int, Node] = {}
    rings: list[tuple[Ring, Node]] = []

    def visit(one: Node) -> Node:
        if id(one) in done:
            return done[id(one)]
        inputs = tuple(visit(given) for given in one.inputs)
        changed = _settled(replace(one, inputs=inputs), mode if id(one) in direct else None)
        if one.ring is not None and one.ring.fed is not None:
            rings.append((Ring(), one.ring.fed))
            changed = replace(changed, ring=rings[-1][0])
        done[id(one)] = changed
        return changed

    found = visit(node)
    while rings:  # only now, when all that a loop goes through is known
        ring, fed = rings.pop()
        ring.fed = visit(fed)
    return found if any(one.kind == "windowed" for one in done.values()) else node


def _settled(node: Node, mode: str | None) -> Node:
    if node.kind != "windowed" or node.window is None:
        return node
    event_time = node.inputs[0].event_time
    settled = check_window_mode(node.name, node.window, bool(node.aggregates), mode, event_time)
    return replace(node, output_mode=settled)
