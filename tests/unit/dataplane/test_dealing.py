"""Which lease serves which task: dealt evenly, moved no more than needed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.dataplane.dealing import TaskSlot, assign_tasks, plan_moves

LEASES = ["a", "b", "c", "d"]


def slots_of(homes: list[str | None], stages: int = 2) -> list[TaskSlot]:
    return [TaskSlot(f"s{number % stages}", number // stages, home) for number, home in enumerate(homes)]


def loads(slots: list[TaskSlot], leases: list[str]) -> list[int]:
    return sorted(sum(1 for slot in slots if slot.home == lease) for lease in leases)


homes = st.lists(st.sampled_from([None, *LEASES]), min_size=1, max_size=9)


@given(homes, st.integers(1, 4))
def test_after_dealing_and_moving_no_lease_serves_two_more_than_another(
    given_homes: list[str | None], count: int
) -> None:
    leases = LEASES[:count]
    slots = slots_of([home if home in leases else None for home in given_homes])
    for slot, lease in assign_tasks(slots, leases, count):
        slot.lease = lease
    for slot, lease in plan_moves(slots, leases):
        assert slot.lease != lease
        slot.moving_to = lease
    assert all(slot.home in leases for slot in slots)
    spread = loads(slots, leases)
    assert spread[-1] - spread[0] <= 1
    assert plan_moves(slots, leases) == [], "a second look finds nothing more to do"


@given(homes, st.integers(1, 4))
def test_no_more_tasks_move_than_a_fair_share_needs(given_homes: list[str | None], count: int) -> None:
    leases = LEASES[:count]
    slots = slots_of([home for home in given_homes if home in leases])
    before = {lease: sum(1 for slot in slots if slot.lease == lease) for lease in leases}
    fair = len(slots) // count
    extra = len(slots) % count
    # The cheapest even dealing leaves each lease what it has, up to its share; the busiest get the remainder.
    shares = dict(
        zip(
            sorted(leases, key=lambda lease: -before[lease]),
            [fair + (n < extra) for n in range(count)],
            strict=True,
        )
    )
    needed = sum(max(0, before[lease] - shares[lease]) for lease in leases)
    assert len(plan_moves(slots, leases)) <= needed


def test_a_lease_that_comes_back_gets_tasks_of_different_stages() -> None:
    slots = slots_of(["a"] * 4)
    moves = plan_moves(slots, ["a", "b"])
    assert sorted(slot.stage for slot, _ in moves) == ["s0", "s1"]
    assert {lease for _, lease in moves} == {"b"}


def test_a_task_on_its_way_is_counted_where_it_goes() -> None:
    slots = slots_of(["a", "a"])
    slots[0].moving_to = "b"
    assert plan_moves(slots, ["a", "b"]) == []


def test_the_first_lease_does_not_take_everything_when_more_are_expected() -> None:
    slots = slots_of([None] * 4)
    assert len(assign_tasks(slots, ["a"], 2)) == 2
