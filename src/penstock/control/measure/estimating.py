"""The measurer: samples in, one after another, an `Estimate` out each time (DRS IV-A, StreamSwitch 4, Es-Stream III).

It never raises on what a data plane counted and never makes a rate of what it does not believe: such an estimate keeps
the last values and says in `invalid` why nothing should be decided on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from penstock.control.measure.checking import Sequel, compare, find_fault
from penstock.control.measure.estimate import Estimate, NodeEstimate
from penstock.control.measure.executor import EpochFit, ExecutorMeasure, Inherited, derive_new
from penstock.control.measure.nodes import Need, estimate_nodes, find_node_fault
from penstock.control.measure.sample import ExecutorSample, Sample
from penstock.control.measure.service import NodeSpeeds
from penstock.control.measure.smoothing import Smoother, Smoothing, Windowed


@dataclass(frozen=True)
class Measuring:
    """Settings of a `Measurer`."""

    window_s: float = 1.0
    """T: latencies are taken over the rows completed in the last T seconds."""
    smoothing: Smoothing = field(default_factory=Windowed)
    """Of rates: `Windowed(w)` or `Weighted(alpha)`."""
    idle: Need = field(default_factory=Need)
    """What a node uses of each resource when it runs no task."""
    unknown_service_per_s: float = 1000.0
    """Service rate of an operator that has not had a row yet."""
    forget_after: int = 5
    """Samples in a row without an executor after which it is taken to be gone."""


class Measurer:
    """Turns samples into estimates."""

    def __init__(self, settings: Measuring | None = None, fit: EpochFit | None = None) -> None:
        self.settings = settings or Measuring()
        self._fit = fit
        self._executors: dict[str, ExecutorMeasure] = {}
        self._missed_s: dict[str, list[float]] = {}
        self._speeds = NodeSpeeds()
        self._last: Sample | None = None
        self._late_s: float | None = None
        self._rates: dict[tuple[str, ...], Smoother] = {}
        self._estimate: Estimate | None = None

    def measure(self, sample: Sample, window_s: float | None = None) -> Estimate:
        """Return the estimate after one more sample; `window_s` overrides T for this one."""
        trouble = self._find_time_fault(sample)
        if trouble is not None:
            return self._keep(sample, trouble)
        nodes = [fault for node in sample.nodes.values() if (fault := find_node_fault(node))]
        speeds = self._speeds.estimate({} if nodes else sample.nodes)
        reasons = nodes + self._take_executors(sample, speeds)
        if not reasons and not self._executors:
            reasons = ["the sample has no executor"]
        edges, sources = self._derive_rates(sample)
        window_s = self.settings.window_s if window_s is None else window_s
        self._estimate = Estimate(
            sample.at_s,
            {
                name: one.estimate(window_s, sample.nodes, speeds, self.settings.unknown_service_per_s)
                for name, one in self._executors.items()
            },
            self._estimate_nodes(sample, speeds, bool(nodes)),
            edges,
            sources,
            _number(sample.latency_s),
            _number(sample.latency_p99_s),
            sample.treating,
            "; ".join(reasons) or None,
            {quantile: one for quantile, one in sample.latency_quantiles_s.items() if math.isfinite(one)},
        )
        self._last, self._late_s = sample, None
        return self._estimate

    def rest(self, sample: Sample) -> Estimate:
        """Begin to count anew at a sample in which nothing is done on purpose; return what was known, as invalid."""
        if self._find_time_fault(sample) is None:
            self._restart_all(sample)
        return replace(self._keep(sample, "the query is paused"), at_s=sample.at_s)

    def _find_time_fault(self, sample: Sample) -> str | None:
        if not math.isfinite(sample.at_s):
            return "the sample has no time"
        if self._last is None or sample.at_s > self._last.at_s:
            return None
        late_s, self._late_s = self._late_s, sample.at_s
        if late_s is not None and late_s < sample.at_s:
            # Two in a row that lie before what is known and follow each other: the clock began again.
            self._restart_all(sample)
            return "the clock of the samples began again"
        return f"a sample of {sample.at_s:g} s came after one of {self._last.at_s:g} s"

    def _restart_all(self, sample: Sample) -> None:
        self._missed_s.clear()
        self._rates.clear()
        self._last, self._late_s = sample, None
        for name, one in list(self._executors.items()):
            found = sample.executors.get(name)
            if found is None or find_fault(name, found) is not None:
                del self._executors[name]
            else:
                self._executors[name] = one.restart(sample.at_s, found, self.settings.smoothing)

    def _keep(self, sample: Sample, trouble: str) -> Estimate:
        known = self._estimate
        if known is None:
            return Estimate(sample.at_s, {}, {}, treating=sample.treating, invalid=trouble)
        return Estimate(
            known.at_s, known.executors, known.nodes, known.edges, known.sources_per_s, known.latency_s,
            known.latency_p99_s, sample.treating, trouble, known.latency_quantiles_s,
        )  # fmt: skip

    def _take_executors(self, sample: Sample, speeds: Mapping[str, float]) -> list[str]:
        reasons = [
            reason
            for name, one in sample.executors.items()
            if (reason := self._take(name, one, sample, speeds)) is not None
        ]
        for name in [name for name in self._executors if name not in sample.executors]:
            reasons += self._miss(name, sample.at_s, f"there is no sample of {name}")
        return reasons

    def _take(
        self, name: str, sample: ExecutorSample, whole: Sample, speeds: Mapping[str, float]
    ) -> str | None:
        at_s = whole.at_s
        fault = find_fault(name, sample)
        if fault is not None:
            return "; ".join(self._miss(name, at_s, fault)) or fault
        known = self._executors.get(name)
        missed_s = tuple(self._missed_s.pop(name, ()))
        if known is None:
            self._executors[name] = ExecutorMeasure(name, at_s, sample, self.settings.smoothing)
            return f"{name} has one sample, and a rate needs two"
        if compare(known.sample, sample) is Sequel.RESTARTED:
            self._executors[name] = known.restart(at_s, sample, self.settings.smoothing)
            return f"the counters of {name} began again"
        self._speeds.update(known.sample, sample)
        known.take(at_s, sample, speeds, self._inherit(known, sample), missed_s, self._fit)
        if known.service.service_per_s is None and sample.arrived.any():
            return _explain_unserved(name, sample)
        return None

    def _miss(self, name: str, at_s: float, reason: str) -> list[str]:
        """Note that an executor has no sample now; one that stays away is forgotten."""
        missed_s = self._missed_s.setdefault(name, [])
        missed_s.append(at_s)
        if len(missed_s) >= self.settings.forget_after:
            del self._missed_s[name]
            self._executors.pop(name, None)
            return []
        return [reason]

    def _inherit(self, known: ExecutorMeasure, sample: ExecutorSample) -> Inherited | None:
        """What is known about shards that are new here: from when they were here before, or from another executor."""
        new = derive_new(known.sample, sample)
        if not new.any() or self._estimate is None:
            return None
        per_s, row_s = known.known_per_s.copy(), known.derive_row_s(self.settings.unknown_service_per_s)
        for name, other in self._estimate.executors.items():
            if other.operator == sample.operator and name != known.name and len(other.task_of) == len(new):
                had = new & (other.task_of >= 0)
                per_s[had] = other.arrival_per_s[had]
                loaded = had & (other.arrival_per_s > 0)
                row_s[loaded] = other.load[loaded] / other.arrival_per_s[loaded]
        return Inherited(per_s, row_s)

    def _derive_rates(self, sample: Sample) -> tuple[dict[tuple[str, str], float], dict[str, float]]:
        """Rows a second of edges and sources; totals that fell, or were not there before, have no rate yet."""
        before = self._last
        if before is None:
            return {}, {}
        elapsed_s = sample.at_s - before.at_s
        edges = {
            edge: self._rate(edge, total - before.edges[edge], elapsed_s)
            for edge, total in sample.edges.items()
            if total >= before.edges.get(edge, math.inf)
        }
        sources = {
            source: self._rate((source,), total - before.sources[source], elapsed_s)
            for source, total in sample.sources.items()
            if total >= before.sources.get(source, math.inf)
        }
        return edges, sources

    def _rate(self, key: tuple[str, ...], rows: float, elapsed_s: float) -> float:
        smoother = self._rates.get(key)
        if smoother is None:
            smoother = self._rates[key] = self.settings.smoothing.start()
        return smoother.add_number(rows / elapsed_s, elapsed_s)

    def _estimate_nodes(
        self, sample: Sample, speeds: Mapping[str, float], faulty: bool
    ) -> Mapping[str, NodeEstimate]:
        if faulty:
            return self._estimate.nodes if self._estimate is not None else {}
        return estimate_nodes(sample.nodes, self.settings.idle, speeds)


def _explain_unserved(name: str, sample: ExecutorSample) -> str:
    """Say why there is no service rate: nothing comes any more, or nothing is done of what came."""
    if sample.completed.sum() >= sample.arrived.sum():
        return f"no row of {name} has come lately"
    return f"no row of {name} has been completed yet"


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
