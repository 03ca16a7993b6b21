"""What drs remembers of a group of executors from turn to turn: its load without chance, what waits, which cores turned out
too few, and how long another split has been better. Numbers only; `drs` decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TOO_FEW_S = 3600.0
"""Time for which cores that turned out too few are not tried again: a try costs T_ra of late rows, and code that was slow
may have become fast."""

HOLDS_S = 20.0
"""Time for which a mere re-split must have been worth it at every turn: next to saturation a few rows more or less make
another split the better one."""

_LOOKS_BACK_S = 10.0
"""Time over which what waits is smoothed."""

_LOAD_LASTS_S = 20.0
"""Time over which loads are smoothed: that of a few seconds differs by more than a tenth from that of the next ones."""


@dataclass(frozen=True)
class TooFew:
    """Cores that turned out too few, and what for."""

    cores: int
    load: float
    at_s: float


@dataclass
class Followed:
    """One group."""

    is_worked_off: bool = False
    """Whether what waits is a tenth less than of late: latency is that of an earlier load, not of the cores there are."""
    loads: dict[str, float] = field(default_factory=dict)
    """Core-seconds a second of each executor, smoothed."""
    _waiting_s: float = 0.0
    _at_s: float | None = None
    _too_few: TooFew | None = None
    _better_since_s: float | None = None

    @property
    def load(self) -> float:
        return sum(self.loads.values())

    def look(self, at_s: float, waiting_s: float, loads: Mapping[str, float]) -> None:
        """Take what waits, as seconds of work, and the loads of this turn. Call once a turn."""
        elapsed_s = at_s - self._at_s if self._at_s is not None else _LOAD_LASTS_S
        self.is_worked_off = waiting_s < 0.9 * self._waiting_s
        self._waiting_s += min(elapsed_s / _LOOKS_BACK_S, 1.0) * (waiting_s - self._waiting_s)
        newest = min(elapsed_s / _LOAD_LASTS_S, 1.0)
        self.loads = {
            name: self.loads.get(name, load) + newest * (load - self.loads.get(name, load))
            for name, load in loads.items()
        }
        self._at_s = at_s

    def note_too_few(self, cores: int, at_s: float) -> None:
        """Note cores that more are given for. What is being worked off came with an earlier load and tells nothing; fewer
        than are known to be too few for this load say nothing new."""
        if not self.is_worked_off and cores >= self.floor(at_s) - 1:
            self._too_few = TooFew(cores, self.load, at_s)

    def floor(self, at_s: float) -> int:
        """Return the fewest cores worth trying: more than turned out too few, until the load is a tenth lower."""
        noted = self._too_few
        if noted is None or at_s - noted.at_s > TOO_FEW_S:
            return 1
        return noted.cores + 1 if self.load > 0.9 * noted.load else 1

    def holds(self, is_better: bool, at_s: float) -> bool:
        """Take whether another split is worth it at this turn, and return whether it has been for `HOLDS_S`."""
        if not is_better:
            self._better_since_s = None
        elif self._better_since_s is None:
            self._better_since_s = at_s
        return self._better_since_s is not None and at_s - self._better_since_s >= HOLDS_S
