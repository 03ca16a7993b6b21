"""Equality of frames: what counts as equal, and what a failure says."""

from __future__ import annotations

import datetime as dt
import decimal
import subprocess
import sys
from collections import namedtuple
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import penstock.testing
from penstock.errors import DeclarationError
from penstock.testing import assert_frames_equal

NAN = float("nan")


class SparkFrame:
    """What a Spark DataFrame can do, of which only this counts."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.columns = table.schema.names

    def toArrow(self) -> pa.Table:
        return self._table


class OldSparkFrame:
    def __init__(self, columns: list[str], rows: list[Any]) -> None:
        self.columns, self._rows = columns, rows

    def collect(self) -> list[Any]:
        return self._rows


TABLE = pa.table({"user": ["ann", "bob"], "amount": [1, 2]})
Visit = namedtuple("Visit", ["user", "amount"])


@pytest.mark.parametrize(
    "other",
    [
        TABLE,
        TABLE.take([1, 0]),
        TABLE.to_batches()[0],
        TABLE.to_pandas(),
        SparkFrame(TABLE),
        OldSparkFrame(["user", "amount"], [("bob", 2), ("ann", 1)]),
        [("ann", 1), ("bob", 2)],
        [["ann", 1], ["bob", 2]],
        [Visit("bob", 2), Visit("ann", 1)],
        [{"amount": 1, "user": "ann"}, {"amount": 2, "user": "bob"}],
        [("bob", np.int64(2)), ("ann", np.int64(1))],
    ],
)
def test_every_kind_of_frame_equals_the_same_rows_of_another_kind(other: Any) -> None:
    assert_frames_equal(TABLE, other)
    assert_frames_equal(other, TABLE)


def difference(left: Any, right: Any, **how: Any) -> str:
    with pytest.raises(AssertionError) as e:
        assert_frames_equal(left, right, **how)
    return str(e.value)


def test_a_failure_names_rows_and_columns() -> None:
    said = difference(TABLE, [("bob", 3), ("ann", 1)])
    assert "left has 2 rows, right has 2" in said
    assert "row 1 of left and row 0 of right: amount is 2 and 3 (where user='bob')" in said
    said = difference(TABLE, [("ann", 1), ("bob", 2), ("cid", 9)])
    assert "row 2 is in right only: user='cid', amount=9" in said
    assert "row 1 is in left only: user='bob', amount=2" in difference(TABLE, [("ann", 1)])
    assert "user is 'ann' and 'bob'; amount is 1 and 2" in difference(TABLE.slice(0, 1), [("bob", 2)])
    assert "row 1 is in left only: user='bob', amount=2" in difference(TABLE, [("ann", 5), ("cid", 7)])


def test_how_often_a_row_is_there_counts() -> None:
    assert "row 1 is in right only: column 0=1" in difference([(1,)], [(1,), (1,)])


def test_the_order_of_rows_counts_when_asked() -> None:
    assert_frames_equal([(1,), (2,)], [(2,), (1,)])
    assert "row 0: column 0 is 1 and 2" in difference([(1,), (2,)], [(2,), (1,)], ordered=True)
    assert "row 2 is in left only" in difference([(1,), (2,), (3,)], [(1,), (2,)], ordered=True)
    assert "row 2 is in right only" in difference([(1,), (2,)], [(1,), (2,), (3,)], ordered=True)


def test_only_the_first_differences_are_shown() -> None:
    said = difference([(at,) for at in range(20)], [])
    assert len(said.splitlines()) == 7 and said.endswith("and 15 more")


def test_nan_equals_nan_and_minus_zero_is_told_from_zero() -> None:
    assert_frames_equal([(NAN, [NAN])], pa.table({"x": [NAN], "y": [[NAN]]}))
    assert_frames_equal([(decimal.Decimal("NaN"),)], [(decimal.Decimal("NaN"),)])
    said = difference([(1, -0.0)], [(1, 0.0)])
    assert "column 1 is -0.0 and 0.0 (the sign of zero differs)" in said


def test_types_count_unless_told_otherwise() -> None:
    ints, floats = pa.table({"x": [1]}), pa.table({"x": [1.0]})
    assert "types of columns: x is int64 and double" in difference(ints, floats)
    assert_frames_equal(ints, floats, check_types=False)
    assert "column 0 is 1 and 1.0 (int and float)" in difference([(1,)], [(1.0,)])
    assert_frames_equal([(1,)], [(decimal.Decimal(1),)], check_types=False)
    assert "x is 1 and None" in difference(ints, [(None,)])


def test_layout_is_no_type() -> None:
    plain = pa.table({"x": ["a"], "y": pa.array([dt.datetime(2026, 1, 1)], pa.timestamp("us")), "z": [b"b"]})
    other = pa.table(
        {
            "x": pa.array(["a"], pa.large_string()).dictionary_encode(),
            "y": plain["y"].cast(pa.timestamp("ns")),
            "z": pa.array([b"b"], pa.large_binary()),
        }
    )
    assert_frames_equal(plain, other)
    assert_frames_equal(plain.select(["x"]), pd.DataFrame({"x": ["a"]}))


def test_moments_compare_in_utc_whatever_their_zone() -> None:
    moment = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    there = pa.array([moment], pa.timestamp("us", "Asia/Tokyo"))
    assert_frames_equal(pa.table({"t": there}), pa.table({"t": there.cast(pa.timestamp("us", "UTC"))}))
    assert_frames_equal(pa.table({"t": there}), [(moment,)])
    assert "2026-01-01 12:00:00" in difference([(moment,)], [(moment.replace(tzinfo=None),)])
    assert_frames_equal([(moment,)], [(moment.replace(tzinfo=None),)], check_types=False)


def test_structs_maps_and_lists_compare_by_content() -> None:
    type_ = pa.struct([("a", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))])
    table = pa.table({"s": pa.array([{"a": 1, "m": {"x": 1, "y": 2}}], type_), "l": [[1, 2]]})
    assert_frames_equal(table, [({"a": 1, "m": {"y": 2, "x": 1}}, [1, 2])])
    assert "s is " in difference(table, [({"a": 1, "m": {"y": 2, "x": 3}}, [1, 2])])
    assert "l is [1, 2] and [2, 1]" in difference(table, [({"a": 1, "m": {"y": 2, "x": 1}}, [2, 1])])
    assert_frames_equal([(Visit("ann", 1),)], [({"user": "ann", "amount": 1},)])


def test_columns_go_by_name_where_both_sides_have_names() -> None:
    said = difference(TABLE, TABLE.rename_columns(["user", "total"]))
    assert "left has the columns user, amount, right has user, total" in said
    assert "left has the columns user, amount" in difference(TABLE, TABLE.select(["amount", "user"]))
    assert "left has 2 columns, right has 1" in difference(TABLE, [("ann",), ("bob",)])


def test_empty_frames_are_equal_to_nothing() -> None:
    assert_frames_equal(TABLE.slice(0, 0), [])
    assert_frames_equal([], [])
    assert "left has the columns" in difference(TABLE.slice(0, 0), pa.table({"x": pa.array([], pa.int64())}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "left is a int; give an Arrow table"),
        ([(1,), {"x": 1}], "left is a list of unlike things"),
        ([(1,), (1, 2)], "left is a list of unlike things"),
    ],
)
def test_what_is_no_frame_is_refused(given: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        assert_frames_equal(given, [])


def test_the_kit_has_its_names_and_imports_no_spark() -> None:
    assert sorted(penstock.testing.__all__) == penstock.testing.__all__
    assert all(getattr(penstock.testing, name).__doc__ for name in penstock.testing.__all__)
    program = "import penstock.testing, sys; assert not {'pyspark', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
