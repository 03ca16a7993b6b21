"""Holds the import directions of the layout and the rule that one module opens files to write.

Reads the sources as syntax trees; the last test imports them too, in a process where pyspark cannot be found.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "penstock"

ENDS = ("penstock.bench", "penstock.cli")
"""What a person calls; no part of the engine may lean on it."""

TESTING = ("penstock.sim", "penstock.testing")
"""What runs and checks the engine in tests; the engine knows nothing of it."""

FORBIDDEN_IMPORTS: dict[str, tuple[str, ...]] = {
    "penstock.topology": ("penstock.spark", "penstock.control", *TESTING, *ENDS),
    "penstock.dataplane": ("penstock.spark", "penstock.control", *TESTING, *ENDS),
    "penstock.control": ("penstock.spark", "penstock.dataplane", *TESTING, *ENDS),
    "penstock.sim": ("penstock.spark", *ENDS),
    "penstock.testing": ("penstock.spark", "penstock.control", "penstock.sim", *ENDS),
    "penstock.workloads": ("penstock.spark", "penstock.control", *ENDS),
    "penstock.spark": (*TESTING, *ENDS),
    "penstock.errors": ("penstock.",),
    "penstock": ("pickle", "cloudpickle", "dill", "marshal", "shelve"),
}
"""Package -> what nothing in it may import. The last line is there because nothing read back may run code."""

MAY_IMPORT = {"penstock.testing.runs": ("penstock.sim",)}
"""Module -> what it may import all the same: `penstock.testing.run` is the simulation, made easy for users."""

MAY_IMPORT_PYSPARK = ("penstock.spark", "penstock.bench")

MAY_WRITE_FILES = {
    "penstock.dataplane.disk.posix": "the calls behind the named I/O steps",
    "penstock.dataplane.state.local": "the node's LMDB files: a cache, never the proof",
    "penstock.spark.localcluster": "scratch directories of the test cluster",
    "penstock.spark.audit.sitecustomize": "notes of the audit hook, on a watched test cluster",
    "penstock.spark.journal_file": "decisions, for people and for replay: no part of the checkpoint",
    "penstock.bench": "results, and input files for plain Spark",
    "penstock.cli": "results as JSON",
}

WITHOUT_SPARK = tuple(
    f"penstock.{part}" for part in ("topology", "dataplane", "control", "sim", "testing", "workloads")
)


@dataclass(frozen=True)
class Module:
    """One source file: its dotted name, whether it is a package, and its syntax tree."""

    name: str
    is_package: bool
    tree: ast.Module


def read_modules() -> list[Module]:
    return [
        Module(_dotted(path), path.name == "__init__.py", ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(SOURCE.rglob("*.py"))
    ]


def _dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(module: Module) -> Iterator[tuple[str, int]]:
    """Yield every imported dotted name with its line, type-only and function-level imports included."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(module, node)
            yield from ((f"{origin}.{alias.name}", node.lineno) for alias in node.names)


def type_only_lines(module: Module) -> set[int]:
    """Return the lines under ``if TYPE_CHECKING:``, which a type checker reads and a program never runs."""
    blocks = (
        node.body
        for node in ast.walk(module.tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    )
    return {node.lineno for body in blocks for node in body}


def _origin(module: Module, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    parts = module.name.split(".")
    base = parts[: len(parts) - node.level + (1 if module.is_package else 0)]
    return ".".join([*base, *([node.module] if node.module else [])])


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package.rstrip(".") + ".") for package in packages)


def writes(module: Module) -> Iterator[str]:
    """Yield ``call:line`` for every call that opens, creates, renames or cuts a file."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and (reason := _writing_call(node)):
            yield f"{module.name}:{node.lineno} {reason}"


_PATH_WRITERS = {"write_text", "write_bytes", "symlink_to", "hardlink_to"}
_OS_WRITERS = {"rename", "replace", "link", "symlink", "truncate", "ftruncate", "mkfifo", "mknod"}
_OTHER_WRITERS = {"NamedTemporaryFile", "TemporaryFile", "mkstemp", "OSFile", "write_table", "write_feather",
                  "copyfile", "copy2", "copytree"}  # fmt: skip
_WRITE_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC", "O_EXCL", "O_TMPFILE"}


def _writing_call(call: ast.Call) -> str | None:
    name, owner = _called(call)
    if name == "open" and owner == "os":
        flags = {node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute)}
        return "os.open with write flags" if flags & _WRITE_FLAGS or "O_RDONLY" not in flags else None
    if name == "open" and owner == "lmdb":
        return None if _literal_keyword(call, "readonly") is True else "lmdb.open"
    if name in ("open", "fdopen"):
        # builtins.open(path, mode), io.open(path, mode), os.fdopen(fd, mode); path.open(mode)
        position = 1 if owner in (None, "io", "builtins", "os", "gzip") else 0
        return _writing_mode(call, position, is_method=position == 0)
    if owner == "os" and name in _OS_WRITERS:
        return f"os.{name}"
    if name in _PATH_WRITERS or name in _OTHER_WRITERS:
        return str(name)
    return None


def _called(call: ast.Call) -> tuple[str | None, str | None]:
    if isinstance(call.func, ast.Name):
        return call.func.id, None
    if isinstance(call.func, ast.Attribute):
        owner = call.func.value.id if isinstance(call.func.value, ast.Name) else ""
        return call.func.attr, owner
    return None, None


def _literal_keyword(call: ast.Call, name: str) -> object:
    found = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    return found.value if isinstance(found, ast.Constant) else None


def _writing_mode(call: ast.Call, position: int, *, is_method: bool) -> str | None:
    keyword = next((keyword.value for keyword in call.keywords if keyword.arg == "mode"), None)
    mode = keyword if keyword is not None else (call.args[position] if len(call.args) > position else None)
    if mode is None:
        return None
    if not isinstance(mode, ast.Constant) or not isinstance(mode.value, str):
        # Many classes here have an `open` of their own, whose arguments are no modes.
        return None if is_method else "open with a mode that is not written out"
    is_mode = set(mode.value) <= set("rwaxbt+U")
    return f"open(..., '{mode.value}')" if is_mode and set(mode.value) & set("wax+") else None


MODULES = read_modules()


@pytest.mark.parametrize("package", sorted(FORBIDDEN_IMPORTS))
def test_imports_go_in_the_direction_of_the_layout(package: str) -> None:
    wrong = [
        f"{module.name}:{line} imports {name}"
        for module in MODULES
        if within(module.name, (package,))
        for name, line in imports(module)
        if within(name, FORBIDDEN_IMPORTS[package]) and not within(name, MAY_IMPORT.get(module.name, ()))
    ]
    assert not wrong, "\n".join(wrong)


def test_only_the_spark_folder_and_benchmarks_import_pyspark() -> None:
    wrong = [
        f"{module.name}:{line} imports {name}"
        for module in MODULES
        if not within(module.name, MAY_IMPORT_PYSPARK)
        for name, line in imports(module)
        if within(name, ("pyspark", "py4j")) and line not in type_only_lines(module)
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_but_the_disk_module_opens_a_file_for_writing() -> None:
    allowed = tuple(MAY_WRITE_FILES)
    wrong = [found for module in MODULES if not within(module.name, allowed) for found in writes(module)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "source",
    [
        "open(p, 'w')", "open(p, mode='ab')", "open(p, 'r+b')", "open(p, mode)", "p.open('xb')",
        "p.write_text(t)", "os.open(p, os.O_WRONLY | os.O_CREAT)", "os.open(p, flags)", "os.fdopen(fd, 'w')",
        "os.replace(a, b)", "lmdb.open(p)", "pa.OSFile(p, 'wb')", "pq.write_table(t, p)",
    ],
)  # fmt: skip
def test_a_planted_write_is_found(source: str) -> None:
    assert list(writes(Module("penstock.planted", False, ast.parse(source))))


@pytest.mark.parametrize(
    "source",
    ["open(p)", "open(p, 'rb')", "p.open()", "os.open(p, os.O_RDONLY)", "state.open(shard, 'w')"],
)
def test_reading_is_not_taken_for_writing(source: str) -> None:
    assert not list(writes(Module("penstock.planted", False, ast.parse(source))))


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        ("import penstock.spark.session", "penstock.spark.session"),
        ("from penstock import spark", "penstock.spark"),
        ("from ..spark import session", "penstock.spark.session"),
        ("def f():\n    from penstock.spark.session import slots", "penstock.spark.session.slots"),
    ],
)
def test_a_planted_import_is_found(source: str, imported: str) -> None:
    names = [name for name, _ in imports(Module("penstock.dataplane.planted", False, ast.parse(source)))]
    assert names == [imported]
    assert within(imported, FORBIDDEN_IMPORTS["penstock.dataplane"])


def test_an_import_for_types_alone_is_told_from_one_that_runs() -> None:
    source = "if TYPE_CHECKING:\n    import pyspark\nimport pyspark\ndef f():\n    import pyspark"
    module = Module("penstock.planted", False, ast.parse(source))
    assert [line for _, line in imports(module) if line not in type_only_lines(module)] == [3, 5]


def test_everything_but_the_spark_folder_can_be_imported_without_pyspark() -> None:
    names = ["penstock", *(module.name for module in MODULES if within(module.name, WITHOUT_SPARK))]
    program = "import sys\nsys.modules['pyspark'] = None\nimport importlib\n" + "\n".join(
        f"importlib.import_module({name!r})" for name in names
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
