from __future__ import annotations

import datetime as dt
import time
from typing import Any

import pandas as pd
import pytest

import penstock
from penstock.testing import run

NOON = dt.datetime(2024, 7, 1, 12)


@pytest.mark.parametrize(
    "rows",
    [[(NOON,)], [{"at": NOON}], [(NOON.replace(tzinfo=dt.UTC),)], pd.DataFrame({"at": [NOON]})],
    ids=["tuple", "dict", "zone", "pandas"],
)
def test_a_datetime_without_a_zone_is_utc_whatever_the_machine_says(
    rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        (found,) = run(penstock.from_rows(rows, schema="at timestamp")).to_pylist()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found["at"] == NOON.replace(tzinfo=dt.UTC)
