"""The journal: folding, bounds, round trips, and what a cut-off file still tells."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.unit.control.fake_plane import FakePlane

from penstock.control.apply.actuator import Outcome
from penstock.control.apply.codec import JournalError
from penstock.control.apply.journal import (
    Decision,
    Entry,
    Inputs,
    Journal,
    decode_entry,
    encode_entry,
    read_entries,
)
from penstock.control.measure.estimate import Estimate, ExecutorEstimate, NodeEstimate, TaskEstimate
from penstock.control.measure.estimating import Measurer
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.policy.protocol import Limits, Option
from penstock.control.sla import SLA

EMPTY = Inputs(Estimate(0.0, {}, {}), SLA(0.5), Limits(4))


def decision(at_s: float, symptom: str = "", action: str = "no change", **more: Any) -> Decision:
    return Decision(0, at_s, "drs", symptom, action, **more)


def same(one: Any, other: Any) -> bool:
    """Equality that takes NaN for NaN and looks into arrays, their types included."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, each.name), getattr(other, each.name)) for each in fields(one)
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


def test_a_decision_reads_as_one_sentence() -> None:
    acted = decision(
        1, "p99 840 ms over 500 ms: task 3 of match holds 41 % of load", "moved 5 shards to task 1"
    )
    assert str(acted) == (
        "p99 840 ms over 500 ms: task 3 of match holds 41 % of load; moved 5 shards to task 1"
    )
    held = decision(1, "task 3 is busy", "moved 5 shards", refused="cooling down")
    assert str(held) == "task 3 is busy; held back (moved 5 shards): cooling down"


def test_a_decision_has_the_time_of_day_where_the_journal_has_a_clock() -> None:
    lines: list[bytes] = []
    journal = Journal(write=lines.append, clock=iter([1_800_000_000.5, 1_800_000_009.0]).__next__)
    for at in (1, 2, 3):
        journal.add(decision(at, "p99 12 ms under 500 ms"), EMPTY)
    journal.add(decision(9, "by hand", "paused", acted=True), None)
    first, _ = journal.decisions()
    when = datetime.fromtimestamp(1_800_000_000).strftime("%Y-%m-%d %H:%M:%S")
    assert str(first) == f"{when} p99 12 ms under 500 ms; no change; 3 times in 2 s"
    journal.close_run()
    assert [entry.decision.unix_s for entry in read_entries(lines)] == [1_800_000_000.5, 1_800_000_009.0]


def test_lines_of_older_versions_have_no_time_of_day_and_are_read() -> None:
    lines: list[bytes] = []
    Journal(write=lines.append).add(decision(1, "p99 12 ms under 500 ms"), EMPTY)
    line = json.loads(lines[0])
    for name in ("unix_s", "stated"):
        del line["decision"][name]
    (entry,) = read_entries([json.dumps(line)])
    assert entry.decision.unix_s is None and str(entry.decision).startswith("p99 12 ms")


def test_equal_decisions_without_an_action_become_one_entry() -> None:
    lines: list[bytes] = []
    journal = Journal(write=lines.append)
    for at in range(100):
        journal.add(decision(at, f"p99 {at} ms under 500 ms"), EMPTY)
    journal.add(decision(100, "p99 700 ms over 500 ms", "moved 3 shards", acted=True), EMPTY)
    journal.add(decision(101, "p99 12 ms under 500 ms"), EMPTY)
    first, moved, last = journal.decisions()
    assert (first.count, first.at_s, first.until_s) == (100, 0, 99)
    assert str(first) == "p99 0 ms under 500 ms; no change; 100 times in 99 s"
    assert (moved.number, last.number, last.count) == (2, 3, 1)
    assert len(lines) == 4, "one for each entry, and how long the run lasted"
    assert [entry.decision.count for entry in read_entries(lines)] == [100, 1, 1]


@pytest.mark.parametrize(
    "other",
    [
        {"symptom": "something else"},
        {"action": "no change: nothing can help"},
        {"refused": "cooling down"},
        {"acted": True},
    ],
)
def test_decisions_that_differ_in_words_are_not_folded(other: dict[str, Any]) -> None:
    journal = Journal()
    journal.add(decision(0), EMPTY)
    journal.add(decision(1, **other), EMPTY)
    assert len(journal.decisions()) == 2


def test_actions_are_never_folded() -> None:
    journal = Journal()
    for at in range(3):
        journal.add(decision(at, "x", "moved 1 shard", acted=True), EMPTY)
    assert len(journal.decisions()) == 3


def test_a_run_is_cut_where_it_gets_too_long() -> None:
    journal = Journal(fold_s=10)
    for at in range(30):
        journal.add(decision(at), EMPTY)
    assert [one.count for one in journal.decisions()] == [11, 11, 8]


def test_memory_is_bounded_and_numbers_go_on() -> None:
    journal = Journal(capacity=10)
    for at in range(100):
        journal.add(decision(at, action="moved", acted=True), EMPTY)
    assert [one.number for one in journal.decisions()] == list(range(91, 101))
    journal.note_outcome(5, Outcome(True))
    journal.note_outcome(95, Outcome(False, "lost"))
    assert [one.outcome is not None for one in journal.decisions()] == [n == 95 for n in range(91, 101)]


def test_the_error_of_each_model_is_a_mean_over_what_was_observed() -> None:
    journal = Journal()
    for predicted, observed in ((0.1, 0.2), (0.3, 0.2)):
        made = journal.add(decision(0, action="x", acted=True, predicted_s=predicted, model="mmk"), EMPTY)
        journal.note_observed(made.number, observed)
    unbounded = journal.add(decision(0, action="x", acted=True, predicted_s=math.inf, model="mmk"), EMPTY)
    journal.note_observed(unbounded.number, 1.0)
    error = journal.model_errors()["mmk"]
    assert (error.count, error.mean_absolute_ratio, error.mean_ratio) == pytest.approx((2, 0.5, 0.0))


floats = st.floats(allow_nan=True, allow_infinity=True)
words = st.text(max_size=8)


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    shards = draw(st.integers(0, 5))
    numbers = arrays(np.float64, shards, elements=floats)
    executor = ExecutorEstimate(
        draw(words), "match", draw(arrays(np.int32, shards)),
        tuple(TaskEstimate(i, draw(words), draw(floats)) for i in range(draw(st.integers(0, 3)))),
        draw(numbers), draw(numbers), draw(numbers), draw(numbers), draw(arrays(np.int64, shards)), draw(floats),
        measured_s=draw(st.none() | floats),
    )  # fmt: skip
    edges = draw(st.dictionaries(st.tuples(words, words), floats, max_size=3))
    nodes = {"n1": NodeEstimate("n1", 4, draw(floats))}
    return Estimate(draw(floats), {executor.name: executor}, nodes, edges, {"s": draw(floats)}, draw(floats))


@settings(max_examples=40, deadline=None)
@given(estimate=estimates(), predicted=st.none() | floats, seed=st.integers(0, 100))
def test_an_entry_survives_its_line_to_the_last_bit(
    estimate: Estimate, predicted: float | None, seed: int
) -> None:
    then = ExecutorPlan({2: "n1", 0: "n2"}, np.random.default_rng(seed).integers(0, 3, 8).astype(np.int32))
    made = decision(
        1.5, "a \n b", "x", acted=True, options=(Option("x", math.inf), Option("y", 0.5, 1.0, False)),
        predicted_s=predicted, outcome=Outcome(False, "lost", 3),
    )  # fmt: skip
    sla = SLA(0.5, quantile=0.99)
    entry = Entry(made, Inputs(estimate, sla, Limits(4), Plan({"m": then}, 1, ("n3",), {"m": 0.5}), 7))
    line = encode_entry(entry)
    assert b"\n" not in line
    assert same(decode_entry(line), entry)


def test_what_became_known_later_is_put_together_and_a_cut_last_line_is_left_out() -> None:
    lines: list[bytes] = []
    journal = Journal(write=lines.append)
    plane, measurer = FakePlane([10.0] * 16), Measurer()
    measurer.measure(plane.step())
    inputs = Inputs(measurer.measure(plane.step()), SLA(0.5), Limits(4))
    made = journal.add(decision(2, action="moved", acted=True, predicted_s=0.1), inputs)
    journal.note_outcome(made.number, Outcome(True, moved_shards=4))
    journal.note_observed(made.number, 0.2)
    assert len(lines[1]) < len(lines[0]) / 2, "inputs are written once"
    for kept in (lines, [*lines, lines[0][:100]]):
        (entry,) = read_entries(kept)
        assert same(entry, journal.entries()[0])
    with pytest.raises(JournalError, match="line 1 is no decision"):
        read_entries([lines[0][:100], *lines])


def test_a_line_that_a_killed_run_left_does_not_hide_the_runs_after_it() -> None:
    def lines_of(run: str) -> list[bytes]:
        found: list[bytes] = []
        journal = Journal(write=found.append, run=run)
        journal.add(decision(1, f"seen by {run}"), EMPTY)
        journal.add(decision(2, "done", acted=True), EMPTY)
        return found

    first, second = lines_of("one"), lines_of("two")
    found = read_entries([*first, first[1][:40], *second])
    assert [entry.run for entry in found] == ["one", "one", "two", "two"]
    twice = read_entries([*first, first[1][:40], first[0][:30], *second])
    assert [entry.run for entry in twice] == ["one", "one", "two", "two"]
    for broken in ([first[0], first[0][:40], first[1]], [*first, first[1][:40], b"what"]):
        with pytest.raises(JournalError, match="is no decision"):
            read_entries(broken)


def test_fields_of_another_version_do_no_harm() -> None:
    line = encode_entry(Entry(decision(1), EMPTY))
    newer = line.replace(b'"symptom"', b'"colour":"red","symptom"')
    assert decode_entry(newer).decision.symptom == ""
    older = line.replace(b'"count":1,', b"")
    assert older != line and decode_entry(older).decision.count == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("stats1 is busy", "stats2 is busy"),
        ("split match#2: 5 shards", "split match#3: 5 shards"),
        ("gave back node-1", "gave back node-2"),
        ("p99 12 ms within 500 ms", "p95 12 ms within 500 ms"),
    ],
)
def test_a_number_that_is_part_of_a_name_tells_decisions_apart(one: str, other: str) -> None:
    journal = Journal()
    for at, symptom in enumerate((one, other, one)):
        journal.add(decision(at, symptom), EMPTY)
    assert [found.symptom for found in journal.decisions()] == [one, other, one]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("p99 840 ms over 500 ms", "p99 1.2e+03 ms over 500 ms"),
        ("holds 41% of load", "holds 7% of load"),
        ("1,280 rows/s, skewness -0.02", "990 rows/s, skewness 1.5"),
        ("split 3:4:5", "split 4:4:4"),
    ],
)
def test_a_number_that_stands_for_itself_does_not(one: str, other: str) -> None:
    journal = Journal()
    for at, symptom in enumerate((one, other)):
        journal.add(decision(at, symptom), EMPTY)
    assert [found.count for found in journal.decisions()] == [2]
