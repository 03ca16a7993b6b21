"""What is predicted of executors, put together: the same quantity for every option, loops and quantiles included."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.measure.estimate import NodeEstimate
from penstock.control.policy.predicting import Whole
from penstock.control.policy.protocol import Limits, Option
from penstock.control.policy.registry import make_policy
from penstock.control.sla import SLA


def chain(sla: SLA, k: int = 4) -> World:
    return World(
        {"a": make_station(np.full(32, 10.0), 100.0, k), "b": make_station(np.full(32, 10.0), 100.0, k)},
        {"n0": NodeEstimate("n0", 32)},
        Limits(32),
        sla,
        edges={("s", "a"): 320.0, ("a", "b"): 320.0},
        sources={"s": 320.0},
    )


def looped(visits: int = 3) -> World:
    """Rows pass the one operator so often on their way."""
    return World(
        {"a": make_station(np.full(40, 100 * visits / 40), 100.0, 5)},
        {"n0": NodeEstimate("n0", 16)},
        Limits(16),
        SLA(1.0),
        edges={("s", "a"): 100.0, ("a", "a"): 100.0 * (visits - 1)},
        sources={"s": 100.0},
    )


def test_operators_on_a_path_add_up_and_a_quantile_counts_for_all_of_them() -> None:
    latencies = {"a": 0.1, "b": 0.3}
    assert Whole(chain(SLA(1.0)).estimate(), SLA(1.0)).predict_s(latencies) == pytest.approx(0.4)
    each = SLA(1.0, scope="operator")
    assert Whole(chain(each).estimate(), each).predict_s(latencies) == pytest.approx(0.3)
    p99 = SLA(1.0, quantile=0.99)
    assert Whole(chain(p99).estimate(), p99).predict_s(latencies) == pytest.approx(0.4 * math.log(100))


def test_an_operator_inside_a_loop_counts_as_often_as_rows_pass_it() -> None:
    assert Whole(looped(3).estimate(), SLA(1.0)).predict_s({"a": 0.1}) == pytest.approx(0.3)


def test_what_could_be_done_for_one_executor_is_told_as_latency_of_the_whole() -> None:
    whole = Whole(chain(SLA(1.0)).estimate(), SLA(1.0))
    found = whole.derive_options({"a": 0.1, "b": 0.3}, [("a", (Option("add cores", 0.05, 7.0, False),))])
    assert found[0] == Option("no change", pytest.approx(0.4))
    assert found[1] == Option("add cores", pytest.approx(0.35), 7.0, False)
    both = whole.derive_options({"a": 0.1, "b": 0.3}, [(name, (Option("move", 0.0),)) for name in "ab"])
    assert [(one.action, round(one.predicted_s, 3)) for one in both] == [
        ("no change", 0.4),
        ("a: move", 0.3),
        ("b: move", 0.1),
    ]


@pytest.mark.parametrize("policy", ["penstock", "elasticutor", "drs", "esstream"])
@pytest.mark.parametrize("quantile", ["mean", 0.99])
@pytest.mark.parametrize("scope", ["operator", "end-to-end"])
def test_a_plan_and_no_change_are_predicted_in_the_same_quantity(
    policy: str, quantile: float | str, scope: str
) -> None:
    """More cores make it better by the model that says so; were one of the two a mean or of one executor, it would
    look worse."""
    world = chain(SLA(0.3, quantile=quantile, scope=scope), k=3)  # type: ignore[arg-type]
    chosen = make_policy(policy)
    acted = next(one for one in (world.turn(chosen) for _ in range(20)) if one.plan is not None)
    (without,) = [one for one in acted.options if one.action == "no change"]
    assert acted.predicted_s is not None and acted.predicted_s < without.predicted_s


@pytest.mark.parametrize("quantile", ["mean", 0.99])
def test_streamswitch_predicts_a_balanced_task_and_no_change_in_the_same_quantity(
    quantile: float | str,
) -> None:
    world = chain(SLA(0.6, quantile=quantile), k=4)  # type: ignore[arg-type]
    world.stations["a"].rates = np.tile([9.6, 5.0, 5.0, 5.0], 8)
    world.stations["b"].rates = np.full(32, 5.0)
    world.stations["a"].backlog = np.tile([5.0, 0.0, 0.0, 0.0], 8)
    found = make_policy("streamswitch").propose(world.estimate(), world.sla, world.limits)
    (without,) = [one for one in found.options if one.action == "no change"]
    assert found.plan is not None and found.predicted_s is not None
    assert found.predicted_s < without.predicted_s < math.inf


@pytest.mark.parametrize("policy", ["penstock", "streamswitch"])
def test_loops_count_in_what_is_predicted_and_in_the_share_of_the_bound(policy: str) -> None:
    once, thrice = (
        make_policy(policy).propose(w.estimate(), w.sla, w.limits) for w in (looped(1), looped(3))
    )
    rate = 100.0 / 5  # of each task, at one visit
    usable = {"penstock": 100.0, "streamswitch": 80.0}[
        policy
    ]  # streamswitch predicts what is left of it after ε
    assert once.options[0].predicted_s == pytest.approx(1 / (usable - rate))
    assert thrice.options[0].predicted_s == pytest.approx(3 / (usable - 3 * rate))
    assert "333 ms" in thrice.symptom, "a third of the bound is left for each visit"
