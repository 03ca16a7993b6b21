"""What reading a checkpoint found: what is damaged, in which file, and what was read. Reads nothing by itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.errors import PenstockError

DAMAGE, NOTE = "damage", "note"
T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be."""

    level: str
    """damage: a restart, or a reader of an export, needs it; note: neither does."""
    file: str
    """Relative to the checkpoint."""
    message: str


@dataclass
class Report:
    """What was read and what was found."""

    checkpoint: str
    files: int = 0
    frames: int = 0
    bytes: int = 0
    rows: int = 0
    shards: int = 0
    records: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        return any(finding.level == DAMAGE for finding in self.findings)

    def add(self, level: str, file: str, message: str) -> None:
        name = os.path.relpath(file, self.checkpoint) if file.startswith("/") else file
        self.findings.append(Finding(level, name, message))


def attempt(report: Report, path: str, read: Callable[[], T], level: str = DAMAGE) -> T | None:
    """Read; what is refused becomes a finding at the file that the message names."""
    try:
        return read()
    except FileNotFoundError as error:
        report.add(
            level, str(error.filename or path), f"{error.filename or path} is gone; restore it from a copy."
        )
    except PenstockError as error:
        if not any(str(error) == known.message for known in report.findings):
            report.add(level, _file_of(report.checkpoint, str(error)) or path, str(error))
    except Exception as error:  # whatever a forged file makes of a reader is a finding too
        told = f"{type(error).__name__}: {error}"
        report.add(level, path, f"{path} cannot be read ({told}); restore it from a copy.")
    return None


def _file_of(checkpoint: str, message: str) -> str | None:
    """The first file of the checkpoint that a message names."""
    words = (word.rstrip(":;,.") for word in message.split())
    return next((word for word in words if word.startswith(checkpoint + "/")), None)


def count(report: Report, size: int) -> None:
    """Count a frame that was read."""
    report.frames += 1
    report.bytes += size
