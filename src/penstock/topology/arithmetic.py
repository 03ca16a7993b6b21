"""Arithmetic of column expressions that Arrow has with another meaning than Spark. Pure functions of arrays."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def divide(left: Any, right: Any) -> Any:
    """Divide as Spark does: integers give a double, and a zero below is an error."""
    if not pa.types.is_decimal(left.type) and not pa.types.is_decimal(right.type):
        left, right = pc.cast(left, pa.float64()), pc.cast(right, pa.float64())
    if pc.any(pc.equal(right, pa.scalar(0, right.type))).as_py():
        raise pa.ArrowInvalid("divide by zero")
    return pc.divide_checked(left, right)


def remainder(left: Any, right: Any) -> Any:
    """The remainder with the sign of the dividend, as in SQL."""
    if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
        left, right = pc.cast(left, pa.float64()), pc.cast(right, pa.float64())
    if pc.any(pc.equal(right, pa.scalar(0, right.type))).as_py():
        raise pa.ArrowInvalid("divide by zero")
    quotient = pc.divide_checked(left, right)
    if pa.types.is_floating(quotient.type):
        quotient = pc.trunc(quotient)
    return pc.subtract_checked(left, pc.multiply_checked(quotient, right))
