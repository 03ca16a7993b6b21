"""Whole topologies in process: the story with deaths in it equals the undisturbed one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import Stream
from penstock.errors import CheckpointError, DeclarationError, OperatorError
from penstock.sim.inprocess import Driver
from penstock.testing import (
    Crash,
    DidNotFinish,
    LoseLease,
    ManualClock,
    Pause,
    assert_frames_equal,
    run,
    script,
)

SCHEMA = "user string, amount long"
ROWS = [("ann", 1), ("bob", 2), ("ann", 3), ("cid", 1), ("bob", 5), ("ann", 7)]


def each(key: Any, rows: list[Any], state: Any) -> Iterator[Any]:
    """Put out the running total after each row: does not depend on where epochs begin and end."""
    for row in rows:
        state.total.update((state.total.get() or 0) + row.amount)
        yield key.user, row.amount, state.total.get()


def totals(source: Stream) -> Stream:
    state = {"total": penstock.ValueState("long")}
    return source.groupBy("user").apply_rows(each, schema=f"{SCHEMA}, total long", state=state, name="totals")


def last(table: pa.Table) -> dict[str, Any]:
    return {row["user"]: row["total"] for row in table.to_pylist()}


@pytest.mark.parametrize("seed", range(6))
def test_a_story_with_deaths_equals_the_story_without(seed: int) -> None:
    quiet = run(totals(script(ROWS, schema=SCHEMA)), seed=seed)
    a, b, c, d, e, f = ROWS
    story = [
        a,
        Crash(),
        b,
        c,
        LoseLease(),
        d,
        Pause("1 minute"),
        Crash(),
        Crash(),
        e,
        LoseLease(),
        f,
        Crash(),
    ]
    assert_frames_equal(run(totals(script(story, schema=SCHEMA)), seed=seed), quiet)
    assert last(quiet) == {"ann": 11, "bob": 7, "cid": 1}


def test_seeds_differ_in_how_far_rows_have_come_when_the_driver_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[tuple[int, int]] = []
    crash = Driver.crash

    def noted(driver: Driver) -> None:
        known.append((driver.engine.chains["source"].offset, sum(t.num_rows for *_, t in driver.sink.calls)))
        crash(driver)

    monkeypatch.setattr(Driver, "crash", noted)
    for seed in range(12):
        run(totals(script([*ROWS[:4], Crash(), *ROWS[4:]], schema=SCHEMA)), seed=seed)
    assert len(known) == 12 and all(offset <= 4 for offset, _ in known)
    assert {offset for offset, _ in known} == {0, 4}, "never before, or never after, the rows were committed"
    assert len({rows for _, rows in known}) > 1


def test_every_death_of_a_script_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    died: list[str] = []
    crash, kill = Driver.crash, Driver.kill
    monkeypatch.setattr(Driver, "crash", lambda driver: (died.append("driver"), crash(driver)))
    monkeypatch.setattr(Driver, "kill", lambda driver, lease: (died.append("lease"), kill(driver, lease)))
    run(totals(script([Crash(), ROWS[0], LoseLease(), ROWS[1], Crash()], schema=SCHEMA)))
    assert died == ["driver", "lease", "driver"]


def test_a_sink_epoch_that_is_handed_over_twice_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drivers: list[Driver] = []
    restart = Driver.restart
    monkeypatch.setattr(Driver, "restart", lambda driver: (drivers.append(driver), restart(driver)))
    story = [item for row in ROWS[:4] for item in (row, Crash())]
    for seed in range(60):
        table = run(totals(script(story, schema=SCHEMA)), seed=seed)
        assert table.num_rows == 4
        epochs = [epoch for _, epoch, _ in drivers[-1].sink.calls]
        if len(epochs) > len(set(epochs)):
            return
    pytest.fail("no seed let the driver die between the side effect of a sink epoch and its record")


def test_the_same_seed_is_the_same_run() -> None:
    story = [*ROWS[:3], Crash(), *ROWS[3:], LoseLease()]
    runs = [run(totals(script(story, schema=SCHEMA)), seed=5).to_pylist() for _ in range(2)]
    assert runs[0] == runs[1]


def test_several_sources_and_operators_run_together() -> None:
    left = script([("ann", 1), Crash(), ("bob", 2)], schema=SCHEMA, name="left")
    right = penstock.from_rows([("ann", 10), ("cid", 30)], schema=SCHEMA, name="right")
    counted = totals(left.union(right)).groupBy("user").agg(penstock.count().alias("n"), name="counted")
    rows = {row["user"]: row["n"] for row in run(counted, seed=3).to_pylist()}
    assert rows == {"ann": 2, "bob": 1, "cid": 1}


def test_a_generated_source_with_a_limit_runs_at_its_rate() -> None:
    def make(offset: int, count: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"id": pa.array(range(offset, offset + count), pa.int64())})

    clock = ManualClock("2026-01-01")
    stream = penstock.generate(make, schema="id long", rate=10, limit=50)
    assert run(stream, clock=clock).column("id").to_pylist() == list(range(50))
    assert 5 < (clock.now - ManualClock("2026-01-01").now).total_seconds() < 8


def test_long_pauses_cost_no_time_and_move_the_clock() -> None:
    clock = ManualClock("2026-01-01")
    story = [Pause("1 day"), ROWS[0], Pause("30 days"), ROWS[1], Crash(), Pause("4 weeks")]
    assert run(totals(script(story, schema=SCHEMA)), clock=clock).num_rows == 2
    assert f"{clock.now:%Y-%m-%d}" == "2026-03-01"


def test_many_rows_are_worked_off_in_few_epochs() -> None:
    rows = [(f"user{at % 50}", at) for at in range(20_000)]
    table = run(totals(penstock.from_rows(rows, schema=SCHEMA)))
    assert table.num_rows == 20_000


def test_what_an_operator_raises_is_what_a_query_would_raise() -> None:
    def broken(key: Any, rows: list[Any], state: Any) -> None:
        raise ValueError(f"no price for {key.user}")

    stream = (
        script(ROWS[:1], schema=SCHEMA).groupBy("user").apply_rows(broken, schema="x long", name="prices")
    )
    with pytest.raises(
        OperatorError, match=r"operator 'prices' failed for key \('ann',\): ValueError: no price"
    ) as e:
        run(stream)
    assert "in broken" in str(e.value)


def test_a_run_that_does_not_end_says_so_and_where_rows_are() -> None:
    ring = penstock.loop("again", schema=SCHEMA)
    on = script(ROWS[:1], schema=SCHEMA).union(ring)
    round_ = on.groupBy("user").apply_rows(lambda key, rows, state: rows, schema=SCHEMA, name="round")
    ring.feed(round_)
    with pytest.raises(
        DidNotFinish, match=r"did not finish within 2 seconds of virtual time.*; give it longer"
    ):
        run(round_, within="2 seconds")


def test_a_source_without_end_or_on_spark_is_refused() -> None:
    endless = penstock.generate(lambda offset, count: None, schema="id long", rate=10, name="ticks")
    with pytest.raises(DeclarationError, match=r"source 'ticks' has no end.*limit="):
        run(endless)
    node = penstock.topology.stream.Node("orders", "dataframe", endless.schema)
    with pytest.raises(DeclarationError, match=r"source 'orders' is a DataFrame, which needs Spark.*script"):
        run(Stream(node))
    with pytest.raises(DeclarationError, match=r"run\(\.\.\.\) takes a stream, not 3"):
        run(3)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match=r"run\(within=\.\.\.\): 'soon' is no duration"):
        run(script([], schema=SCHEMA), within="soon")


def test_a_mode_that_a_query_refuses_is_refused_here() -> None:
    counted = script(ROWS, schema=SCHEMA).groupBy("user").count()
    with pytest.raises(DeclarationError, match="outputMode 'complete' is not available"):
        run(counted, outputMode="complete")
    assert run(counted, outputMode="update").num_rows >= 3


def test_a_checkpoint_carries_state_from_run_to_run_and_knows_its_topology(tmp_path: Path) -> None:
    kept, clock = tmp_path / "checkpoint", ManualClock()
    first = run(totals(script(ROWS[:2], schema=SCHEMA)), checkpoint=kept, clock=clock)
    more = run(totals(script(ROWS, schema=SCHEMA)), checkpoint=kept, clock=clock)
    assert (first.num_rows, more.num_rows) == (2, 4), "the second run goes on at the third row"
    assert last(pa.concat_tables([first, more])) == {"ann": 11, "bob": 7, "cid": 1}
    with pytest.raises(CheckpointError):
        run(script(ROWS, schema=SCHEMA).groupBy("amount").count(), checkpoint=kept)


def test_a_run_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.testing.runs.os.access", lambda *_: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run(totals(script([*ROWS, Crash()], schema=SCHEMA)))
    assert list(tmp_path.iterdir()) == []
