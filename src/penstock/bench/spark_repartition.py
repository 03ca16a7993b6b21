"""Plain Spark changing the partitions of a stateful query, measured in a process of its own: stop, `repartition`, restart.

Nothing of Penstock's engine runs here. The query counts rows per key and keeps a blob per key, in the JVM, on RocksDB: the
cheapest stateful query Spark has for so much state. The first row of a key brings its blob; later rows bring as little as
those that our query is given, and change the count alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

TIMEOUT_S: Final = 280.0
ROWS_PER_FILE: Final = 200
KEYS_PER_FILE: Final = 16_384
PAYLOAD: Final = bytes(128)
"""Of rows after the first of a key: less than any blob, so that the greatest stays what it is."""
DDL: Final = "key bigint, blob binary"


class Repartitioned(msgspec.Struct, frozen=True):
    """What it came to. `held_up_s` is from the call of `stop` to the first commit of rows after the restart, for each
    change: what a row waits that arrives then. `undisturbed_s` is what rows wait else, from the file to the commit.
    `problem` is set where this Spark cannot do it."""

    held_up_s: list[float]
    repartition_s: list[float]
    state_bytes: int
    problem: str = ""
    undisturbed_s: list[float] = []


def measure_repartition(keys: int, key_bytes: int, changes: tuple[int, ...] = (4, 2)) -> Repartitioned:
    """Run it in a child process.

    Raises:
        RuntimeError: the child failed; the message has the end of what it said.
    """
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    order = json.dumps({"keys": keys, "key_bytes": key_bytes, "changes": changes})
    command = [sys.executable, "-m", "penstock.bench.spark_repartition", order]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(f"plain Spark failed: {done.stderr[-2000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Repartitioned)


def _measure(keys: int, key_bytes: int, changes: list[int]) -> Repartitioned:
    from penstock.bench.spark_peer import session

    spark = session()
    if not hasattr(spark, "_streamingCheckpointManager"):
        return Repartitioned([], [], 0, f"Spark {spark.version} cannot change the partitions of a checkpoint")
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        return _Run(spark, folder, keys, key_bytes).measure(changes)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


class _Run:
    def __init__(self, spark: Any, folder: Path, keys: int, key_bytes: int) -> None:
        self._spark, self._folder, self._keys, self._key_bytes = spark, folder, keys, key_bytes
        (folder / "in").mkdir()
        self._files, self._rows = 0, 0

    def measure(self, changes: list[int]) -> Repartitioned:
        for first in range(0, self._keys, KEYS_PER_FILE):
            keys = np.arange(first, min(first + KEYS_PER_FILE, self._keys), dtype=np.int64)
            self._write(keys, [os.urandom(self._key_bytes) for _ in keys])
        query = self._start()
        query.processAllAvailable()
        os.sync()  # what filling the state left for the disk to do is no part of any change
        held_up, took, usual = [], [], []
        for partitions in changes:
            for _ in range(3):  # warm: the batch before the stop is a usual one
                at = time.monotonic()
                self._write_rows()
                query.processAllAvailable()
                usual.append(time.monotonic() - at)
            began = time.monotonic()
            query.stop()
            self._write_rows()
            at = time.monotonic()
            self._spark._streamingCheckpointManager.repartition(str(self._folder / "checkpoint"), partitions)
            took.append(time.monotonic() - at)
            query = self._start()
            query.processAllAvailable()
            held_up.append(time.monotonic() - began)
        query.stop()
        return Repartitioned(held_up, took, self._keys * self._key_bytes, undisturbed_s=usual)

    def _write_rows(self) -> None:
        """Write some rows of keys that are there, in turn."""
        keys = (self._rows + np.arange(ROWS_PER_FILE, dtype=np.int64)) % self._keys
        self._rows += ROWS_PER_FILE
        self._write(keys, [PAYLOAD] * ROWS_PER_FILE)

    def _write(self, keys: npt.NDArray[np.int64], blobs: list[bytes]) -> None:
        table = pa.table({"key": keys, "blob": pa.array(blobs, pa.binary())})
        beside = self._folder / f"part{self._files}.parquet"
        pq.write_table(table, beside)
        beside.rename(self._folder / "in" / beside.name)
        self._files += 1

    def _start(self) -> Any:
        from pyspark.sql import functions as F

        rows = self._spark.readStream.schema(DDL).parquet(str(self._folder / "in"))
        counts = rows.groupBy("key").agg(F.count("*").alias("rows"), F.max("blob").alias("blob"))
        writer = counts.writeStream.outputMode("update").format("noop")
        return writer.option("checkpointLocation", str(self._folder / "checkpoint")).start()


if __name__ == "__main__":
    found = _measure(**json.loads(sys.argv[1]))
    print(msgspec.json.encode(found).decode())
