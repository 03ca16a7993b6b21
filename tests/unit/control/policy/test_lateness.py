"""What counts as late, as measured, and whether more tasks helped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.unit.control.policy.worlds import World, make_station

from penstock.control.measure.sample import F64
from penstock.control.policy.forecasting import Forecaster
from penstock.control.policy.lateness import Late, Lateness, Unhelped
from penstock.control.policy.outlook import Bound
from penstock.control.policy.shortening import find_shorter
from penstock.control.policy.studying import Judging, Study, study


def make_study(k: int = 4, measured_s: float = 1.2, rates: F64 | None = None) -> Study:
    """A calm executor that takes rows by epochs."""
    station = make_station(np.full(64, 10.0) if rates is None else rates, 200.0, k)
    now = World({"op": station}).estimate().executors["op"]
    now = replace(
        now, measured_s=measured_s, commit_s=0.01, processing_s=measured_s / 2, task_of=station.task_of
    )
    forecast = Forecaster(3.0, 5.0).take(0.0, now.arrival_per_s, now.scv_arrival)
    found = study(now, forecast, Bound(1.0, 1.0, measured_s), Judging())
    return replace(found, severe=False, rising=False, strayed=False)


class Looking:
    """Turns of a second at one executor whose bound is a second."""

    def __init__(self) -> None:
        self.lateness, self.at_s = Lateness(), 0.0

    def see(self, one: Study, latencies_s: list[float]) -> Late | None:
        found = None
        for latency_s in latencies_s:
            self.at_s += 1.0
            found = self.lateness.take(self.at_s, "op", [one], latency_s, 1.0, 1.0)
        return found


def is_late(latencies_s: list[float], one: Study | None = None) -> bool:
    found = Looking().see(one or make_study(), latencies_s)
    return found is not None and found.is_late


def test_what_is_measured_over_the_bound_is_late_whatever_was_predicted() -> None:
    assert is_late([1.2] * 20) and not is_late([0.8] * 20)


def test_little_says_nothing_and_a_miss_now_and_then_is_chance() -> None:
    assert Looking().see(make_study(), [1.2] * 10) is None
    assert not is_late(([0.8] * 19 + [1.5]) * 2)


def test_a_backlog_that_is_worked_off_never_counts() -> None:
    assert not is_late([3.0] * 60, replace(make_study(), severe=True))


def test_what_was_late_a_while_ago_is_not_late_now() -> None:
    assert not is_late([1.5] * 15 + [0.5] * 12)


def test_tasks_that_lowered_latency_helped_and_others_did_not() -> None:
    for after_s, unhelped in ((0.97, Unhelped()), (1.36, Unhelped(frozenset({"op"}), added=True))):
        looking, before, then = Looking(), make_study(4), make_study(6)
        assert looking.see(before, [1.36] * 20) is not None
        looking.lateness.widen("op", frozenset({"op"}), [before], 1.36, 0.8)
        found = looking.see(then, [after_s] * 20)
        assert found is not None and looking.lateness.judge("op", [then], found) == unhelped
        assert looking.lateness.judge("op", [then], found) == Unhelped(), "it is told once"


def test_a_plan_that_did_not_happen_leaves_what_was_promised_of_others() -> None:
    for dealt, unhelped in ((True, Unhelped(frozenset({"op"}), added=True)), (False, Unhelped())):
        looking, before, then = Looking(), make_study(4), make_study(6)
        looking.see(before, [1.36] * 20)
        looking.lateness.widen("op", frozenset({"op"}), [before], 1.36, 0.8)
        if dealt:
            looking.see(then, [1.36] * 5)
        looking.lateness.forget()
        found = looking.see(then, [1.36] * 20)
        assert found is not None and looking.lateness.judge("op", [then], found) == unhelped


def test_a_burst_between_turns_makes_them_no_longer() -> None:
    calm, looking = make_study(), Looking()
    lately = [1.1 if turn % 10 == 0 else 0.8 for turn in range(40)]

    def see(latencies_s: list[float], one: Study) -> list[bool]:
        """Whether each turn is late under a bound on windows of ten seconds, which span ten turns."""
        found = []
        for latency_s in latencies_s:
            looking.at_s += 1.0
            late = looking.lateness.take(looking.at_s, "op", [one], latency_s, 1.0, 10.0)
            found.append(late is not None and late.is_late)
        return found

    assert not any(see(lately, calm))
    see([5.0] * 60, replace(calm, severe=True))
    assert not any(see(lately, calm))


def test_what_grows_with_the_load_is_not_blamed_on_tasks() -> None:
    looking, before, then = Looking(), make_study(4), make_study(6, rates=np.full(64, 14.0))
    looking.see(before, [1.36] * 20)
    looking.lateness.widen("op", frozenset({"op"}), [before], 1.36, 0.8)
    found = looking.see(then, [1.4] * 20)
    assert found is not None and looking.lateness.judge("op", [then], found) == Unhelped()


def predict(latency_s: dict[str, float]) -> float:
    return max(latency_s.values())


def test_shards_are_dealt_evenly_before_tasks_are_added() -> None:
    one = make_study(4, 1.1)
    task_of = one.executor.task_of.copy()
    task_of[[8, 16, 24]] = 1
    uneven = make_study(4, 1.1)
    uneven = replace(uneven, tasks=replace(uneven.tasks, at=task_of.astype(np.int64)))
    late = Late(1.1, {"op": 1.1}, {"op": 0.9}, True)
    assert find_shorter([uneven], late, 1.0, predict, 40).more == {"op": 0}
    assert find_shorter([one], late, 1.0, predict, 40).more["op"] > 0


def test_shards_dealt_anew_in_vain_do_not_keep_tasks_from_being_added() -> None:
    looking, before, then = Looking(), make_study(4), make_study(4)
    looking.see(before, [1.36] * 20)
    looking.lateness.widen("op", frozenset({"op"}), [before], 1.36, 1.1)
    task_of = then.executor.task_of.copy()
    task_of[:2] = task_of[1::-1]
    then = replace(then, executor=replace(then.executor, task_of=task_of))
    found = looking.see(then, [1.36] * 20)
    assert found is not None
    assert looking.lateness.judge("op", [then], found) == Unhelped(frozenset({"op"}), added=False)
    assert find_shorter([then], found, 1.0, predict, 40, deals=False).more["op"] > 0


def test_a_diagnosis_says_what_was_compared() -> None:
    late = Late(50.0, {"op": 50.0}, {"op": 0.9}, True)
    found = find_shorter([make_study(8)], late, 1.0, predict, 40)
    assert not found.more
    assert "50000 ms are measured and 900 ms were predicted of op, of a bound of 1000 ms" in found.why_not
    assert "the model sees no number of tasks that does better" in found.why_not
