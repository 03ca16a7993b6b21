"""What a start refuses before anything runs; no session is needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock
from penstock.errors import DeclarationError
from penstock.spark import starting
from penstock.topology.writer import StreamWriter


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
    policy: str, options: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("check_session", "await_slots"):
        monkeypatch.setattr(starting, name, lambda spark: None)
    session: Any = SimpleNamespace(conf=SimpleNamespace(getAll={}))
    declared = writer(tmp_path / "cp").sla(penstock.SLA(0.5), policy, **options).declare(complete=False)
    with pytest.raises(DeclarationError, match=says):
        starting.start(declared, session)
    assert not list(tmp_path.iterdir())
