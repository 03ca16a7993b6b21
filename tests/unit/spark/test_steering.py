"""The thread of a control loop: what a turn that fails, and a query that ends, do to it."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.spark.hub import HubOver
from penstock.spark.steering import MENTIONED_FAILURES, Steering


def steer(errors: list[Exception]) -> Steering:
    """A loop whose turns fail one after the other, until its query is over."""

    def refresh(loop: Any) -> None:
        if errors:
            raise errors.pop(0)

    loop: Any = SimpleNamespace(journal=SimpleNamespace(close_run=lambda: None))
    steering = Steering(loop, lambda: None, 0.001, refresh)
    steering._thread.join(5.0)
    assert not steering._thread.is_alive()
    return steering


def test_a_query_that_ends_in_the_middle_of_a_turn_ends_the_loop_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors: list[Exception] = [HubOver("the query has ended"), ValueError("never reached")]
    with caplog.at_level(logging.DEBUG, "penstock"):
        steer(errors).close()
    assert not caplog.records and len(errors) == 1


def test_turns_that_fail_are_logged_a_few_times_and_the_next_is_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors: list[Exception] = [ValueError(str(number)) for number in range(2 * MENTIONED_FAILURES)]
    with caplog.at_level(logging.ERROR, "penstock"):
        steer(errors).close()
    assert len(caplog.records) == MENTIONED_FAILURES and not errors
