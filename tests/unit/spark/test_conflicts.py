from __future__ import annotations

import pytest

from penstock.spark.conflicts import effective_max_failures, find_conflicts, parse_version

SUITED = {
    "spark.master": "spark://host:7077",
    "spark.task.maxFailures": "1",
    "spark.scheduler.mode": "FAIR",
    "spark.python.unix.domain.socket.enabled": "true",
}


def test_a_session_that_suits_leases_has_no_conflicts() -> None:
    assert find_conflicts(SUITED) == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.dynamicAllocation.enabled", "true"),
        ("spark.python.worker.idleTimeoutSeconds", "30"),
        ("spark.python.worker.idleTimeoutSeconds", "5min"),
        ("spark.executor.pyspark.memory", "1g"),
    ],
)
def test_a_setting_that_leases_cannot_live_with_is_fatal_and_named(setting: str, value: str) -> None:
    (conflict,) = find_conflicts({**SUITED, setting: value})
    assert conflict.fatal
    assert setting in str(conflict)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.task.maxFailures", "4"),
        ("spark.speculation", "true"),
        ("spark.python.unix.domain.socket.enabled", "false"),
        ("spark.scheduler.mode", "FIFO"),
        ("spark.excludeOnFailure.enabled", "true"),
        ("spark.locality.wait", "0"),
        ("spark.locality.wait", "500ms"),
        ("spark.locality.wait.process", "0s"),
    ],
)
def test_a_setting_that_works_against_leases_is_named_with_its_effect(setting: str, value: str) -> None:
    (conflict,) = find_conflicts({**SUITED, setting: value})
    assert not conflict.fatal
    assert str(conflict).startswith(f"{setting}={value}: ")
    assert conflict.effect
    assert conflict.fix


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.dynamicAllocation.enabled", "false"),
        ("spark.python.worker.idleTimeoutSeconds", "0"),
        ("spark.python.worker.idleTimeoutSeconds", "0s"),
        ("spark.speculation", "FALSE"),
        ("spark.scheduler.mode", "fair"),
        ("spark.locality.wait", "3s"),
    ],
)
def test_a_setting_at_its_harmless_value_is_no_conflict(setting: str, value: str) -> None:
    assert find_conflicts({**SUITED, setting: value}) == []


def test_the_defaults_of_a_plain_cluster_session_are_only_warned_of() -> None:
    conflicts = find_conflicts({"spark.master": "spark://host:7077"})
    assert [conflict.setting for conflict in conflicts] == [
        "spark.task.maxFailures",
        "spark.python.unix.domain.socket.enabled",
        "spark.scheduler.mode",
    ]
    assert not any(conflict.fatal for conflict in conflicts)


def test_fatal_conflicts_come_first() -> None:
    conflicts = find_conflicts({"spark.speculation": "true", "spark.executor.pyspark.memory": "1g"})
    assert [conflict.fatal for conflict in conflicts] == sorted(
        (conflict.fatal for conflict in conflicts), reverse=True
    )


@pytest.mark.parametrize(
    ("master", "tries"),
    [("local", 1), ("local[4]", 1), ("local[*]", 1), ("local[4,3]", 3), ("local[*, 2]", 2),
     ("spark://h:1", 7), ("local-cluster[2,1,1024]", 7)],
)  # fmt: skip
def test_in_local_mode_the_master_says_how_often_a_task_is_tried(master: str, tries: int) -> None:
    assert effective_max_failures({"spark.master": master, "spark.task.maxFailures": "7"}) == tries


@pytest.mark.parametrize(
    ("version", "parsed"), [("4.3.0", (4, 3)), ("4.1.0.dev2", (4, 1)), ("3.5.1", (3, 5)), ("odd", (0, 0))]
)
def test_versions_compare_by_major_and_minor(version: str, parsed: tuple[int, int]) -> None:
    assert parse_version(version) == parsed
