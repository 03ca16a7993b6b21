"""The page on moving from Spark does what it shows: its programs and commands run in order, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "moving-from-spark.md"
BLOCK = re.compile(r"```(python|sh)\n(.*?)```(?:\n\n?```\n(.*?)```)?", re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")
REFUSED = """
import sys
import penstock
from pathlib import Path

try:
    exec(Path("new.py").read_text().replace('"new-checkpoint"', '"old-checkpoint"'))
except penstock.CheckpointError as error:
    print("refused:", error)
"""


def plain(text: str) -> str:
    """Without what differs from run to run: ids and folders."""
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|/\S*/(?=new-checkpoint)", "...", text)


def run(command: list[str], folder: Path) -> str:
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": binaries, "PYSPARK_PYTHON": sys.executable}
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.long
def test_the_steps_of_the_page_run_as_they_stand(tmp_path: Path) -> None:
    said = []
    for language, code, shown in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        file = FILE.match(code)
        if file is not None:
            (tmp_path / file[1]).write_text(code, encoding="utf-8")
        elif language == "sh":
            said.append(run(["bash", "-ec", code], tmp_path))
            assert not shown or plain(shown) == plain(said[-1])
    assert len(said) == 3
    assert re.search(r"\| *ann\| *3\|", said[-1]), said[-1]
    before = sorted(str(path) for path in (tmp_path / "old-checkpoint").rglob("*"))
    refused = run([sys.executable, "-c", REFUSED], tmp_path)
    assert "old-checkpoint is the checkpoint of a Spark query (it has metadata, offsets, commits" in refused
    assert "penstock import" in refused
    assert before == sorted(str(path) for path in (tmp_path / "old-checkpoint").rglob("*")), (
        "nothing was written"
    )
