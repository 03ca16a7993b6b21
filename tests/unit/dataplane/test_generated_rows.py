"""What a source's function makes that are no rows is refused with the source and what to return."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.dataplane.worker import Worker
from penstock.errors import OperatorError


@pytest.mark.parametrize(("made", "kind"), [([1, 2], "list"), (None, "NoneType"), ({"n": [1]}, "dict")])
def test_what_is_no_table_is_refused(made: Any, kind: str) -> None:
    spec = SimpleNamespace(
        name="g", generate=lambda offset, count: made, schema=pa.schema([("n", pa.int64())])
    )
    task, work = SimpleNamespace(spec=spec), SimpleNamespace(offsets=(0, 2))
    with pytest.raises(
        OperatorError, match=rf"source 'g' made a {kind} .*returns a pyarrow.RecordBatch or Table .*'n'"
    ):
        Worker._generate(SimpleNamespace(), task, work)  # type: ignore[arg-type]
