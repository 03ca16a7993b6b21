"""Random plans on a real cluster, at a small count; `make torture` throws fifty."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults import plan_runs

pytestmark = [pytest.mark.cluster, pytest.mark.long]


def test_random_plans_a_killed_worker_and_a_drained_node_change_nothing(tmp_path: Path) -> None:
    with plan_runs.cluster() as on:
        said = list(plan_runs.throw_plans(on, tmp_path, 3, seed=1, kill_every=3))
    assert len(said) == 4, said
    print("\n".join(said))
    assert "killed" in said[2] and "drained and given back" in said[3]
