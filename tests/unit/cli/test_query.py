"""`penstock query`: what is asked of a running query as it was typed; what cannot be meant is one line and asks nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli import query as command
from penstock.cli.main import app
from penstock.dataplane import recordlog
from penstock.dataplane.disk import PosixDisk
from penstock.dataplane.holding import this_process
from penstock.dataplane.recordlog import Heartbeat
from penstock.dataplane.requests import Answer, Desk, Request
from penstock.errors import PlanError


@pytest.fixture(autouse=True)
def any_folder_is_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "is_checkpoint", lambda disk, folder: True)


def penstock(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["query", *map(str, arguments)])


@contextmanager
def running(folder: Path, lines: list[str] | None = None) -> Iterator[list[Request]]:
    seen: list[Request] = []

    def carry_out(request: Request) -> Answer:
        seen.append(request)
        return Answer(True, f"did {request.verb}", lines or [])

    over, desk = threading.Event(), Desk(PosixDisk(), str(folder), carry_out)

    def serve() -> None:
        while not over.wait(0.01):
            desk.look(time.time())

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def test_verbs_reach_the_query_with_what_was_typed(tmp_path: Path) -> None:
    with running(tmp_path) as seen:
        for arguments in (
            ("rescale", tmp_path, "match", "--cores", 4),
            ("rescale", tmp_path, "match", "--nodes", "0=3,1=1"),
            ("move", tmp_path, "match", "--shards", "3,17,20-22", "--task", 1),
            ("hold", tmp_path, "--latency", 0.5, "--policy", "drs:k_max=8"),
            ("hold", tmp_path, "--latency", 1, "--window", 5, "--quantile", 0.99, "--scope", "operator"),
            ("drain", tmp_path, 2, "--release"),
            ("drain", tmp_path, 2, "--timeout", 300),
            ("drain", tmp_path, 2, "--timeout", 6),
        ):
            ran = penstock(*arguments)
            assert ran.exit_code == 0 and f"did {arguments[0]}" in ran.stdout, ran.output
    cores, where, move, hold, tail, drain, long, short = seen
    assert (cores.operator, cores.cores, cores.nodes) == ("match", 4, {})
    assert (where.cores, where.nodes) == (4, {"0": 3, "1": 1})
    assert (move.shards, move.task) == ([3, 17, 20, 21, 22], 1)
    assert (hold.latency_s, hold.policy) == (0.5, "drs:k_max=8")
    assert (hold.window_s, hold.quantile, hold.scope) == (1.0, None, "end-to-end")
    assert (tail.latency_s, tail.window_s, tail.quantile, tail.scope) == (1.0, 5.0, 0.99, "operator")
    assert (drain.node, drain.release, drain.wait_s) == ("2", True, 85.0)
    assert (long.wait_s, short.wait_s) == (295.0, 3.0), "the answer comes before nobody waits for it"


def test_the_title_of_tasks_stands_before_them(tmp_path: Path) -> None:
    with running(tmp_path, ["match task 0", "match task 1"]):
        ran = penstock("tasks", tmp_path)
    assert ran.stdout.splitlines() == ["did tasks", "match task 0", "match task 1"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("move", "--shards", "3,x", "--task", 0), "'x' is no shard"),
        (("move", "--shards", "9-3", "--task", 0), "'9-3' is no shard"),
        (("move", "--shards", "", "--task", 0), "'' is no shard"),
        (("move", "--shards", "3,", "--task", 0), "'' is no shard"),
        (("move", "--shards", "-3", "--task", 0), "'-3' is no shard"),
        (("move", "--shards", "0-4000000000", "--task", 0), "is no shard"),
        (("move", "--shards", "9" * 4_400, "--task", 0), "is no shard"),
        (("move", "--shards", "0-" + "9" * 4_400, "--task", 0), "is no shard"),
        (("move", "--shards", "3", "--task", -1), "--task -1"),
        (("rescale", "--cores", 3_000_000_000), "between 1 and 65,535"),
        (("rescale", "--cores", 0), "between 1 and"),
        (("rescale",), "--cores 4, or --nodes 0=3,1=1"),
        (("rescale", "--nodes", "0=3,1"), "'1' is no node"),
        (("rescale", "--nodes", "0=3,0=1"), "named twice"),
        (("rescale", "--nodes", "0=-3"), "is no node"),
        (("rescale", "--nodes", "0=" + "9" * 4_400), "is no node"),
        (("hold", "--latency", "nan"), "latency must be"),
        (("hold", "--latency", "inf"), "latency must be"),
        (("hold", "--latency", "1", "--quantile", "99"), "quantile must be"),
        (("hold", "--latency", "1", "--window", "0"), "window must be"),
        (("hold", "--latency", "1", "--scope", "operators"), "scope must be"),
        (("pause", "--timeout", "nan"), "--timeout"),
        (("pause", "--json", "/nowhere/answer.json"), "there is no folder /nowhere"),
    ],
)
def test_what_cannot_be_meant_is_one_line_and_asks_nothing(
    arguments: tuple[object, ...], says: str, tmp_path: Path
) -> None:
    verb, *options = arguments
    operator = ["match"] if verb in ("move", "rescale") else []
    ran = penstock(verb, tmp_path, *operator, *options)
    assert ran.exit_code == 2 and says in ran.stderr, ran.output
    assert len(ran.stderr.strip().splitlines()) == 1 and isinstance(ran.exception, SystemExit)
    assert not list(tmp_path.glob("requests/*"))


def test_a_folder_that_is_no_checkpoint_and_one_that_nobody_runs_on_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = penstock("pause", tmp_path, "--timeout", 0.1)
    assert ran.exit_code == 2 and "no query that runs on" in ran.stderr
    monkeypatch.setattr(command, "is_checkpoint", lambda disk, folder: False)
    ran = penstock("pause", tmp_path)
    assert ran.exit_code == 2 and "no checkpoint of Penstock" in ran.stderr


@pytest.mark.parametrize(
    ("claimed", "says"), [(1, "was stopped 0 s ago; start it again"), (2, "no query that")]
)
def test_that_a_query_was_stopped_is_said_at_once_unless_another_driver_has_the_checkpoint(
    tmp_path: Path, claimed: int, says: str
) -> None:
    disk, folder = PosixDisk(), str(tmp_path)
    disk.make_dirs(f"{folder}/drivers")
    first = recordlog.claim_generation(disk, folder, this_process())
    recordlog.write_heartbeat(disk, folder, Heartbeat(first, time.time(), released=True))
    if claimed > 1:
        recordlog.claim_generation(disk, folder, this_process())
    ran = penstock("pause", tmp_path, "--timeout", 0.1)
    assert ran.exit_code == 2 and says in ran.stderr, ran.output


LONG = (
    "there is no operator 'match' [b]here[/b]; there are "
    + ", ".join(f"operator{n}" for n in range(40))
    + "."
)


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (PlanError(LONG), 2, f"penstock: {LONG}"),
        (ValueError("odd"), 1, "'split' failed with ValueError: odd"),
    ],
)
def test_a_refusal_of_the_query_is_one_line_on_stderr(
    tmp_path: Path, error: Exception, code: int, says: str
) -> None:
    def carry_out(asked: Request) -> Answer:
        raise error

    desk = Desk(PosixDisk(), str(tmp_path), carry_out)
    over = threading.Event()

    def serve() -> None:
        while not over.wait(0.01):
            desk.look(time.time())

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        ran = penstock("split", tmp_path, "match")
        as_json = penstock("split", tmp_path, "match", "--json", "-")
    finally:
        over.set()
        thread.join()
    assert (ran.exit_code, ran.stdout) == (code, "")
    (line,) = ran.stderr.splitlines()
    assert says in line
    assert as_json.exit_code == code and json.loads(as_json.stdout)["refused"] is (code == 2)
