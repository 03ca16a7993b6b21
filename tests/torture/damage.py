"""Tests 7, 8 and 9 at full count: flipped bits, files cut, deleted, swapped, stale or foreign, and damaged local state."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from tests.faults import damage, local_damage
from tests.faults.damage import FLIP_KINDS, Bench, Tally, bench_with_every_kind, last_data_file, spread
from tests.faults.forging import forge_and_judge
from tests.faults.runs import scratch
from tests.torture.report import Report

FLIP_CHUNK = 250
CUT_CHUNK = 500
FORGE_CHUNK = 500
FORGED_STATES = ("memory", "aggregates")
BENCH_SEED = 2


def note(report: Report, part: str, tally: Tally) -> None:
    report.note(part, tally.tried, tally.passed, tally.failures)


def flip_chunk(kind: str, count: int, seed: int) -> Tally:
    with scratch() as folder:
        return damage.flip_bits(bench_with_every_kind(folder, BENCH_SEED), kind, count, seed)


def bit_flips(count: int, seed: int, report: Report) -> None:
    """`count` positions in all, the same number for every kind of frame and file."""
    each = -(-count // len(FLIP_KINDS))
    jobs = [
        (f"{kind} {first} to {first + size - 1}", (kind, size, seed + first))
        for kind in FLIP_KINDS
        for first in range(0, each, FLIP_CHUNK)
        for size in [min(FLIP_CHUNK, each - first)]
    ]
    _in_pool(report, flip_chunk, jobs)


def forgeries(count: int, seed: int, report: Report) -> None:
    """`count` forged checkpoints, the same number over each kind of state."""
    each = -(-count // len(FORGED_STATES))
    jobs = [
        (f"{kind} {first} to {first + size - 1}", (kind, seed + first, size))
        for kind in FORGED_STATES
        for first in range(0, each, FORGE_CHUNK)
        for size in [min(FORGE_CHUNK, each - first)]
    ]
    _in_pool(report, forge_and_judge, jobs)


def cut_chunk(which: str, first: int, step: int) -> Tally:
    with scratch() as folder:
        bench = bench_with_every_kind(folder, BENCH_SEED)
        if which == "log":
            size = len(bench.read(bench.newest_log()))
            return damage.cut_log(bench, list(range(first, min(first + step, size + 1))))
        name = last_data_file(bench)
        size = len(bench.read(name))
        return damage.cut_file(bench, name, list(range(first, min(first + step, size))))


def files_part(which: str) -> Tally:
    with scratch() as folder:
        bench = bench_with_every_kind(folder, BENCH_SEED)
        if which == "small files cut":
            names = ("meta", "drivers/g000002.claim", "drivers/heartbeat", "log/newest")
            return _sum([damage.cut_file(bench, name, spread(len(bench.read(name)), 40)) for name in names])
        if which == "foreign":
            (folder / "other").mkdir()
            return damage.foreign_files(bench, Bench(folder / "other", 11))
        chosen: dict[str, Callable[[Bench], Tally]] = {
            "deleted": damage.delete_files,
            "swapped": damage.swap_files,
            "stale": damage.stale_files,
        }
        return chosen[which](bench)


def damaged_files(count: int, seed: int, report: Report) -> None:
    """The last log part and data file cut at every byte; every file deleted, swapped with every other, stale, foreign."""
    with scratch() as folder:
        bench = bench_with_every_kind(folder, BENCH_SEED)
        sizes = {
            "log": len(bench.read(bench.newest_log())) + 1,
            "data file": len(bench.read(last_data_file(bench))),
        }
    cuts = [
        (f"{which} cut at {first} and on", (which, first, CUT_CHUNK))
        for which, size in sizes.items()
        for first in range(0, size, CUT_CHUNK)
    ]
    _in_pool(report, cut_chunk, cuts)
    _in_pool(
        report, files_part, [(w, (w,)) for w in ("small files cut", "deleted", "swapped", "stale", "foreign")]
    )


def local_chunk(kind: str, operator: str, count: int, seed: int) -> Tally:
    with scratch() as folder:
        if kind == "live":
            return local_damage.damage_live(folder, operator, count, seed)
        if kind == "full":
            return local_damage.fill_disks(folder, count, seed)
        return local_damage.damage_handover(folder, operator, count, seed)


def damaged_local_state(count: int, seed: int, report: Report) -> None:
    """A quarter of `count` each: damages to handed-over environments of both kinds of state, to values under a working
    lease, and runs in which the disk of a node is full."""
    each = -(-count // 4)
    kinds = (("handover", "fold"), ("handover", "gather"), ("live", "fold"), ("full", "fold"))
    jobs = [
        (f"{kind} {operator} {first}", (kind, operator, min(100, each - first), seed + first))
        for kind, operator in kinds
        for first in range(0, each, 100)
    ]
    _in_pool(report, local_chunk, jobs)


def _sum(tallies: list[Tally]) -> Tally:
    return Tally(
        sum(t.tried for t in tallies),
        sum(t.refused for t in tallies),
        [line for t in tallies for line in t.failures],
    )


def _in_pool(report: Report, work: Callable[..., Tally], jobs: list[tuple[str, tuple[object, ...]]]) -> None:
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        wanted = [(part, pool.submit(work, *arguments)) for part, arguments in jobs if report.wanted(part)]
        for part, future in wanted:
            if report.out_of_time:
                future.cancel()
                continue
            note(report, part, future.result())
