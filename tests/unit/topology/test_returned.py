"""What a function gave back for no rows at all: None, and whatever else counts as false."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pytest

from penstock.topology.returned import ReturnedError, returned_rows


@pytest.mark.parametrize(
    "nothing", [None, False, 0, 0.0, "", b"", {}, (), set(), np.False_, decimal.Decimal(0)]
)
def test_what_counts_as_false_is_no_rows(nothing: Any) -> None:
    assert returned_rows(nothing and [("a", 1)]) == []


@pytest.mark.parametrize("wrong", [True, 1, "a", {"n": 1}, np.array([]), np.True_])
def test_what_is_no_list_of_rows_is_refused(wrong: Any) -> None:
    with pytest.raises(ReturnedError):
        returned_rows(wrong)


def test_rows_whose_truth_cannot_be_had_are_rows() -> None:
    class Rows(list[Any]):
        def __bool__(self) -> bool:
            raise ValueError("ambiguous")

    assert returned_rows(Rows([("a",)])) == [("a",)]
