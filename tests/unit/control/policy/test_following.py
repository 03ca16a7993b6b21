"""What drs remembers of a group: loads without chance, cores that were too few, splits that stay better."""

from __future__ import annotations

from penstock.control.policy.following import HOLDS_S, Followed


def follow(*loads: float, waiting_s: float = 0.0, start_s: float = 100.0) -> Followed:
    followed = Followed()
    for at, load in enumerate(loads):
        followed.look(start_s + at, waiting_s, {"a": load})
    return followed


def test_a_load_that_is_low_for_a_moment_does_not_make_cores_enough_that_were_too_few() -> None:
    followed = follow(*[10.0] * 5)
    followed.note_too_few(12, 104.0)
    followed.look(105.0, 0.0, {"a": 7.0})
    assert followed.floor(105.0) == 13
    for at in range(106, 150):
        followed.look(float(at), 0.0, {"a": 7.0})
    assert followed.floor(149.0) == 1


def test_cores_are_not_noted_as_too_few_for_a_load_that_was_high_for_a_moment() -> None:
    followed = follow(*[10.0] * 30, 16.0)
    followed.note_too_few(12, 130.0)
    followed.look(131.0, 0.0, {"a": 10.0})
    assert followed.floor(131.0) == 13


def test_fewer_cores_that_are_too_few_do_not_make_more_of_them_enough() -> None:
    followed = follow(10.0)
    followed.note_too_few(19, 100.0)
    followed.note_too_few(16, 101.0)
    assert followed.floor(101.0) == 20


def test_another_split_must_be_better_at_every_turn_for_a_while() -> None:
    followed = Followed()
    assert not any(followed.holds(True, float(at)) for at in range(int(HOLDS_S)))
    assert followed.holds(True, HOLDS_S)
    assert not followed.holds(False, HOLDS_S + 1) and not followed.holds(True, HOLDS_S + 2)
