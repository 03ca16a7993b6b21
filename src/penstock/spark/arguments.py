"""What a person gives to the handle of a running query, checked before anything is asked of the engine.

Whole numbers may be Python's or numpy's; names of nodes may be numbers. What cannot be meant is refused with the
operator, what was given and what to give. Knows no engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.topology.sla import SLA


def check_cores(operator: str, cores: Any) -> int:
    """Return a number of cores.

    Raises:
        PlanError: it is no positive whole number.
    """
    if not _is_whole(cores):
        raise PlanError(f"'{operator}': cores is a whole number such as 4, not {cores!r}.")
    if cores < 1:
        raise PlanError(
            f"'{operator}' must keep at least one core, not {cores}; stop or pause the query instead."
        )
    return int(cores)


def check_nodes(operator: str, cores: int, nodes: Any) -> dict[str, int] | None:
    """Return node -> cores there, without nodes that get none; None where nothing was said of nodes.

    Raises:
        PlanError: no mapping of nodes to counts, a negative count, or counts that do not add up to `cores`.
    """
    if nodes is None:
        return None
    if not isinstance(nodes, Mapping):
        raise PlanError(f"'{operator}': nodes maps executor ids to cores, such as {{'0': 3}}, not {nodes!r}.")
    found: dict[str, int] = {}
    for node, count in nodes.items():
        name = check_node(node)
        if not _is_whole(count) or count < 0:
            raise PlanError(
                f"'{operator}': cores on node {name} are a whole number of zero or more, not {count!r}."
            )
        if name in found:
            raise PlanError(f"'{operator}': node {name} is named twice; name it once.")
        found[name] = int(count)
    if sum(found.values()) != cores:
        raise PlanError(
            f"'{operator}': the cores of {found} do not add up to {cores}, they are {sum(found.values())}; change one."
        )
    return {node: count for node, count in found.items() if count}


def check_node(node: Any) -> str:
    """Return the name of a node; executor ids of Spark are numbers written as text.

    Raises:
        PlanError: it is neither text nor a whole number.
    """
    if isinstance(node, str) and node:
        return node
    if _is_whole(node):
        return str(int(node))
    raise PlanError(f"a node is named by its executor id, such as '0', not {node!r}.")


def check_shards(operator: str, shards: Any) -> list[int]:
    """Return numbers of shards, each once; one number stands for itself.

    Raises:
        PlanError: none, or something else than whole numbers of zero or more.
    """
    if _is_whole(shards):
        shards = [shards]
    if isinstance(shards, str | bytes | Mapping) or not isinstance(shards, Iterable):
        raise PlanError(f"'{operator}': shards are whole numbers such as [3, 17], not {shards!r}.")
    found = list(shards)
    wrong = [one for one in found if not _is_whole(one) or one < 0]
    if wrong:
        raise PlanError(f"'{operator}': a shard is a whole number, counted from 0, not {wrong[0]!r}.")
    if not found:
        raise PlanError(f"'{operator}': name at least one shard, such as [3].")
    return list(dict.fromkeys(int(one) for one in found))


def check_task(operator: str, task: Any) -> int:
    """Return the index of a task.

    Raises:
        PlanError: it is no whole number of zero or more.
    """
    if not _is_whole(task) or task < 0:
        raise PlanError(f"'{operator}': a task is a whole number, counted from 0, not {task!r}.")
    return int(task)


def check_seconds(what: str, seconds: Any) -> float:
    """Return a positive, finite number of seconds.

    Raises:
        PlanError: it is none.
    """
    if not _is_number(seconds) or not 0 < seconds < math.inf:
        raise PlanError(f"{what} is a positive number of seconds, not {seconds!r}.")
    return float(seconds)


def check_bound(bound: Any) -> SLA:
    """Return the bound to hold; a number is one of seconds on mean latency, end to end.

    Raises:
        DeclarationError: a bound that cannot be meant.
        PlanError: it is neither an SLA nor a number.
    """
    if isinstance(bound, SLA):
        return bound
    if not _is_number(bound):
        raise PlanError(
            f"hold takes a bound such as SLA(0.5), or 0.5 for the mean in seconds, not {bound!r}."
        )
    return SLA(float(bound))


def check_kind(verb: str, operator: str, kind: str, operators: Iterable[str]) -> None:
    """Refuse a source or sink where only operators have what is asked for.

    Raises:
        PlanError: it is no operator.
    """
    if kind != "operator":
        raise PlanError(
            f"'{operator}' is a {kind} and has no shards; {verb} is for operators: {', '.join(operators)}."
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
