from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.spark import node_load
from penstock.spark.node_load import (
    NodeGrant,
    NodeMeter,
    Usage,
    derive_load,
    find_node_process,
    parse_size,
    read_grant,
)

GRANT = NodeGrant(cores=4, memory_bytes=1000, io_bytes_per_s=100)
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_load_is_what_was_used_between_two_readings_of_what_was_given() -> None:
    load = derive_load(Usage(10.0, 5.0, 1, 1000), Usage(12.0, 9.0, 250, 1100), GRANT)
    assert (load.cpu_ratio, load.memory_ratio, load.io_ratio) == (0.5, 0.25, 0.5)


def test_totals_that_fall_and_readings_at_one_moment_are_no_load() -> None:
    load = derive_load(Usage(10.0, 5.0, 1, 1000), Usage(10.0, 4.0, 0, 900), GRANT)
    assert (load.cpu_ratio, load.memory_ratio, load.io_ratio) == (0.0, 0.0, 0.0)


BURN = """
import os, sys, time
held = bytearray(os.urandom(40 << 20))
if os.fork() == 0:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        pass
    os._exit(0)
print("up", flush=True)
time.sleep(20)
"""


@linux
def test_a_grandchild_at_work_is_seen_in_cpu_and_its_parent_in_memory() -> None:
    grant = NodeGrant(cores=1, memory_bytes=400 << 20, io_bytes_per_s=1)
    with subprocess.Popen(
        [sys.executable, "-c", BURN], stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"up\n"
            meter = NodeMeter(root=child.pid, grant=grant)
            assert meter.read() is None
            load = None
            for _ in range(15):  # other work may have the core meanwhile
                time.sleep(0.6)
                load = meter.read()
                if load is not None and load.cpu_ratio > 0.15:
                    break
        finally:
            os.killpg(child.pid, 9)
    assert load is not None
    assert 0.15 < load.cpu_ratio < 1.2
    assert 0.09 < load.memory_ratio < 0.8


OWN = """
import sys, time
from penstock.spark.node_load import NodeGrant, NodeMeter
meter = NodeMeter(root=1, grant=NodeGrant(cores=2, memory_bytes=1 << 30, io_bytes_per_s=1 << 20))
assert meter.read_own() is None
held, end = bytearray(b"x" * (100 << 20)), time.monotonic() + 0.6
while time.monotonic() < end:
    pass
load = meter.read_own()
print(load.cpu_ratio, load.memory_ratio, load.io_ratio)
"""


@linux
def test_a_lease_reads_what_its_own_process_uses_of_the_node() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(20)"]) as sibling:
        try:
            told = subprocess.run(
                [sys.executable, "-c", OWN], capture_output=True, text=True, check=True
            ).stdout
        finally:
            sibling.kill()
    cpu, memory, io = map(float, told.split())
    assert 0.05 < cpu <= 0.6  # one of two cores, which others may have had meanwhile
    assert 0.09 < memory < 0.4 and 0 <= io < 1


@linux
def test_what_a_process_used_before_it_was_found_is_no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_load, "LIST_EVERY_S", 2.0)
    now = [0.0]
    meter = NodeMeter(root=os.getpid(), grant=NodeGrant(1, 1 << 30, 1 << 20), clock=lambda: now[0])
    meter.read()
    busy = "import time\nend = time.process_time() + 0.8\nwhile time.process_time() < end: pass\n"
    with subprocess.Popen(
        [sys.executable, "-c", busy + "print(flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        loads = []
        for at_s in (1.0, 2.0, 3.0):
            now[0] = at_s
            loads.append(meter.read())
        child.stdin.close()
    assert max(load.cpu_ratio for load in loads if load is not None) < 0.5


@linux
def test_a_reading_takes_under_two_milliseconds() -> None:
    meter = NodeMeter(root=os.getpid(), grant=GRANT)
    meter.read()
    took = []
    for _ in range(20):
        began = time.perf_counter()
        assert meter.read() is not None
        took.append(time.perf_counter() - began)
    assert min(took) < 0.002


@linux
def test_a_node_that_is_gone_gives_no_load_and_no_error() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert NodeMeter(root=child.pid).read() is None


def test_without_proc_there_is_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_load.sys, "platform", "darwin")
    assert NodeMeter().read() is None


@linux
def test_the_grant_of_an_executor_is_read_from_its_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = "java\0-Xmx768M\0org.apache.spark.executor.CoarseGrainedExecutorBackend\0--executor-id\x001\0--cores\x003\0"
    monkeypatch.setattr(
        node_load, "_read", lambda path: command.encode() if path.endswith("cmdline") else b""
    )
    monkeypatch.setattr(node_load, "_machine_bytes", lambda: float(8 << 30))
    found = read_grant(os.getpid(), {node_load.IO_BUDGET: "5e6"})
    assert found == NodeGrant(3.0, (768 + 384) << 20, 5e6)
    monkeypatch.setattr(node_load, "_group_bytes", lambda pid: float(1 << 30))
    assert read_grant(os.getpid(), {node_load.IO_BUDGET: "much"}).memory_bytes == 1 << 30


@linux
def test_in_local_mode_a_node_has_what_the_machine_has() -> None:
    found = read_grant(os.getpid(), {})
    assert found.cores == len(os.sched_getaffinity(0))
    assert 0 < found.memory_bytes <= node_load._machine_bytes()
    assert found.io_bytes_per_s == node_load.DEFAULT_IO_BYTES_PER_S


@linux
def test_without_a_jvm_above_the_topmost_ancestor_is_the_node() -> None:
    assert find_node_process(os.getpid()) > 1


def test_sizes_are_read_as_the_jvm_reads_them() -> None:
    assert [parse_size(text) for text in ("512", "1k", "768M", "2g")] == [512, 1024, 768 << 20, 2 << 30]
    with pytest.raises(ValueError, match="no size"):
        parse_size("much")
