"""How many executors a driver carries: the search, and one small trial on the real engine, hub and log."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.driver_leases import Order, answer
from penstock.bench.driver_load import (
    FIRST_TRIAL,
    Trial,
    operators_in_a_row,
    propose_executors,
    resolve_carried,
    run_trial,
)
from penstock.dataplane import messages, records


@given(fixed=st.floats(0.0, 0.1), each=st.floats(0.002, 0.1))
def test_the_search_ends_where_half_a_core_is_used(fixed: float, each: float) -> None:
    trials: list[Trial] = []
    for _ in range(3):
        executors = propose_executors(trials)
        trials.append(Trial(executors, fixed + each * executors, 0.1))
    at_half = (0.5 - fixed) / each
    assert resolve_carried(trials) == pytest.approx(at_half, abs=1.5 + 0.05 * at_half)


def test_executors_that_lose_their_pace_are_not_carried_though_the_driver_is_not_busy() -> None:
    trials = [Trial(16, 0.1, 0.1), Trial(80, 0.4, 0.3), Trial(40, 0.2, 0.1)]
    assert resolve_carried(trials) == 40


def test_a_driver_that_never_kept_the_pace_carries_none() -> None:
    assert resolve_carried([Trial(16, 0.1, 0.5)]) == 0


def test_the_first_trial_needs_no_other() -> None:
    assert propose_executors([]) == FIRST_TRIAL


def test_operators_stand_in_a_row_between_one_source_and_one_sink() -> None:
    stages = operators_in_a_row(3).stages
    assert list(stages) == ["rows", "op0", "op1", "op2", "sink"]
    assert [stages[name].inputs[0].producer for name in ("op0", "op1", "op2")] == ["rows", "op0", "op1"]


def test_a_lease_without_work_reports_all_rows_it_was_asked_for() -> None:
    order = Order(("127.0.0.1", 1), {}, {"rows": (0, 256)})
    done = answer(order, "lease0", messages.Work("rows", 0, 1, 0, 1, offsets=(100, 1_100)))
    assert isinstance(done, messages.Done)
    assert done.part.rows_in == 1_000
    assert int(np.frombuffer(done.part.segments[0].shard_rows, np.uint32).sum()) == 1_000


def test_a_lease_without_work_changes_every_shard_it_was_given() -> None:
    order = Order(("127.0.0.1", 1), {}, {"op0": (1, 256)})
    mine = records.pack_u16(np.arange(128, dtype=np.uint16))
    work = messages.Work("op0", 1, 1, 0, 1, groups=[messages.TaskGroup(mine, [])], snapshots=mine[:4])
    done = answer(order, "lease0", work)
    assert isinstance(done, messages.Done)
    assert done.part.changed == mine
    assert [snapshot.shard for snapshot in done.part.snapshots] == [0, 1]


def test_a_small_trial_keeps_its_pace_and_costs_the_driver_something() -> None:
    trial = run_trial(2, window_s=1.0)
    assert trial.executors == 2
    assert 0.0 < trial.cores < 1.0
    assert trial.epoch_s >= 0.09
