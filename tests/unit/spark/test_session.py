"""What is said of a session that the user brings, and what is done to it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.spark.conflicts import find_conflicts
from penstock.spark.session import hide_progress_bar, tell_conflicts

USERS = {"spark.master": "local[4]"}


def test_all_that_works_against_leases_is_one_warning_with_what_to_set() -> None:
    conflicts = find_conflicts(USERS)
    assert len(conflicts) == 2
    told = tell_conflicts(conflicts)
    assert told.startswith(
        "2 settings of this SparkSession work against leases; penstock.session() opens one without"
    )
    assert all(f"{one.setting}={one.value}" in told and one.fix in told for one in conflicts)
    assert tell_conflicts(conflicts[:1]) == str(conflicts[0])


class Bar:
    def __init__(self, defined: bool) -> None:
        self.defined, self.called = defined, list[str]()

    def isDefined(self) -> bool:
        return self.defined

    def get(self) -> Any:
        return SimpleNamespace(
            finishAll=lambda: self.called.append("finishAll"), stop=lambda: self.called.append("stop")
        )


def session(bar: Bar | None) -> Any:
    java = SimpleNamespace() if bar is None else SimpleNamespace(progressBar=lambda: bar)
    return SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: java)))


def test_the_bar_of_stages_that_run_is_switched_off_where_there_is_one() -> None:
    bars = Bar(True), Bar(False)
    for bar in (*bars, None):  # None: a Spark without that way to it
        hide_progress_bar(session(bar))
    assert [bar.called for bar in bars] == [["finishAll", "stop"], []]
