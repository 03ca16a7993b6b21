"""What is proposed for a name that does not exist: what was meant, or nothing."""

from __future__ import annotations

import pytest

from penstock.suggesting import did_you_mean, nearest
from penstock.topology.options import OPTIONS
from penstock.topology.stream import Stream

METHODS = [name for name in dir(Stream) if not name.startswith("_")]


@pytest.mark.parametrize(
    ("given", "names", "meant"),
    [
        ("usr", ["user", "amount", "price"], "user"),
        ("custmer", ["id", "customer", "region"], "customer"),
        ("User", ["amount", "user"], "user"),
        ("user_id", ["userId", "user"], "userId"),
        ("idel", ["penstock", "idle", "drs"], "idle"),
        ("checkpoint", list(OPTIONS), "checkpointLocation"),
        ("checkpoint_location", list(OPTIONS), "checkpointLocation"),
        ("checkpointlocaton", list(OPTIONS), "checkpointLocation"),
        ("fliter", METHODS, "filter"),
        ("group_by", METHODS, "groupBy"),
        ("withColum", METHODS, "withColumn"),
        ("dubble", ["float", "double"], "double"),
        ("parket", ["console", "parquet"], "parquet"),
    ],
)
def test_what_was_meant_is_proposed(given: str, names: list[str], meant: str) -> None:
    assert nearest(given, names) == meant


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("str", list(OPTIONS)),
        ("head", list(OPTIONS)),
        ("usr", list(OPTIONS)),
        ("maxFilesPerTrigger", list(OPTIONS)),
        ("head", METHODS),
        ("melt", METHODS),
        ("unpivot", METHODS),
        ("option", METHODS),
        ("map", ["max", "min", "sum"]),
        ("sin", ["min", "sum"]),
        ("str", ["struct", "string"]),
        ("k", ["ts", "id"]),
        (None, ["node"]),
    ],
)
def test_nothing_is_proposed_where_nothing_is_near(given: object, names: list[str]) -> None:
    assert nearest(given, names) is None
    assert did_you_mean(given, names, "there are a, b.") == "there are a, b."


def test_the_nearest_of_several_is_proposed() -> None:
    assert nearest("prices", ["priced", "price"]) == "priced"
    assert nearest("prise", ["prize", "price"]) == "prize"
