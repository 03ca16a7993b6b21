"""Ways to damage a node's local state, each tried in a process of its own, since LMDB may take the process with it.

A damaged copy must never be believed: it is rebuilt from the checkpoint with the committed digest, or its
process dies and the next lease, which is told of no copy, rebuilds it.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
from tests.faults.damage import Tally
from tests.faults.runs import KEPT as RETAINED
from tests.faults.runs import fast_disk, real_program
from tests.faults.station import Station

from penstock.dataplane import messages
from penstock.dataplane.program import Program
from penstock.dataplane.state import local
from penstock.dataplane.state.local import LocalShard
from penstock.sim.inprocess import Driver
from penstock.testing.replay import replay
from penstock.testing.schedule import check_schedule

REFUSED, SILENT, FAILED, REBUILT, KEPT = 70, 71, 72, 73, 74


def in_child(call: Callable[[], int]) -> int:
    """Run `call` in a forked process; return its exit code, or minus the signal that killed it."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(
                os.open(os.environ.get("CHILD_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2
            )
            code = call()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def prepare(
    folder: Path, operator: str, program: Callable[[], Program] = real_program
) -> tuple[Station, dict[int, str]]:
    """Work some epochs in a child, hand all environments over, and return the station as it stands with their names."""
    station = Station(program(), fast_disk(), str(folder / "cp"), str(folder / "node"), operator="fold")
    station.worker.handle(station.bring())
    for number in range(6):
        station.feed(60)
        station.step(snapshots=[0, 3] if number == 3 else [])
    if operator == "fold":
        local = station.release()
        station.worker.close()
        return station, local
    fold = station.worker
    station.operator = operator
    station.worker.handle(station.bring())
    for _ in range(6):
        station.step(60)
    local = station.release()
    fold.close()
    return station, local


def try_handover(station: Station, local: dict[int, str], nodes: str, number: int) -> int:
    """Bring every shard from handed-over environments in a fresh lease; how it went."""
    station.node_dir = nodes

    def child() -> int:
        worker = station.hire(f"next{number}")
        answer = worker.handle(station.bring(local))
        if not isinstance(answer, messages.Brought):
            return FAILED
        if not all(shard.ok for shard in answer.shards):
            return REFUSED
        station.worker = worker
        taken = {shard.how for shard in answer.shards}
        before = {s: station.chain.digest(s) for s in range(station.chain.spec.shards)}
        for shard, digest in before.items():
            # A snapshot reads every entry and proves it against the digest.
            entries = worker._tasks[(station.operator, 0)].state.snapshot(shard)  # type: ignore[union-attr]
            assert entries is not None and digest is not None
        return KEPT if taken == {"local"} else REBUILT

    return in_child(child)


def damage_handover(folder: Path, operator: str, count: int, seed: int = 0) -> Tally:
    """Damage environments that were handed over, in `count` ways, and bring them."""
    rng = random.Random(f"{operator} {seed}")
    station, local = prepare(folder, operator)
    tally = Tally()
    for number in range(count):
        nodes = folder / f"node{number}"
        shutil.copytree(folder / "node", nodes)
        what = _damage(rng, [nodes / name for name in local.values()])
        code = try_handover(station, local, str(nodes), number)
        died = code < 0
        if died:
            shutil.rmtree(nodes)
            code = try_handover(station, {}, str(nodes), number + count)
        fault = None if code in (REBUILT, KEPT) else f"ended with {code}"
        tally.add(
            f"local state of '{operator}': {what}{' (the process died)' if died else ''}",
            fault,
            code == REBUILT,
        )
        shutil.rmtree(nodes, ignore_errors=True)
    return tally


def _damage(rng: random.Random, environments: list[Path]) -> str:
    chosen = rng.choice(environments)
    data = chosen / "data.mdb"
    size = data.stat().st_size
    way = rng.choice(
        ["flip", "flip", "flip", "flips", "cut", "zero", "gone", "no data", "empty", "swap", "lock", "noise"]
    )
    if way in ("flip", "flips"):
        places = [rng.randrange(size) for _ in range(1 if way == "flip" else 64)]
        raw = bytearray(data.read_bytes())
        for place in places:
            raw[place] ^= 1 << rng.randrange(8)
        data.write_bytes(raw)
        return f"{len(places)} bits flipped, the first at {places[0]} of {chosen.name}"
    if way == "cut":
        at = rng.randrange(size)
        os.truncate(data, at)
        return f"{chosen.name} cut at {at}"
    if way == "zero":
        at = rng.randrange(size) & ~4095
        raw = bytearray(data.read_bytes())
        raw[at : at + 4096] = bytes(len(raw[at : at + 4096]))
        data.write_bytes(raw)
        return f"page at {at} of {chosen.name} zeroed"
    if way == "gone":
        shutil.rmtree(chosen)
    elif way == "no data":
        data.unlink()
    elif way == "empty":
        data.write_bytes(b"")
    elif way == "swap":
        other = rng.choice([one for one in environments if one != chosen])
        chosen.rename(chosen.with_suffix(".x"))
        other.rename(chosen)
        chosen.with_suffix(".x").rename(other)
        return f"{chosen.name} swapped with {other.name}"
    elif way == "lock":
        (chosen / "lock.mdb").write_bytes(rng.randbytes(8192))
    else:
        data.write_bytes(rng.randbytes(size))
    return f"{way}: {chosen.name}"


def damage_live(folder: Path, operator: str, count: int, seed: int = 0) -> Tally:
    """Flip a bit in a stored value while its lease works on with next to no memory, so that it reads it again.

    The lease must say so, or commit exactly what an undamaged one commits. Damage to the pages between the
    values, while they are mapped, is noticed when the shard is next read whole: by its snapshot, or by whoever
    takes it over.
    """
    rng = random.Random(f"live {operator} {seed}")
    tally = Tally()
    for number in range(count):
        home = folder / f"live{number}"
        home.mkdir()
        draw = rng.random()
        code = in_child(lambda home=home, draw=draw: _live(home, draw))  # type: ignore[misc]
        fault = None if code in (KEPT, FAILED) else f"ended with {code}"
        tally.add(f"live value of '{operator}' at {draw:.4f}", fault, code == FAILED)
        shutil.rmtree(home, ignore_errors=True)
    return tally


def _live(home: Path, draw: float) -> int:
    def small() -> Program:
        return real_program(shards=(2, 2), memory_bytes=1)

    clean = Station(small(), fast_disk(), str(home / "clean"), str(home / "clean-node"))
    hurt = Station(small(), fast_disk(), str(home / "hurt"), str(home / "hurt-node"))
    for station in (clean, hurt):
        station.worker.handle(station.bring())
        for _ in range(4):
            station.feed(80)
            station.step()
        station.worker.handle(messages.Commit("fold", 0, station.chain.epoch))
        station.worker.idle()
        station.feed(600)  # so that every key is read again
    _flip_value(hurt, draw)
    answer = hurt.worker.handle(hurt.work())
    if isinstance(answer, messages.Failed):
        return FAILED if answer.kind == "local" else REFUSED
    assert isinstance(answer, messages.Done)
    expected = clean.done(clean.worker, clean.work())
    same = (answer.part.changed, answer.part.digests) == (expected.changed, expected.digests)
    return KEPT if same else SILENT


def _flip_value(station: Station, draw: float) -> None:
    """Flip one bit of the value of one key's count, which every later row of that key reads."""
    state = station.worker._tasks[(station.operator, 0)].state
    assert state is not None
    shard = state._shards[round(draw)]  # type: ignore[attr-defined]
    entries = [(key, value) for key, value in shard.local.scan(b"\x01") if value]
    key, value = entries[int(draw * len(entries))]
    hurt = bytearray(value)
    hurt[int(draw * 8 * len(hurt)) // 8] ^= 1 << int(draw * 1000) % 8
    with shard.local._environment.begin(write=True) as transaction:
        transaction.put(key, bytes(hurt))
    shard.cache.clear()  # as an eviction would: what is decoded already is not read again


def fill_disk(folder: Path, seed: int) -> int:
    """Run a query while the disk of one of its nodes is full now and then; return how many writes that failed.

    What a lease cannot write it gives up with its shards; others rebuild them from the checkpoint. Raises unless
    every row went through once and every digest is that of a replay.
    """
    rng = random.Random(seed)
    failures = 0
    transact = LocalShard._transact

    def full(self: LocalShard, change: Callable[[Any], Any]) -> Any:
        nonlocal failures
        if "/n1/" in self.path and rng.random() < 0.3 and failures < 6:
            failures += 1
            error = lmdb.DiskError(f"mdb_txn_commit: {os.strerror(errno.ENOSPC)}")
            raise local._write_error(self.path, error) from error
        return transact(self, change)

    driver = Driver(
        fast_disk(),
        str(folder / "cp"),
        real_program(),
        RETAINED,
        seed,
        str(folder / "node"),
        rows=250,
        rate=4_000.0,
    )
    driver.run_until(0.03)
    LocalShard._transact = full  # type: ignore[method-assign]
    try:
        assert driver.run_until("drained", 60.0), driver.failed
    finally:
        LocalShard._transact = transact  # type: ignore[method-assign]
    driver.stop()
    driver.loop.run_until(lambda: False, 1.0)
    check_schedule(driver.checkpoint, driver.program, complete=True)
    assert replay(driver.checkpoint, driver.program).rows == 3 * driver.rows
    return failures


def fill_disks(folder: Path, count: int, seed: int = 0) -> Tally:
    """`fill_disk` with `count` seeds."""
    tally = Tally()
    for number in range(seed, seed + count):
        home = folder / f"full{number}"
        home.mkdir()
        fault, failures = None, 0
        try:
            failures = fill_disk(home, number)
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        tally.add(f"local disk full, seed {number}", fault, failures > 0)
        shutil.rmtree(home, ignore_errors=True)
    return tally
