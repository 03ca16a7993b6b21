"""A checkpoint that somebody forged: whoever reads it reads on or refuses it by the name of a file, in bounded time and
memory."""

from __future__ import annotations

import pytest
from tests.faults.forging import forge_and_judge

FORGERIES = 100


@pytest.mark.parametrize("kind", ["memory", "aggregates"])
def test_no_forged_file_crashes_or_holds_up_a_reader_or_takes_its_memory(kind: str) -> None:
    tally = forge_and_judge(kind, 0, FORGERIES)
    assert tally.tried == FORGERIES
    assert not tally.failures, "\n".join(tally.failures[:10])
