"""What a person asks of the handle of a running query: cores, shards, executors, nodes, a pause. Checks what is given and
hands it on; plans are made by `by_hand`, and nothing is decided here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.dataplane.program import operator_of
from penstock.errors import DeclarationError, PlanError
from penstock.spark.arguments import (
    check_cores,
    check_kind,
    check_node,
    check_nodes,
    check_seconds,
    check_shards,
    check_task,
)
from penstock.topology.expressions import nearest

if TYPE_CHECKING:
    from penstock.spark.elasticity import Elasticity
    from penstock.spark.shell import SparkShell

DRAIN_S = 60.0
"""How long a drain is waited for where nobody says how long."""


class Asking(ABC):
    """The part of a query's handle that asks for changes while rows flow."""

    name: str | None
    id: str
    _shell: SparkShell | None

    @property
    @abstractmethod
    def isActive(self) -> bool:
        """Whether the query runs."""

    @property
    @abstractmethod
    def elasticity(self) -> Elasticity:
        """What is done about cores, nodes and shards while the query runs."""

    @abstractmethod
    def _ask(self, question: Callable[[SparkShell], Any]) -> Any: ...

    def rescale(self, operator: str, cores: int, nodes: Mapping[Any, int] | None = None) -> str:
        """Give an operator this many cores; rows keep flowing. Returns what was begun, in a sentence.

        Args:
            nodes: executor id -> cores there, where you want to say it; their sum is `cores`.

        Raises:
            PlanError: it cannot be done, and why; nothing has changed.
        """
        self._check_asked("rescale", operator)
        cores = check_cores(operator, cores)
        return self.elasticity.by_hand.rescale(operator, cores, check_nodes(operator, cores, nodes))

    def move(self, operator: str, shards: int | Iterable[int], task: int) -> str:
        """Let a task of an operator have these shards.

        Raises:
            PlanError: it cannot be done, and why; nothing has changed.
        """
        self._check_asked("move", operator)
        return self.elasticity.by_hand.move(
            operator, check_shards(operator, shards), check_task(operator, task)
        )

    def split(self, operator: str) -> str:
        """Let an operator have one executor more: the busiest one gives it half of its tasks and their shards. Rows keep
        flowing; both stand still for as long as it takes to write one record. Returns what was begun, in a sentence.

        Args:
            operator: its name, or that of one of its executors, such as `match#2`, which is the one to be split.

        Raises:
            PlanError: it cannot be done, and why; nothing has changed.
        """
        self._check_asked("split", operator)
        return self.elasticity.by_hand.split(operator)

    def merge(self, operator: str) -> str:
        """Let an operator have one executor less: the idlest one gives all its tasks and shards to the next.

        Args:
            operator: its name, or that of the executor that is to end.

        Raises:
            PlanError: it cannot be done, and why; nothing has changed.
        """
        self._check_asked("merge", operator)
        return self.elasticity.by_hand.merge(operator)

    def drain(self, node: str | int, release: bool = False, timeout: float = DRAIN_S) -> str:
        """Take everything of this query off a node, and wait until it is; with `release`, give the node back to Spark.

        Raises:
            PlanError: it cannot be done, and why; nothing has changed.
        """
        self._check_runs("drain")
        return self.elasticity.by_hand.drain(check_node(node), release, check_seconds("timeout", timeout))

    def undrain(self, node: str | int) -> str:
        """Let tasks be put on a node again that was drained.

        Raises:
            PlanError: the node is not drained.
        """
        self._check_runs("undrain")
        return self.elasticity.by_hand.undrain(check_node(node))

    def pause(self) -> None:
        """Begin no epoch until `resume`; those in flight are committed, leases are kept. Sources wait too.

        Raises:
            PlanError: the query has ended.
        """
        self._check_runs("pause")
        self._ask(lambda shell: shell.engine.pause(list(shell.engine.runs)))

    def resume(self) -> None:
        """Go on after `pause`.

        Raises:
            PlanError: the query has ended.
        """
        self._check_runs("resume")
        self._ask(lambda shell: shell.engine.resume(list(shell.engine.runs)))

    def _check_runs(self, verb: str) -> None:
        if not self.isActive:
            raise PlanError(f"{verb}: the query has ended; start {self.name or self.id} again first.")

    def _check_asked(self, verb: str, operator: str) -> None:
        self._check_runs(verb)
        self._check_operator(operator, executors=True)
        if self._shell is not None:
            stages = self._shell.engine.program.stages
            names = [name for name, spec in stages.items() if spec.kind == "operator"]
            check_kind(verb, operator, stages[operator_of(operator)].kind, names)

    def _check_operator(self, name: str, executors: bool = False) -> None:
        if self._shell is None:
            return
        stages = self._shell.engine.program.stages
        if name not in stages and not (executors and operator_of(str(name)) in stages):
            there = [one for one, spec in stages.items() if spec.kind == "operator"]
            raise DeclarationError(
                f"query {self.name or self.id} has no operator {name!r}{nearest(str(name), there)}; it has "
                f"{', '.join(there) or 'none'}."
            )
