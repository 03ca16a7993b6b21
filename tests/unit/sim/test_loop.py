from __future__ import annotations

from penstock.sim.loop import START_S, Loop


def test_events_run_in_the_order_of_their_times_and_then_of_their_asking() -> None:
    loop, seen = Loop(), []
    for name, delay in (("late", 2.0), ("first", 1.0), ("second", 1.0)):
        loop.at(delay, lambda name=name: seen.append(name))  # type: ignore[misc]
    loop.run_until(lambda: False, 10.0)
    assert seen == ["first", "second", "late"]
    assert (loop.now, loop.wall()) == (10.0, START_S + 10.0)


def test_running_until_something_holds_stops_there_and_says_whether_it_does() -> None:
    loop, seen = Loop(), []
    for delay in (1.0, 2.0, 3.0):
        loop.at(delay, lambda delay=delay: seen.append(delay))  # type: ignore[misc]
    assert loop.run_until(lambda: len(seen) == 2, 10.0)
    assert seen == [1.0, 2.0]
    assert not loop.run_until(lambda: len(seen) == 9, 0.5)


def test_running_some_events_takes_none_that_is_due_later() -> None:
    loop, seen = Loop(), []
    for delay in (0.001, 0.002, 5.0):
        loop.at(delay, lambda delay=delay: seen.append(delay))  # type: ignore[misc]
    loop.run_some(10, 0.01)
    assert seen == [0.001, 0.002]
    assert loop.now < 1.0


def test_a_trace_depends_on_times_words_and_data() -> None:
    def trace(word: str, data: bytes, delay: float) -> str:
        loop = Loop()
        loop.at(delay, lambda: loop.note(word, data))
        loop.run_one()
        return loop.trace()

    same = trace("a", b"1", 1.0)
    assert same == trace("a", b"1", 1.0)
    assert len({same, trace("b", b"1", 1.0), trace("a", b"2", 1.0), trace("a", b"1", 2.0)}) == 4
