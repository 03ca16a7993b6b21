"""Requests from outside a query's process: taken once, answered once, refused in words; nothing is left behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from penstock.dataplane.disk import PosixDisk
from penstock.dataplane.requests import ANSWER, REFUSED_AT_ONCE, STALE_S, TAKEN, Answer, Desk, Request, ask
from penstock.errors import CheckpointError, PenstockError, PlanError

DISK = PosixDisk()


@contextmanager
def serving(
    folder: Path, carry_out: Callable[[Request], Answer], slow: tuple[str, ...] = ()
) -> Iterator[None]:
    over, desk = threading.Event(), Desk(DISK, str(folder), carry_out, slow)

    def serve() -> None:
        while not over.wait(0.01):
            desk.look(100.0)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def served(folder: Path, carry_out: Callable[[Request], Answer], request: Request) -> Answer:
    with serving(folder, carry_out):
        return ask(DISK, str(folder), request, 5.0)


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5.0
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_request_is_carried_out_once_and_answered(tmp_path: Path) -> None:
    seen: list[Request] = []

    def carry_out(request: Request) -> Answer:
        seen.append(request)
        return Answer(True, "done", ["a line"])

    request = Request("rescale", 100.0, operator="match", cores=4)
    assert served(tmp_path, carry_out, request) == Answer(True, "done", ["a line"])
    assert seen == [request]
    assert list((tmp_path / "requests").iterdir()) == []


def test_a_refusal_is_an_answer(tmp_path: Path) -> None:
    def carry_out(request: Request) -> Answer:
        raise PlanError("'match' cannot have 400 cores.")

    found = served(tmp_path, carry_out, Request("rescale", 100.0))
    assert found == Answer(False, "'match' cannot have 400 cores.", refused=True)


def test_without_a_running_query_the_asker_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="answered within"):
        ask(DISK, str(tmp_path), Request("pause", 1.0), 0.2)
    assert list((tmp_path / "requests").iterdir()) == []


def test_what_cannot_be_read_and_what_is_old_is_not_carried_out(tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    folder.mkdir()
    (folder / "bad.ask").write_bytes(b"{")
    (folder / "old.ask").write_bytes(b'{"verb": "pause", "asked_at": 1.0}')

    def carry_out(request: Request) -> Answer:
        raise AssertionError("nothing was asked")

    assert Desk(DISK, str(tmp_path), carry_out).look(10_000.0) == 0
    assert not (folder / "old.ask").exists()
    assert b"cannot be read" in (folder / "bad.answer").read_bytes()


def test_whatever_is_raised_is_an_answer_and_those_behind_it_are_answered(tmp_path: Path) -> None:
    runs: list[str] = []

    def carry_out(request: Request) -> Answer:
        runs.append(request.operator)
        if request.operator == "bad":
            raise KeyError("a slip")
        return Answer(True, "done")

    with serving(tmp_path, carry_out):
        bad = ask(DISK, str(tmp_path), Request("move", 100.0, operator="bad"), 5.0)
        good = ask(DISK, str(tmp_path), Request("move", 100.0, operator="good"), 5.0)
    assert not bad.ok and "'move' failed with KeyError" in bad.text
    assert good.ok and runs == ["bad", "good"]


def test_an_answer_that_the_disk_refused_is_written_later_and_nothing_is_done_twice(tmp_path: Path) -> None:
    class Grudging(PosixDisk):
        refused = 0

        def put(self, path: str, data: object) -> None:
            if path.endswith(".answer") and self.refused < 3:
                self.refused += 1
                raise OSError("full")
            super().put(path, data)  # type: ignore[arg-type]

    runs: list[str] = []

    def carry_out(request: Request) -> Answer:
        runs.append(request.verb)
        return Answer(True, "done")

    desk = Desk(Grudging(), str(tmp_path), carry_out)
    over = threading.Event()

    def serve() -> None:
        while not over.wait(0.01):
            with suppress(OSError):
                desk.look(100.0)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert ask(DISK, str(tmp_path), Request("pause", 100.0), 5.0).ok
    finally:
        over.set()
        thread.join()
    assert runs == ["pause"]


def test_a_slow_request_does_not_keep_others_waiting_and_comes_before_the_next_of_its_kind(
    tmp_path: Path,
) -> None:
    go_on, at_once, most = threading.Event(), [0], [0]

    def carry_out(request: Request) -> Answer:
        if request.verb != "drain":
            return Answer(True, "at once")
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        assert go_on.wait(10.0)
        at_once[0] -= 1
        return Answer(True, f"drained {request.node}")

    told: dict[str, Answer] = {}

    def drain(node: str) -> threading.Thread:
        def run() -> None:
            told[node] = ask(DISK, str(tmp_path), Request("drain", 100.0, node=node), 10.0)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    with serving(tmp_path, carry_out, ("drain",)):
        drains = [drain("1"), drain("2")]
        until(lambda: at_once[0] == 1)
        assert ask(DISK, str(tmp_path), Request("tasks", 100.0), 5.0).text == "at once"
        go_on.set()
        for thread in drains:
            thread.join(10.0)
    assert {node: one.text for node, one in told.items()} == {"1": "drained 1", "2": "drained 2"}
    assert most == [1] and list((tmp_path / "requests").iterdir()) == []


def test_who_waits_in_vain_is_told_what_the_query_is_busy_with(tmp_path: Path) -> None:
    go_on, begun = threading.Event(), threading.Event()

    def carry_out(request: Request) -> Answer:
        begun.set()
        go_on.wait(10.0)
        return Answer(True, "drained")

    with serving(tmp_path, carry_out, ("drain",)):
        try:
            with pytest.raises(CheckpointError, match=r"busy with drain.* what you asked for goes on"):
                ask(DISK, str(tmp_path), Request("drain", 100.0, node="1"), 0.3)
            assert begun.is_set()
            late = Request("drain", 100.0, node="2")
            (tmp_path / "requests" / "other.taken").write_bytes(b'{"busy_with": "drain", "at": 100.0}')
            with pytest.raises(
                CheckpointError, match=r"busy with drain.* nothing of what you asked for was done"
            ):
                ask(DISK, str(tmp_path), late, 0.3)
        finally:
            go_on.set()


def test_what_askers_and_drivers_that_died_left_is_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    folder.mkdir()
    (folder / "a.answer").write_bytes(b"{}")
    (folder / "b.taken").write_bytes(b"{}")
    (folder / "c.ask").write_bytes(b'{"verb": "pause", "asked_at": 100.0}')
    desk = Desk(DISK, str(tmp_path), lambda request: Answer(True, "paused"))
    assert desk.look(100.0) == 1
    assert sorted(one.name for one in folder.iterdir()) == ["c.answer", "c.ask"]
    assert desk.look(101.0) == 0 and desk.look(102.0 + STALE_S) == 0
    assert list(folder.iterdir()) == []


def test_a_request_is_stale_by_its_time_only_where_it_was_there_before_the_driver(tmp_path: Path) -> None:
    folder, stale = tmp_path / "requests", b'{"verb": "pause", "asked_at": 100.0}'
    folder.mkdir()
    (folder / "left.ask").write_bytes(stale)
    desk = Desk(DISK, str(tmp_path), lambda request: Answer(True, "paused"))
    assert desk.look(101.0 + STALE_S) == 0 and list(folder.iterdir()) == []
    (folder / "of_a_clock_that_is_behind.ask").write_bytes(stale)
    assert desk.look(102.0 + STALE_S) == 1


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_to_wait_is_a_positive_number(tmp_path: Path, timeout: float) -> None:
    with pytest.raises(CheckpointError, match="--timeout is a positive number"):
        ask(DISK, str(tmp_path), Request("pause", 1.0), timeout)


# -- a folder in which anybody may put anything --------------------------------------------------------------------------


def put_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a FIFO": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link that leads outside": lambda path: path.symlink_to("/dev/zero"),
    "3 GiB of nothing": put_sparse,
    "nesting without end": lambda path: path.write_bytes(b'{"verb":' + b"[" * 100_000),
    "nesting where nobody looks": lambda path: path.write_bytes(
        b'{"x":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    ),
    "broken text": lambda path: path.write_bytes(b'{"verb":"\xff"}'),
    "a number without end": lambda path: path.write_bytes(
        b'{"verb":"a","asked_at":1,"cores":1' + b"0" * 9_000 + b"}"
    ),
    "a time that is none": lambda path: path.write_bytes(b'{"verb":"a","asked_at":1e999}'),
    "a verb of a megabyte": lambda path: path.write_bytes(
        b'{"asked_at":1,"verb":"' + b"a" * (1 << 20) + b'"}'
    ),
    "an empty file": Path.touch,
}


def put_request(folder: Path, key: str, verb: str = "tasks") -> None:
    (folder / f"{key}.ask").write_bytes(msgspec.json.encode(Request(verb, 100.0)))


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_request_costs_its_own_answer_alone(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "requests"
    folder.mkdir()
    HOSTILE[what](folder / "0.ask")
    put_request(folder, "1")
    seen: list[str] = []
    desk = Desk(DISK, str(tmp_path), lambda asked: (seen.append(asked.verb), Answer(True, "fine"))[1])
    for _ in range(3):
        desk.look(100.0)
    assert seen == ["tasks"]
    assert (folder / "1.answer").exists()
    if (folder / "0.answer").exists():
        assert "0.ask" in msgspec.json.decode((folder / "0.answer").read_bytes(), type=Answer).text


@pytest.mark.parametrize("end", [ANSWER, TAKEN])
def test_what_stands_in_the_place_of_an_answer_or_a_mark_holds_up_nobody_else(
    tmp_path: Path, end: str
) -> None:
    folder = tmp_path / "requests"
    folder.mkdir()
    for key in ("0", "1"):
        put_request(folder, key)
    (folder / f"0{end}").mkdir()
    (folder / f"0{end}" / "x").touch()
    desk = Desk(DISK, str(tmp_path), lambda asked: Answer(True, "fine"))
    for now in (100.0, 200.0, 100.0 + 3 * STALE_S):
        desk.look(now)
    told = Desk(DISK, str(tmp_path), lambda asked: Answer(True, "fine"))
    put_request(folder, "2")
    told.look(100.0)
    assert (folder / "2.answer").exists()


def test_names_that_nobody_of_ours_gives_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    folder.mkdir()
    strangers = [b"\xff.ask", b"a b.taken", b".ask", b"x" * 200 + b".answer", "\u00e9.taken".encode()]
    for name in strangers:
        Path(os.fsdecode(bytes(folder) + b"/" + name)).write_bytes(b"x")
    put_request(folder, "1")
    Desk(DISK, str(tmp_path), lambda asked: Answer(True, "fine")).look(100.0)
    assert {os.fsencode(one.name) for one in folder.iterdir()} == {*strangers, b"1.ask", b"1.answer"}


def test_thousands_of_files_that_are_no_requests_hold_up_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    folder.mkdir()
    for number in range(1_000):
        (folder / f"{number:04d}.ask").write_bytes(b"?")
    put_request(folder, "z")
    desk = Desk(DISK, str(tmp_path), lambda asked: Answer(True, "fine"))
    assert desk.look(100.0) == 1
    assert (folder / "z.answer").exists()
    assert len(list(folder.glob("*.answer"))) == 1 + REFUSED_AT_ONCE
    put_request(folder, "y")
    assert desk.look(100.0) == 1
    assert len(list(folder.glob("*.answer"))) == 2 + 2 * REFUSED_AT_ONCE


def test_an_answer_that_is_no_text_is_given_with_its_odd_parts_escaped(tmp_path: Path) -> None:
    answer = served(tmp_path, lambda asked: Answer(True, "a\udcff", ["b\ud800"]), Request("tasks", 100.0))
    assert answer == Answer(True, "a\\udcff", ["b\\ud800"])


@pytest.mark.parametrize(
    "made", [os.mkfifo, Path.mkdir, put_sparse, lambda path: path.write_bytes(b"[" * 100_000)]
)
def test_an_answer_that_cannot_be_read_is_said_to_whoever_asked(
    tmp_path: Path, made: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda size: "asked")
    (tmp_path / "requests").mkdir()
    made(tmp_path / "requests" / "asked.answer")
    with pytest.raises(PenstockError, match="asked"):
        ask(DISK, str(tmp_path), Request("tasks", 100.0), 5.0)


def test_marks_that_cannot_be_read_say_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    folder.mkdir()
    for number, what in enumerate(HOSTILE):
        HOSTILE[what](folder / f"{number}.taken")
    with pytest.raises(CheckpointError, match="no query that runs"):
        ask(DISK, str(tmp_path), Request("tasks", 100.0), 0.1)
