"""What a bench writes: one JSON file of ratios and figures, complete after every figure that is added.

Owns the file's shape and the arithmetic of medians and spreads. Measures nothing itself.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any


class UnknownPart(Exception):
    """A part of a bench was asked for that does not exist; the message names those that do."""


@dataclass(frozen=True)
class Spread:
    """A measured figure: the median of its samples, the lowest and the highest."""

    median: float
    low: float
    high: float
    samples: int


def spread(samples: Sequence[float]) -> Spread:
    """Summarise samples.

    Raises:
        ValueError: there are none, or one is not a finite number.
    """
    if not samples or not all(math.isfinite(sample) for sample in samples):
        raise ValueError(f"a spread needs at least one sample and only finite ones, not {list(samples)}")
    return Spread(float(median(samples)), float(min(samples)), float(max(samples)), len(samples))


def ratio_spread(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Divide the medians; low and high are the worst and the best pair.

    Samples that are as many on both sides were taken in alternation, so the first belongs to the first and so
    on: what slowed the machine down for a while slowed both of a pair. Otherwise any two make a pair.
    """
    mine, other = spread(ours), spread(theirs)
    if other.low <= 0:
        raise ValueError(f"a ratio needs samples above zero to divide by, not {list(theirs)}")
    middle = mine.median / other.median
    if len(ours) == len(theirs):
        pairs = [one / two for one, two in zip(ours, theirs, strict=True)]
    else:
        pairs = [mine.low / other.high, mine.high / other.low]
    return Spread(middle, min(middle, *pairs), max(middle, *pairs), min(len(ours), len(theirs)))


@dataclass
class BenchResult:
    """The result of one bench run, rewritten whole and atomically at each `write`.

    `emulated` names what stood in for the real thing (nodes that share a disk, say); empty means nothing did.
    A ratio is a plain number; its spread goes to `figures` under `<name>_spread`.
    """

    bench: str
    versions: Mapping[str, str]
    emulated: list[str] = field(default_factory=list)
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    ratios: dict[str, float] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None
    failed: list[str] = field(default_factory=list)
    """Parts that ended with an error; the caller reports them."""

    def add_ratio(self, name: str, ours: Sequence[float], theirs: Sequence[float]) -> Spread:
        """Add ours divided by theirs, with its spread among the figures, and write."""
        ratio = ratio_spread(ours, theirs)
        self.ratios[name] = _rounded(ratio.median)
        self.figures[f"{name}_spread"] = [_rounded(ratio.low), _rounded(ratio.high)]
        self.write()
        return ratio

    def add_figures(self, **figures: float | int | str | bool | Spread | None) -> None:
        """Add figures by name, a `Spread` as its median and `<name>_spread`, and write.

        What is not a finite number was not measured, and stands there as null.
        """
        for name, figure in figures.items():
            if isinstance(figure, Spread):
                self.figures[name] = _rounded(figure.median)
                self.figures[f"{name}_spread"] = [_rounded(figure.low), _rounded(figure.high)]
            else:
                self.figures[name] = _finite(figure) if isinstance(figure, float) else figure
        self.write()

    def as_json(self) -> dict[str, Any]:
        return {
            "bench": self.bench,
            "date": self.date,
            "versions": dict(self.versions),
            "emulated": list(self.emulated),
            "ratios": dict(self.ratios),
            "figures": dict(self.figures),
        }

    def write(self) -> None:
        """Replace the file with what is known now; a reader sees the old file or the new one, whole."""
        if self.path is None:
            return
        text = json.dumps(self.as_json(), indent=2, allow_nan=False) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, self.path)


def _finite(number: float) -> float | None:
    return _rounded(number) if math.isfinite(number) else None


def _rounded(number: float) -> float:
    """Keep five significant digits: more would only claim a precision that was not measured."""
    if number == 0 or not math.isfinite(number):
        return number
    return round(number, max(0, 4 - math.floor(math.log10(abs(number)))))
