"""What a policy is told of nodes and cores: read in the hub's thread, and without nodes that are drained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.spark.engine_shell import Nodes, shell_of, started

from penstock.dataplane.placement import Placement
from penstock.spark import elasticity
from penstock.spark.elasticity import Elasticity


class AskedHub:
    """Counts questions, and shows the engine to nobody but who asks."""

    def __init__(self, shell: Any) -> None:
        self.shell, self.engine, self.asked = shell, shell.engine, 0
        shell.engine = None

    def ask(self, question: Any) -> Any:
        self.asked += 1
        self.shell.engine = self.engine
        try:
            return question()
        finally:
            self.shell.engine = None


def test_a_policy_is_offered_no_cores_that_sources_or_other_queries_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = started(tmp_path, capacity=7)
    engine, shell, nodes = driver.engine, shell_of(driver), Nodes(driver)
    shell.node_loads = {}
    monkeypatch.setattr(elasticity, "is_local", lambda spark: False)
    monkeypatch.setattr(elasticity, "negotiator", lambda spark: nodes)
    monkeypatch.setattr(elasticity, "nodes", lambda spark: nodes.nodes())
    offered = Elasticity(shell, None, "query")  # type: ignore[arg-type]
    engine.serving.set_nodes(["n0", "n1"], {"n0": 4, "n1": 3})  # another query holds a slot of n1
    (source,) = engine.runs["source"].slots.values()
    cores = {"n0": 4, "n1": 3}
    cores[engine.leases[source.lease or ""].node] -= 1
    assert {one.name: one.cores for one in offered._nodes()} == cores
    assert offered._limits().cores_per_node == 4
    held = engine.runs["fold"]
    tasks = {slot.index: engine.leases[slot.lease or ""].node for slot in held.slots.values()}
    for slot in engine.runs["gather"].slots.values():
        cores[engine.leases[slot.lease or ""].node] -= 1
    for node in ("n0", "n1"):
        while list(tasks.values()).count(node) < cores[node]:
            tasks[max(tasks) + 1] = node
    engine.set_capacity(12)
    shards = np.array(sorted(tasks))[np.arange(held.spec.shards) % len(tasks)].astype(np.uint16)
    engine.serving.check([Placement("fold", tasks, shards)])


def test_a_policy_is_offered_no_drained_node_and_its_limits_are_read_in_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = started(tmp_path)
    shell, nodes = shell_of(driver), Nodes(driver)
    shell.node_loads = {}
    monkeypatch.setattr(elasticity, "is_local", lambda spark: False)
    monkeypatch.setattr(elasticity, "negotiator", lambda spark: nodes)
    monkeypatch.setattr(elasticity, "nodes", lambda spark: nodes.nodes())
    offered = Elasticity(shell, None, "query")  # type: ignore[arg-type]
    shell.hub = AskedHub(shell)
    assert [one.name for one in offered._nodes()] == ["n0", "n1"] and offered._limits().max_nodes == 2
    driver.engine.serving.avoid.add("n1")
    assert [one.name for one in offered._nodes()] == ["n0"]
    limits = offered._limits()
    assert limits.max_cores == 5 and limits.max_nodes == 1 and limits.cores_per_node == 4
    assert shell.hub.asked == 4
