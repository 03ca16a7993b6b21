"""The process that Spark forks its Python workers from, one for each node, with what a lease needs imported.

A lease then starts in milliseconds, and leases share the pages of the libraries. It also finds out the executor's id,
makes the node's directory, under a random name that only the workers forked from here know, and deletes it when the
node goes, killed or not. Set by `penstock.session()` as `spark.python.daemon.module`; a session without it works too,
only slower to lease.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time

from penstock.spark.lease_task import EXECUTOR_ID, NODE_DIRECTORY, node_name
from penstock.spark.preloading import forget_archives, preload


def main() -> None:
    """Make the node's directory, hand over to Spark's own daemon, and delete it afterwards."""
    from pyspark.daemon import manager

    preload()
    forget_archives()
    directory = _make_directory()
    os.environ[NODE_DIRECTORY] = directory
    os.environ[EXECUTOR_ID] = node_name()
    try:
        manager()  # ends by SystemExit when the node does; workers leave by os._exit and never come back here
    finally:
        _delete(directory)


def _make_directory() -> str:
    """Make it where Spark keeps this node's blocks; mode 0700."""
    local = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return tempfile.mkdtemp(prefix="penstock-", dir=local if os.path.isdir(local) else None)


def _delete(directory: str) -> None:
    """Delete it, and once more: a worker that was told to go a moment ago may still write."""
    for _ in range(3):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.exists(directory):
            return
        time.sleep(0.1)


if __name__ == "__main__":
    main()
