"""elasticutor: shards move inside executors, cores move between them (Elasticutor 3.1, 4.1, 4.2).

Each turn: where the target is missed, by the model or as measured, core counts, their assignment to nodes, tasks and
shards; else cores that have long been too many are given back; else executors out of balance are balanced.
`naive-ec` assigns cores without regard to migration cost and locality, `resource-centric` decides the same and stops
all rows while a plan is carried out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from penstock.control.measure.estimate import Estimate
from penstock.control.model.queues import ModelError
from penstock.control.plan.assignment import plan_assignment
from penstock.control.plan.balancing import THETA
from penstock.control.plan.placing import Placement, derive_core_demand, plan_executors
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.plan.shards import Balance, derive_shards
from penstock.control.policy.allocating import busiest
from penstock.control.policy.coarse import CoarseStep
from penstock.control.policy.demand import MMK, MODELS, derive_demand
from penstock.control.policy.elastic_turn import (
    Turn,
    describe_balance,
    describe_change,
    predict_tasks_s,
)
from penstock.control.policy.hotness import with_hot_shard
from penstock.control.policy.imbalance import FINE, ImbalanceWatch, is_worth_it
from penstock.control.policy.mapping import is_known
from penstock.control.policy.negotiation import Negotiator, derive_usable_cores
from penstock.control.policy.options import ABOVE_ONE, NOT_NEGATIVE, RATIO, SHARE, check_options
from penstock.control.policy.pricing import price
from penstock.control.policy.protocol import Limits, Option, Proposal
from penstock.control.policy.shrinking import propose_within
from penstock.control.policy.sizing import Sizing, derive_stations, size_cores
from penstock.control.policy.wording import count, in_ms, no_change, propose_waiting
from penstock.control.sla import OPERATOR, SLA
from penstock.errors import DeclarationError


@dataclass
class ElasticutorPolicy:
    """Balances executors and assigns cores to them.

    Args:
        model: "mmk" as in the paper, "gigk" or "epoch".
        theta: θ, the imbalance factor from which an executor is balanced.
        margin: ε on service rates: what whole shards leave of the busiest task when others are at the mean.
        naive: assign cores without the two optimisations.
        pauses: stop all rows while a plan is carried out, as a resource-centric system must.
        settle_s: time after core counts changed before a latency above the target makes them change again.
        patience: turns for which δ must have been above θ before an executor is balanced that is within the target and
            has no task near its limit; noise does not last that long.
        give_back_s: time for which cores must have been too many before they are given back; None: never.
        give_back_ratio: share of the target that is predicted to hold with the cores that are left.
        coarse: splits and merges, where nothing more pressing is to be done; None: never.

    Raises:
        DeclarationError: an unknown model, a θ of 1 or less, a ratio outside 0 to 1.
    """

    model: str = MMK
    theta: float = THETA
    margin: float = 0.1
    naive: bool = False
    pauses: bool = False
    settle_s: float = 5.0
    patience: int = 3
    give_back_s: float | None = 30.0
    give_back_ratio: float = 0.5
    max_moves: int | None = None
    idle_node_s: float = 60.0
    coarse: CoarseStep | None = field(default_factory=CoarseStep)
    name: str = "elasticutor"
    _negotiator: Negotiator = field(init=False)
    _changed_at_s: float = -math.inf
    _needs: list[tuple[float, Mapping[str, int]]] = field(default_factory=list)
    """Cores that would have been enough at each turn of late, oldest first."""
    _watch: ImbalanceWatch = field(init=False)
    _too_few: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Executor -> cores that the model called enough and were not, and the load they were too few for."""

    def __post_init__(self) -> None:
        check_options(
            self,
            theta=ABOVE_ONE,
            margin=SHARE,
            settle_s=NOT_NEGATIVE,
            patience=NOT_NEGATIVE,
            give_back_s=NOT_NEGATIVE,
            give_back_ratio=RATIO,
            max_moves=NOT_NEGATIVE,
            idle_node_s=NOT_NEGATIVE,
        )
        if self.model not in MODELS:
            raise DeclarationError(
                f"{self.name}: model must be one of {', '.join(MODELS)}, not {self.model!r}."
            )
        self._negotiator = Negotiator(self.idle_node_s)
        self._watch = ImbalanceWatch(self.theta, self.patience, self.max_moves, cheap=not self.pauses)

    def note_failure(self, reason: str) -> None:
        """Let the next turn decide again from what it sees."""
        self._changed_at_s = -math.inf
        self._needs.clear()
        self._watch.forget()
        self._negotiator.forget()
        if self.coarse is not None:
            self.coarse.note_failure()

    def propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
        within = propose_within(now, limits)
        if within is not None and within.plan is not None:
            return replace(within, plan=replace(within.plan, global_pause=self.pauses))
        return price(self._propose(now, sla, limits), now, sla, limits, is_mean=True)

    def _propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
        waiting = propose_waiting(now)
        if waiting is not None:
            return waiting
        self._negotiator.look(now)
        unknown = sorted(name for name, e in now.executors.items() if e.k and not is_known(e.service_per_s))
        if unknown:
            return no_change(f"no service rate of {', '.join(unknown)} yet", "wait until rows were processed")
        try:
            demand = derive_demand(now)
        except ModelError as error:
            return no_change(str(error), "nothing can help")
        usable = max(derive_usable_cores(now, limits), 1)
        stations = derive_stations(now, demand, self.model, self.margin, usable, sla.scope == OPERATOR)
        turn = Turn(now, sla, limits, stations, usable)
        self._watch.look(turn)
        if turn.is_over:
            self._needs.clear()
            return self._relieve(turn)
        calm = self._give_back(turn) or self._balance(turn)
        step = self.coarse.propose(now, limits, calm.plan is None) if self.coarse is not None else None
        return step or calm

    # -- the target is missed -----------------------------------------------------------------------------------------

    def _relieve(self, turn: Turn) -> Proposal:
        """Core counts, assignment, tasks and shards; a step of one core where the model sees no need and rows wait."""
        sizing = size_cores(turn.stations, turn.bound_s, turn.usable)
        if sizing.reached and turn.is_measured_over and self._fits(sizing, turn):
            return self._relieve_by_one(turn, sizing)
        return self._change(turn, sizing)

    def _fits(self, sizing: Sizing, turn: Turn) -> bool:
        return all(turn.cores[name] >= k for name, k in sizing.cores.items())

    def _relieve_by_one(self, turn: Turn, sizing: Sizing) -> Proposal:
        """The model calls the cores enough and the measured latency does not: balance first, then one core more."""
        balanced = self._balance(turn)
        if balanced.plan is not None:
            return balanced
        if turn.now.at_s - self._changed_at_s < self.settle_s:
            why = (
                f"cores changed less than {self.settle_s:g} s ago, and what waited is still being worked off"
            )
            return no_change(turn.symptom, why, turn.options(), turn.predicted_s)
        name = self._choose_for_one_more(turn) if turn.hot is None else None
        if name is None:
            why = str(turn.hot or "") or _explain_nothing(turn)
            return no_change(turn.symptom, why, turn.options(), turn.predicted_s)
        self._too_few[name] = (turn.cores[name], turn.stations.loads[name])
        cores = {**turn.cores, name: turn.cores[name] + 1}
        return self._change(turn, Sizing(cores, turn.stations.predict(cores), sizing.reached))

    def _choose_for_one_more(self, turn: Turn) -> str | None:
        """Return the executor with the busiest task, of those that rows are late in and that a core more can relieve; None
        where there is none."""
        most = {one.name: one.at_most or turn.usable for one in turn.stations.all}
        pressed = [name for name in turn.late if turn.is_pressed(name)]
        found = [name for name in pressed if turn.cores[name] < most[name] and turn.busy(name) >= 0.5]
        if turn.total >= turn.usable:
            return None
        return max(found, key=lambda one: (turn.busiest_task[one], one), default=None)

    def _change(self, turn: Turn, sizing: Sizing) -> Proposal:
        if not sizing.reached and turn.now.at_s - self._changed_at_s < self.settle_s:
            problem = with_hot_shard(sizing.problem, turn.hot)
            why = f"{problem}, and cores changed less than {self.settle_s:g} s ago"
            return no_change(turn.symptom, why, turn.options(), sizing.predicted_s)
        add = self._negotiator.ask(turn.now, turn.limits, max(sizing.missing, turn.total - turn.usable))
        placements = self._place(turn, sizing.cores if _is_worth_it(turn, sizing) else turn.cores)
        plan = self._plan({name: one.plan for name, one in placements.items()}, add)
        problem = with_hot_shard(sizing.problem, turn.hot)
        if plan is None:
            why = problem or "cores and shards are as the model wants them"
            return no_change(turn.symptom, why, turn.options(), sizing.predicted_s)
        if any(one.added or one.dropped for one in placements.values()):
            self._changed_at_s = turn.now.at_s
        action = describe_change(turn.now, placements, add) + _explain_choice(turn, sizing, placements)
        if not sizing.reached:
            action += f"; predicted {in_ms(sizing.predicted_s)}: {problem}"
        chosen = Option(action, sizing.predicted_s)
        return Proposal(
            plan,
            turn.symptom,
            action,
            (*turn.options(), chosen),
            sizing.predicted_s,
            not math.isfinite(turn.predicted_s),
            self._said(),
        )

    def _place(self, turn: Turn, cores: Mapping[str, int], give_back: bool = False) -> dict[str, Placement]:
        """Return what changes; nothing where there is not even a core for each executor: nobody can be without one."""
        if sum(cores.values()) > turn.usable:
            return {}
        demand = derive_core_demand(turn.now, cores, max_cores=turn.usable)
        assignment = plan_assignment(demand, naive=self.naive, give_back=give_back)
        goals = {name: self._watch.goal_of(turn, name) for name in turn.now.executors}
        found = plan_executors(turn.now, assignment, goals, FINE)
        return {
            name: one
            for name, one in found.items()
            if one.added or one.dropped or (self._watch.is_due(turn, name) and is_worth_it(one.balance))
        }

    def _plan(self, executors: Mapping[str, ExecutorPlan], add_nodes: int = 0) -> Plan | None:
        plan = Plan(executors, add_nodes, global_pause=self.pauses and bool(executors))
        return None if plan.changes_nothing else plan

    def _said(self) -> dict[str, float | int | str]:
        return {"model": self.model}

    # -- the target holds ---------------------------------------------------------------------------------------------

    def _give_back(self, turn: Turn) -> Proposal | None:
        """Give back what has been too much for a while: each executor keeps the most it needed in that time."""
        if self.give_back_s is None:
            return None
        need = size_cores(turn.stations, self.give_back_ratio * turn.bound_s, turn.usable)
        if not need.reached or set(need.cores) != set(self._needs[-1][1] if self._needs else need.cores):
            self._needs.clear()
            return None
        at_s = turn.now.at_s
        self._needs = [one for one in self._needs if at_s - one[0] <= self.give_back_s] + [(at_s, need.cores)]
        if at_s - self._needs[0][0] < 0.9 * self.give_back_s or at_s - self._changed_at_s < self.give_back_s:
            return None
        most = {
            name: max(self._floor(turn, name), *(cores[name] for _, cores in self._needs))
            for name in need.cores
        }
        cores = {name: min(turn.cores[name], most[name]) for name in most}
        if cores == turn.cores:
            return self._release(turn)
        placements = self._place(turn, cores, give_back=True)
        plan = self._plan({name: one.plan for name, one in placements.items()})
        if plan is None:
            return None
        self._changed_at_s = at_s
        self._needs.clear()
        predicted_s = turn.stations.predict(cores)
        action = describe_change(turn.now, placements, 0)
        symptom = f"{turn.symptom}: {turn.total} cores held, {sum(cores.values())} enough for {self.give_back_s:g} s"
        options = (*turn.options(), Option(action, predicted_s))
        return Proposal(plan, symptom, action, options, predicted_s, details=self._said())

    def _floor(self, turn: Turn, name: str) -> int:
        """Return the fewest cores worth trying: more than turned out too few, until the load is a tenth lower."""
        cores, load = self._too_few.get(name, (0, 0.0))
        return cores + 1 if turn.stations.loads[name] > 0.9 * load else 1

    def _release(self, turn: Turn) -> Proposal | None:
        nodes = self._negotiator.release(turn.now, turn.limits)
        if not nodes:
            return None
        action = f"gave back {', '.join(nodes)}"
        return Proposal(
            Plan(release_nodes=nodes), f"{turn.symptom}: idle nodes", action, turn.options(), turn.predicted_s
        )

    def _balance(self, turn: Turn) -> Proposal:
        """Balance the executors that are due for it (3.1)."""
        found = self._watch.plan(turn)
        if not found:
            hot = str(turn.hot or "") if turn.is_over else ""
            return no_change(turn.symptom, hot or turn.calm(self.theta), turn.options(), turn.predicted_s)
        plans = {
            name: ExecutorPlan(derive_shards(turn.now.executors[name]).tasks, balance.task_of)
            for name, balance in found.items()
        }
        after_s = predict_tasks_s(
            turn.now, {name: balance.task_of for name, balance in found.items()}, turn.sla
        )
        action = describe_balance(found)
        before = Option("no change", predict_tasks_s(turn.now, {}, turn.sla))
        symptom = turn.symptom if turn.is_over else f"{turn.symptom}: {_worst_of(found)}"
        unserved = not math.isfinite(before.predicted_s)
        return Proposal(
            self._plan(plans),
            symptom,
            action,
            (before, Option(action, after_s)),
            after_s,
            unserved,
            self._said(),
        )


def _is_worth_it(turn: Turn, sizing: Sizing) -> bool:
    """Say whether core counts should change: always for the target, else for more cores or a tenth less load per core.

    Without the last, noise would pass cores round and round between executors that lack them all.
    """
    if sizing.reached or sizing.total > turn.total:
        return True
    loads = turn.stations.loads
    return busiest(loads, sizing.cores) < 0.9 * busiest(loads, turn.cores)


def _explain_choice(turn: Turn, sizing: Sizing, placements: Mapping[str, Placement]) -> str:
    """Say why others than the executor that the symptom names get cores; nothing where that gets some, or nobody does."""
    wider = [name for name, one in placements.items() if one.plan.k > turn.cores[name]]
    if not wider or turn.named in wider:
        return ""
    names = ", ".join(wider)
    if not math.isfinite(sizing.predicted_s):
        return f"; cores go by load, to {names} first"
    if turn.stations.is_each:
        return f"; the model has {names} over the bound"
    return f"; a core more lowers the predicted latency most in {names}"


def _explain_nothing(turn: Turn) -> str:
    name = turn.named
    return (
        f"tasks of {name} are {turn.busy(name):.0%} busy, {turn.total} of {count(turn.usable, 'core')} are "
        "held; no plan is predicted to help"
    )


def _worst_of(found: Mapping[str, Balance]) -> str:
    name = max(found, key=lambda one: found[one].delta_before)
    return f"δ of {name} is {found[name].delta_before:.2f}"


def make_naive_ec(**options: object) -> ElasticutorPolicy:
    """Return elasticutor without the two optimisations of the assignment (Elasticutor 5.4); it never splits or merges."""
    return ElasticutorPolicy(**{"name": "naive-ec", "naive": True, "coarse": None, **options})  # type: ignore[arg-type]


def make_resource_centric(**options: object) -> ElasticutorPolicy:
    """Return the resource-centric baseline: same model and balancer, nodes in turn, all rows stopped for every plan.

    In such a system an executor is one core (Elasticutor 2); our tasks are its executors, so cores are dealt one by one
    all the same, and nothing is gained by keeping an operator's cores together, nor by splitting and merging.
    """
    own = {"name": "resource-centric", "naive": True, "pauses": True, "coarse": None}
    return ElasticutorPolicy(**{**own, **options})  # type: ignore[arg-type]
