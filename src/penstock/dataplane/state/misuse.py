"""What handles of state say when they are used as if they were the value: as a number, with methods of lists or of other
libraries, or assigned to. Costs nothing where they are used as they are meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn, TypeVar

from penstock.suggesting import nearest
from penstock.topology.returned import shown

T = TypeVar("T")

COLUMN_STATE: Final = "column of ValueState"
"""What a value state is called where it is read and written for many keys at once."""
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
    COLUMN_STATE: {
        **dict.fromkeys(("get", "value", "read"), "lookup(keys)"),
        **dict.fromkeys(("set", "put"), "update(keys, values)"),
        **dict.fromkeys(("clear", "remove"), "update(keys, nulls)"),
    },
}


class _Absent:
    """Stands in a class for a method that it has not; says what it has instead, to who assigns to it as well. `hasattr`
    finds nothing."""

    def __init__(self, kind: str, name: str, instead: str) -> None:
        self._told = f"a {kind} has no {name!r}; use {instead}"

    def __get__(self, owner: object, kind: type | None = None) -> NoReturn:
        raise AttributeError(self._told)

    def __set__(self, owner: object, value: object) -> NoReturn:
        raise AttributeError(self._told)


_READ: Final[Mapping[str, str]] = {
    "ValueState": "state.{0}.get(), which is None at first",
    "ListState": "list(state.{0})",
    "MapState": "dict(state.{0}.items())",
    COLUMN_STATE: "state.{0}.lookup(keys)",
}
_COMPARED: Final = "eq ne"
_CALCULATED: Final = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow lt le gt ge neg abs int float "
    "index bool format str"
)
_HELD: Final = "iter contains getitem setitem delitem len"
_OPERATIONS: Final[Mapping[str, str]] = {
    "ValueState": f"{_COMPARED} {_CALCULATED} {_HELD}",
    COLUMN_STATE: f"{_COMPARED} {_CALCULATED} {_HELD}",
    "ListState": f"{_COMPARED} add radd mul rmul lt le gt ge",
    "MapState": f"{_COMPARED} or ror lt le gt ge",
}
"""What a handle is refused for, which the value it holds could do; what lists and maps can do themselves they do."""
_CHANGES: Final[Mapping[tuple[str, str], str]] = {
    ("ListState", "iadd"): "state.{0}.appendList(values)",
    ("ListState", "delitem"): "state.{0}.put(values) with the list that is left",
    ("MapState", "ior"): "state.{0}[key] = value for each key",
}


def _refused(called: str) -> Any:
    told = f"state {{0!r}} is a {called} and no value; read it with {_READ[called]}"

    def refused(self: Any, *_: object) -> NoReturn:
        raise TypeError(told.format(_name_of(self)))

    return refused


def _refused_change(called: str, instead: str) -> Any:
    def refused(self: Any, *_: object) -> NoReturn:
        raise TypeError(f"state {_name_of(self)!r} is a {called}; write {instead.format(_name_of(self))}")

    return refused


def _name_of(handle: Any) -> str:
    column = getattr(handle, "_column", None)
    return str(handle._name if column is None else column.name)


def with_words(kind: type[T], called: str) -> None:
    """Let a class of handles say what to write where it is used as it cannot be, and call it as users do.

    Not by `__getattr__`, which would make every access to its attributes slower.
    """
    for name, instead in _INSTEAD[called].items():
        if not hasattr(kind, name):
            setattr(kind, name, _Absent(called, name, instead))
    for name in _OPERATIONS[called].split():
        setattr(kind, f"__{name}__", _refused(called))
    for (whose, name), instead in _CHANGES.items():
        if whose == called:
            setattr(kind, f"__{name}__", _refused_change(called, instead))
    kind.__name__ = called


_ASSIGNED: Final[Mapping[str, str]] = {
    "ValueState": "state.{0}.update(value)",
    "ListState": "state.{0}.put(values)",
    "MapState": "state.{0}[key] = value, or state.{0}.clear() to empty it",
    COLUMN_STATE: "state.{0}.update(keys, values)",
}


def refuse_assignment(name: str, value: object, held: object) -> NoReturn:
    """Refuse an assignment to an attribute of a key's state.

    Args:
        held: what the state has under this name, None where it has nothing.

    Raises:
        AttributeError: says how the state is written, or how it is declared.
    """
    kind = type(held).__name__
    if kind in _ASSIGNED:
        raise AttributeError(
            f"state.{name} = {shown(value)} would store nothing; write {_ASSIGNED[kind].format(name)}"
        )
    if held is not None:
        raise AttributeError(
            f"state.{name} = {shown(value)} would store nothing: {name} is a method or a clock"
        )
    raise AttributeError(
        f"state.{name} = {shown(value)}: there is no state named {name!r}; declare it with "
        f"state={{{name!r}: penstock.ValueState(...)}} and write state.{name}.update(value)"
    )


def refuse_deletion(name: str) -> NoReturn:
    """Refuse `del state.total`.

    Raises:
        AttributeError: says how a state is emptied.
    """
    raise AttributeError(
        f"del state.{name} would delete the state and not what it holds; write state.{name}.clear()"
    )


_OF_HANDLES: Final = frozenset(
    {"clear", "exists", "get", "items", "keys", "pop", "put", "set", "update", "value", "values"}
)


def refuse_unknown(name: str, declared: Iterable[str]) -> NoReturn:
    """Refuse an attribute of a key's state that was not declared.

    Raises:
        AttributeError: says what was probably meant, or how a state is declared.
    """
    one = next(iter(declared), "total")
    if name in _OF_HANDLES:
        raise AttributeError(
            f"there is no {name!r} here: a state is an attribute and is read and written through it; write state.{one} and "
            "then a method of its kind, such as get() of a ValueState"
        )
    near = nearest(name, declared)
    meant = f"did you mean {near!r}, or else " if near is not None else ""
    raise AttributeError(f"there is no state named {name!r}; {meant}declare it with state={{{name!r}: ...}}")


def checked_elements(handle: Any, values: Iterable[Any]) -> Iterable[Any]:
    """Return what is to become the elements of a list state.

    Raises:
        TypeError: it has no elements, or none in an order that is the same in every run.
    """
    if isinstance(values, str | bytes | dict | set | frozenset) or not isinstance(values, Iterable):
        unordered = isinstance(values, set | frozenset)
        why = (
            "a set, whose order differs from run to run; give sorted(values)"
            if unordered
            else "no list of values"
        )
        one = "" if unordered else f"; one value is added with state.{_name_of(handle)}.appendValue(value)"
        raise TypeError(
            f"state {_name_of(handle)!r} is a ListState and takes a list; {shown(values)} is {why}{one}"
        )
    return values


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
