"""Types in the words that a Spark user knows: `bigint`, not Arrow's `int64`. For messages; reads nothing back."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.topology.types import ATOMS, ddl_of

_OTHERS: Final = {"large_string": "string", "large_binary": "binary", "timestamp[ns]": "timestamp_ntz"}
_SAME: Final = {str(type_): name for name, type_ in ATOMS.items() if str(type_) != name} | _OTHERS
_ARROWS: Final = re.compile(
    r"(?<!\w)(?:" + "|".join(re.escape(one) for one in sorted(_SAME, key=len, reverse=True)) + r")(?![\w\[])"
)
_NESTED: Final = (
    (re.compile(r"\b(?:large_)?list<\w+: "), "array<"),
    (re.compile(r"\bdecimal128\((\d+), (-?\d+)\)"), r"decimal(\1,\2)"),
)


def type_words(type_: pa.DataType) -> str:
    """Return the name of a type; of one that Spark lacks, Arrow's own."""
    try:
        return ddl_of(type_)
    except DeclarationError:
        return in_sparks_words(str(type_))


def schema_words(schema: pa.Schema, between: str = " ") -> str:
    """Return the columns of a schema with their types, such as `user string, amount bigint`."""
    return ", ".join(f"{field.name}{between}{type_words(field.type)}" for field in schema)


def in_sparks_words(text: str) -> str:
    """Return a text in which Arrow's names of types stand, such as a message of Arrow's, with Spark's names for them."""
    for pattern, words in _NESTED:
        text = pattern.sub(words, text)
    return _ARROWS.sub(lambda found: _SAME[found.group()], text)
