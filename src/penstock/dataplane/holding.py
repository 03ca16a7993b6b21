"""Who holds a checkpoint: finds the holder, claims a checkpoint that is free, and gives it back.

The newest claim decides, not the heartbeat: a driver claims exactly the generation after the one whose holder it has
found gone, by exclusive create, so that of any number of starts one gets it and every other one meets a holder that
lives. Only a takeover claims past a living holder. Decides nothing about what a checkpoint holds.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.dataplane import recordlog
from penstock.dataplane.boot import boot_id
from penstock.dataplane.disk import Disk
from penstock.dataplane.recordlog import Claim, Heartbeat
from penstock.errors import CheckpointError, FencedError, PenstockError

FRESH_S = 15.0
"""Age up to which the heartbeat of another host counts as that of a living driver."""
WATCH_S = 4.0
"""Time for which a heartbeat that is not fresh is watched: two beats of a living driver, whatever its clock says."""
POLL_S = 0.25
DEAD = -1.0
"""Start time of a process that has ended and that its parent has not asked after yet."""

_held: list[Claim] = []
"""Claims of this process: two queries of one process tell by them that the other one lives."""


def this_process() -> Claim:
    """Return this process as a claimant."""
    pid = os.getpid()
    return Claim(0, socket.gethostname(), pid, process_space(), _start_time(pid) or 0.0, time.time())


def process_space() -> str:
    """Return what makes a process id mean one process: the boot, and the container where there is one."""
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # no such thing on this system
        return boot_id()


def process_is_running(claim: Claim) -> bool:
    """Whether a claimant on this machine is still there: its process, and not another one with its pid; in this process,
    whoever claimed and has not given back."""
    if claim.pid == os.getpid():
        return claim in _held
    try:
        os.kill(claim.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    started = _start_time(claim.pid)
    if started == DEAD:
        return False
    return started is None or not claim.started or started == claim.started


@dataclass(frozen=True)
class Onlooker:
    """Whoever wants to know whether a driver lives.

    A driver in the same space of process ids lives while its process does. Of any other one the heartbeat is all there is
    to see, and its time stamp may be of a clock that is wrong: where it is not fresh, it is watched.
    """

    boot: str = field(default_factory=process_space)
    wall: Callable[[], float] = time.time
    is_running: Callable[[Claim], bool] = process_is_running
    fresh_s: float = FRESH_S
    pause: Callable[[float], None] | None = time.sleep
    """How to let time pass; None for one who does not wait, and takes a stamp from the future as fresh."""

    def find_holder(self, disk: Disk, checkpoint: str, generation: int) -> Claim | None:
        """Return the claim of the driver that must be taken as alive, None when the checkpoint is free.

        Args:
            generation: the newest one that is claimed.

        Raises:
            CorruptFileError: nothing but a damaged claim says who holds the checkpoint.
        """
        beat = newest_sign(disk, checkpoint, generation)
        if beat is None or beat.released:
            return None
        if beat.claim.boot == self.boot:
            return beat.claim if self.is_running(beat.claim) else None
        return beat.claim if self._is_fresh(beat) or self._beats(disk, checkpoint) else None

    def _is_fresh(self, beat: Heartbeat) -> bool:
        age_s = self.wall() - beat.time
        return age_s < self.fresh_s and (age_s > -self.fresh_s or self.pause is None)

    def _beats(self, disk: Disk, checkpoint: str) -> bool:
        """Watch the heartbeat, and say whether it changes as that of a living driver does."""
        if self.pause is None:
            return False
        seen = recordlog.read_heartbeat(disk, checkpoint)
        for _ in range(round(WATCH_S / POLL_S)):
            self.pause(POLL_S)
            now = recordlog.read_heartbeat(disk, checkpoint)
            if now is not None and now != seen:
                return not now.released
        return False


def newest_sign(disk: Disk, checkpoint: str, generation: int) -> Heartbeat | None:
    """Return the last that is known of the newest claimant: its heartbeat, or its claim where it has not beaten yet, or
    where one that it overtook has written over its heartbeat; None where nobody has claimed."""
    beat = recordlog.read_heartbeat(disk, checkpoint)
    if beat is not None and beat.claim.generation >= generation:
        return beat
    claim = recordlog.read_claim(disk, checkpoint, generation) if generation else None
    return beat if claim is None else Heartbeat(claim, claim.time)


def claim_checkpoint(disk: Disk, checkpoint: str, who: Claim, onlooker: Onlooker, takeover: bool) -> Claim:
    """Claim a checkpoint; durable on return.

    Args:
        who: who claims; its generation is ignored.
        takeover: claim it even while its holder lives.

    Raises:
        CheckpointError: a living driver holds it; names that driver.
    """
    while True:
        generation = recordlog.newest_generation(disk, checkpoint)
        holder = None if takeover else onlooker.find_holder(disk, checkpoint, generation)
        if holder is not None:
            raise CheckpointError(
                f"The checkpoint {checkpoint} is held by {holder}; stop that query, or start this one with "
                "option('takeover', 'true') to end it."
            )
        claim = _claim_next(disk, checkpoint, who, generation)
        if claim is not None:
            return claim


def _claim_next(disk: Disk, checkpoint: str, who: Claim, generation: int) -> Claim | None:
    claim = recordlog.as_next(who, generation)
    if claim.pid == os.getpid():
        _held.append(claim)  # before another start of this process can see it
    try:
        created = recordlog.create_claim(disk, checkpoint, claim)
    except BaseException:
        let_go(claim)
        raise
    if not created:
        let_go(claim)
    return claim if created else None


def let_go(claim: Claim) -> None:
    """Forget that this process holds a checkpoint by this claim."""
    if claim in _held:
        _held.remove(claim)


def give_back(
    disk: Disk, checkpoint: str, claim: Claim, now: float, error: PenstockError | None
) -> PenstockError | None:
    """Say that this driver is gone; return the error that its query ended with.

    A driver that was overtaken without noticing may first trip over what the newer one has cleaned up; it is told who
    won, not that a file is missing. That the heartbeat cannot be written is no news: it only guards against accidents.
    What this process has given back already it does not give back again: somebody else may have it by now.
    """
    if claim.pid == os.getpid() and claim.boot == process_space() and claim not in _held:
        return error
    try:
        recordlog.check_claim(disk, checkpoint, claim)
        recordlog.write_heartbeat(disk, checkpoint, Heartbeat(claim, now, released=True))
    except FencedError as fenced:
        if error is not None and not isinstance(error, FencedError):
            fenced.__cause__ = error
            return fenced
    except PenstockError:
        pass
    finally:
        let_go(claim)
    return error


def _start_time(pid: int) -> float | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return DEAD if fields[0] in "ZX" else float(fields[19])
