"""PySpark's classes in a processor, without a session."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkRuntimeError
from tests.spark import processors as ours

from penstock.dataplane.compile import compile_program
from penstock.errors import OperatorError, SessionError
from penstock.spark.processors import SparkKit, with_zone
from penstock.testing import script


def test_the_zone_of_the_session_comes_to_every_processor_and_to_nothing_else() -> None:
    stream = script([], schema=ours.INPUT)
    made = stream.groupBy("user").transformWithState(
        ours.RunningCount(), ours.OUTPUT, "append", "none", name="counts"
    )
    program = with_zone(compile_program(made.node, tasks=1, memory_bytes=1 << 20), "Asia/Kolkata")
    assert program.stages["counts"].logic.declared.zone == "Asia/Kolkata"  # type: ignore[union-attr]
    with pytest.raises(SessionError, match="timeZone is 'Mars/Olympus'"):
        with_zone(program, "Mars/Olympus")
    plain = compile_program(stream.node, tasks=1, memory_bytes=1 << 20)
    assert with_zone(plain, "Mars/Olympus") == plain


def test_the_error_of_a_deleted_state_is_pysparks_and_ours() -> None:
    error = SparkKit().deleted_error("checking value state exists", "operator 'op': gone")
    assert isinstance(error, OperatorError) and isinstance(error, PySparkRuntimeError)
    assert str(error) == "Error checking value state exists: operator 'op': gone"
