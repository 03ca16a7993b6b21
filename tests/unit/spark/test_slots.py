"""Slots that leases may have while nodes come and go."""

from __future__ import annotations

from penstock.spark.slots import usable_slots

THREE = {"0": 4, "1": 4, "2": 4}


def test_slots_of_a_node_that_is_drained_are_not_for_use() -> None:
    assert usable_slots(12, THREE, ()) == 12
    assert usable_slots(12, THREE, {"2"}) == 8


def test_slots_of_a_node_that_spark_is_ending_are_taken_off_once() -> None:
    assert usable_slots(8, THREE, {"2"}) == 8, "it is listed until its process is gone, and not counted"
    assert usable_slots(8, {"0": 4, "1": 4}, {"2"}) == 8
    assert usable_slots(8, THREE, {"1", "2"}) == 4


def test_a_node_that_is_counted_before_it_is_listed_may_be_used() -> None:
    assert usable_slots(12, {"0": 4, "1": 4}, ()) == 12
    assert usable_slots(12, {"0": 4, "1": 4}, {"1"}) == 8
