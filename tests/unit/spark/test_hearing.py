from __future__ import annotations

import logging

import pytest

from penstock.dataplane.messages import Said
from penstock.spark import hearing
from penstock.spark.hearing import LOGGER, Hearing, describe, log_said

PRINTED = Said("match", 2, logging.INFO, "hello", "shard 17, key 'IBM'")


def test_a_text_is_told_with_operator_task_shard_and_key() -> None:
    assert describe(PRINTED) == "match[task 3, shard 17, key 'IBM']: hello"
    assert describe(Said("orders", 0, 20, "hello")) == "orders[task 1]: hello"


def test_without_any_handler_it_goes_to_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log_said(PRINTED)
    assert capsys.readouterr().err == f"{describe(PRINTED)}\n"


def test_a_print_reaches_handlers_whatever_the_level_of_the_root(caplog: pytest.LogCaptureFixture) -> None:
    log_said(PRINTED)
    assert [(one.name, one.levelname, one.message) for one in caplog.records] == [
        (LOGGER, "INFO", describe(PRINTED))
    ]


def test_a_level_set_on_the_logger_itself_holds(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(LOGGER), "level", logging.ERROR)
    log_said(PRINTED)
    log_said(Said("match", 2, logging.ERROR, "worse"))
    assert [one.message for one in caplog.records] == ["match[task 3]: worse"]


def test_what_was_heard_is_logged_in_order_before_it_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(hearing, "log_said", lambda said: logged.append(said.text))
    heard = Hearing()
    for number in range(100):
        heard.hear(Said("match", 0, 20, str(number)))
    heard.close()
    assert logged == [str(number) for number in range(100)]


def test_a_handler_that_fails_keeps_nobody_from_hearing_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []

    def fail_first(said: Said) -> None:
        logged.append(said.text)
        if len(logged) == 1:
            raise ValueError("a handler of the user's")

    monkeypatch.setattr(hearing, "log_said", fail_first)
    heard = Hearing()
    heard.hear(Said("match", 0, 20, "one"))
    heard.hear(Said("match", 0, 20, "two"))
    heard.close()
    assert logged == ["one", "two"]
