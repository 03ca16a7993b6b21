"""The order of operators: the heaviest path, where a station on it never ends."""

from __future__ import annotations

import math

from penstock.control.policy.ordering import derive_longest


def test_a_station_without_end_makes_every_path_through_it_endless_and_no_other() -> None:
    stations = [("a",), ("b",), ("c",)]
    edges = {("a", "b"): 1.0, ("a", "c"): 1.0}
    through, worst = derive_longest(stations, edges, {"a": 0.1, "b": math.inf, "c": 0.2})
    assert through["a"] == through["b"] == worst == math.inf
    assert abs(through["c"] - 0.3) < 1e-12
    through, worst = derive_longest(stations, edges, {"a": math.inf, "b": 0.1, "c": 0.2})
    assert set(through.values()) == {math.inf} and worst == math.inf
