"""Files cut off, deleted, swapped, stale or foreign: refused by name, or a state that leads to the same results."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.faults import damage
from tests.faults.damage import Bench, Tally, spread
from tests.faults.runs import fast_disk, scratch

from penstock.dataplane import recordlog
from penstock.errors import CorruptFileError


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with scratch() as folder:
        yield Bench(folder)


def prove(tally: Tally, at_least: int) -> None:
    assert tally.tried >= at_least
    assert not tally.failures, "\n".join(tally.failures[:10])


def test_a_log_cut_anywhere_is_refused_or_is_an_earlier_state_that_leads_to_the_same_rows(
    bench: Bench,
) -> None:
    size = len(bench.read(bench.newest_log()))
    last_frame = list(range(size - 120, size + 1))
    prove(damage.cut_log(bench, [*spread(size, 60), *last_frame]), 150)


def test_a_data_file_that_is_cut_off_is_refused_by_name_when_it_is_needed(bench: Bench) -> None:
    name = damage.last_data_file(bench)
    tally = damage.cut_file(bench, name, spread(len(bench.read(name)), 30))
    prove(tally, 25)
    assert tally.refused > 5


@pytest.mark.parametrize("name", ["meta", "drivers/g000002.claim", "drivers/heartbeat", "log/newest"])
def test_a_small_file_that_is_cut_off_is_never_taken_for_another_state(bench: Bench, name: str) -> None:
    prove(damage.cut_file(bench, name, spread(len(bench.read(name)), 6)), 6)


def test_every_deleted_file_is_missed_or_not_needed(bench: Bench) -> None:
    tally = damage.delete_files(bench)
    prove(tally, len(bench.files))
    assert tally.refused >= len(bench.run.live), "every live data file must be missed, and the log"


def test_the_newest_log_part_is_missed_though_an_older_one_is_there(bench: Bench) -> None:
    outcome = bench.start({bench.newest_log(): None})
    assert outcome.refused_by_name(bench.newest_log())


def test_a_log_that_is_gone_altogether_is_not_taken_for_a_new_checkpoint(bench: Bench) -> None:
    logs = {name: None for name in bench.files if name.endswith(".log")}
    assert bench.start(logs).refused_by_name(bench.newest_log())


def test_swapped_files_are_refused_or_not_needed(bench: Bench) -> None:
    tally = damage.swap_files(bench, 40)
    prove(tally, 40)
    assert tally.refused > 20


def test_swapped_log_parts_are_not_taken_for_an_earlier_state(bench: Bench) -> None:
    parts = sorted(name for name in bench.files if name.endswith(".log"))[-2:]
    checkpoint = bench.place({parts[0]: bench.read(parts[1]), parts[1]: bench.read(parts[0])})
    with pytest.raises(CorruptFileError, match="swapped"):
        recordlog.read_tail(fast_disk(), checkpoint)


def test_stale_files_are_refused_or_lead_to_the_same_rows(bench: Bench) -> None:
    prove(damage.stale_files(bench), 2)


def test_files_of_another_query_are_refused_or_not_needed(bench: Bench) -> None:
    with scratch() as folder:
        prove(damage.foreign_files(bench, Bench(folder, seed=11)), 10)
