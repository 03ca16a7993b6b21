"""Why Spark could not read an old checkpoint, in one sentence and without Java's stack. Reads no checkpoint itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.errors import CheckpointError, PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def in_one_sentence(spark: SparkSession, origin: str) -> Iterator[None]:
    """Name what goes wrong while an old checkpoint is read; Spark's own log is silent meanwhile.

    Raises:
        CheckpointError: anything went wrong.
    """
    with _silent(spark):
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"{origin} cannot be imported: {reason_of(error)}; see that the old query still starts from it, or start "
                "the new one without its state."
            ) from error


def reason_of(error: Exception) -> str:
    """Return the first line of what went wrong; of an error of Java, of its first cause that says something."""
    told = [_first_line(error)]
    cause = getattr(error, "java_exception", None)
    while cause is not None:
        told = [_first_line(cause.getMessage() or ""), *told]
        cause = cause.getCause()
    found = next(filter(None, told), "")
    says_it_all = len(told) > 1 or isinstance(error, OSError) or hasattr(error, "getCondition")
    return found if found and says_it_all else f"{type(error).__name__}: {found}"


def _first_line(text: object) -> str:
    lines = str(text).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else ""


@contextlib.contextmanager
def _silent(spark: SparkSession) -> Iterator[None]:
    context = getattr(spark, "sparkContext", None)
    if context is None:
        yield
        return
    before = str(context._jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel())
    context.setLogLevel("OFF")
    try:
        yield
    finally:
        context.setLogLevel(before)
