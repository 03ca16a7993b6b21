"""What handles of state say when they are used as if they were the value: as a number, with methods of lists or of other
libraries, or assigned to. Costs nothing where they are used as they are meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

from penstock.topology.returned import shown

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


class Misused:
    """What a handle has beside its methods: words for those it has not."""

    __slots__ = ()
    KIND = "ValueState"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(f"a {self.KIND} has no {name!r}")
        instead = _INSTEAD[self.KIND].get(name)
        methods = ", ".join(
            one for one in dir(type(self)) if one[0] != "_" and one not in ("KIND", "changed")
        )
        raise AttributeError(
            f"a {self.KIND} has no {name!r}; " + (f"use {instead}" if instead else f"it has {methods}")
        )


def _refuse(self: Any, *_: object) -> NoReturn:
    name = self._column.name
    raise TypeError(
        f"state {name!r} is a ValueState and no value; read it with state.{name}.get(), which is None at first"
    )


class MisusedValue(Misused):
    """As `Misused`, and no operand: arithmetic with the state itself is refused by name."""

    __slots__ = ()


_OPERATIONS: Final = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow lt le gt ge neg abs int float "
    "index iter contains getitem setitem"
)
for _operation in _OPERATIONS.split():
    setattr(MisusedValue, f"__{_operation}__", _refuse)


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
    told = str(error) if isinstance(error, TypeError | KeyError) else ""
    return next((f" ({hint})" for words, hint in _HINTS if words in told), "")


_HINTS: Final = (
    (
        "tuple indices must be integers or slices, not str",
        "a column of a row is row.amount, and not row['amount']",
    ),
    ("'NoneType'", "get() of a state is None until the first update(...): write state.total.get() or 0"),
)
