"""What a start refuses before anything runs; no session is needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock
from penstock.errors import DeclarationError, PlanError
from penstock.spark import starting
from penstock.topology.writer import StreamWriter


@pytest.fixture(autouse=True)
def sessions_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("check_session", "check_interpreter", "await_slots"):
        monkeypatch.setattr(starting, name, lambda spark: None)


def session() -> Any:
    return SimpleNamespace(conf=SimpleNamespace(getAll={}, get=lambda name: "UTC"))


def writer(checkpoint: Path) -> StreamWriter:
    numbers = penstock.from_rows([(1,)], schema="n long", name="numbers")
    return numbers.writeStream.format("noop").option("checkpointLocation", str(checkpoint))


@pytest.mark.parametrize(
    ("policy", "options", "says"),
    [
        ("nope", {}, "there is no policy 'nope'; there are "),
        ("drs", {"k_mx": 4}, "policy 'drs' has no option 'k_mx'; did you mean 'k_max'"),
        ("drs", {"t_min_s": 2.0}, "t_min"),
    ],
)
def test_a_policy_that_cannot_hold_the_bound_is_refused_before_there_is_a_checkpoint(
    policy: str, options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    declared = writer(tmp_path / "cp").sla(penstock.SLA(0.5), policy, **options).declare(complete=False)
    with pytest.raises(DeclarationError, match=says):
        starting.start(declared, session())
    assert not list(tmp_path.iterdir())


def test_a_journal_that_cannot_be_written_is_refused_before_there_is_a_checkpoint(tmp_path: Path) -> None:
    at = writer(tmp_path / "cp").option("journal", str(tmp_path))
    declared = at.sla(penstock.SLA(0.5)).declare(complete=False)
    with pytest.raises(DeclarationError, match="option 'journal'"):
        starting.start(declared, session())
    assert not list(tmp_path.iterdir())


def test_a_bound_that_cannot_be_held_after_all_stops_what_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Shell:
        engine = SimpleNamespace(sources=SimpleNamespace(set_arrivals=lambda *_: None))

        def __init__(self, *_: Any, **__: Any) -> None: ...

        def start(self) -> None:
            done.append("started")

    def refuse(query: Any, declared: Any) -> None:
        raise PlanError("hold: the query has ended.")

    monkeypatch.setattr(starting, "SparkShell", Shell)
    monkeypatch.setattr(starting, "_hold_bound", refuse)
    monkeypatch.setattr(starting, "real_cores", lambda spark: 2)
    monkeypatch.setattr(starting, "_hosts", lambda spark: ("127.0.0.1", "127.0.0.1"))
    monkeypatch.setattr(starting.Query, "stop", lambda query: done.append("stopped"))
    declared = writer(tmp_path / "cp").sla(penstock.SLA(0.5)).declare(complete=False)
    with pytest.raises(PlanError):
        starting.start(declared, session())
    assert done == ["started", "stopped"]
