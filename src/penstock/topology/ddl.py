"""Reads DDL: Spark's grammar of column lists and types, written without Spark."""

from __future__ import annotations

import re
from typing import NoReturn

import pyarrow as pa

from penstock.topology.types import SYNONYMS, decimal_type, named_type, refuse, struct_fields, struct_type

_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<word>\w+)|(?P<mark>[<>(),:]))""",
    re.DOTALL,
)

_DAY_TIME = ("day", "hour", "minute", "second")
_YEAR_MONTH = ("year", "month")

_TYPES_OF_TWO_WORDS = {
    ("word", "string", "collate"),
    *(("word", "interval", field) for field in (*_DAY_TIME, *_YEAR_MONTH)),
}


class Parser:
    """Spark's grammar of column lists and types: `name [:] type [NOT NULL] [COMMENT 'text']`, ..."""

    def __init__(self, text: str, what: str, column: str = "") -> None:
        self.text, self.what, self.column = text, what, column
        self.tokens: list[tuple[str, str]] = []
        self.at = 0
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                self.fail(f"cannot be read at {text[position:].strip()[:20]!r}")
            self.tokens.append((str(match.lastgroup), match.group(str(match.lastgroup))))
            position = match.end()

    def schema(self) -> list[pa.Field]:
        if [token.lower() for _, token in self.tokens[:2]] == ["struct", "<"]:
            return struct_fields(self.whole_type(), self.what)
        fields = self.fields() if self.tokens else []
        self.end()
        return fields

    def is_row(self) -> bool:
        """Whether this reads as columns with names rather than as one type."""
        (kind, first), (after, second) = (*self.tokens, ("", ""), ("", ""))[:2]
        if kind not in ("word", "quoted") or (kind, first.lower(), second.lower()) in _TYPES_OF_TWO_WORDS:
            return False
        return second == ":" or after in ("word", "quoted")

    def whole_type(self) -> pa.DataType:
        type_ = self.type()
        self.end()
        return type_

    def fields(self) -> list[pa.Field]:
        fields = [self.field()]
        while self.take(","):
            fields.append(self.field())
        return fields

    def field(self) -> pa.Field:
        outer = self.column
        kind, name = self.next("a column name")
        if kind not in ("word", "quoted"):
            self.fail(f"has {name!r} where a column name should stand")
        self.column = name[1:-1].replace("``", "`") if kind == "quoted" else name
        self.take(":")
        type_ = self.type()
        nullable = not self.take("not")
        if not nullable:
            self.need("null")
        if self.take("comment") and self.next("a comment")[0] != "text":
            self.fail("has a COMMENT without a quoted text")
        field = pa.field(self.column, type_, nullable)
        self.column = outer
        return field

    def type(self) -> pa.DataType:
        kind, name = self.next("a type")
        if kind != "word":
            self.fail(f"has {name!r} where a type should stand")
        word = SYNONYMS.get(name.lower(), name.lower())
        if word == "decimal":
            return self.decimal()
        if word in ("array", "map", "struct"):
            self.need("<")
            type_ = self.nested(word)
            self.need(">")
            return type_
        if word == "interval":
            return named_type(self.interval(), self.what, self.column)
        type_ = named_type(name, self.what, self.column)
        if word == "time" and self.take("("):
            self.number()  # digits of a second; all have nine here
            self.need(")")
        if (
            word == "string"
            and self.take("collate")
            and (collation := self.next("a collation")[1]).lower() != "utf8_binary"
        ):
            self.fail(f"has a string with collation {collation}, which cannot be carried; use string")
        return type_

    def nested(self, word: str) -> pa.DataType:
        if word == "array":
            return pa.list_(self.type())
        if word == "map":
            key = self.type()
            self.need(",")
            return pa.map_(key, self.type())
        return struct_type([] if self.peek() == ">" else self.fields(), self.what, self.column)

    def decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self.take("("):
            precision = self.number()
            scale = self.number() if self.take(",") else 0
            self.need(")")
        return decimal_type(precision, scale, self.what, self.column)

    def interval(self) -> str:
        """Read the fields of an interval type; Spark's days to seconds are one type, years and months another."""
        first = self.peek()
        if first not in _DAY_TIME and first not in _YEAR_MONTH:
            return "interval"
        self.next("a field")
        if self.take("to"):
            self.next("a field")
        return "interval day to second" if first in _DAY_TIME else "interval year to month"

    def number(self) -> int:
        digits = self.next("a number")[1]
        if not digits.isdecimal():
            self.fail(f"has {digits!r} where a number should stand")
        return int(digits)

    def peek(self) -> str:
        kind, token = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        return token.lower() if kind in ("word", "mark") else ""

    def take(self, token: str) -> bool:
        taken = self.peek() == token
        self.at += taken
        return taken

    def need(self, token: str) -> None:
        if not self.take(token):
            found = self.tokens[self.at][1] if self.at < len(self.tokens) else "the end"
            self.fail(f"has {found!r} where {token.upper()!r} should stand")

    def next(self, expected: str) -> tuple[str, str]:
        if self.at == len(self.tokens):
            self.fail(f"ends where {expected} should stand")
        self.at += 1
        return self.tokens[self.at - 1]

    def end(self) -> None:
        if self.at < len(self.tokens):
            self.fail(f"goes on with {self.tokens[self.at][1]!r} where ',' or the end should stand")

    def fail(self, problem: str) -> NoReturn:
        refuse(self.what, self.column, f"{problem} in {self.text!r}")
