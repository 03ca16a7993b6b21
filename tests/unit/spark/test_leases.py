from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.dataplane.dealing import TaskSlot
from penstock.dataplane.program import Program
from penstock.spark import leases
from penstock.spark.leases import Asked, LeaseOffice, choose_node, describe_lease, reason_in, tenants
from penstock.spark.slots import Node


class Job:
    """A job of Spark's as the office sees it."""

    def __init__(self) -> None:
        self.done = self.cancelled = False

    def isDone(self) -> bool:
        return self.done

    def get(self) -> None: ...

    def cancel(self, interrupt: bool) -> None:
        self.done = self.cancelled = True


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> LeaseOffice:
    monkeypatch.setattr(leases, "_offices", [])
    monkeypatch.setattr(leases, "slots", lambda spark: 8)
    return make_office(SimpleNamespace(sparkContext=SimpleNamespace(master="local[8]")))


def make_office(spark: Any) -> LeaseOffice:
    return LeaseOffice(spark, Program({}), ("127.0.0.1", 1), 1, "/nowhere", "test")


def ask(office: LeaseOffice) -> str:
    offer = office.prepare()
    office.asked[offer.lease] = Asked(offer, Job())
    return offer.lease


def test_a_lease_that_was_given_up_counts_until_its_job_has_ended(office: LeaseOffice) -> None:
    name = ask(office)
    office.note_up(name, "1")
    office.give_up(name)
    assert not office.asked and office.jobs() == 1
    assert office.room(reserve=2) == 5
    office.lost[name].future.done = True
    assert [(over.name, over.served) for over in office.ended()] == [(name, True)]
    assert office.jobs() == 0


def test_a_lease_that_was_given_up_and_lingers_is_cancelled(
    office: LeaseOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = ask(office)
    job = office.asked[name].future
    office.give_up(name)
    assert office.lingering() == []
    monkeypatch.setattr(leases, "LOST_GRACE_S", -1.0)
    assert office.lingering() == [name]
    office.cancel(name)
    assert job.cancelled and office.jobs() == 0


def test_queries_of_one_session_share_its_slots_and_others_have_their_own(office: LeaseOffice) -> None:
    other, elsewhere = (
        make_office(office._spark),
        make_office(SimpleNamespace(sparkContext=SimpleNamespace(master="local[8]"))),
    )
    for _ in range(3):
        ask(other)
    assert office.capacity(reserve=1) == 4
    assert other.capacity(reserve=1) == elsewhere.capacity(reserve=1) == 7
    other.close()
    assert office.capacity(reserve=1) == 7


def test_a_lease_that_never_connects_is_overdue(office: LeaseOffice, monkeypatch: pytest.MonkeyPatch) -> None:
    up, late = ask(office), ask(office)
    office.note_up(up, "1")
    monkeypatch.setattr(leases, "CONNECT_TIMEOUT_S", -1.0)
    assert office.overdue() == [late]


NODES = [Node("0", "host", 2), Node("1", "host", 4), Node("2", "host", 2)]


def test_a_lease_prefers_the_node_that_is_wanted_for_it_whatever_it_holds_already() -> None:
    assert choose_node(NODES, ["0", "0", "0"], "0").executor_id == "0"


def test_without_a_wanted_node_or_with_one_that_is_gone_the_emptiest_is_preferred() -> None:
    for wanted in (None, "9"):
        assert choose_node(NODES, ["0", "1", "1"], wanted).executor_id == "2"
        assert choose_node(NODES, ["0", "1", "2"], wanted).executor_id == "1"
        assert choose_node(NODES, [], wanted).executor_id == "1"


def test_leases_that_come_up_elsewhere_than_wanted_are_counted_and_those_without_a_wish_are_not(
    office: LeaseOffice,
) -> None:
    there, elsewhere, anywhere = ask(office), ask(office), ask(office)
    office.asked[there].wanted = office.asked[elsewhere].wanted = "1"
    for name, node in ((there, "1"), (elsewhere, "2"), (anywhere, "2"), (elsewhere, "2")):
        office.note_up(name, node)
    assert (office.landed, office.landed_elsewhere) == (1, 1)
    assert office.asked[elsewhere].node == "2"


def test_a_node_knows_the_queries_that_have_leases_on_it_until_their_jobs_have_ended(
    office: LeaseOffice,
) -> None:
    context = office._spark.sparkContext
    name = ask(office)
    office.note_up(name, "1")
    assert tenants(context, "1") == ["test"] and tenants(context, "2") == []
    assert tenants(SimpleNamespace(), "1") == []
    office.give_up(name)
    assert tenants(context, "1") == ["test"]
    office.lost[name].future.done = True
    office.ended()
    assert tenants(context, "1") == []


WRAPPED = """An error occurred while calling o77.get.
: java.util.concurrent.ExecutionException: Exception thrown by job
	at org.apache.spark.JavaFutureActionWrapper.get(FutureAction.scala:320)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
{}
	at org.apache.spark.api.python.BasePythonRunner.compute(PythonRunner.scala:637)
"""


def test_the_reason_of_a_failed_job_is_what_its_task_raised() -> None:
    assert reason_in(WRAPPED.format("ConnectionRefusedError: [Errno 111] refused")).startswith(
        "ConnectionRefused"
    )


def test_a_node_without_penstock_is_told_what_to_install() -> None:
    found = reason_in(WRAPPED.format("ModuleNotFoundError: No module named 'penstock'"))
    assert "No module named 'penstock'" in found and "install Penstock" in found
    daemon = "EOFException occurred while reading the port number from penstock.spark.daemon's stdout"
    assert "install Penstock" in reason_in(WRAPPED.format(daemon))


def test_a_lease_is_named_by_its_tasks_as_people_count_them() -> None:
    tasks_of = {"match": 4, "stats": 2, "a": 1, "b": 1, "c": 1}
    assert describe_lease([TaskSlot("match", 2)], tasks_of) == "match, task 3 of 4"
    several = [TaskSlot("match", 0), TaskSlot("stats", 1), TaskSlot("match", 3)]
    assert describe_lease(several, tasks_of) == "match, tasks 1, 4 of 4 + stats, task 2 of 2"
    many = [TaskSlot(stage, 0) for stage in tasks_of]
    assert describe_lease(many, tasks_of).endswith("b, task 1 of 1 + 1 more")
    assert describe_lease([], tasks_of) == ""


def test_where_other_queries_hold_the_slots_it_is_said_which_and_what_to_do(office: LeaseOffice) -> None:
    assert "use penstock.session(), local[4], or more executors." in office.no_room(1, 2)
    for label, count in (("counts", 5), ("totals", 2)):
        other = make_office(office._spark)
        other._label = label
        for _ in range(count):
            ask(other)
    text = office.no_room(1, 2)
    assert text.startswith(
        "This SparkSession has 1 task slots free of other queries and Penstock needs at least 2"
    )
    assert "of its 8 (local[8]) queries hold 7: 'counts' 5, 'totals' 2. Stop one of them" in text
    assert "penstock.session(master='local[16]')" in text
