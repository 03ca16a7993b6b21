"""The only place that opens checkpoint files for writing; every call is a ``Step`` that tests can fail.

``StepDisk`` knows in which order a durable write is made of steps; ``PosixCalls`` knows the operating system. The
simulated disk swaps the second and keeps the first, so that both go through the same order. Nothing here knows what the
bytes mean, and nothing ever changes a file's contents in place.
"""

from __future__ import annotations

from penstock.dataplane.disk.failures import storage_error
from penstock.dataplane.disk.location import PROBE, check_place, check_scheme, check_writable
from penstock.dataplane.disk.posix import PosixCalls, PosixDisk
from penstock.dataplane.disk.protocol import (
    DROPPABLE,
    STEPS_OF,
    TEMP_SUFFIX,
    AppendFile,
    Calls,
    Disk,
    Faults,
    IrregularFileError,
    Part,
    SkipStep,
    Step,
    is_temp,
)
from penstock.dataplane.disk.steps import StepAppendFile, StepDisk

__all__ = [
    "Disk",
    "AppendFile",
    "Part",
    "Step",
    "STEPS_OF",
    "DROPPABLE",
    "Faults",
    "IrregularFileError",
    "SkipStep",
    "Calls",
    "StepDisk",
    "StepAppendFile",
    "PosixCalls",
    "PosixDisk",
    "TEMP_SUFFIX",
    "is_temp",
    "PROBE",
    "check_place",
    "check_scheme",
    "check_writable",
    "storage_error",
]
