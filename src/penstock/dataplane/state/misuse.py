"""What handles of state say when they are used as if they were the value: as a number, with methods of lists or of other
libraries, or assigned to. Costs nothing where they are used as they are meant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn, TypeVar

from penstock.topology.returned import shown

T = TypeVar("T")

_INSTEAD: Final[Mapping[str, Mapping[str, str]]] = {
    "ValueState": {
        **dict.fromkeys(("set", "put", "setValue", "write", "assign"), "update(value)"),
        **dict.fromkeys(("value", "read", "getValue", "getOption", "content"), "get()"),
        **dict.fromkeys(("remove", "delete", "pop"), "clear()"),
        **dict.fromkeys(("append", "add", "increment"), "update(new), or declare a ListState"),
    },
    "ListState": {
        **dict.fromkeys(("append", "add", "push"), "appendValue(value)"),
        **dict.fromkeys(("extend", "addAll"), "appendList(values)"),
        **dict.fromkeys(("update", "set"), "put(values)"),
        **dict.fromkeys(
            ("remove", "pop", "sort", "insert", "reverse"), "put(values) with the list that is left"
        ),
        "size": "len(...)",
        "value": "get()",
    },
    "MapState": {
        **dict.fromkeys(("put", "set", "add", "update"), "state[key] = value for each key"),
        **dict.fromkeys(("remove", "delete"), "pop(key, None)"),
        **dict.fromkeys(("size", "count"), "len(...)"),
        **dict.fromkeys(("has", "has_key", "contains"), "key in ..."),
    },
}


class _Absent:
    """Stands in a class for a method that it has not; says what it has instead. `hasattr` finds nothing."""

    def __init__(self, kind: str, name: str, instead: str) -> None:
        self._told = f"a {kind} has no {name!r}; use {instead}"

    def __get__(self, owner: object, kind: type | None = None) -> NoReturn:
        raise AttributeError(self._told)


def _operation(self: Any, *_: object) -> NoReturn:
    name = self._column.name
    raise TypeError(
        f"state {name!r} is a ValueState and no value; read it with state.{name}.get(), which is None at first"
    )


_OPERATIONS: Final = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow lt le gt ge neg abs int float "
    "index iter contains getitem setitem"
)


def with_words(kind: type[T], called: str) -> None:
    """Let a class of handles say what to write where it is used as it cannot be, and call it as users do.

    Not by `__getattr__`, which would make every access to its attributes slower.
    """
    for name, instead in _INSTEAD[called].items():
        if not hasattr(kind, name):
            setattr(kind, name, _Absent(called, name, instead))
    if called == "ValueState":
        for name in _OPERATIONS.split():
            setattr(kind, f"__{name}__", _operation)
    kind.__name__ = called


def refuse_assignment(name: str, value: object, is_declared: bool) -> NoReturn:
    """Refuse an assignment to an attribute of a key's state.

    Raises:
        AttributeError: says how the state is written, or how it is declared.
    """
    if is_declared:
        raise AttributeError(
            f"state.{name} = {shown(value)} would store nothing; write state.{name}.update(value), or what else its kind "
            "of state has"
        )
    raise AttributeError(
        f"state.{name} = {shown(value)}: there is no state named {name!r}; declare it with "
        f"state={{{name!r}: penstock.ValueState(...)}} and write state.{name}.update(value)"
    )


def refuse_subscript(name: object) -> NoReturn:
    """Refuse `state["total"]`.

    Raises:
        TypeError: says how a state is reached.
    """
    raise TypeError(f"a state is an attribute: write state.{name}, and not state[{name!r}]")


def hint_for(error: BaseException) -> str:
    """Return what is probably meant by an error that Python words without knowing of rows and states; else nothing."""
    if type(error) is not TypeError:
        return ""
    told = str(error)
    return next((f" ({hint})" for words, hint in _HINTS if words.search(told)), "")


_HINTS: Final = (
    (
        re.compile("^tuple indices must be integers or slices, not str"),
        "a column of a row is row.amount, and not row['amount']",
    ),
    (
        re.compile("^unsupported operand .*'NoneType'|not supported between .*'NoneType'"),
        "a state is None until its first update(...), and so is a null column: write state.total.get() or 0",
    ),
)
