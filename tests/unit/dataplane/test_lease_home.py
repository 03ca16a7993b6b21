"""A lease's folder on its node: swept by the next lease, kept while others own what is in it."""

from __future__ import annotations

from pathlib import Path

from tests.faults.runs import fast_disk, real_program
from tests.faults.station import Station


def test_a_new_lease_sweeps_what_dead_ones_left_and_spares_what_was_handed_over(tmp_path: Path) -> None:
    made = Station(real_program(), fast_disk(), str(tmp_path / "cp"), str(tmp_path / "node"))
    made.worker.handle(made.bring())
    (home,) = (tmp_path / "node").iterdir()
    query = home.name.partition("-g")[0]
    gone = 2**22 + 1  # above what a process id can be
    dead, older = (
        tmp_path / "node" / f"{query}-g000001-lx-{gone}",
        tmp_path / "node" / f"{query}-g000000-lx-1",
    )
    handed, other = (
        tmp_path / "node" / f"{query}-g000001-ly-{gone}",
        tmp_path / "node" / f"qother-g000001-lx-{gone}",
    )
    for folder in (dead, older, handed / "handed-over", handed / "fold-0-3", other):
        folder.mkdir(parents=True)
    second = made.hire("second")
    second.handle(made.bring())
    left = {folder.name for folder in (tmp_path / "node").iterdir()}
    assert left >= {home.name, handed.name, other.name}, "lives, was handed over, is another query's"
    assert dead.name not in left and older.name not in left
    second.close()
    made.worker.close()


def test_a_lease_that_handed_shards_over_leaves_its_folder_to_their_new_owner(tmp_path: Path) -> None:
    station = Station(real_program(), fast_disk(), str(tmp_path / "cp"), str(tmp_path / "node"))
    station.worker.handle(station.bring())
    station.feed(50)
    station.step()
    names = station.release()
    station.worker.close()
    assert names and all((Path(station.node_dir) / name).exists() for name in names.values())
