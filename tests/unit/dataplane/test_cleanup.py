"""Clean-up keeps whatever somebody may still read or write."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.dataplane.cleanup import plan_cleanup
from penstock.dataplane.paths import DataFile, data_name

FILES = st.builds(
    DataFile,
    st.integers(1, 3),
    st.sampled_from(["a", "b", "b7xab_0", "b7xab_1"]),
    st.integers(1, 4),
    st.sampled_from(["seg", "snp"]),
)


@given(
    st.sets(FILES, max_size=20), st.sets(FILES, max_size=5), st.booleans(), st.booleans(), st.integers(1, 3)
)
def test_nothing_live_later_or_being_written_is_ever_planned(
    files: set[DataFile], live: set[DataFile], working: bool, batching: bool, generation: int
) -> None:
    listed = [data_name(file) for file in files]
    leases = {"a": 1} if working else {}
    batches = ["b7xab"] if batching else []
    dead = plan_cleanup(listed, {data_name(file) for file in live}, leases, batches, generation)
    for file in files:
        newest = max(f.number for f in files if f[:2] == file[:2] and f.kind == file.kind)
        writing = file.generation == generation and (
            (working and file.writer == "a" and file.number >= newest - 1)
            or (batching and file.writer.startswith("b7xab_"))
        )
        keeps = file in live or file.generation > generation or writing
        assert (data_name(file) in dead) == (not keeps)


def test_names_that_are_not_ours_are_left_alone() -> None:
    assert plan_cleanup(["README", "g1-x.seg", "g000001-a-000001.seg.1-2-0.tmp"], set(), {}, [], 5) == []
