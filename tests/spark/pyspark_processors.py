"""What PySpark's own tests of stateful processors exercise, as processors whose output does not depend on where batches
end, and each of them on rows and on frames."""

from __future__ import annotations

import datetime as dt
import json
import sys
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyspark import cloudpickle
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from tests.spark import processors
from tests.spark.processors import Named

cloudpickle.register_pickle_by_value(processors)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

PART = "struct<whole:int,half:double,items:array<string>,names:map<string,string>>"
NESTED = f"processor string, user string, n long, plain map<string,string>, parts array<{PART}>, named map<string,{PART}>"
TTL_MS = 3_600_000


class Stepwise(Named):
    """One answer per row, as text: `step(key, row)` gives it, for some rows only where Spark takes long."""

    every = 1

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.n):
            told = "-" if row.n % self.every else self.step(key, row)
            yield self.out(key, row.n, row.amount, told)

    def step(self, key: Any, row: Any) -> str:
        raise NotImplementedError


class Violations(Stepwise):
    """Counts what is too hot; a state that `init` deletes again cannot be used."""

    ttl_ms: int | None = None

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("violations", "value int", self.ttl_ms)
        self.gone = handle.getValueState("gone", "value int")
        handle.deleteIfExists("gone")
        handle.deleteIfExists("never")

    def step(self, key: Any, row: Any) -> str:
        try:
            self.gone.exists()
            told = "there"
        except PySparkRuntimeError as error:
            told = "gone" if "Error checking value state exists" in str(error) else repr(error)
        count = self.count.get()[0] if self.count.exists() else 0
        self.count.update((count + (row.amount > 50),))
        return f"{told} {count} {self.count.get()}"


class ViolationsThatEnd(Violations):
    every = 4
    ttl_ms = TTL_MS


class Nothing(Stepwise):
    """States that hold nothing."""

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "value int")
        self.items = handle.getListState("items", "value int")
        self.map = handle.getMapState("map", "name string", "value int")

    def step(self, key: Any, row: Any) -> str:
        states = (self.value, self.items, self.map)
        told = [state.exists() for state in states]
        for state in states:
            state.clear()
        self.map.removeKey(("a",))
        return f"{told} {self.value.get()} {self.map.getValue(('a',))} {self.map.containsKey(('a',))}"


class Lists(Stepwise):
    """Two lists and one of times, gone through side by side."""

    ttl_ms: int | None = None

    def init(self, handle: Any) -> None:
        self.one = handle.getListState("one", "amount int", self.ttl_ms)
        self.two = handle.getListState("two", "amount int", self.ttl_ms)
        self.times = handle.getListState("times", "at timestamp")

    def step(self, key: Any, row: Any) -> str:
        for state, own in ((self.one, 111), (self.two, 222)):
            state.put([(120,), (20,)])
            state.appendValue((own,))
            state.appendList([(120,), (row.amount,)])
        first, second = self.one.get(), self.two.get()
        told = [next(first), next(second), next(first)]
        third = self.one.get()
        told += [next(third), *first, *second, *third]
        self.times.appendValue((dt.datetime(2024, 1, 1, 12) + dt.timedelta(minutes=row.amount),))
        return f"{told} {list(self.times.get())[-2:]}"


class ListsThatEnd(Lists):
    every = 4
    ttl_ms = TTL_MS


class LargeList(Stepwise):
    """A list of structs with nulls that grows by ninety a time, put whole or appended to."""

    every = 4

    def init(self, handle: Any) -> None:
        self.items = handle.getListState("items", "value int, none int")
        self.size = handle.getValueState("size", "size int")

    def step(self, key: Any, row: Any) -> str:
        found = list(self.items.get())
        size = (self.size.get() or (0,))[0]
        assert found == [(at, None) for at in range(size)]
        if row.kind == "x":
            self.items.put([(at, None) for at in range(size + 90)])
        else:
            self.items.appendList([(at, None) for at in range(size, size + 90)])
        self.size.update((size + 90,))
        return f"{size} {zlib.crc32(repr(list(self.items.get())).encode())}"


class Maps(Stepwise):
    """Every method of a map; half of its rows clear it."""

    ttl_ms: int | None = None

    def init(self, handle: Any) -> None:
        self.map = handle.getMapState("map", "name string", "count int", self.ttl_ms)

    def step(self, key: Any, row: Any) -> str:
        for name in ("key1", "key2", row.kind):
            before = self.map.getValue((name,))[0] if self.map.containsKey((name,)) else 0
            self.map.updateValue((name,), (before + 1,))
        told = [sorted(self.map.keys()), sorted(self.map.values()), sorted(self.map.iterator())]
        self.map.removeKey(("key1",))
        told += [self.map.containsKey(("key1",)), self.map.exists(), self.map.getValue(("key2",))]
        if row.amount % 2:
            self.map.clear()
        return f"{told} {self.map.exists()}"


class MapsThatEnd(Maps):
    every = 4
    ttl_ms = TTL_MS


class Wide(Stepwise):
    """A struct of every plain type, with nulls, none of which reads back otherwise than it was written."""

    def init(self, handle: Any) -> None:
        numbers = "id int, name string, count bigint, active boolean, score float, share double"
        fields = f"{numbers}, price decimal(10,2), day date, raw binary"
        self.state = handle.getValueState("state", fields)
        self.strict = handle.getValueState("strict", "id int NOT NULL, name string NOT NULL")

    def step(self, key: Any, row: Any) -> str:
        from decimal import Decimal

        before = self.state.get()
        plain = (
            row.amount,
            f"name-{row.kind}",
            1 << 40,
            row.amount > 50,
            99.9,
            0.1,
            Decimal("1.5"),
            dt.date(2024, 1, 2),
            b"ab",
        )
        self.state.update(plain if row.amount % 3 else (row.amount, *[None] * 8))
        self.strict.update((row.amount, row.kind))
        return f"{before} {self.state.get()} {self.strict.get()}"


class Address(NamedTuple):
    road: int
    city: str


class Composite(Stepwise):
    """Arrays, maps and structs inside value, list and map states; what is read is changed in place and stored again."""

    ADDRESS = (Address(1, "Seattle"), Address(3, "SF"))

    def init(self, handle: Any) -> None:
        structs = "meta array<struct<key:string,value:string>>, address array<struct<road:int,city:string>>"
        fields = f"ids array<int>, tags array<array<string>>, {structs}"
        self.value = handle.getValueState("value", fields)
        self.items = handle.getListState("items", fields)
        self.map = handle.getMapState(
            "map",
            "name string",
            "id int, attributes map<string,array<int>>, deep map<string,map<string,int>>",
        )

    def step(self, key: Any, row: Any) -> str:
        ids, *_ = self.value.get() or ([0],)
        ids.append(row.amount)
        meta = [{"key": "env", "value": "prod"}, {"value": "us", "key": "region"}]
        tags = [["a", None], []]
        self.value.update((ids[-3:], tags, meta, list(self.ADDRESS)))
        tags[0].append("late"), meta.clear()
        items = [list(one) for one in self.items.get()][-2:]
        for one in items:
            one[0].append(row.amount)
            one[2] = [part.asDict() for part in one[2]]
        self.items.put([tuple(one) for one in items] or [self.value.get()])
        return f"{self.value.get()} {list(self.items.get())} {self._mapped(row)}"

    def _mapped(self, row: Any) -> str:
        name = row.kind  # of one letter: PySpark takes it for a key of one field
        if self.map.containsKey(name):
            number, attributes, deep = self.map.getValue(name)
        else:
            number, attributes, deep = 0, {"key1": [1], "key2": [10]}, {"e1": {"e2": 5}}
        attributes["last"] = [row.amount]
        deep.setdefault("e1", {})[name] = row.amount
        self.map.updateValue(name, (number + 1, attributes, deep))
        attributes["last"].append(-1)
        return json.dumps(list(self.map.getValue(name)), sort_keys=True)


class LargeValues(Stepwise):
    """Half a megabyte of text in each kind of state, now and then."""

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "value string")
        self.items = handle.getListState("items", "value string")
        self.map = handle.getMapState("map", "key string", "value string")

    def step(self, key: Any, row: Any) -> str:
        if row.amount < 90:
            return "-"
        large = f"{row.amount}" * (1 << 18)
        self.value.update((large,))
        self.items.put([(large,), (large + "b",)])
        self.map.updateValue(("large",), (large + "c",))
        found = [
            self.value.get()[0],
            *[item for (item,) in self.items.get()],
            self.map.getValue(("large",))[0],
        ]
        return str([zlib.crc32(one.encode()) for one in found])


class AllMethods(Stepwise):
    """One command per row, by its number."""

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "value int")
        self.items = handle.getListState("items", "value string")
        self.map = handle.getMapState("map", "key string", "value long")

    def step(self, key: Any, row: Any) -> str:
        done = row.n % 7
        if done == 0:
            self.value.update((row.amount,))
        elif done == 1:
            self.value.clear()
        elif done == 2:
            self.items.appendValue((row.kind,))
        elif done == 3:
            self.items.appendList([("c",), (None,)])
        elif done == 4:
            self.map.updateValue((row.kind,), (row.amount,))
        elif done == 5:
            self.map.removeKey(("y",))
        elif row.amount > 70:
            self.items.clear(), self.map.clear()
        exist = [state.exists() for state in (self.value, self.items, self.map)]
        return f"{exist} {self.value.get()} {list(self.items.get())} {sorted(self.map.iterator())}"


class Words(Stepwise):
    """How often each word came, and the two best amounts."""

    def init(self, handle: Any) -> None:
        self.words = handle.getMapState("words", "word string", "times long")
        self.best = handle.getListState("best", "amount double")

    def step(self, key: Any, row: Any) -> str:
        times = (self.words.getValue((row.kind,)) or (0,))[0] + 1
        self.words.updateValue((row.kind,), (times,))
        best = sorted([*(amount for (amount,) in self.best.get()), float(row.amount)], reverse=True)[:2]
        self.best.put([(amount,) for amount in best])
        return f"{row.kind}{times} {list(self.best.get())}"


class EventTimes(Stepwise):
    """Least and greatest event time so far, in text; a timer of each row that has to be there until it fires."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.span = handle.getValueState("span", "least string, greatest string")

    def step(self, key: Any, row: Any) -> str:
        at = str(processors.ms(row))
        least, greatest = self.span.get() or (at, at)
        self.span.update((min(least, at), max(greatest, at)))
        self.handle.registerTimer(int(at) + 86_400_000)
        self.handle.registerTimer(int(at) + 86_400_001)
        assert int(at) + 86_400_000 in list(self.handle.listTimers())
        self.handle.deleteTimer(int(at) + 86_400_000)
        return str(self.span.get())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        return iter(())


class Started(processors.Started):
    """Initial rows in a value and a list."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.seen = handle.getListState("seen", "other int")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        super().handleInitialState(key, initialState, timerValues)
        self.seen.appendValue((initialState.other,))

    def out(self, key: Any, n: int, a: int, b: str = "") -> Row:
        return super().out(key, n, a, str(list(self.seen.get())))


class Passing(Named):
    """Passes its rows on."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.n):
            yield Row(n=row.n, user=key[-1], kind=row.kind, amount=row.amount, at=row.at)


class Nested(Named):
    """Arrays and maps of structs, put out."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "value int")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.n):
            count = (self.count.get() or (0,))[0] % 3 + 1
            self.count.update((count,))
            parts = [self.part(at) for at in range(count)]
            plain = {f"k{at}": f"v{at}" for at in range(count)}
            yield Row(
                processor="Nested",
                user=key[-1],
                n=row.n,
                plain=plain,
                parts=parts,
                named={str(at): one for at, one in enumerate(parts)},
            )

    @staticmethod
    def part(at: int) -> dict[str, Any]:
        return {
            "whole": at,
            "half": at * 1.5,
            "items": [f"e{one}" for one in range(at)],
            "names": {f"m{at}": f"v{at}"},
        }


PLAIN = (Violations, Nothing, Lists, LargeList, Maps, Wide, Composite, LargeValues, AllMethods, Words)
EVENT = (*processors.EVENT, EventTimes)
ENDING = (ViolationsThatEnd, ListsThatEnd, MapsThatEnd)
"""With times to live that do not end here; where they do is tested with `Cache`."""


def rows_in(frame: Any) -> list[Row]:
    return [Row(**row) for row in frame.to_dict("records")]


class InFrames(StatefulProcessor):
    """A processor of rows on frames: the same code in PySpark's other flavour."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def init(self, handle: Any) -> None:
        self.inner.init(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        given = [row for frame in rows for row in rows_in(frame)]
        return self._framed(self.inner.handleInputRows(key, iter(given), timerValues))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        return self._framed(self.inner.handleExpiredTimer(key, timerValues, expiredTimerInfo))

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        for row in rows_in(initialState):
            self.inner.handleInitialState(key, row, timerValues)

    def close(self) -> None:
        self.inner.close()

    def _framed(self, made: Any) -> Any:
        import pandas as pd

        rows = [row.asDict() for row in made or ()]
        return iter([pd.DataFrame(rows)] if rows else [])
