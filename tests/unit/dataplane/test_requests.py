"""Requests from outside a query's process: taken once, answered once, refused in words; nothing is left behind."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.dataplane.disk import PosixDisk
from penstock.dataplane.requests import Answer, Request, answer_requests, ask
from penstock.errors import CheckpointError, PlanError

DISK = PosixDisk()


def served(folder: Path, carry_out: object, request: Request) -> Answer:
    over = threading.Event()

    def serve() -> None:
        while not over.wait(0.01):
            answer_requests(DISK, str(folder), carry_out, request.asked_at)  # type: ignore[arg-type]

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        return ask(DISK, str(folder), request, 5.0)
    finally:
        over.set()
        thread.join()


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
    assert found == Answer(False, "'match' cannot have 400 cores.")


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

    assert answer_requests(DISK, str(tmp_path), carry_out, 10_000.0) == 0
    assert not (folder / "old.ask").exists()
    assert b"cannot be read" in (folder / "bad.answer").read_bytes()
