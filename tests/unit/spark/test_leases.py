from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.dataplane.dealing import TaskSlot
from penstock.dataplane.program import Program
from penstock.spark import leases
from penstock.spark.leases import Asked, LeaseOffice, Stuck, describe_lease, reason_in, tenants
from penstock.spark.silence import FIRST_S, choose_node
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
    monkeypatch.setattr(leases, "_silences", {})
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


def test_a_lease_that_never_connects_is_given_up(
    office: LeaseOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    up, late = ask(office), ask(office)
    office.note_up(up, "1")
    monkeypatch.setattr(leases, "node_of_job", lambda spark, group: "")
    assert office.stuck(()) == []
    monkeypatch.setattr(leases, "CONNECT_TIMEOUT_S", -1.0)
    assert office.stuck(()) == [Stuck(late, "", False)]


NODES = [Node("0", "host", 2), Node("1", "host", 4), Node("2", "host", 2)]


def test_a_lease_prefers_the_node_that_is_wanted_for_it_whatever_it_holds_already() -> None:
    assert choose_node(NODES, ["0", "0", "0"], "0").node.executor_id == "0"


def test_without_a_wanted_node_or_with_one_that_is_gone_the_emptiest_is_preferred() -> None:
    for wanted in (None, "9"):
        assert choose_node(NODES, ["0", "1", "1"], wanted).node.executor_id == "2"
        assert choose_node(NODES, ["0", "1", "2"], wanted).node.executor_id == "1"
        assert choose_node(NODES, [], wanted).node.executor_id == "1"


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


# -- silent nodes -----------------------------------------------------------------------------------------------------


class Time:
    """The clock of an office."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(leases.time, "monotonic", lambda: self.now)


@pytest.fixture
def cluster(office: LeaseOffice, monkeypatch: pytest.MonkeyPatch) -> LeaseOffice:
    """An office on a cluster of two nodes of four slots; Spark starts each lease on the node of `where`."""
    office._spark.sparkContext.master = "spark://host:7077"
    return office


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found: dict[str, str] = {}
    monkeypatch.setattr(
        leases, "node_of_job", lambda spark, group: found.get(group.removeprefix("penstock-"), "")
    )
    return found


def test_a_silent_node_is_avoided_by_all_queries_of_the_session_until_one_hears_it(
    cluster: LeaseOffice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    time, other = Time(monkeypatch), make_office(cluster._spark)
    elsewhere = make_office(SimpleNamespace(sparkContext=SimpleNamespace(master="spark://host:7077")))
    cluster.note_silent("1", "its leases sent no heartbeat for 15 s")
    assert "node 1 is silent: its leases sent no heartbeat for 15 s" in caplog.text
    assert cluster.silent({"0", "1"}) == other.silent({"0", "1"}) == {"1"}
    assert elsewhere.silent({"0", "1"}) == set()
    other.note_heard("1")
    assert cluster.silent({"0", "1"}) == set()
    cluster.note_silent("1", "again")
    time.now += 2 * FIRST_S
    assert cluster.silent({"0", "1"}) == set(), "it is tried again"


def test_where_all_nodes_are_silent_none_is_avoided(cluster: LeaseOffice) -> None:
    for node in ("0", "1"):
        cluster.note_silent(node, "")
    assert cluster.silent({"0", "1"}) == set() and cluster.silent({"0", "1", "2"}) == {"0", "1"}


def test_a_lease_that_came_to_a_silent_node_is_given_up_after_two_seconds_and_no_other(
    cluster: LeaseOffice, monkeypatch: pytest.MonkeyPatch, where: dict[str, str]
) -> None:
    time = Time(monkeypatch)
    cluster.note_silent("1", "")
    there, slow, waits = ask(cluster), ask(cluster), ask(cluster)
    where |= {there: "1", slow: "0"}
    for _ in range(8):
        time.now += 0.25
        assert cluster.stuck({"1"}) == []
    time.now += 1.0
    assert cluster.stuck({"1"}) == [Stuck(there, "1", True)]
    cluster.cancel(there)
    time.now += 50.0
    assert cluster.stuck({"1"}) == []
    where[waits] = "1"  # a slot came free there at last
    assert cluster.stuck({"1"}) == []
    time.now += 2.5
    assert cluster.stuck({"1"}) == [Stuck(waits, "1", True)]
    cluster.cancel(waits)
    time.now += 10.0
    assert cluster.stuck({"1"}) == [Stuck(slow, "0", False)]


def test_on_a_node_that_is_tried_again_a_lease_has_time_to_start_python(
    cluster: LeaseOffice, monkeypatch: pytest.MonkeyPatch, where: dict[str, str]
) -> None:
    time = Time(monkeypatch)
    cluster.note_silent("1", "")
    time.now += FIRST_S
    name = ask(cluster)
    where[name] = "1"
    time.now += 1.0
    assert cluster.stuck(()) == []
    time.now += 9.0
    assert cluster.stuck(()) == []
    time.now += 1.5
    assert cluster.stuck(()) == [Stuck(name, "1", True)]


def test_a_slow_node_has_longer_for_each_trial_until_it_passes_one(
    cluster: LeaseOffice, monkeypatch: pytest.MonkeyPatch, where: dict[str, str]
) -> None:
    time, starts_s = Time(monkeypatch), 25.0
    cluster.note_silent("1", "")
    for _ in range(2):
        time.now += 300.0
        name = ask(cluster)
        where[name] = "1"
        time.now += 1.0
        assert cluster.stuck(()) == []
        time.now += starts_s
        assert cluster.stuck((), {"0", "1"}) == [Stuck(name, "1", True)]
        cluster.cancel(name)
        cluster.note_silent("1", "")
    time.now += 300.0
    name = ask(cluster)
    where[name] = "1"
    time.now += 1.0
    assert cluster.stuck(()) == []
    time.now += starts_s
    assert cluster.stuck((), {"0", "1"}) == []


def test_a_node_that_is_gone_is_in_doubt_no_more_and_spark_is_not_asked_for_leases_there(
    cluster: LeaseOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, asked = Time(monkeypatch), []
    monkeypatch.setattr(leases, "node_of_job", lambda spark, group: asked.append(group) or "")
    cluster.note_silent("1", "")
    time.now += FIRST_S
    ask(cluster)
    time.now += 5.0
    cluster.stuck((), {"0"})
    assert not asked
    cluster.stuck((), {"0", "1"})
    assert len(asked) == 1
    cluster.forget_others({"0"})
    cluster.stuck(())
    assert len(asked) == 1


def test_leases_on_a_silent_node_take_no_slot_of_the_others(cluster: LeaseOffice) -> None:
    names = [ask(cluster) for _ in range(4)]
    for at, name in enumerate(names):
        cluster.note_up(name, str(at % 2))
    cluster.give_up(names[1])
    assert cluster.room(reserve=1, usable=4, avoid={"1"}) == 4 - 1 - 2
    other = make_office(cluster._spark)
    assert other.capacity(reserve=1, usable=4, avoid={"1"}) == 4 - 1 - 2
