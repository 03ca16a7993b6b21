"""Asks Spark for leases: one-task jobs, submitted without a thread each, watched until they connect or fail.

Spark schedules, places, isolates and bills every core. Asks only while registered slots exceed those held and
asked for by a reserve.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.dataplane.dealing import TaskSlot
from penstock.dataplane.program import Program
from penstock.spark.hearing import level_wanted
from penstock.spark.lease_task import HEARTBEAT_S, LeaseOffer, serve
from penstock.spark.silence import SilentNodes, choose_node, patience_s
from penstock.spark.slots import Node, is_local, node_of_job, nodes, slots, slots_of_nodes
from penstock.spark.versions import missing_on
from penstock.words import listed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_TIMEOUT_S = 60.0
NAMED_STAGES = 4
"""Operators that a lease's name in the Spark UI lists."""
LOOK_S = 0.5
"""Time after which Spark is asked where it has started a lease, while some node is in doubt."""
LOST_GRACE_S = 1.5
"""Time that a lease which was given up has to end by itself before its job is cancelled."""


@dataclass
class Asked:
    """A lease that was asked for and what became of its job."""

    offer: LeaseOffer
    future: Any = None
    asked_at: float = field(default_factory=lambda: time.monotonic())
    connected: bool = False
    lost_at: float = 0.0
    node: str = ""
    """Executor that it was meant for, then the one it came up on."""
    wanted: str = ""
    """Executor that the plan named for it; empty where any would do."""
    started: str = ""
    """Executor on which Spark has started it, once that was asked."""
    started_at: float | None = None
    """When that was found out."""


@dataclass(frozen=True)
class Stuck:
    """A lease that does not connect from where Spark has started it."""

    name: str
    node: str
    """Nothing: Spark has not started it."""
    doubted: bool
    """Whether its node is silent, or was and is tried again."""


@dataclass(frozen=True)
class JobOver:
    """A lease whose job has ended, why, and whether it had connected."""

    name: str
    reason: str
    served: bool


_log = logging.getLogger("penstock")
_offices: list[LeaseOffice] = []
"""The offices of all queries of this process; they share the slots of a session."""
_silences: dict[object, SilentNodes] = {}
"""Of each session; what one query has noticed holds for all of it, and for those that start later."""


def _silence_of(context: Any) -> SilentNodes:
    return _silences.setdefault(getattr(context, "applicationId", id(context)), SilentNodes())


class LeaseOffice:
    """Submits lease jobs and keeps track of them. Used by one thread, but for `give_up` and what begins with `note`."""

    def __init__(
        self,
        spark: SparkSession,
        program: Program,
        address: tuple[str, int],
        generation: int,
        checkpoint: str,
        label: str,
        beat_s: float = HEARTBEAT_S,
    ) -> None:
        self._beat_s = beat_s
        self._spark = spark
        self._program = program
        self._address = address
        self._generation = generation
        self._checkpoint = checkpoint
        self._label = label
        self._count = 0
        self.silence = _silence_of(spark.sparkContext)
        self.asked: dict[str, Asked] = {}
        self.lost: dict[str, Asked] = {}
        """Leases that were given up while their job still holds a slot."""
        self.landed = 0
        """Leases that came up on the node that was wanted for them."""
        self.landed_elsewhere = 0
        """Leases that came up on another one; they work all the same, by `bring`."""
        _offices.append(self)

    def capacity(self, reserve: int, usable: int | None = None, avoid: Collection[str] = ()) -> int:
        """Return how many leases may be held: the slots that are usable, by default all that are registered, less those
        of other queries and the reserve.

        Args:
            avoid: nodes whose slots are not among the usable ones.
        """
        others = sum(office.jobs(avoid) for office in self._offices_here() if office is not self)
        return (self.slots() if usable is None else usable) - others - reserve

    def _offices_here(self) -> list[LeaseOffice]:
        """The offices of all queries of this session."""
        context = self._spark.sparkContext
        return [office for office in list(_offices) if office._spark.sparkContext is context]

    def no_room(self, free: int, needed: int) -> str:
        """Return what is wrong where so few slots are free of other queries, and what to do."""
        total = self.slots()
        held = {
            office._label: office.jobs()
            for office in self._offices_here()
            if office is not self and office.jobs()
        }
        text = (
            f"This SparkSession has {max(0, free)} task slots free of other queries and Penstock needs at least {needed}: "
            "one for a lease and the rest for ingest and sinks"
        )
        if not held:
            return f"{text}; use penstock.session(), local[4], or more executors."
        master = str(self._spark.sparkContext.master)
        more = f"penstock.session(master='local[{2 * total}]')" if is_local(self._spark) else "more executors"
        whose = listed(f"'{label}' {count}" for label, count in held.items())
        return (
            f"{text}; of its {total} ({master}) queries hold {sum(held.values())}: {whose}. Stop one of them, put several "
            f"sinks into one query with also(...), or open the session with more slots, by {more}."
        )

    def slots(self) -> int:
        """Return how many tasks Spark can run at once now."""
        return slots(self._spark)

    def slots_of(self, known: Sequence[Node]) -> dict[str, int]:
        """Return how many tasks each node can run at once, without leases of other queries there."""
        others = Counter(
            asked.node
            for office in self._offices_here()
            if office is not self
            for asked in [*office.asked.values(), *office.lost.values()]
        )
        return {node: count - others[node] for node, count in slots_of_nodes(self._spark, known).items()}

    def jobs(self, avoid: Collection[str] = ()) -> int:
        """Return how many jobs of this office hold or wait for a slot, but for those on nodes that are avoided."""
        return sum(one.node not in avoid for one in [*self.asked.values(), *self.lost.values()])

    def room(self, reserve: int, usable: int | None = None, avoid: Collection[str] = ()) -> int:
        """Return how many more leases may be asked for now; the arguments are those of `capacity`."""
        return self.capacity(reserve, usable, avoid) - self.jobs(avoid)

    # -- silent nodes (`note_...`: the hub's thread) ----------------------------------------------------------------------

    def note_silent(self, node: str, why: str) -> None:
        """Nothing is heard of a node: ask for no lease there for a while."""
        wait_s = None if is_local(self._spark) else self.silence.note_silent(node, time.monotonic())
        if wait_s is not None:
            _log.warning(
                "node %s is silent: %s; its shards go on where other nodes have room, and it is tried again in %.0f s.",
                node, why, wait_s,
            )  # fmt: skip

    def note_heard(self, node: str) -> None:
        """A lease of a node has spoken."""
        if self.silence.note_heard(node, time.monotonic()):
            _log.info("node %s is heard again.", node)

    def silent(self, usable: Collection[str]) -> set[str]:
        """Return which of the nodes that may be used are to be avoided; none where that would leave no other."""
        found = self.silence.avoided(time.monotonic()) & set(usable)
        return found if found != set(usable) else set()

    def forget_others(self, known: Collection[str]) -> None:
        """These are all nodes that Spark has; nothing is to be expected of others. Any thread."""
        self.silence.keep(known)

    def stuck(self, silent: Collection[str], usable: Collection[str] | None = None) -> list[Stuck]:
        """Return the leases that have had their time to connect: little of it on a node that is silent.

        Where a lease is, Spark is asked only while some node is in doubt, or when its time is up.

        Args:
            silent: the nodes that are avoided now.
            usable: the nodes that a lease may come to; only of these one is in doubt. All, when not given.
        """
        now = time.monotonic()
        trial = self.silence.on_trial(now)
        trial = trial if usable is None else trial & set(usable)
        found = []
        for name, asked in list(self.asked.items()):
            waited_s = now - asked.asked_at
            if asked.connected or waited_s <= (LOOK_S if silent or trial else CONNECT_TIMEOUT_S):
                continue
            self._find(name, asked, now)
            since = asked.asked_at if asked.started_at is None else asked.started_at
            doubted = asked.started in silent or asked.started in trial
            times = self.silence.times(asked.started)
            patience = patience_s(asked.started, silent, trial, CONNECT_TIMEOUT_S, times)
            if now - (since if doubted else asked.asked_at) > patience:
                found.append(Stuck(name, asked.started, doubted))
        return found

    def _find(self, name: str, asked: Asked, now: float) -> None:
        """Ask Spark where it has started a lease."""
        if not asked.started:
            asked.started = node_of_job(self._spark, f"penstock-{name}")
            if asked.started:
                asked.node, asked.started_at = asked.started, now

    def is_heard(self, node: str) -> bool:
        """Whether a lease of any query is connected from a node."""
        return any(
            one.connected and one.node == node
            for office in self._offices_here()
            for one in list(office.asked.values())
        )

    def note_up(self, name: str, node: str) -> None:
        """A lease has connected, from this node; count whether it is the one that was wanted. The hub's
        thread."""
        asked = self.asked.get(name)
        if asked is None:
            return
        if asked.wanted and not asked.connected:
            self.landed += node == asked.wanted
            self.landed_elsewhere += node != asked.wanted
        asked.connected, asked.node = True, node

    def give_up(self, name: str) -> None:
        """Count a lease as lost; its job is cancelled unless it ends soon. Any thread."""
        asked = self.asked.pop(name, None)
        if asked is not None:
            asked.lost_at = time.monotonic()
            self.lost[name] = asked

    def close(self) -> None:
        """Cancel what is left and free the slots for other queries."""
        for name in [*self.asked, *self.lost]:
            self.cancel(name)
        with contextlib.suppress(ValueError):
            _offices.remove(self)

    def prepare(self) -> LeaseOffer:
        """Make the next offer: a fresh name and a one-shot token."""
        self._count += 1
        name = f"l{self._count}x{secrets.token_hex(4)}"
        return LeaseOffer(
            name,
            secrets.token_bytes(32),
            self._address,
            self._generation,
            self._checkpoint,
            self._program,
            self._beat_s,
            level_wanted(),
            echo=not is_local(self._spark),
        )

    def awaited(self) -> list[str]:
        """Return leases that were asked for and are not up yet, oldest first."""
        return [name for name, asked in list(self.asked.items()) if not asked.connected]

    def submit(
        self,
        offer: LeaseOffer,
        serves: str = "",
        node: str | None = None,
        avoid: Collection[str] = (),
        silent: Collection[str] = (),
    ) -> None:
        """Start the one-task job of an offer, under the name of what it will serve.

        Args:
            offer: from `prepare`.
            serves: what it is called in the Spark UI.
            node: executor that it should run on. Spark keeps the lease for a slot there as long as
                `spark.locality.wait` says (3 s), then starts it where there is one; so it does at once when the node is
                gone. Without, the node with the fewest leases for its slots is preferred.
            avoid: executors that are being drained.
            silent: executors of which nothing is heard, to be used only where there are no others.
        """
        context = self._spark.sparkContext
        description = serves or f"{self._label}, lease {offer.lease}"
        context.setLocalProperty("spark.scheduler.pool", "penstock")
        context.setJobGroup(f"penstock-{offer.lease}", f"penstock {description}", interruptOnCancel=True)
        try:
            placed, rows = self._placed(context, node, avoid, silent)
            job = rows.mapPartitions(functools.partial(serve, offer), preservesPartitioning=True)
            # Known before it is submitted: it may connect before the call returns.
            asked = self.asked[offer.lease] = Asked(offer, node=placed, wanted=node or "")
            asked.future = job._jrdd.collectAsync()
        finally:
            for name in ("spark.scheduler.pool", "spark.jobGroup.id", "spark.job.description"):
                context.setLocalProperty(name, None)  # type: ignore[arg-type]

    def _placed(
        self, context: Any, wanted: str | None, avoid: Collection[str], silent: Collection[str]
    ) -> tuple[str, Any]:
        """One empty partition that prefers the wanted node, or else the one with the fewest leases for its slots, where
        there are several nodes; and the name of that node."""
        from pyspark.core.rdd import RDD
        from pyspark.serializers import BatchedSerializer, CPickleSerializer

        if is_local(self._spark):
            return "", context.parallelize([0], 1)
        known = [node for node in nodes(self._spark) if node.executor_id not in avoid]
        if (len(known) < 2 and not avoid) or not known:
            return "", context.parallelize([0], 1)
        here = self._offices_here()
        held = [one.node for office in here for one in [*office.asked.values(), *office.lost.values()]]
        choice = choose_node(known, held, wanted, silent, self.silence.on_trial(time.monotonic()))
        _log.debug("lease for node %s: %s", choice.node.executor_id, choice.reason)
        chosen = choice.node
        jvm = context._jvm
        payload = CPickleSerializer().dumps([0])  # type: ignore[no-untyped-call]
        hosts = jvm.PythonUtils.toSeq([f"executor_{chosen.host}_{chosen.executor_id}"])
        pairs = jvm.PythonUtils.toSeq([jvm.scala.Tuple2(payload, hosts)])
        tag = jvm.scala.reflect.ClassTag.apply(payload_class(jvm))
        placed = context._jsc.sc().makeRDD(pairs, tag)
        rows: Any = RDD(placed.toJavaRDD(), context, BatchedSerializer(CPickleSerializer()))  # type: ignore[no-untyped-call]
        return chosen.executor_id, rows

    def ended(self) -> list[JobOver]:
        """Return leases whose job is over; they are forgotten here."""
        over: list[JobOver] = []
        for held in (self.asked, self.lost):
            for name, asked in list(held.items()):
                if asked.future is not None and asked.future.isDone():
                    over.append(JobOver(name, _reason(asked.future), asked.connected))
                    self.asked.pop(name, None)
                    self.lost.pop(name, None)
        return over

    def lingering(self) -> list[str]:
        """Return leases that were given up and whose job does not end by itself."""
        now = time.monotonic()
        return [name for name, asked in list(self.lost.items()) if now - asked.lost_at > LOST_GRACE_S]

    def cancel(self, name: str) -> None:
        """Last resort: cancel a lease's job; its Python worker may live on for some seconds."""
        asked = self.asked.pop(name, None) or self.lost.pop(name, None)
        if asked is not None and asked.future is not None:
            with contextlib.suppress(Exception):
                asked.future.cancel(True)


def tenants(context: Any, node: str) -> list[str]:
    """Return the labels of all queries on a SparkContext that have a lease on a node, once for each lease."""
    return [
        office._label
        for office in list(_offices)
        if office._spark.sparkContext is context
        for asked in [*office.asked.values(), *office.lost.values()]
        if asked.node == node
    ]


def describe_lease(serves: Sequence[TaskSlot], tasks_of: Mapping[str, int]) -> str:
    """Name a lease by its tasks, as people count them: `match, task 3 of 4 + stats, tasks 1, 2 of 2`."""
    by_stage: dict[str, list[int]] = {}
    for slot in serves:
        by_stage.setdefault(slot.stage, []).append(slot.index + 1)
    parts = [
        f"{stage}, task{'s' if len(tasks) > 1 else ''} {', '.join(map(str, sorted(tasks)))} "
        f"of {tasks_of[stage]}"
        for stage, tasks in by_stage.items()
    ]
    shown = " + ".join(parts[:NAMED_STAGES])
    return shown if len(parts) <= NAMED_STAGES else f"{shown} + {len(parts) - NAMED_STAGES} more"


def payload_class(jvm: Any) -> Any:
    return jvm.java.lang.Class.forName("[B")


def _reason(future: Any) -> str:
    try:
        future.get()
        return "its job ended"
    except Exception as error:
        return reason_in(str(error))


def reason_in(text: str) -> str:
    """Return the line of a job's failure that says most: what the task raised, not what Spark wrapped it in."""
    lines = [line.strip() for line in text.splitlines() if _SAYS_WHY.search(line)]
    told = [line for line in lines if not _WRAPS.search(line)] or lines or [text.strip()]
    missing = next((line for line in told if "No module named" in line), None)
    if missing is not None or _DAEMON in text:
        return missing_on(text, (missing or told[0])[:400])
    return told[-1][:500]


_SAYS_WHY = re.compile(r"(Error|Exception|Interrupt)\b")
_WRAPS = re.compile(r"ExecutionException|Py4J|Job aborted|PythonException|^at |Traceback")
_DAEMON = "reading the port number"
