"""Checkpoints that the in-process harness made, for what looks into them."""

from __future__ import annotations

from pathlib import Path

from tests.faults.runs import fast_disk, real_program

from penstock.dataplane.program import Program
from penstock.sim.inprocess import Driver
from penstock.sim.programs import local_program, memory_program
from penstock.sim.timing import SMALL, quick

PROGRAMS = {"memory": memory_program, "rows": local_program, "aggregates": real_program}


def left_behind(folder: Path, program: Program | None = None, *, kept: bool = False, seed: int = 2) -> str:
    """A checkpoint of a driver that crashed while rows waited in every channel."""
    driver = Driver(
        fast_disk(),
        str(folder / "cp"),
        program or memory_program(),
        quick(SMALL, retain_all=kept),
        seed,
        str(folder / "node"),
        rows=600,
        rate=8_000.0,
    )
    chains = driver.engine.chains.by_name
    assert driver.run_until(
        lambda: (
            chains["gather"].rows_in > 150
            and any(chain.snapshots for chain in chains.values())
            and any(chain.deltas for chain in chains.values())
            and all(any(chain.out.values()) for name, chain in chains.items() if name != "sink")
        )
    )
    driver.crash()
    driver.loop.run_until(lambda: False, 1.0)
    return driver.checkpoint
