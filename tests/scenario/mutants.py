"""Loads the package afresh with some source text changed, so that a planted bug runs inside the real code.

Only for as long as the block lasts; what was imported before is put back. A text that is not found exactly
once is an error: a mutation that no longer applies must not pass for one that was found.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType, ModuleType

Changes = Mapping[str, Sequence[tuple[str, str]]]
"""Module name -> (text, replacement) pairs."""


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, changes: Sequence[tuple[str, str]]) -> None:
        super().__init__(name, path)
        self._changes = changes

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_source(fullname)
        assert source is not None
        for text, replacement in self._changes:
            found = source.count(text)
            assert found == 1, f"{fullname} has {found} times, not once: {text!r}"
            source = source.replace(text, replacement)
        return compile(source, self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    def find_spec(
        self, name: str, path: object, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._changes:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        assert spec is not None and spec.origin is not None
        loader = _Loader(name, spec.origin, self._changes[name])
        return importlib.util.spec_from_file_location(name, spec.origin, loader=loader)


@contextmanager
def mutated(changes: Changes) -> Iterator[None]:
    """Import everything of the package anew, with these changes, while the block lasts."""
    ours = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "penstock"}
    finder = _Finder(changes)
    for name in ours:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        for name in changes:
            importlib.import_module(name)
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "penstock"]:
            del sys.modules[name]
        sys.modules.update(ours)
