"""The process that Spark forks its Python workers from, with what a lease needs already imported.

A lease then starts in milliseconds, and leases share the pages of the libraries. Opens nothing: LMDB
environments and connections come after the fork. Set by `penstock.session()` as `spark.python.daemon.module`;
a session without it works too, only slower to lease.
"""

from __future__ import annotations

import penstock.dataplane.compile
import penstock.spark.lease_task  # noqa: F401  (imported for the workers forked from here)


def main() -> None:
    """Hand over to Spark's own daemon."""
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
