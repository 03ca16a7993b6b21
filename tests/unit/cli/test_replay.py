"""`penstock replay`: a journal decided again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from tests.unit.control.fake_plane import FakePlane
from typer.testing import CliRunner, Result

from penstock.cli.main import app
from penstock.control.apply.journal import Journal
from penstock.control.loop import ControlLoop
from penstock.control.measure.estimate import Estimate
from penstock.control.measure.estimating import Measurer
from penstock.control.plan.guards import Guards
from penstock.control.plan.plan import ExecutorPlan, Plan
from penstock.control.policy import registry
from penstock.control.policy.protocol import Limits, Proposal
from penstock.control.sla import SLA


class Gather:
    """Wants all shards on one task as soon as more than `over` rows a second arrive."""

    def __init__(self, name: str = "gather", over: float = 0.0) -> None:
        self.name, self.over = name, over

    def propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
        match = now.executors["match"]
        if match.rate_per_s <= self.over or not match.task_of.any():
            return Proposal(None, f"{match.rate_per_s:.0f} rows/s", "no change")
        then = ExecutorPlan({0: "n1"}, match.task_of * 0)
        return Proposal(Plan({"match": then}), "two tasks where one would do", "moved all shards to task 0")

    def note_failure(self, reason: str) -> None: ...


@pytest.fixture(autouse=True)
def policies() -> Iterator[None]:
    registry.register("gather", Gather)
    registry.register("never", lambda: Gather("never", 1e9))
    yield
    registry.unregister("gather")
    registry.unregister("never")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.jsonl"
    lines: list[bytes] = []
    plane = FakePlane([20.0, 20.0])
    loop = ControlLoop(
        Measurer(), Gather(), SLA(0.5), Limits(4), Guards(), plane, Journal(write=lines.append)
    )
    for _ in range(6):
        loop.turn(plane.step())
    loop.journal.close_run()
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def penstock(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, arguments)])


def test_the_recorded_policy_decides_the_same_again(journal: Path) -> None:
    ran = penstock(journal)
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.strip() == "gather: 2 decided again, 0 differ; 1 action recorded, 1 now; 1 skipped"


def test_a_journal_of_several_policies_is_counted_by_policy(journal: Path) -> None:
    lines: list[bytes] = []
    plane = FakePlane([20.0, 20.0])
    loop = ControlLoop(
        Measurer(), Gather(), SLA(0.5), Limits(4), Guards(), plane, Journal(write=lines.append)
    )
    for policy in (Gather(), Gather("never", 1e9)):
        loop.use(policy)
        for _ in range(6):
            loop.turn(plane.step())
    loop.journal.close_run()
    journal.write_bytes(b"\n".join(lines) + b"\n")
    ran = penstock(journal)
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.splitlines() == [
        "gather: 2 decided again, 0 differ; 1 action recorded, 1 now; 1 skipped",
        "never: 1 decided again, 0 differ; 0 actions recorded, 0 now; 0 skipped",
        "in all: 3 decided again, 0 differ; 1 action recorded, 1 now; 1 skipped",
    ]
    by_policy = json.loads(penstock(journal, "--json", "-").stdout)["by_policy"]
    assert [one["policy"] for one in by_policy] == ["gather", "never"]


def test_turns_that_the_journal_does_not_tell_are_named(journal: Path) -> None:
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert any(line.pop("turns", None) for line in lines)
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = penstock(journal)
    assert ran.exit_code == 0 and "The journal does not tell 3 turns" in " ".join(ran.stdout.split()), (
        ran.output
    )


def test_another_policy_is_shown_where_it_differs(journal: Path) -> None:
    ran = penstock(journal, "--policy", "never")
    assert ran.exit_code == 1
    assert "moved all shards to task 0" in ran.stdout and "no change" in ran.stdout
    found = json.loads(penstock(journal, "--policy", "never", "--json", "-").stdout)
    (one,) = found["differences"]
    assert one["number"] == 2 and one["recorded"].endswith("moved all shards to task 0")
    assert (found["actions_recorded"], found["actions_decided"]) == (1, 0)


def test_differences_have_the_time_of_day_where_the_journal_knows_it(journal: Path) -> None:
    assert " s  " in penstock(journal, "--policy", "never").stdout
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        line["decision"]["unix_s"] = 1_800_000_000.0
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = penstock(journal, "--policy", "never")
    assert datetime.fromtimestamp(1_800_000_000).strftime("%Y-%m-%d %H:%M:%S") in ran.stdout
    (one,) = json.loads(penstock(journal, "--policy", "never", "--json", "-").stdout)["differences"]
    assert one["unix_s"] == 1_800_000_000.0


def test_an_unknown_policy_and_a_foreign_file_are_one_line(journal: Path, tmp_path: Path) -> None:
    unknown = penstock(journal, "--policy", "gathr")
    assert unknown.exit_code == 2 and "did you mean 'gather'" in unknown.stderr
    foreign = tmp_path / "foreign"
    foreign.write_text('{"a": 1}\n{"b": 2}\n')
    ran = penstock(foreign, "--policy", "gather")
    assert ran.exit_code == 2 and "foreign: line 1 is no decision" in ran.stderr
    (tmp_path / "empty").touch()
    assert "holds no decision" in penstock(tmp_path / "empty").stderr


@pytest.mark.parametrize(
    "line",
    [b"{}", b"[1,2]", b"abc", b"5", b"\xff\xfe", b'{"decision": null}', b'{"decision": {"number": 1}}'],
)
def test_a_line_that_is_no_decision_is_named_with_its_file_and_number(journal: Path, line: bytes) -> None:
    for number, text in (
        (1, line + b"\n"),
        (3, b"\n".join(journal.read_bytes().splitlines()[:2]) + b"\n" + line),
    ):
        (other := journal.parent / "other.jsonl").write_bytes(text)
        ran = penstock(other)
        assert ran.exit_code == 2 and isinstance(ran.exception, SystemExit)
        said = " ".join(ran.stderr.split())
        assert f"other.jsonl: line {number} is no decision of a journal." in said
        assert "a query's option `journal`" in said and "argument" not in said


def test_the_last_line_of_a_journal_that_is_being_written_may_end_anywhere(journal: Path) -> None:
    *whole, last = journal.read_bytes().splitlines()
    ends = [at + 1 for at, letter in enumerate(last) if letter == ord("}")][:-1]
    for end in (1, 5, len(last) // 2, *ends[:3]):
        journal.write_bytes(b"\n".join([*whole, last[:end]]))
        assert penstock(journal).exit_code == 0, last[:end]


def test_a_policy_is_written_with_its_options_as_in_a_simulation(journal: Path) -> None:
    ran = penstock(journal, "--policy", "gather:over=1e9")
    assert ran.exit_code == 1 and "no change" in ran.stdout, ran.output
    wrong = penstock(journal, "--policy", "streamswitch:margin=abc")
    assert wrong.exit_code == 2 and "streamswitch: margin must be a number" in wrong.stderr
    unknown = penstock(journal, "--policy", "gather:ovr=1")
    assert unknown.exit_code == 2 and "no option 'ovr'; did you mean 'over'" in unknown.stderr


def test_turns_of_a_policy_that_is_not_registered_are_skipped_with_what_to_do(journal: Path) -> None:
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        line["decision"].update(policy="theirs", stated="theirs:over=1", run="b")
    with journal.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    ran = penstock(journal)
    said = " ".join(ran.stdout.split())
    assert ran.exit_code == 0 and "gather: 2 decided again, 0 differ" in said, ran.output
    assert "Skipped are 6 turns of 'theirs:over=1'" in said and "imports the module that registers it" in said
    assert json.loads(penstock(journal, "--json", "-").stdout)["unregistered"] == {"theirs:over=1": 6}
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = penstock(journal)
    assert ran.exit_code == 2 and "penstock.cli.main.app" in ran.stderr, "nothing was decided again"
