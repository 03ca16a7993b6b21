"""Exports as DataFrames: what is not there is refused before Spark is asked."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

import penstock


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_an_export_that_is_not_there_is_refused_before_spark_is_asked(tmp_path: Path, scheme: str) -> None:
    spark = Mock()
    with pytest.raises(penstock.CheckpointError, match="has no export of 'counts'"):
        penstock.read_export(spark, f"{scheme}{tmp_path}/nothing", "counts")
    assert not spark.mock_calls
