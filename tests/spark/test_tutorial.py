"""The programs of the tutorial run as they stand, in an empty folder, and do what the page says.

All run in one process of their own, since a session takes longer to open than any of them to run.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
PROGRAM = re.compile(r"```python\n(# (\w+\.py)\n.*?)```(?:\n```\n(.*?)```)?", re.DOTALL)

RUNNER = '''
import contextlib, io, json, runpy, shutil, threading, time
import penstock

def run(program):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        names = runpy.run_path(program, run_name="__main__")
    return said.getvalue(), names

def stop_later(enough):
    """What Ctrl-C does to a query that does not end: stop it in order, once it has counted enough rows."""
    until = time.monotonic() + 40
    while time.monotonic() < until:
        for query in penstock.streams.active:
            now = query.lastProgress
            if now is not None and now["operators"]["visits"]["rowsIn"] > enough:
                query.stop()
                return
        time.sleep(0.05)

def windows():
    read = penstock.session().read.parquet("out").selectExpr(
        "minute(window.start) AS start", "user", "total")
    return sorted(map(list, read.collect()))

found = {}
for name in ("first", "again"):
    found[name], _ = run("first.py")
for name, enough in (("live", 60_000), ("later", 80_000)):  # a line every two seconds, 40,000 rows
    stopper = threading.Thread(target=stop_later, args=(enough,))
    stopper.start()
    found[name], names = run("live.py")
    stopper.join()
    found[name + " rows"] = names["query"].lastProgress["operators"]["visits"]["rowsIn"]
found["shown"], _ = run("windows.py")
found["windows"] = windows()
with open("in/3.json", "w") as file:
    file.write(json.dumps({"user": "ann", "amount": 1, "at": "2026-01-01T00:32:00Z"}) + "\\n")
run("windows.py")
found["closed"] = windows()
print("found " + json.dumps(found), flush=True)
'''


def write_programs(folder: Path) -> dict[str, str]:
    """Write the programs of the page as files; return what the page says that they print."""
    outputs = {}
    for code, name, output in PROGRAM.findall(PAGE.read_text(encoding="utf-8")):
        (folder / name).write_text(code, encoding="utf-8")
        outputs[name] = output
    return outputs


def total_of(first: int, minutes: int) -> int:
    return sum((first + minute) % 10 for minute in range(minutes))


@pytest.mark.long
def test_the_programs_of_the_tutorial_run_as_they_stand(tmp_path: Path) -> None:
    outputs = write_programs(tmp_path)
    assert list(outputs) == ["first.py", "live.py", "windows.py", "test_visits.py"]
    (tmp_path / "runner.py").write_text(RUNNER, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "runner.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (line,) = re.findall(r"^found (.+)$", ran.stdout, re.MULTILINE)
    found = json.loads(line)

    def cells(printed: str) -> list[list[str]]:
        return sorted(row.split()[-3:] for row in printed.splitlines())

    assert cells(found["first"]) == cells(outputs["first.py"])
    assert "Empty DataFrame" in found["again"]
    assert re.search(r"^\d+ rows, [\d.]+ a second, latency [\d.]+ ms$", found["live"], re.MULTILINE)
    assert found["live rows"] > 60_000 and found["later rows"] > 80_000
    users = ("ann", "bob")
    expected = [[start, user, total_of(start, 5)] for start in range(0, 25, 5) for user in users]
    assert found["windows"] == expected
    assert found["shown"].count("|{2026-") == len(expected)
    assert found["closed"] == [*expected, *([25, user, total_of(25, 5)] for user in users)]


README_RUNNER = """
import runpy, sys
from penstock.spark.query import Query

wait = Query.awaitTermination
Query.awaitTermination = lambda query, timeout=None: wait(query, min(timeout or 4.0, 4.0))
for program in sys.argv[1:]:
    names = runpy.run_path(program, run_name="__main__")
    assert names["query"].exception() is None
    print("ran", program, flush=True)
"""


@pytest.mark.long
def test_each_program_of_the_readme_runs_in_a_file_of_its_own(tmp_path: Path) -> None:
    """One after the other in one process, which saves two sessions, each without the names of the others."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[
        :3
    ]
    programs = [f"program{number}.py" for number in range(len(blocks))]
    for program, code in zip(programs, blocks, strict=True):
        (tmp_path / program).write_text(code, encoding="utf-8")
    (tmp_path / "runner.py").write_text(README_RUNNER, encoding="utf-8")
    command = [sys.executable, "runner.py", *programs]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.findall("^ran (.+)$", ran.stdout, re.MULTILINE) == programs
    assert "Traceback" not in ran.stderr
