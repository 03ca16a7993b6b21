"""What is killed, stopped and paused on the cluster, and when; each scenario is seeded and yields once per disturbance."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tests.faults.spark_runs import Driver, Run, changed_since, driver, violations, written_bytes

from penstock.dataplane import paths, recordlog
from penstock.dataplane.disk import PosixDisk
from penstock.spark.localcluster import LocalCluster
from penstock.spark.processes import descendants
from penstock.testing.schedule import check_schedule


def kill_drivers(
    on: LocalCluster, folder: Path, count: int, seed: int, topology: str = "bids", rate: float = 2000.0
) -> Iterator[str]:
    """Kill the driver `count` times, at the n-th step of its durable I/O or after so many rows, then let one finish."""
    rng = random.Random(seed)
    run = Run(folder, rate=rate, topology=topology)
    for number in range(count):
        step = int(10 ** rng.uniform(0.5, 2.9)) if number % 2 == 0 else 0
        with driver(on, run, nodes=1, kill_at_step=step) as one:
            if step:
                one.wait(lambda one=one: one.process.poll() is not None, 120)
                assert one.process.returncode == -signal.SIGKILL, one.said()
            else:
                goal = _rows_so_far(run) + rng.randrange(1, 1500)
                one.wait(lambda one=one, goal=goal: one.rows >= goal)
            one.kill()
        if list(run.checkpoint.glob("log/*.log")):
            check_schedule(str(run.checkpoint), run.program())
            assert not doubled_records(run.checkpoint)
        assert not violations(on)
        yield f"at step {step}" if step else "after some rows"
    with driver(on, run, nodes=1) as last:
        last.finish()
    run.check()
    assert not doubled_records(run.checkpoint)


def _rows_so_far(run: Run) -> int:
    if not list(run.checkpoint.glob("log/*.log")):
        return 0
    line = check_schedule(str(run.checkpoint), run.program())
    return sum(part.rows_in for record in line.of(run.counted) for part in record.parts)


def doubled_records(checkpoint: Path) -> list[tuple[str, int, str]]:
    """Epochs that have two records, in whatever parts of the log; dead drivers leave none behind."""
    disk = PosixDisk()
    seen: set[tuple[str, int, str]] = set()
    twice = []
    parts = (paths.parse_log(path.name) for path in sorted(checkpoint.glob("log/*.log")))
    for part in parts:
        assert part is not None
        for record, _ in recordlog.read_part(disk, str(checkpoint), part).records:
            name = (record.chain, record.epoch, record.kind)
            twice += [name] if name in seen else []
            seen.add(name)
    return twice


def kill_leases(
    on: LocalCluster, folder: Path, count: int, seed: int, topology: str = "bids", rate: float = 1500.0
) -> Iterator[str]:
    """Kill a lease's Python worker, and every third time a whole Spark executor, while the query runs."""
    rng = random.Random(seed)
    run = Run(folder, rate=rate, topology=topology)
    with driver(on, run) as one:
        for number in range(count):
            goal = one.rows + rng.randrange(100, 900)
            leases = _kill_one(on, one, goal, rng, executor=number % 3 == 2)
            killed = time.monotonic()
            one.wait(lambda leases=leases: bool(set(leases) - set(one.last["leases"])), 30)
            one.wait(lambda: bool(one.last["ready"]), 60)
            assert not violations(on)
            yield f"{'lease' if number % 3 != 2 else 'executor'}, ready after {time.monotonic() - killed:.1f} s"
        one.finish()
    run.check()


def _kill_one(on: LocalCluster, one: Driver, goal: int, rng: random.Random, executor: bool) -> dict[str, int]:
    """Kill a lease's process or its Spark executor when `goal` rows are done; return the leases of that moment."""
    for _ in range(20):
        one.wait(lambda: one.rows >= goal and one.last["ready"])
        leases = dict(one.last["leases"])
        victim: int | None = rng.choice(sorted(leases.values()))
        if executor:
            victim = _executor_of(on, victim)
        # What the driver last printed may be a moment old, and that process gone with the executor killed before.
        with contextlib.suppress(ProcessLookupError):
            if victim is not None:
                os.kill(victim, signal.SIGKILL)
                return leases
        time.sleep(0.2)
    raise AssertionError("no process of a lease could be found")


def _executor_of(on: LocalCluster, lease: int | None) -> int | None:
    """The Spark executor that a lease's process belongs to, None when it has gone."""
    found = (pid for pid in on.executor_pids() if lease in {below.pid for below in descendants(pid)})
    return next(found, None)


def stop_leases(on: LocalCluster, folder: Path, count: int, seed: int) -> Iterator[str]:
    """Stop a lease inside its work until it is replaced, then let it go on: nothing that was committed changes."""
    rng = random.Random(seed)
    run = Run(folder, rate=800.0, pause_s=0.002, cores=1, options={"leaseTimeoutSeconds": 3})
    with driver(on, run) as one:
        for _ in range(count):
            goal = one.rows + rng.randrange(100, 700)
            one.wait(lambda goal=goal: one.rows >= goal and one.last["ready"])
            leases = dict(one.last["leases"])
            name = rng.choice(sorted(leases))
            os.kill(leases[name], signal.SIGSTOP)
            one.wait(lambda name=name: name not in one.last["leases"], 30)
            one.wait(lambda leases=leases: len(one.last["leases"]) == len(leases) and one.last["ready"], 30)
            before = written_bytes(run.checkpoint)
            try:
                os.kill(leases[name], signal.SIGCONT)
                what = "went on after it was replaced"
            except ProcessLookupError:
                what = "had been ended by Spark before it could go on"
            time.sleep(0.5)
            assert not changed_since(before)
            yield what
        one.finish()
    run.check()


def two_drivers(on: LocalCluster, folder: Path, pause_s: float) -> None:
    """Pause a driver, let a second one take its checkpoint over, resume the first: it ends, and only one line is there."""
    run = Run(folder, rate=500.0)
    with driver(on, run, nodes=1) as first:
        first.wait(lambda: first.rows > 300 and first.last["ready"])
        leases = first.lease_pids
        os.kill(first.process.pid, signal.SIGSTOP)
        paused = time.monotonic()
        with driver(on, run, nodes=1, options={"takeover": True}) as second:
            second.wait(
                lambda: second.rows > first.rows + 300 and time.monotonic() - paused > pause_s, 120 + pause_s
            )
            os.kill(first.process.pid, signal.SIGCONT)
            assert first.await_end(30) == 1, first.said()
            said = first.said()
            assert f"taken over by driver generation 2 (process {second.process.pid}" in said, said
            first.await_gone(leases)
            second.finish()
    run.check()
    assert not violations(on)
