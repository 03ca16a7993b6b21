from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from penstock.spark.hub import Hub, HubOver, Listener


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub("127.0.0.1", Listener())
    yield made
    made.close()


def test_what_is_asked_runs_on_the_hubs_thread_and_errors_come_back(hub: Hub) -> None:
    hub.start(lambda error: None)
    assert hub.ask(lambda: threading.current_thread().name) == "penstock-hub"
    with pytest.raises(ZeroDivisionError):
        hub.ask(lambda: 1 // 0)


def test_asking_a_hub_that_does_not_run_fails_at_once(hub: Hub) -> None:
    began = time.monotonic()
    with pytest.raises(HubOver):
        hub.ask(lambda: 1)
    hub.start(lambda error: None)
    hub.close()
    with pytest.raises(HubOver):
        hub.ask(lambda: 1)
    assert time.monotonic() - began < 5


def test_whoever_waits_when_the_hub_ends_is_told(hub: Hub) -> None:
    hub.start(lambda error: None)
    told = threading.Event()

    def ask() -> None:
        try:
            while True:
                hub.ask(lambda: time.sleep(0.01))
        except HubOver:
            told.set()

    threading.Thread(target=ask, daemon=True).start()
    time.sleep(0.1)
    hub.close()
    assert told.wait(5)


def test_an_error_on_the_hubs_thread_is_reported() -> None:
    class Broken(Listener):
        def step(self) -> float:
            raise RuntimeError("in the engine")

    errors: list[BaseException] = []
    hub = Hub("127.0.0.1", Broken())
    hub.start(errors.append)
    with pytest.raises((HubOver, RuntimeError)):
        hub.ask(lambda: 1)
    assert [str(error) for error in errors] == ["in the engine"]
