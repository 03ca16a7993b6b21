"""A lease's process gives large blocks back."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import pyarrow as pa
from penstock.dataplane.allocator import return_large_blocks

def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 >> 20

return_large_blocks()
block = b"x" * (3 << 20)
before = resident()
kept = [bytearray(block) for _ in range(40)]
held = resident() - before
kept.clear()
print(held > 100, resident() - before < 30, pa.default_memory_pool().backend_name)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_blocks_that_were_freed_leave_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "system"]
