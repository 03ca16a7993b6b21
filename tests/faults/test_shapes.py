"""Every shape of topology, with windows, sessions and timers, whatever dies; `make torture` runs many more seeds."""

from __future__ import annotations

import pytest
from tests.faults.shape_runs import story


@pytest.mark.parametrize("seed", range(6))
def test_a_topology_of_every_shape_survives_all_faults(seed: int) -> None:
    assert story(seed) is None
