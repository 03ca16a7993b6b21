"""A flipped bit in any file of a checkpoint is refused by name, or nothing reads it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.faults.damage import FLIP_KINDS, Bench, bench_with_every_kind, flip_bits
from tests.faults.runs import scratch

FLIPS = 60


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with scratch() as folder:
        yield bench_with_every_kind(folder, 37)


@pytest.mark.parametrize("kind", FLIP_KINDS)
def test_a_flipped_bit_is_never_silent(bench: Bench, kind: str) -> None:
    tally = flip_bits(bench, kind, FLIPS)
    assert tally.tried == FLIPS
    assert not tally.failures, "\n".join(tally.failures[:10])
    if kind in ("segment", "delta", "snapshot"):
        assert tally.refused > FLIPS // 5, "the run left too little unread to prove anything"
