"""What processes use, from a made-up `/proc` and from this very process."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.bench import machine

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="process readings need Linux")


def put_process(
    proc: Path,
    pid: int,
    parent: int,
    name: str = "python3",
    ticks: tuple[int, ...] = (1, 1, 1, 1),
    anon_kb: int = 0,
) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    fields = ["S", str(parent), *["0"] * 9, *map(str, ticks), "20", "0"]
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    (folder / "status").write_text(f"VmRSS:\t  999999 kB\nRssAnon:\t   {anon_kb} kB\nRssFile:\t 77 kB\n")


def test_a_name_with_brackets_and_spaces_does_not_shift_the_fields(tmp_path: Path) -> None:
    put_process(tmp_path, 10, 1, "a) (b c", (TICKS_PER_S, TICKS_PER_S, 0, 0))
    assert machine.tree([10], tmp_path) == [machine.Process(10, 1, "a) (b c", 2.0)]


def test_cpu_covers_the_whole_tree_and_children_that_ended_but_nobody_else(tmp_path: Path) -> None:
    put_process(tmp_path, 10, 1, ticks=(TICKS_PER_S, 0, 3 * TICKS_PER_S, 0))
    put_process(tmp_path, 11, 10, "java", (0, 10 * TICKS_PER_S, 0, 0))
    put_process(tmp_path, 12, 11, ticks=(0, 0, 0, TICKS_PER_S))
    put_process(tmp_path, 20, 1, ticks=(100 * TICKS_PER_S, 0, 0, 0))
    assert machine.cpu_seconds([10], tmp_path) == 15.0


def test_a_process_under_two_roots_counts_once(tmp_path: Path) -> None:
    put_process(tmp_path, 10, 1, ticks=(TICKS_PER_S, 0, 0, 0))
    put_process(tmp_path, 11, 10, ticks=(TICKS_PER_S, 0, 0, 0))
    assert machine.cpu_seconds([10, 11], tmp_path) == 2.0


def test_a_root_that_ended_is_left_out(tmp_path: Path) -> None:
    put_process(tmp_path, 10, 1)
    assert machine.tree([99], tmp_path) == []


def test_resident_memory_is_pythons_and_leaves_file_mappings_out(tmp_path: Path) -> None:
    put_process(tmp_path, 10, 1, "python3", anon_kb=1000)
    put_process(tmp_path, 11, 10, "java", anon_kb=9_000_000)
    put_process(tmp_path, 12, 11, "penstock", anon_kb=500)
    (tmp_path / "12" / "exe").symlink_to("/usr/bin/python3.11")
    assert machine.python_resident_bytes([10], tmp_path) == 1500 * 1024


def test_memory_that_was_touched_counts_as_resident_and_a_mapped_file_does_not(tmp_path: Path) -> None:
    size = 48 << 20
    path = tmp_path / "mapped"
    path.write_bytes(bytes(size))
    before = machine.anonymous_bytes(os.getpid())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[::4096]) == 0
        assert machine.anonymous_bytes(os.getpid()) - before < size // 2
    held = bytearray(b"x") * size
    assert machine.anonymous_bytes(os.getpid()) - before > size // 2
    assert len(held) == size


def test_a_meter_sees_the_work_of_a_child_process() -> None:
    meter = machine.CpuMeter()
    loop = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-c", loop], check=True)
    use = meter.read()
    assert use.cpu_s >= 0.25
    assert use.seconds > 0


def test_a_meter_of_a_sleeping_process_reads_next_to_nothing() -> None:
    meter = machine.CpuMeter()
    time.sleep(0.2)
    assert meter.read().cores < 0.5


def test_versions_name_everything_a_figure_depends_on() -> None:
    found = machine.versions(java="21.0.1")
    assert {"python", "pyspark", "java", "pyarrow", "lmdb", "numpy", "penstock"} <= set(found)
    assert found["java"] == "21.0.1"


def test_the_tree_of_a_peer_is_not_counted_as_ours(tmp_path: Path) -> None:
    put_process(tmp_path, 10, 1, ticks=(TICKS_PER_S, 0, 0, 0), anon_kb=100)
    put_process(tmp_path, 11, 10, ticks=(5 * TICKS_PER_S, 0, 0, 0), anon_kb=5000)
    put_process(tmp_path, 12, 11, ticks=(5 * TICKS_PER_S, 0, 0, 0), anon_kb=5000)
    assert machine.cpu_seconds([10], tmp_path, apart_from=[11]) == 1.0
    assert machine.python_resident_bytes([10], tmp_path, apart_from=[11]) == 100 * 1024


def test_what_a_held_process_starts_is_held_to_the_same_cores() -> None:
    lines = (
        "import subprocess, sys\nfrom penstock.bench.machine import hold_to_cores\n"
        "print(hold_to_cores(1))\nsys.stdout.flush()\n"
        "subprocess.run([sys.executable, '-c', 'import os; print(len(os.sched_getaffinity(0)))'], check=True)"
    )
    answer = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["1", "1"]
