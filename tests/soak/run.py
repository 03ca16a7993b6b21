"""`make soak`: a query at 20,000 rows/s for an hour; nothing may grow over the last two thirds, and every row counts once.

Samples go to a file as they are taken. A soak that was cut off is not resumed, since a new process starts warm-up
anew; what it has sampled is judged with `--judge`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tests.soak.account import Account, check  # noqa: E402
from tests.soak.flow import Load, flow  # noqa: E402
from tests.soak.judge import SKIPPED_SHARE, Verdict, judge, table  # noqa: E402
from tests.soak.sampling import Sampler  # noqa: E402

import penstock  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTES = 60.0
SAMPLE_EVERY_S = 5.0
DRAIN_S = 60.0
"""How long the query may take to finish what is left when the sources have ended."""
EPOCH_S = 0.05
"""Shortest time between epochs: two cores carry ten processes here, and are to have room for what else they do."""
HEAP = "640m"
RETAINED = ("spark.ui.retainedJobs", "spark.ui.retainedStages", "spark.sql.ui.retainedExecutions")
"""Bounds of Spark's lists, lowered so that they are reached in warm-up."""

Keep = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Soaked:
    """What came of a run."""

    samples: list[dict[str, Any]]
    wrong: list[str]
    seconds: float
    rows: int
    """That the native sources were to make."""
    letters: int
    windows: int


def soak(
    spark: SparkSession, load: Load, folder: Path, keep: Keep, every_s: float = SAMPLE_EVERY_S
) -> Soaked:
    """Run the query to its end and sample it while its sources run.

    Raises:
        QueryError: the query failed.
    """
    account, samples = Account(), []
    checkpoint = folder / "checkpoint"
    writer = flow(spark, load).writeStream.queryName("soak").option("checkpointLocation", str(checkpoint))
    writer = writer.option("minEpochSeconds", EPOCH_S)
    began = time.monotonic()
    query = writer.foreach_arrow(account).start(spark)
    folders = {"checkpoint": checkpoint, "Spark's ingest checkpoint": checkpoint / "ingest"}
    try:
        sampler = Sampler(spark, query, folders)
        while (left := began + load.seconds - time.monotonic()) > 0:
            query.awaitTermination(min(every_s, left))
            samples.append(sampler.take())
            keep(samples[-1])
        wrong = _finish(query, account, load)
    finally:
        query.stop()
    seconds = time.monotonic() - began
    return Soaked(samples, wrong, seconds, load.clicks + load.orders, account.letters, len(account.windows))


def _finish(query: Any, account: Account, load: Load) -> list[str]:
    """Wait until everything is through, and say what is wrong with the counts."""
    deadline = time.monotonic() + DRAIN_S
    wrong = ["nothing was counted"]
    while wrong and time.monotonic() < deadline:
        query.awaitTermination(0.5)
        rows = {name: one["rows"] for name, one in query.lastProgress["inputs"].items()}
        if rows["clicks"] == load.clicks and rows["orders"] == load.orders and rows["rules"] >= load.rules:
            query.processAllAvailable()
            wrong = check(account, load)
            break
        wrong = [f"the query did not keep up: {rows} rows were taken in"]
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run a query for long and see whether anything grows.")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--json", default="", help="file to write the result to")
    parser.add_argument(
        "--samples", default=str(ROOT / ".soak" / "samples.jsonl"), help="file for the samples"
    )
    parser.add_argument(
        "--judge", action="store_true", help="judge the samples that are there, and run nothing"
    )
    given = parser.parse_args(arguments)
    path = Path(given.samples)
    if given.judge:
        samples = [json.loads(line) for line in path.read_text().splitlines() if line]
        return conclude(Soaked(samples, [], samples[-1]["at_s"] if samples else 0.0, 0, 0, 0), given.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=path.parent))
    spark = _session(folder)
    try:
        with path.open("w") as file:
            soaked = soak(spark, Load(seconds=max(30, round(60 * given.minutes))), folder, _keeper(file))
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return conclude(soaked, given.json)


def _session(folder: Path) -> SparkSession:
    """Open a session whose heap is there from the start, so that resident memory does not creep up to its bound."""
    local = folder / "local"
    local.mkdir()
    return penstock.session(
        "soak",
        conf={
            "spark.local.dir": str(local),
            "spark.driver.memory": HEAP,
            "spark.driver.extraJavaOptions": f"-Xms{HEAP} -XX:+AlwaysPreTouch",
            **dict.fromkeys(RETAINED, "400"),
        },
    )


def _keeper(file: Any) -> Keep:
    said = [time.monotonic()]

    def keep(sample: dict[str, Any]) -> None:
        file.write(json.dumps(sample) + "\n")
        file.flush()
        if time.monotonic() - said[0] >= 60:
            said[0] = time.monotonic()
            values, behind = sample["values"], sum(sample["facts"]["behind"].values())
            print(
                f"{sample['at_s'] / 60:5.1f} min  {values['resident bytes: all'] / 2**20:8,.0f} MiB resident  "
                f"{values['open files: all']:6,.0f} open files  {values['disk files: checkpoint']:6,.0f} files and "
                f"{values['disk bytes: checkpoint'] / 2**20:6,.0f} MiB in the checkpoint  {behind:,} rows behind",
                flush=True,
            )

    return keep


def conclude(soaked: Soaked, json_path: str) -> int:
    """Print and write the result; 1 where something grows or a count is wrong."""
    verdicts = judge(soaked.samples)
    trends = [one for one in verdicts if one.trend]
    print(table(verdicts))
    for line in soaked.wrong:
        print(f"WRONG {line}")
    print(
        f"{soaked.seconds / 60:.1f} minutes, {len(soaked.samples)} samples, {len(verdicts)} series judged over the last "
        f"{1 - SKIPPED_SHARE:.0%} of the run: {len(trends)} with a trend; {len(soaked.wrong)} counts wrong"
    )
    if json_path:
        Path(json_path).write_text(json.dumps(_result(soaked, verdicts), indent=2) + "\n")
    return 1 if trends or soaked.wrong or not verdicts else 0


def _result(soaked: Soaked, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    return {
        "seconds": round(soaked.seconds, 1),
        "samples": len(soaked.samples),
        "rows": soaked.rows,
        "dead_letters": soaked.letters,
        "windows": soaked.windows,
        "wrong": soaked.wrong,
        "trends": [one.series for one in verdicts if one.trend],
        "series": [one.as_json() for one in verdicts],
    }


if __name__ == "__main__":
    sys.exit(main())
