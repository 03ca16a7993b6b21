"""The code on the pages of the documentation declares what it says: every Python block of every page runs, in order.

No Spark is started. A session, a DataFrame and the handle of a query are stand-ins, the handle with the methods of the
real one; what a block starts is declared and compiled as `start()` would. `tests/spark/test_tutorial.py` runs the
tutorial as it stands.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, create_autospec

import pytest

import penstock
from penstock.dataplane import exports
from penstock.dataplane.compile import compile_program
from penstock.dataplane.exports import add_exports
from penstock.topology import writer
from penstock.topology.options import CHECKPOINT_LOCATION, EXPORT

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")

FRAMES = {
    "README.md": "user long, cents long, timestamp timestamp",
    "docs/tutorial.md": "user string, amount long, at timestamp",
}
"""Schema of the DataFrames on a page, where it is not that of `FRAME`."""
FRAME = "user string, amount long"

PROCESSOR = """
import penstock
from pyspark.sql.streaming import StatefulProcessor

class RunningCount(StatefulProcessor):
    def init(self, handle):
        self.count = handle.getValueState("count", "count long")

    def handleInputRows(self, key, rows, timerValues):
        return iter(())

    def close(self):
        pass
"""
TOTALS = """
import sqlite3
import penstock
from penstock import col

path = "checkpoint"
orders = penstock.from_rows([], schema="stock int, price double", name="orders")
totals = orders.groupBy("stock").agg(penstock.sum("price").alias("total"), name="totals")
"""
PRELUDES = {
    "README.md": PROCESSOR,
    "docs/changing-a-query.md": "import penstock",
    "docs/event-time.md": "path = 'checkpoint'",
    "docs/query.md": """
import penstock
from pyspark.sql.streaming import StreamingQueryListener

sales = penstock.from_rows([], schema="user string", name="sales")
counts = sales.groupBy("user").count(name="counts")
""",
    "docs/sinks.md": TOTALS,
    "docs/stateful-processors.md": PROCESSOR,
    "docs/writing-operators.md": """
import heapq
import penstock
import pyarrow as pa
import pyarrow.compute as pc

def make(offset, count):
    raise NotImplementedError
""",
}
"""What the blocks of a page use and the page does not define."""


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def pages() -> list[str]:
    found = sorted(
        str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    )
    return [page for page in found if BLOCK.search(text_of(page))]


def initial_rows(given: object, operator: str) -> tuple[Any, tuple[str, ...]]:
    """Stands for state that Spark's reader gives."""
    known = penstock.from_rows([], schema="user string, count long", name=f"{operator}_initial")
    return known, ("user",)


@pytest.fixture
def started() -> list[writer.Declared]:
    """What the blocks of a page have started."""
    return []


@pytest.fixture
def stand_ins(
    started: list[writer.Declared], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[dict[str, Any]]:
    """Names that stand for Spark, in an empty folder."""
    pytest.importorskip("pyspark")
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.query import Query
    from penstock.spark.streams import streams

    def start(declared: writer.Declared, spark: object) -> Any:
        assert CHECKPOINT_LOCATION.name in declared.options
        further = {str(one.name): one.node for one in declared.also}
        program = compile_program(declared.node, tasks=2, memory_bytes=1 << 20, also=further)
        add_exports(program, EXPORT.of(declared.options))
        started.append(declared)
        return create_autospec(Query, instance=True)

    before = list(writer._starter)
    writer.set_starter(start)
    monkeypatch.setattr(penstock, "session", lambda *_, **__: MagicMock(spec=SparkSession))
    monkeypatch.setattr(penstock, "streams", create_autospec(streams), raising=False)
    monkeypatch.setattr("penstock.spark.exported.register", lambda spark: None)
    monkeypatch.setattr("penstock.spark.processors.initial_rows", initial_rows)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["app.py", "checkpoint"])
    known = set(sys.modules)
    yield {
        "spark": MagicMock(spec=SparkSession),
        "df": MagicMock(spec=DataFrame),
        "query": create_autospec(Query, instance=True),
    }
    writer._starter[:] = before
    for name in set(sys.modules) - known:
        if getattr(sys.modules[name], "__file__", "").startswith(str(tmp_path)):
            del sys.modules[name]


def run_page(page: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run what a page has, block by block, a program named in its first line also as a file of that name."""
    schema = FRAMES.get(page, FRAME)

    def from_dataframe(
        dataframe: object, *, name: str = "source", stamp: str | None = None
    ) -> penstock.Stream:
        assert stamp is None or stamp in schema
        return penstock.from_rows([], schema=schema, name=name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(penstock, "from_dataframe", from_dataframe)
        patch.setattr(exports, "read_head", lambda *_: None)  # the checkpoints of a page are not there
        exec(PRELUDES.get(page, ""), names)
        for number, code in enumerate(BLOCK.findall(text_of(page)), start=1):
            file = FILE.match(code)
            if file is not None:
                Path(file[1]).write_text(code, encoding="utf-8")
            exec(compile(code, f"{page}, block {number}", "exec"), names)  # the page's own code
    return names


@pytest.mark.parametrize("number", range(3))
def test_each_program_of_the_readme_stands_alone(
    number: int,
    stand_ins: dict[str, Any],
    started: list[writer.Declared],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Copied into an empty file, with no name but its own; `tests/spark/test_tutorial.py` runs them on Spark."""
    schema = FRAMES["README.md"]
    monkeypatch.setattr(
        penstock, "from_dataframe", lambda frame, name, **_: penstock.from_rows([], schema=schema, name=name)
    )
    monkeypatch.setattr("builtins.print", lambda *_, **__: None)  # a stand-in has nothing to show
    code = BLOCK.findall(text_of("README.md"))[number]
    exec(
        compile(code, f"README.md, block {number + 1}", "exec"), {"__name__": "__main__"}
    )  # the page's own code
    assert len(started) == 1


@pytest.mark.parametrize("page", pages())
def test_every_block_of_a_page_declares_what_it_says(page: str, stand_ins: dict[str, Any]) -> None:
    names = run_page(page, stand_ins)
    for name, value in names.items():
        if name.startswith("test_") and callable(value):
            value()
        elif isinstance(value, penstock.Stream):
            compile_program(value.node, tasks=2, memory_bytes=1 << 20)


def test_the_stand_ins_let_no_mistake_through(stand_ins: dict[str, Any]) -> None:
    rows = penstock.from_rows([], schema="user string", name="rows")
    with pytest.raises(AssertionError):
        rows.writeStream.format("noop").start()
    with pytest.raises(penstock.DeclarationError, match="there is no source or operator 'row'"):
        rows.writeStream.format("noop").option("checkpointLocation", "x").option("export", "row").start()
    query = rows.writeStream.format("noop").option("checkpointLocation", "x").start()
    with pytest.raises(AttributeError):
        query.tables()
    with pytest.raises(TypeError):
        query.to_stream()


def test_the_page_on_topologies_has_every_shape(stand_ins: dict[str, Any]) -> None:
    names = run_page("docs/topologies.md", stand_ins)
    streams = [value for value in names.values() if isinstance(value, penstock.Stream)]
    assert len(streams) > 10
    kinds = {feed.stage.kind for stream in streams for feed in stream.node.feeds()}
    assert kinds >= {"generate", "station", "cogrouped", "broadcast", "rows"}


def test_the_page_on_sinks_starts_what_it_shows(
    stand_ins: dict[str, Any], started: list[writer.Declared]
) -> None:
    run_page("docs/sinks.md", stand_ins)
    assert {one.sink for one in started} == {"foreachBatch", "foreach_arrow", "parquet"}
    assert [one.name for declared in started for one in declared.also] == ["large"]


def test_the_extras_that_the_tutorial_names_bring_what_it_runs() -> None:
    text = text_of("docs/tutorial.md")
    (named,) = re.findall(r"pip install 'penstock\[([\w,]+)\]'", text)
    extras = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]
    brought = {re.split(r"[<>=!\[]", one)[0] for extra in named.split(",") for one in extras[extra]}
    tools = set(re.findall(r"python -m (\w+)", text)) - {"venv"}
    tools |= {"pandas"} if "to_pandas" in text else set()
    assert tools == {"pandas", "pytest"} <= brought


LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


@pytest.mark.parametrize(
    "page", sorted(str(p.relative_to(ROOT)) for p in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
)
def test_every_link_leads_to_a_page_and_a_heading(page: str) -> None:
    for target, anchor in LINK.findall(text_of(page)):
        if "://" in target:
            continue
        led = (ROOT / page).parent / target if target else ROOT / page
        assert led.exists(), f"{page} links to {target}, which is not there"
        if anchor:
            heads = re.findall(r"^#+ (.+)$", led.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^a-z0-9 _-]", "", head.lower()).replace(" ", "-") for head in heads]
            assert anchor in anchors, f"{page} links to #{anchor} of {target or page}, which has {anchors}"
