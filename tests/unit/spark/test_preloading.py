"""A lease imports nothing while rows wait for it: all is there before it is forked, or before it says that it is up."""

from __future__ import annotations

import subprocess
import sys

FIRST_EPOCH = """
import os, sys, tempfile, zipimport
import numpy as np, pyarrow as pa
from penstock.spark.preloading import forget_archives, preload
preload()
forget_archives()
assert not any(isinstance(one, zipimport.zipimporter) for one in sys.path_importer_cache.values())
known = set(sys.modules)
from penstock.dataplane import messages
from penstock.dataplane.disk import PosixDisk
from penstock.dataplane.lease_home import LeaseIdentity
from penstock.dataplane.worker import Worker
from penstock.sim.programs import local_program
with tempfile.TemporaryDirectory() as folder:
    os.makedirs(f"{folder}/cp/data")
    worker = Worker(LeaseIdentity("l1", 1, f"{folder}/cp", f"{folder}/node"), local_program(), PosixDisk())
    made = worker.handle(messages.Bring("fold", 0, [messages.BringShard(0, 0, bytes(16), None, None, 0)], []))
    assert isinstance(made, messages.Brought), made
    pa.array(np.arange(3)).take(pa.array([1]))
    worker.close()
slow = ("pandas", "lmdb", "xxhash", "pyspark", "pyarrow", "penstock.dataplane.state", "penstock.dataplane.logic")
print(sorted(name for name in set(sys.modules) - known if name.startswith(slow)))
"""


def test_a_first_epoch_imports_nothing_that_takes_time() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_EPOCH], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
