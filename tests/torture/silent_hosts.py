"""Test 15: hosts that fall silent for 20 and 60 s, one after the other, on one running cluster.

Links are cut in network namespaces where root and iproute2 are to be had, all processes of a node are stopped elsewhere (or
where PENSTOCK_SILENCE=stop says so); the names of the parts say which of the two it was.
"""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

from tests.faults import links
from tests.faults.silent_hosts import SilentHosts
from tests.torture.report import Report

LENGTHS_S = (20.0, 60.0)


def silent_hosts(count: int, seed: int, report: Report) -> None:
    """Every row reaches the sink once and as arithmetic says, and every key has rows again 5 s after a lease's time-out."""
    by_link = os.environ.get("PENSTOCK_SILENCE") != "stop" and links.can_cut()
    way = (links.CutLinks if by_link else links.StoppedProcesses).said
    parts = [(f"{way}, {at + 1} and {at + 2}", at) for at in range(0, count, len(LENGTHS_S))]
    wanted = [part for part in parts if report.wanted(part[0])]
    if not wanted:
        return
    print(f"  test {report.test}: {way}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-silent-") as folder,
        SilentHosts(Path(folder), by_link) as hosts,
    ):
        for name, at in wanted:
            if not report.wanted(name):
                return
            cuts = random.Random(seed + at).sample(LENGTHS_S, len(LENGTHS_S))
            found = hosts.tell(cuts, seed + at)
            failed = list(found["wrong"]) if hosts.said == way else [f"it was not by {way}, but {hosts.said}"]
            report.note(name, len(cuts), 0 if failed else len(cuts), failed)
            if failed:
                return  # its process has ended
