"""A data plane of a few lines: one operator, seeded arrivals, tasks that serve their shards first in, first out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from penstock.control.apply.actuator import Outcome, Ticket
from penstock.control.measure.sample import ExecutorSample, NodeSample, Sample, TaskSample
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.errors import PlanError


class FakePlane:
    """`step` lets time pass and returns a sample; as an actuator it carries out plans at once, or in `delay` steps."""

    def __init__(self, rates: list[float], k: int = 2, row_s: float = 0.005, seed: int = 0) -> None:
        self.rates, self.row_s = np.array(rates), row_s
        self.rng = np.random.default_rng(seed)
        self.plan = ExecutorPlan(dict.fromkeys(range(k), "n1"), np.arange(len(rates), dtype=np.int32) % k)
        self.arrived, self.completed = np.zeros(len(rates), np.int64), np.zeros(len(rates), np.int64)
        self.busy_s = np.zeros(len(rates))
        self.done = dict.fromkeys(self.plan.tasks, (0.0, 0))
        self.at_s, self.applied, self.delay, self.due = 0.0, list[Plan](), 0, dict[int, float]()
        self.refuse: str | None = None
        self.extra_s = 0.0

    def step(self, seconds: float = 1.0) -> Sample:
        self.at_s += seconds
        self.arrived = self.arrived + self.rng.poisson(self.rates * seconds)
        worst = 0.0
        for task in self.plan.tasks:
            mine = self.plan.task_of == task
            waiting = (self.arrived - self.completed) * mine
            served = min(int(waiting.sum()), int(seconds / self.row_s))
            share = waiting * served // max(int(waiting.sum()), 1)
            self.completed = self.completed + share
            self.busy_s = self.busy_s + share * self.row_s
            busy_s, rows = self.done.get(task, (0.0, 0))
            self.done[task] = (busy_s + share.sum() * self.row_s, rows + int(share.sum()))
            worst = max(worst, self.row_s * (1 + float((waiting - share).sum())))
        return self.sample(worst + self.extra_s)

    def sample(self, latency_s: float | None = None) -> Sample:
        tasks = tuple(TaskSample(i, n, *self.done.get(i, (0.0, 0))) for i, n in self.plan.tasks.items())
        state = np.full(len(self.rates), 1000, np.int64)
        match = ExecutorSample(
            "match", self.plan.task_of, self.arrived, self.completed, self.busy_s, state, tasks
        )
        nodes = {"n1": NodeSample("n1", 8, 0.2), "n2": NodeSample("n2", 8, 0.1)}
        return Sample(self.at_s, {"match": replace(match, latency_s=latency_s)}, nodes, latency_s=latency_s)

    def apply(self, plan: Plan) -> Ticket:
        if self.refuse:
            raise PlanError(self.refuse)
        self.applied.append(plan)
        self.plan = plan.executors.get("match", self.plan)
        self.due[len(self.applied)] = self.at_s + self.delay
        return Ticket(len(self.applied))

    def current(self) -> Mapping[str, ExecutorPlan]:
        return {"match": self.plan}

    def status(self, ticket: Ticket) -> Outcome | None:
        return Outcome(True, moved_shards=1) if self.at_s >= self.due[ticket.number] else None
