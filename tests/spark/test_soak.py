"""A minute of the soak: the same query, sampler and count; what grows without bound is seen even here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.soak.flow import Load
from tests.soak.judge import judge
from tests.soak.run import soak

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 60
MIB = 1 << 20


@pytest.mark.slow
def test_a_minute_at_20000_rows_a_second_counts_every_row_once_and_stays_bounded(
    spark: SparkSession, tmp_path: Path
) -> None:
    kept: list[dict[str, Any]] = []
    soaked = soak(spark, Load(SECONDS), tmp_path, kept.append, every_s=2.0)
    assert soaked.wrong == []
    assert soaked.letters > 0
    assert kept == soaked.samples and len(kept) >= SECONDS // 4
    later = [sample["values"] for sample in kept if sample["at_s"] > SECONDS / 3]
    judged = {verdict.series for verdict in judge(kept)}
    for series in ("resident bytes: jvm", "resident bytes: daemon", "open files: driver", "epoch ms: totals"):
        assert series in judged
    assert any(name.startswith("resident bytes: lease") for name in judged)
    assert any(name.startswith("disk files: node's local directory") for name in judged)

    def spread(series: str) -> float:
        found = [values[series] for values in later]
        return float(max(found) - min(found))

    assert max(values["disk files: checkpoint"] for values in later) < 400
    assert max(values["disk bytes: checkpoint"] for values in later) < 1024 * MIB
    assert spread("open files: driver") <= 20
    assert spread("threads: driver") <= 8
    assert spread("spark list: active jobs") <= 6
    assert spread("resident bytes: driver") < 200 * MIB
