"""One SparkSession for all tests on real Spark that do not need one of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from penstock.spark.session import is_alive, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def _sessions() -> Iterator[None]:
    """Stop whatever session is open when the tests are over."""
    from pyspark.sql import SparkSession

    yield
    left = SparkSession._instantiatedSession
    if left is not None and is_alive(left):
        left.stop()


@pytest.fixture
def spark(_sessions: None) -> SparkSession:
    """The session on this machine; opened again if a test has stopped it, as tests on a cluster must."""
    from pyspark.sql import SparkSession

    left = SparkSession._instantiatedSession
    if left is not None and is_alive(left) and not (left.sparkContext.master or "").startswith("local["):
        left.stop()
    return session("penstock-tests")


@pytest.fixture
def no_session() -> None:
    """Stop the session that is open: this test opens one of its own."""
    from pyspark.sql import SparkSession

    left = SparkSession._instantiatedSession
    if left is not None and is_alive(left):
        left.stop()
