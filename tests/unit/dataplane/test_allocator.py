"""A lease's process gives large blocks back."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest
from tests.faults.local_damage import in_child

from penstock.dataplane.allocator import return_large_blocks


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_blocks_that_were_freed_leave_the_process() -> None:
    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096

    def child() -> int:
        return_large_blocks()
        block = b"x" * (3 << 20)
        before = resident()
        kept = [bytearray(block) for _ in range(40)]
        assert resident() - before > 100 << 20
        kept.clear()
        assert resident() - before < 20 << 20, resident() - before
        assert pa.default_memory_pool().backend_name == "system"
        return 7

    assert in_child(child) == 7
