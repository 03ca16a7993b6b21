"""Who holds a checkpoint: told by the newest claim and its heartbeat, and watched where clocks cannot be trusted."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from penstock.dataplane import boot, holding, paths, recordlog
from penstock.dataplane.disk import PosixDisk
from penstock.dataplane.frames import FrameKind
from penstock.dataplane.holding import Onlooker, claim_checkpoint, give_back
from penstock.dataplane.opening import open_checkpoint
from penstock.dataplane.recordlog import Claim, Heartbeat
from penstock.errors import CheckpointError, CorruptFileError, FencedError
from penstock.sim.programs import memory_program

ME = Claim(0, "host", 1, "boot", 1.0, 100.0)
AWAY = Claim(0, "elsewhere", 2, "other boot", 1.0, 100.0)
NOW = 101.0


@dataclass
class Watch:
    """Lets time pass for an onlooker: what happens meanwhile is done at the third pause."""

    meanwhile: Callable[[], None] = lambda: None
    paused_s: float = 0.0
    pauses: int = 0

    def __call__(self, seconds: float) -> None:
        self.paused_s += seconds
        self.pauses += 1
        if self.pauses == 3:
            self.meanwhile()


@dataclass
class Place:
    """A checkpoint with claims and a heartbeat."""

    folder: str
    disk: PosixDisk = field(default_factory=PosixDisk)

    def claim(self, who: Claim) -> Claim:
        return recordlog.claim_generation(self.disk, self.folder, who)

    def beat(self, claim: Claim, at: float, released: bool = False) -> None:
        recordlog.write_heartbeat(self.disk, self.folder, Heartbeat(claim, at, released))

    def holder(self, pause: Callable[[float], None] | None = None, **more: object) -> Claim | None:
        onlooker = Onlooker("boot", lambda: NOW, lambda claim: claim.pid == 1, pause=pause, **more)  # type: ignore[arg-type]
        generation = recordlog.newest_generation(self.disk, self.folder)
        return onlooker.find_holder(self.disk, self.folder, generation)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    PosixDisk().make_dirs(paths.drivers(str(tmp_path)))
    return Place(str(tmp_path))


@pytest.mark.parametrize(
    ("who", "at", "released", "held"),
    [
        (ME, 100.0, True, False),
        (ME, 0.0, False, True),
        (msgspec.structs.replace(ME, pid=2), 100.0, False, False),
        (AWAY, 100.0, False, True),
        (AWAY, 80.0, False, False),
        (AWAY, 100.0, True, False),
    ],
)
def test_a_holder_lives_while_its_process_does_or_on_another_host_while_its_heartbeat_is_fresh(
    place: Place, who: Claim, at: float, released: bool, held: bool
) -> None:
    claim = place.claim(who)
    place.beat(claim, at, released)
    assert place.holder() == (claim if held else None)
    assert place.holder(Watch()) == (claim if held else None)


def test_nobody_holds_what_nobody_has_claimed(place: Place) -> None:
    assert place.holder() is None


@pytest.mark.parametrize("who", [ME, AWAY])
def test_a_claim_without_a_heartbeat_yet_holds(place: Place, who: Claim) -> None:
    claim = place.claim(who)
    assert place.holder(Watch()) == claim


@pytest.mark.parametrize("released", [False, True])
def test_a_late_heartbeat_of_an_overtaken_driver_hides_nobody(place: Place, released: bool) -> None:
    older, newer = place.claim(AWAY), place.claim(ME)
    place.beat(newer, 100.0)
    place.beat(older, 100.5, released)
    assert place.holder() == newer


@pytest.mark.parametrize("stamp", [-3_600.0, 60.0, 4_000.0])
def test_a_heartbeat_of_a_clock_that_is_wrong_holds_if_it_is_seen_to_change(
    place: Place, stamp: float
) -> None:
    claim = place.claim(AWAY)
    place.beat(claim, stamp)
    watch = Watch(lambda: place.beat(claim, stamp + 2.0))
    assert place.holder(watch) == claim and watch.paused_s < holding.WATCH_S
    silent = Watch()
    assert place.holder(silent) is None and silent.paused_s == holding.WATCH_S < 5.0
    leaving = Watch(lambda: place.beat(claim, stamp + 3.0, released=True))
    assert place.holder(leaving) is None


def test_who_does_not_wait_takes_a_stamp_from_the_future_as_fresh(place: Place) -> None:
    claim = place.claim(AWAY)
    place.beat(claim, 4_000.0)
    assert place.holder(None) == claim


def test_a_claim_is_refused_with_who_has_it_where_and_since_when(place: Place) -> None:
    place.beat(place.claim(AWAY), 100.0)
    onlooker = Onlooker("boot", lambda: NOW, pause=Watch())
    with pytest.raises(
        CheckpointError, match=r"generation 1 \(process 2 on elsewhere, since \d{4}-.*\); stop"
    ):
        claim_checkpoint(place.disk, place.folder, ME, onlooker, takeover=False)
    assert claim_checkpoint(place.disk, place.folder, ME, onlooker, takeover=True).generation == 2


def test_who_loses_the_race_for_a_free_checkpoint_meets_the_winner(place: Place) -> None:
    """The other claim comes after the look that found nobody and before the claim."""

    class Slow(Onlooker):
        def find_holder(self, disk: object, checkpoint: str, generation: int) -> Claim | None:
            found = super().find_holder(place.disk, checkpoint, generation)
            if generation == 0:
                place.claim(AWAY)
            return found

    with pytest.raises(CheckpointError, match="process 2 on elsewhere"):
        claim_checkpoint(place.disk, place.folder, ME, Slow("boot", lambda: NOW, pause=Watch()), False)
    assert recordlog.newest_generation(place.disk, place.folder) == 1


def test_of_many_threads_of_one_process_one_gets_the_checkpoint_until_it_gives_it_back(
    tmp_path: Path,
) -> None:
    folder, barrier = str(tmp_path / "cp"), threading.Barrier(4)
    got: list[Claim] = []
    told: list[str] = []

    def start() -> None:
        barrier.wait()
        try:
            got.append(open_checkpoint(PosixDisk(), folder, memory_program()).claim)
        except CheckpointError as error:
            told.append(str(error))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1 and len(told) == 3
    assert all(f"held by driver generation 1 (process {os.getpid()} on" in text for text in told)
    give_back(PosixDisk(), folder, got[0], time.time(), None)
    again = open_checkpoint(PosixDisk(), folder, memory_program()).claim
    assert again.generation == 2
    give_back(PosixDisk(), folder, again, time.time(), None)


def test_a_driver_that_is_overtaken_while_it_opens_is_told_by_whom(tmp_path: Path) -> None:
    folder = str(tmp_path / "cp")

    class Overtaken(PosixDisk):
        def put(self, path: str, data: object) -> None:
            super().put(path, data)  # type: ignore[arg-type]
            if path == paths.heartbeat(folder):
                recordlog.claim_generation(PosixDisk(), folder, AWAY)

    with pytest.raises(FencedError, match=r"taken over by driver generation 2 .process 2 on elsewhere"):
        open_checkpoint(Overtaken(), folder, memory_program(), who=ME)


@pytest.mark.parametrize("cleaned", ["meta", "drivers/g000001.claim", ".writable-"])
def test_who_loses_a_half_written_file_to_another_start_begins_again(tmp_path: Path, cleaned: str) -> None:
    folder, lost = tmp_path / "cp", []

    class Cleaned(PosixDisk):
        def _link_durably(self, temp: str, path: str) -> bool:
            if path.startswith(f"{folder}/{cleaned}") and not lost:
                lost.append(path)
                os.unlink(temp)
            return super()._link_durably(temp, path)

    assert open_checkpoint(Cleaned(), str(folder), memory_program(), who=ME).claim.generation == 1
    assert len(lost) == 1


def test_this_process_is_told_from_another_one_with_its_number() -> None:
    me = holding.this_process()
    assert me.boot == holding.process_space() and me.boot.startswith(boot.boot_id()) and me.started > 0
    parent = msgspec.structs.replace(me, pid=os.getppid(), started=0.0)
    assert holding.process_is_running(parent)
    assert not holding.process_is_running(msgspec.structs.replace(parent, started=1.0))
    assert not holding.process_is_running(msgspec.structs.replace(me, pid=2**22 + 1))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_a_holder_that_was_killed_and_not_asked_after_yet_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    claim = msgspec.structs.replace(holding.this_process(), pid=child.pid, started=0.0)
    try:
        assert holding.process_is_running(claim)
        child.kill()
        deadline = time.monotonic() + 5.0
        while holding.process_is_running(claim) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not holding.process_is_running(claim)
    finally:
        child.wait()


EXTREME = [
    {"time": 1e300}, {"time": -1e300}, {"pid": 10**15}, {"pid": -1}, {"generation": 10**18}, {"generation": -(2**63)},
    {"started": 1e300}, {"time": 2**63 - 1},
]  # fmt: skip


@pytest.mark.parametrize("other", EXTREME)
def test_a_claim_with_an_extreme_value_is_named_and_believed_by_nobody(
    place: Place, other: dict[str, float]
) -> None:
    fields = {"generation": 1, "boot": holding.process_space(), **other}
    claim = msgspec.structs.replace(ME, **fields)
    path = paths.claim(place.folder, 1)
    place.disk.put(path, recordlog.frame_bytes(FrameKind.CLAIM, msgspec.json.encode(claim)))
    with pytest.raises(CorruptFileError, match=r"drivers/.* holds no claim"):
        claim_checkpoint(
            place.disk, place.folder, holding.this_process(), Onlooker(pause=lambda s: None), False
        )
    assert str(claim)


@pytest.mark.parametrize("other", [*EXTREME, {"beat": 1e300}])
def test_a_heartbeat_with_an_extreme_value_is_passed_over_for_the_claim(
    place: Place, other: dict[str, float]
) -> None:
    claim = place.claim(ME)
    fields = {"generation": 7, **{name: value for name, value in other.items() if name != "beat"}}
    forged = Heartbeat(msgspec.structs.replace(claim, **fields), other.get("beat", 100.0))
    place.disk.put(
        paths.heartbeat(place.folder), recordlog.frame_bytes(FrameKind.CLAIM, msgspec.json.encode(forged))
    )
    assert place.holder() == claim


def test_what_this_process_has_given_back_it_does_not_give_back_again(place: Place) -> None:
    mine = claim_checkpoint(place.disk, place.folder, holding.this_process(), Onlooker(), False)
    failed = CheckpointError("the start failed.")
    assert give_back(place.disk, place.folder, mine, NOW, failed) is failed
    later = place.claim(AWAY)
    place.beat(later, NOW)
    assert give_back(place.disk, place.folder, mine, NOW, failed) is failed
    beat = recordlog.read_heartbeat(place.disk, place.folder)
    assert beat is not None and beat.claim == later and not beat.released


def test_an_opening_that_is_cut_short_by_anything_gives_the_claim_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*given: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr("penstock.dataplane.opening._load", no_memory)
        with pytest.raises(MemoryError):
            open_checkpoint(PosixDisk(), str(tmp_path / "cp"), memory_program())
    assert open_checkpoint(PosixDisk(), str(tmp_path / "cp"), memory_program()).claim.generation == 2
