"""What the office tells the engine of slots and leases while a drained node is given back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.spark import chores
from penstock.spark.slots import Node

NODES = [Node(name, "host", 4) for name in ("0", "1", "2")]


class Office:
    """Five leases, on as many slots as Spark counts at the moment."""

    def __init__(self) -> None:
        self.asked = {name: SimpleNamespace(node=node) for name, node in zip("abcde", "00111", strict=True)}
        self.counted = 12

    def slots(self) -> int:
        return self.counted

    def capacity(self, reserve: int, usable: int) -> int:
        return usable - reserve

    def slots_of(self, known: list[Node]) -> dict[str, int]:
        return {node.executor_id: node.cores for node in known}


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Office:
    monkeypatch.setattr(chores, "nodes", lambda spark: NODES)
    monkeypatch.setattr(
        chores, "slots_of_nodes", lambda spark, known: {node.executor_id: node.cores for node in known}
    )
    return Office()


def test_giving_a_drained_node_back_costs_no_lease_on_the_others(office: Office) -> None:
    told: list[tuple[int, int]] = []
    serving = SimpleNamespace(avoid={"2"})
    shell: Any = SimpleNamespace(
        engine=SimpleNamespace(serving=serving), hub=SimpleNamespace(post=lambda call: call())
    )
    made = chores.Chores(shell, None, office, reserve=1)  # type: ignore[arg-type]
    made._set_capacity = lambda capacity, surplus, slots_of: told.append((capacity, surplus))  # type: ignore[method-assign]
    made.check_capacity()
    office.counted = 8  # Spark was told to end it and counts its slots no more, but still lists it
    made.check_capacity()
    assert told[0][0] == told[1][0] == 7
    assert all(surplus <= 0 for _, surplus in told)


def test_leases_on_a_drained_node_take_nothing_from_those_that_replace_them(office: Office) -> None:
    told: list[int] = []
    serving = SimpleNamespace(avoid={"0", "1"})
    shell: Any = SimpleNamespace(
        engine=SimpleNamespace(serving=serving), hub=SimpleNamespace(post=lambda call: call())
    )
    made = chores.Chores(shell, None, office, reserve=1)  # type: ignore[arg-type]
    made._set_capacity = lambda capacity, surplus, slots_of: told.append(capacity)  # type: ignore[method-assign]
    made.check_capacity()
    office.asked = {name: SimpleNamespace(node=node) for name, node in zip("abcde", "01222", strict=True)}
    made.check_capacity()
    assert told == [3 + 5, 3 + 2], "three on node 2, whatever is left on the others"
