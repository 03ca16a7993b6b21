"""Whether the functions of a topology can be sent to workers, asked before a start does anything; if not, which variable
of which function is in the way, and what to do about it. Sends nothing.
"""

from __future__ import annotations

import functools
import io
import socket
import sys
import threading
import types
from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from penstock.dataplane.program import Program
from penstock.errors import DeclarationError
from penstock.raised import describe, pass_on_end, show, type_name
from penstock.topology.nodes import Node

_DEEPEST = 12
_KEY = 40
_SPARKS = "functions run on workers, where there is no Spark; take a DataFrame as a stream, by penstock.from_dataframe(df)"
_STREAM = (
    "a stream cannot be used inside a function, which sees rows alone; bring two streams together with cogroup(...) or "
    "with_broadcast(...)"
)
_LIBRARIES = frozenset(
    {
        "pyspark",
        "py4j",
        "penstock",
        "_thread",
        "threading",
        "queue",
        "asyncio",
        "concurrent",
        "multiprocessing",
        "_io",
    }
    | {"socket", "builtins"}
)
"""What is named as a whole: nobody knows what is inside."""
_ELSE = "make it inside the function, where it is needed first"


def check_closures(program: Program, root: Node) -> None:
    """Refuse functions that cannot be pickled.

    Raises:
        DeclarationError: names the operator, the function, the variable in it and the fix.
    """
    if (error := _fault(program)) is None:
        return
    for place, function in _functions(root):
        if _fault(function) is not None:
            name = _name_of(function)
            why = _reason(name, function) or f"{name} cannot be sent to workers: {describe(error)}."
            raise DeclarationError(f"{place}: {why}")
    raise DeclarationError(f"the topology cannot be sent to workers: {describe(error)}.") from error


def _reason(name: str, function: Any) -> str | None:
    """Return which variable is in the way, and the fix; None where the things in question do not let themselves be
    asked."""
    try:
        path, found = _blame(function)
        used = f"{name} uses {path!r}, {_described(found)}," if path else f"{name} is {_described(found)},"
        return f"{used} which cannot be sent to workers; {_fix(found)}."
    except Exception:
        return None


def _name_of(function: Any) -> str:
    try:
        return str(getattr(function, "__name__", None) or type_name(function))
    except Exception:  # its own attributes may do anything
        return type_name(function)


def _fault(thing: Any) -> BaseException | None:
    try:
        _pickler()(io.BytesIO()).dump(thing)
    except BaseException as error:  # what is pickled may do anything
        pass_on_end(error)
        return error
    return None


@functools.cache
def _pickler() -> Any:
    """Return what pickles as workers are sent things, but for files: their whole content would go with the function."""
    from pyspark import cloudpickle

    known = cloudpickle.CloudPickler.dispatch_table

    def reduce_file(file: Any) -> Any:
        return known[io.TextIOWrapper](file) if file in (sys.stdout, sys.stderr) else _refuse_file(file)

    return type(
        "Pickler",
        (cloudpickle.CloudPickler,),
        {"dispatch_table": ChainMap[Any, Any]({io.TextIOWrapper: reduce_file}, known)},
    )


def _refuse_file(file: Any) -> NoReturn:
    raise TypeError(f"an open file, {file!r}")


def _functions(root: Node) -> Iterator[tuple[str, Any]]:
    """Yield every function of the topology with the place it was given to."""
    seen: set[int] = set()
    ahead = [root]
    while ahead:
        node = ahead.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        whose = "source" if not node.inputs else node.kind if node.kind == "station" else "operator"
        for function in (node.function, node.on_timer, node.on_broadcast):
            if function is not None:
                yield f"{whose} '{node.name}'", function
        if node.processor is not None:
            yield f"operator '{node.name}'", node.processor.processor
        for step in (*node.steps, *([node.step] if node.step is not None else [])):
            if hasattr(step, "function"):
                yield getattr(step, "where", node.name), step.function
        ahead.extend(node.inputs)
        ahead.extend(feed.stage for feed in node.feeds())


def _blame(thing: Any) -> tuple[str, Any]:
    """Return where inside a thing that cannot be pickled the fault lies, as Python would write it, and what lies there."""
    path: list[str] = []
    for _ in range(_DEEPEST):
        inner = next(((name, one) for name, one in _parts(thing) if one is not thing and _fault(one)), None)
        if inner is None:
            break
        path.append(inner[0])
        thing = inner[1]
    return "".join(path).removeprefix("."), thing


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is pickled with a thing, each with what leads to it; not what libraries are made of."""
    if isinstance(thing, types.MethodType):
        yield ".self", thing.__self__
    elif isinstance(thing, functools.partial):
        yield from ((f".argument {at}", one) for at, one in enumerate(thing.args))
        yield from _attributes(thing.keywords)
        yield f".{getattr(thing.func, '__name__', 'function')}", thing.func
    elif isinstance(thing, types.FunctionType):
        yield from ((f".{name}", one) for name, one in _variables(thing))
    elif isinstance(thing, dict):
        yield from ((f"[{show(key, _KEY)}]", one) for key, one in thing.items())
    elif isinstance(thing, list | tuple | set):
        yield from ((f"[{at}]", one) for at, one in enumerate(thing))
    elif not _is_foreign(thing):
        yield from _attributes(getattr(thing, "__dict__", {}))


def _attributes(named: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((f".{name}", one) for name, one in named.items())


def _variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        try:
            yield name, cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    yield from (function.__kwdefaults__ or {}).items()
    yield from ((f"default {at}", one) for at, one in enumerate(function.__defaults__ or ()))


def _names(code: types.CodeType) -> list[str]:
    inner = [name for one in code.co_consts if isinstance(one, types.CodeType) for name in _names(one)]
    return [*code.co_names, *inner]


def _is_foreign(thing: Any) -> bool:
    return not _LIBRARIES.isdisjoint(str(one.__module__).partition(".")[0] for one in _classes(thing))


def _classes(thing: Any) -> Iterator[type]:
    """Yield the classes of a thing but `object`, and but the one that processors of the user's derive from."""
    return (one for one in type(thing).__mro__[:-1] if one.__name__ != "StatefulProcessor")


def _described(thing: Any) -> str:
    kind = type(thing)
    module = "penstock" if str(kind.__module__).startswith("penstock.") else kind.__module__
    name = kind.__name__ if module == "builtins" else f"{module}.{kind.__name__}"
    return f"{'an' if (name.strip('_') or name)[0].lower() in 'aeiou' else 'a'} {name}"


def _fix(thing: Any) -> str:
    module = str(type(thing).__module__)
    if any(str(one.__module__).startswith(("pyspark", "py4j")) for one in _classes(thing)):
        return _SPARKS
    if module.startswith("penstock.topology"):
        return _STREAM
    if isinstance(thing, threading.Thread):
        return "leave it out: functions run in processes of their own, where no thread of this one runs"
    if module.startswith("penstock"):
        return (
            "functions run on workers, where no query is known; keep what they need in state, or in the rows"
        )
    if isinstance(thing, io.IOBase):
        return "open it inside the function"
    if isinstance(thing, socket.socket):
        return "connect inside the function"
    if isinstance(thing, types.GeneratorType):
        return "make a list of it"
    if module in ("_thread", "threading"):
        return "leave it out: the rows of a key are processed one call at a time"
    return _ELSE
