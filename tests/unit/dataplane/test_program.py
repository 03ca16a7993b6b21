"""Where the way of an input row ends: at every operator that feeds a sink, and anywhere on a loop."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.dataplane.channel import EdgeSpec
from penstock.dataplane.program import Program, StageSpec

ROWS = pa.schema([("key", pa.int64())])


def program(*links: str) -> Program:
    """Links like `s>a`; capitals are operators, s... are sources, x... are sinks."""
    consumers: dict[str, list[str]] = {}
    for link in links:
        producer, consumer = link.split(">")
        consumers.setdefault(producer, []).append(consumer)
        consumers.setdefault(consumer, [])
    kinds = {
        name: "operator" if name.isupper() else "sink" if name[0] == "x" else "source" for name in consumers
    }
    return Program(
        {
            name: StageSpec(
                name, kinds[name], ROWS, edges=[EdgeSpec(at, ("key",), 8, one) for at, one in enumerate(to)]
            )
            for name, to in consumers.items()
        }
    )


@pytest.mark.parametrize(
    ("links", "ends"),
    [
        (("s>A", "A>x"), "A"),
        (("s>A", "A>B", "B>x"), "B"),
        (("s>A", "A>B", "A>x1", "B>x2"), "AB"),  # one row on two ways, each to a sink of its own
        (("s>A", "A>B", "A>C", "B>D", "C>D", "D>x"), "D"),
        (("s>A", "A>B"), "B"),  # rows that go no further end where they are taken
        (("s>A", "A>B", "B>A", "A>x"), "AB"),
        (("s>A", "A>B", "B>C", "C>B", "C>D", "D>x"), "BCD"),  # what goes round may end on the way round
        (("s>A", "A>B", "B>A"), "AB"),
        (("s>A", "A>A", "A>x"), "A"),
        (("s>A", "A>x", "B>x"), "A"),  # nobody feeds B
        (("s1>A", "s2>B", "A>x", "s1>x"), "AB"),
    ],
)
def test_paths_end_where_rows_can_leave_or_stay(links: tuple[str, ...], ends: str) -> None:
    assert sorted(program(*links).path_ends()) == sorted(ends)
