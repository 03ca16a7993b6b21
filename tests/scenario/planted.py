"""Planted bugs that the protocol simulation must find; most change real lines, six are faulty shells or disks."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.scenario.mutants import Changes, mutated

SEEDS = 200
"""A planted bug must be found within so many seeds."""


@dataclass(frozen=True)
class Planted:
    """A bug: changed lines of real modules, or a driver class made from the real one."""

    name: str
    changes: Changes = field(default_factory=dict)
    driver: Callable[[Any], type] | None = None
    turn: int | None = None
    """Which kind of weather to hunt in (see `weather_of`), None for all in turn; of a timed one, the first seed."""
    every: int = 4
    timed: bool = False
    """Whether it is hunted in storms over watermarks in a row, whose oracle is arithmetic."""


@dataclass(frozen=True)
class Found:
    name: str
    seed: int | None
    violation: str | None


def hunt(bug: Planted, seeds: int = SEEDS) -> Found:
    """Run the simulation with a bug planted until a promise is seen broken."""
    with mutated(bug.changes):
        if bug.timed:
            timelines: Any = importlib.import_module("penstock.sim.timelines")
            chosen = range(bug.turn or 0, (bug.turn or 0) + seeds)
            told = ((seed, timelines.storm(seed)) for seed in chosen)
            return next((Found(bug.name, *one) for one in told if one[1]), Found(bug.name, None, None))
        protocol: Any = importlib.import_module("penstock.sim.protocol")
        inprocess: Any = importlib.import_module("penstock.sim.inprocess")
        driver = bug.driver(inprocess.Driver) if bug.driver is not None else inprocess.Driver
        chosen = range(seeds) if bug.turn is None else range(bug.turn, bug.every * seeds, bug.every)
        outcome = protocol.first_violation(chosen, lambda seed: protocol.simulate(seed, None, driver))
    return Found(bug.name, outcome.seed if outcome else None, outcome.violation if outcome else None)


# -- shells and disks that break their contract ---------------------------------------------------------------------------


def _acknowledges_before_the_sync(driver: Any) -> type:
    class Faulty(driver):  # type: ignore[misc]
        def _commit(self, encoded: list[bytes]) -> None:
            if encoded:
                for one in encoded:
                    self.on_append(self, one)
                self._publish(encoded)
                self._log.append(encoded)

    return Faulty


def _deletes_old_parts_before_the_base(driver: Any) -> type:
    class Faulty(driver):  # type: ignore[misc]
        def _log_turn(self) -> None:
            if any(not isinstance(item, list) for item in self._log_queue):
                for name in self.disk.list(f"{self.checkpoint}/log"):
                    if name.endswith(".log"):
                        self.disk.delete(f"{self.checkpoint}/log/{name}")
            super()._log_turn()

    return Faulty


def _says_done_before_the_side_effect(driver: Any) -> type:
    class Faulty(driver):  # type: ignore[misc]
        def run_sink(self, work: Any) -> None:
            done = lambda: self.engine.on_sink_done(work.stage, work.epoch)  # noqa: E731
            self._soon(0.001, done)
            self._soon(0.05, lambda: self._write_out(work))

        def _write_out(self, work: Any) -> None:
            errands: Any = importlib.import_module("penstock.dataplane.errands")
            table = errands.read_sink_rows(self.disk, self.checkpoint, self.program, work)
            self.sink.calls.append((self.generation, work.epoch, table))

    return Faulty


def _lists_files_after_looking_at_what_lives(driver: Any) -> type:
    class Faulty(driver):  # type: ignore[misc]
        def list_for_cleanup(self) -> None:
            live = self.engine.chains.live_files() | self.engine._files_under_way()
            self._soon(0.02, lambda: self._plan_late(live))

        def _plan_late(self, live: set[str]) -> None:
            self.clean_up([name for name in self.disk.list(f"{self.checkpoint}/data") if name not in live])

    return Faulty


def _hands_a_message_over_twice(driver: Any) -> type:
    class Faulty(driver):  # type: ignore[misc]
        def send(self, lease: str, message: Any) -> None:
            super().send(lease, message)
            if self.loop.rng.random() < 0.02:
                super().send(lease, message)

    return Faulty


def _loses_data_syncs(driver: Any) -> type:
    """A disk that says a folder is synced and does not do it."""

    class Faulty(driver):  # type: ignore[misc]
        def restart(self) -> None:
            disk_of = self._disk_of

            def lying(name: str) -> Any:
                disk = disk_of(name)
                disk._calls.sync_dir = lambda path: None
                return disk

            self._disk_of = lying
            super().restart()

    return Faulty


ENGINE = "penstock.dataplane.engine"
COMMITTING = "penstock.dataplane.committing"
CHAIN = "penstock.dataplane.chain"
LOG = "penstock.dataplane.recordlog"
CHANNEL = "penstock.dataplane.channel"
FRONTIER = "penstock.dataplane.frontier"
PLACING = "penstock.dataplane.placing"
SERVING = "penstock.dataplane.serving"
PLANS = {"turn": 4, "every": 8}
"""Hunt among storms of plans."""

PLANTED = (
    Planted(
        "no look for a newer claim after the sync",
        {LOG: [("        self._file.sync()\n        self.check_claim()\n", "        self._file.sync()\n")]},
        turn=1,
    ),
    Planted("records are not synced", {LOG: [("        self._file.sync()\n", "")]}),
    Planted(
        "the log is read before the claim",
        {"penstock.dataplane.opening": [
            ("    claim = _beside_others(claim_it)\n",
             "    _prepare(disk, checkpoint, program)\n"
             "    early = _load(disk, checkpoint, program, who)\n"
             "    claim = _beside_others(claim_it)\n"),
            ("        opened = _load(disk, checkpoint, program, claim)\n",
             "        opened = __import__('dataclasses').replace(early, claim=claim)\n"),
        ]},
        turn=1,
    ),
    Planted("data files are not synced", {CHANNEL: [("        self._file.sync()\n", "")]}),
    Planted(
        "snapshots are not synced",
        {"penstock.dataplane.worker": [("            self._snapshots.sync()\n", "            pass\n")]},
    ),
    Planted(
        "clean-up forgets files of reports on their way",
        {ENGINE: [("self.chains.live_files() | self._files_under_way()", "self.chains.live_files()")]},
    ),
    Planted(
        "a lost task's shards are brought before its last record is durable",
        {"penstock.dataplane.run": [("if self.phase is Phase.IDLE or not self.parts:", "if True:")]},
    ),
    Planted(
        "reports of leases that are not held any more are taken",
        {ENGINE: [
            ("if held is None or self.failed is not None:", "if self.failed is not None:"),
            ("        held.heard_at = self._clock()\n", ""),
        ], COMMITTING: [
            ("if slot is None or slot.index not in run.waiting_for or slot.lease != lease:",
             "if slot is None or slot.index not in run.waiting_for:"),
        ]},
        turn=0,
    ),
    Planted(
        "a record covers shards of tasks that never reported",
        {"penstock.dataplane.run": [("sorted(self.asked - set(self.parts))", "[]")]},
    ),
    Planted(
        "a range cut inside a segment begins at its first row again",
        {"penstock.dataplane.taking": [("low = end.row if item.epoch == end.epoch else 0", "low = 0")]},
    ),
    Planted(
        "bring leaves out the first delta after the snapshot",
        {"penstock.dataplane.bring": [("if frame.epoch <= first:", "if frame.epoch <= first + 1:")]},
    ),
    Planted(
        "deltas are dropped one epoch too early",
        {CHAIN: [("low = int(dirty.min()) if len(dirty)", "low = int(dirty.min()) + 1 if len(dirty)")]},
    ),
    Planted(
        "segments are dropped when the first shards are past them",
        {"penstock.dataplane.standing": [("return min((group.at[key] for group in groups), default",
                                          "return max((group.at[key] for group in groups), default")]},
    ),
    Planted("a base forgets the intent", {CHAIN: [("intent=self.intent,", "intent=None,")]}),
    Planted(
        "acknowledged before the sync", driver=_acknowledges_before_the_sync,
    ),
    Planted("old log parts deleted before the base", driver=_deletes_old_parts_before_the_base),
    Planted("a sink epoch done before its side effect", driver=_says_done_before_the_side_effect),
    Planted(
        "the listing for clean-up is newer than what lives", driver=_lists_files_after_looking_at_what_lives,
    ),
    Planted("a message is handed over twice", driver=_hands_a_message_over_twice),
    Planted("folder syncs are lost", driver=_loses_data_syncs),
    Planted(
        "a task keeps the environment of a shard that it has let go",
        {"penstock.dataplane.worker": [("name = task.locals.pop(shard)", "name = task.locals[shard]")]},
        **PLANS,
    ),
    Planted(
        "a shard is brought before its task has let it go",
        {"penstock.dataplane.run": [
            ("        self.shards.to(shards, Holding.RELEASING)\n",
             "        self.shards.to(shards, Holding.RELEASING)\n        self.shards.to(shards, Holding.ABSENT)\n"),
        ]},
        **PLANS,
    ),
    Planted(
        "a copy is taken without its later deltas, and nobody compares",
        {
            "penstock.dataplane.bring": [("if wanted.local_version < wanted.version:", "if False:")],
            "penstock.sim.memory_state": [
                ("        if (opened.version, _bytes(opened.digest)) != (version, digest):\n",
                 "        opened.version = version\n        if False:\n"),
            ],
        },
        **PLANS,
    ),
    Planted(
        "a plan takes effect inside an epoch",
        {ENGINE: [("        if run.phase is not Phase.IDLE or self.line.part == 0 or self.stopping:\n",
                   "        self.placing.move(run)\n"
                   "        if run.phase is not Phase.IDLE or self.line.part == 0 or self.stopping:\n")]},
        **PLANS,
    ),
    Planted(
        "clean-up deletes files that copies are made from",
        {ENGINE: [("self.placing.copies.files().union(", "set().union(")]},
        turn=12,
        every=16,
    ),
    Planted(
        "a task ends with shards still on it",
        {PLACING: [("[index for index in run.slots if not run.shards.wanted_by(index)]", "[*run.slots]")]},
        **PLANS,
    ),
    Planted(
        "a source's rows are dealt to its tasks in the order in which plans named them",
        {"penstock.dataplane.source_steps": [("for index in sorted(run.slots) if", "for index in run.slots if")]},
        **PLANS,
    ),
    Planted(
        "a task waits for its node for ever",
        {SERVING: [("        self._free_from_nodes(slots, leases, nodes)\n", "")]},
        **PLANS,
    ),
    Planted(
        "an event time counts at once, whoever sits out",
        {FRONTIER: [("        return all(\n            self.low.get(name, -1) >= epoch",
                     "        return True or all(\n            self.low.get(name, -1) >= epoch")]},
        timed=True,
    ),
    Planted(
        "an event time counts though rows further up are not through",
        {FRONTIER: [("tracks.upstream[given.edge]\n", "frozenset()\n")]},
        timed=True,
        turn=3,
    ),
    Planted(
        "rows of a producer epoch that was cut count as all of its rows",
        {FRONTIER: [("{key.chain: at[key].epoch + (at[key].row > 0)}", "{key.chain: at[key].epoch}")]},
        timed=True,
        turn=24,
    ),
    Planted(
        "nobody is told without rows how far rows are through",
        {FRONTIER: [("        return self.low != through and (everyone or", "        return False and (everyone or")]},
        timed=True,
        turn=5,
    ),
    Planted(
        "a source does not tell two ways how far it is where one of them has no rows",
        {FRONTIER: [("            return worked and edge in self._tracks.meets", "            return False")]},
        timed=True,
        turn=4,
    ),
    Planted(
        "shards that sit out with windows and timers in them are taken along",
        {"penstock.dataplane.run": [("return absent & ~self.chain.digests.any(axis=1) if", "return absent if")]},
        timed=True,
        turn=12,
    ),
)  # fmt: skip
