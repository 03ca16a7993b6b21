"""An engine in process that looks to the actuator, and to requests by hand, as one on Spark does."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.faults.plan_stories import driver_on

from penstock.sim.inprocess import Driver
from penstock.spark.nodes import NodeChange
from penstock.spark.slots import Node


class Hub:
    """Answers at once in the test's own thread; what other threads ask waits until that looks for it."""

    def __init__(self) -> None:
        self._own = threading.get_ident()
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def ask(self, question: Callable[[], Any], timeout: float | None = None) -> Any:
        if threading.get_ident() == self._own:
            return question()
        answer: Future[Any] = Future()

        def reply() -> None:
            try:
                answer.set_result(question())
            except Exception as error:
                answer.set_exception(error)

        self._asked.put(reply)
        return answer.result(timeout=10.0)

    def post(self, action: Callable[[], None]) -> None:
        self._asked.put(action)

    def pump(self) -> None:
        """Do what other threads have asked."""
        while not self._asked.empty():
            self._asked.get()()


class Nodes:
    """A negotiator to whom no node comes, and who gives back what is named."""

    def __init__(self, driver: Driver, comes: bool = False) -> None:
        self.driver, self.comes = driver, comes
        self.released: list[tuple[str, ...]] = []
        self.problem = ""

    def nodes(self) -> list[Node]:
        return [Node(name, "host", 4) for name in sorted(self.driver.engine.serving.known_nodes())]

    def acquire(self, total: int, timeout_s: float = 60.0) -> NodeChange:
        names = tuple(node.executor_id for node in self.nodes())
        return NodeChange("acquire", total, names, names, 60.0, "" if self.comes else "1 node did not come")

    def release(self, executor_ids: Collection[str], timeout_s: float = 30.0) -> NodeChange:
        self.released.append(tuple(executor_ids))
        names = tuple(node.executor_id for node in self.nodes())
        left = tuple(name for name in names if name not in executor_ids)
        return NodeChange("release", len(left), names, left, 1.0, self.problem)


def shell_of(driver: Driver) -> Any:
    """What stands for the shell of a query."""
    chores = SimpleNamespace(check_capacity=lambda: None, wake=lambda: None)
    return SimpleNamespace(hub=Hub(), engine=driver.engine, over=False, chores=chores)


def started(folder: Path, *, nodes: int = 2, capacity: int = 6, rows: int = 5_000) -> Driver:
    """A run in the middle of its work, with all shards held; each node is said to have four slots."""
    driver = driver_on(folder, 2, nodes=nodes, capacity=capacity, rows=rows)
    run = driver.engine.runs["fold"]
    assert driver.run_until(lambda: run.chain.epoch > 10 and bool(run.ready.all()))
    names = [f"n{at}" for at in range(nodes)]
    driver.engine.serving.set_nodes(names, dict.fromkeys(names, 4))
    return driver


def until(driver: Driver, shell: Any, holds: Callable[[], Any], step_s: float = 0.02) -> Any:
    """Let virtual and real time pass until something holds."""
    deadline = time.monotonic() + 10.0
    while not (found := holds()):
        assert time.monotonic() < deadline, "did not happen in time"
        shell.hub.pump()
        if step_s:
            driver.run_until(step_s)
        time.sleep(0.002)
    return found
