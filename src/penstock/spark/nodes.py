"""The negotiator: acquires and releases nodes through Spark, and says what was asked, what came and how long it took.

It never decides how many nodes there should be, and never drains one: whoever releases a node has taken its leases
away before. A request that Spark does not meet in time is withdrawn, so that what runs goes on as it was.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from penstock.spark.leases import tenants
from penstock.spark.slots import Node, is_local, nodes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ACQUIRE_TIMEOUT_S = 60.0
"""A JVM and its Python take some 9 s on one machine; a manager that has to find a container takes longer."""
RELEASE_TIMEOUT_S = 30.0
LOOK_EVERY_S = 0.25
_ONE_STAYS = "one node at least must stay, or nothing can run; stop the query instead"


@dataclass(frozen=True)
class NodeChange:
    """What became of one request for nodes; goes to the journal as it is."""

    asked: Literal["acquire", "release"]
    wanted: int
    """Nodes that there should be afterwards."""
    before: tuple[str, ...]
    """Executor ids registered when it was asked."""
    after: tuple[str, ...]
    took_s: float
    problem: str = ""
    """Why it was not carried out, as one sentence; empty where it was."""
    in_use: bool = False
    """Whether that is because a lease is still there, which may change soon."""

    @property
    def done(self) -> bool:
        return not self.problem

    @property
    def came(self) -> tuple[str, ...]:
        return tuple(node for node in self.after if node not in self.before)

    @property
    def went(self) -> tuple[str, ...]:
        return tuple(node for node in self.before if node not in self.after)

    def __str__(self) -> str:
        moved = [f"{_named(self.came)} came"] if self.came else []
        moved += [f"{_named(self.went)} went"] if self.went else []
        met = " and ".join(moved) or "nothing changed"
        asked = f"asked Spark for {_counted(self.wanted)}: {met} in {self.took_s:.1f} s"
        return f"{asked}; {self.problem}" if self.problem else asked


class Negotiator(Protocol):
    """Where a plan gets its nodes from. Calls block until Spark has done it or has had its time; any thread."""

    def nodes(self) -> list[Node]:
        """Return the nodes that are registered now."""
        ...

    def acquire(self, total: int, timeout_s: float = ACQUIRE_TIMEOUT_S) -> NodeChange:
        """Ask for nodes until there are ``total``; never takes one away."""
        ...

    def release(self, executor_ids: Collection[str], timeout_s: float = RELEASE_TIMEOUT_S) -> NodeChange:
        """Give these nodes back, without replacement. They must be drained."""
        ...


class Manager(Protocol):
    """The four things a negotiator needs of a cluster manager."""

    def nodes(self) -> list[Node]: ...

    def request_total(self, total: int) -> bool:
        """Set how many nodes the application wants in all; a lost one is replaced up to there."""
        ...

    def kill(self, executor_ids: Sequence[str]) -> bool: ...

    def refusal(self) -> str:
        """Return why nodes cannot be negotiated here; empty where they can."""
        ...


@dataclass
class SparkNegotiator:
    """A negotiator on one application's manager. One for each session: it remembers what was asked for."""

    manager: Manager
    tenants_of: Callable[[str], Sequence[str]] = lambda node: ()
    """Executor id -> the leases that are on it, of all queries of the session."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _target: int | None = None
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def nodes(self) -> list[Node]:
        """Return the nodes that are registered now."""
        return self.manager.nodes()

    @property
    def target(self) -> int | None:
        """Nodes that Spark was told to keep; None before anything was asked."""
        return self._target

    def settle(self, total: int | None = None, timeout_s: float = RELEASE_TIMEOUT_S) -> NodeChange:
        """Tell Spark to keep ``total`` nodes, by default those that there are, and release what is above it.

        To be called right after a session starts: a standalone master gives an application every worker that it has,
        those that join later too, until it is told how many are wanted; and a node that is killed before that takes
        the wish for all others along.
        """
        before = self._ids()
        wanted = len(before) if total is None else total
        if self.manager.refusal() or wanted < 1:
            return self._change("release", wanted, before, self.clock(), self.manager.refusal() or _ONE_STAYS)
        with self._turn:
            self._ask(wanted)
            idle = [name for name in reversed(self._ids()) if not self.tenants_of(name)]
            surplus = idle[: max(0, len(self._ids()) - wanted)]
        return self.release(surplus, timeout_s)

    def acquire(self, total: int, timeout_s: float = ACQUIRE_TIMEOUT_S) -> NodeChange:
        """Ask for nodes until there are ``total``, and wait for them.

        Returns:
            what came. Nodes that do not come within ``timeout_s`` are asked for no longer, and ``problem`` says so.
        """
        with self._turn:
            began, before = self.clock(), self._ids()
            problem = self.manager.refusal() or self._cannot_acquire(total, before)
            if problem or total == len(before):
                return self._change("acquire", max(total, 0), before, began, problem)
            kept = max(
                self._target or 0, len(before)
            )  # one that is lost meanwhile is to be replaced all the same
            if not self._ask(max(total, kept)):
                return self._change(
                    "acquire", total, before, began, "the cluster manager refused the request"
                )
            if not self._await(lambda now: len(now) >= total, began + timeout_s):
                came = len(self._ids())
                self._ask(max(came, kept))
                problem = (
                    f"{_counted(total - came)} did not come within {timeout_s:.0f} s, so the request was withdrawn: "
                    "the manager has no free worker with the cores and memory that spark.executor.cores and "
                    "spark.executor.memory ask for, or spark.cores.max is reached"
                )
            return self._change("acquire", total, before, began, problem)

    def release(self, executor_ids: Collection[str], timeout_s: float = RELEASE_TIMEOUT_S) -> NodeChange:
        """Give nodes back, without replacement, and wait until they are gone.

        A node that is gone already is only no longer replaced. Refused while a lease is on one of them.
        """
        leaving = sorted(set(executor_ids), key=lambda name: (len(name), name))
        with self._turn:
            began, before = self.clock(), self._ids()
            staying = [name for name in before if name not in leaving]
            wanted = max(len(staying), (self._target or 0) - len(leaving))
            problem = self.manager.refusal() or self._cannot_release(leaving, staying)
            if problem:
                in_use = any(map(self.tenants_of, leaving))
                return replace(self._change("release", wanted, before, began, problem), in_use=in_use)
            if self._target is None:
                self._ask(len(before))
            if not self.manager.kill([name for name in leaving if name in before]) and set(leaving) & set(
                before
            ):
                return self._change(
                    "release", wanted, before, began, "the cluster manager refused the request"
                )
            self._ask(wanted)
            if not self._await(lambda now: not set(leaving) & set(now), began + timeout_s):
                left = [name for name in leaving if name in self._ids()]
                problem = f"{_named(left)} did not end within {timeout_s:.0f} s"
            return self._change("release", wanted, before, began, problem)

    def _cannot_acquire(self, total: int, before: Sequence[str]) -> str:
        if total < len(before):
            return (
                f"there are {len(before)} nodes already; name those that are to go, to release() or to drain(), "
                "because acquiring never takes one away"
            )
        return ""

    def _cannot_release(self, leaving: Sequence[str], staying: Sequence[str]) -> str:
        if not staying:
            return _ONE_STAYS
        for node in leaving:
            held = self.tenants_of(node)
            if held:
                return f"node {node} still serves {', '.join(sorted(set(held)))}; drain it first"
        return ""

    def _ask(self, total: int) -> bool:
        met = self.manager.request_total(total)
        if met:
            self._target = total
        return met

    def _await(self, holds: Callable[[Sequence[str]], bool], deadline: float) -> bool:
        while not holds(self._ids()):
            if self.clock() >= deadline:
                return False
            self.sleep(LOOK_EVERY_S)
        return True

    def _ids(self) -> tuple[str, ...]:
        return tuple(node.executor_id for node in self.manager.nodes())

    def _change(
        self,
        asked: Literal["acquire", "release"],
        wanted: int,
        before: tuple[str, ...],
        began: float,
        problem: str,
    ) -> NodeChange:
        return NodeChange(asked, wanted, before, self._ids(), self.clock() - began, problem)


@dataclass(frozen=True)
class SparkManager:
    """The manager behind a session: standalone, YARN or Kubernetes, through the calls that Spark has for all."""

    spark: SparkSession

    def nodes(self) -> list[Node]:
        return nodes(self.spark)

    def request_total(self, total: int) -> bool:
        jvm: Any = self.spark.sparkContext._jvm
        no_hosts = jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap())
        return bool(self._scala_context.requestTotalExecutors(total, 0, no_hosts))

    def kill(self, executor_ids: Sequence[str]) -> bool:
        if not executor_ids:
            return True
        jvm: Any = self.spark.sparkContext._jvm
        return bool(self._scala_context.killExecutors(jvm.PythonUtils.toSeq(list(executor_ids))))

    def refusal(self) -> str:
        if not is_local(self.spark):
            return ""
        return (
            f"the session runs on {self.spark.sparkContext.master}, where driver and node are one process; open it on "
            "a cluster, such as penstock.session(master='spark://HOST:7077'), to have nodes come and go"
        )

    @property
    def _scala_context(self) -> Any:
        return self.spark.sparkContext._jsc.sc()


_negotiators: dict[str, SparkNegotiator] = {}
_guard = threading.Lock()


def negotiator(spark: SparkSession) -> SparkNegotiator:
    """Return the negotiator of a session; all its queries share one, because they share its nodes."""
    context = spark.sparkContext
    with _guard:
        known = _negotiators.get(context.applicationId)
        if known is None:
            _negotiators.clear()  # a process has one SparkContext; what was asked for an earlier one is over
            known = SparkNegotiator(SparkManager(spark), lambda node: tenants(context, node))
            _negotiators[context.applicationId] = known
        return known


def _named(names: Collection[str]) -> str:
    return f"node{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _counted(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"
