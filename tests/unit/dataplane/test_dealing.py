"""Which lease serves which task: dealt evenly, moved no more than needed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.dataplane.dealing import TaskSlot, assign_tasks, mean_tasks, plan_moves

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


def test_leases_that_are_asked_for_know_their_tasks_and_get_them_in_whatever_order_they_come_up() -> None:
    slots = [TaskSlot("orders", 0), TaskSlot("match", 0), TaskSlot("match", 1), TaskSlot("stats", 0)]
    asked = ["a", "b", "c", "d"]
    meant = mean_tasks(slots, [], [], asked, expected=4)
    named = {lease: [(slot.stage, slot.index) for slot in served] for lease, served in meant.items()}
    assert named == {"a": [("orders", 0)], "b": [("match", 0)], "c": [("match", 1)], "d": [("stats", 0)]}
    up: list[str] = []
    for lease in ("c", "a", "d", "b"):
        up.append(lease)
        for slot, chosen in assign_tasks(slots, up, expected=4):
            slot.lease = chosen
    assert {(slot.stage, slot.index): slot.lease for slot in slots} == {
        task: lease for lease, tasks in named.items() for task in tasks
    }


def test_a_lease_asked_for_later_is_not_meant_for_what_an_awaited_one_will_serve() -> None:
    slots = [TaskSlot("match", 0), TaskSlot("match", 1)]
    mean_tasks(slots, [], [], ["a"], expected=2)
    meant = mean_tasks(slots, [], ["a"], ["b"], expected=2)
    assert [(slot.index, slot.meant_for) for slot in slots] == [(0, "a"), (1, "b")]
    assert [slot.index for slot in meant["b"]] == [1]


def test_what_was_meant_for_a_lease_that_never_came_is_meant_for_the_next() -> None:
    slots = [TaskSlot("match", 0), TaskSlot("match", 1, lease="b")]
    mean_tasks(slots, ["b"], [], ["a"], expected=2)
    mean_tasks(slots, ["b"], [], ["c"], expected=2)
    assert slots[0].meant_for == "c"


def test_a_lease_that_takes_load_off_another_is_meant_for_the_tasks_that_will_move() -> None:
    slots = [TaskSlot("match", 0, lease="a"), TaskSlot("match", 1, lease="a")]
    meant = mean_tasks(slots, ["a"], [], ["b"], expected=2)
    assert [slot.stage for slot in meant["b"]] == ["match"]
    assert all(slot.moving_to is None for slot in slots)
