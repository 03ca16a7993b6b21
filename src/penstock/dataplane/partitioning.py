"""How rows are spread over folders `column=value`: the layout that Spark reads back as columns. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"[\x01-\x1f\x7f\"#%'*/:=?\\{\[\]^]")


def split_by(table: pa.Table, columns: Sequence[str]) -> list[tuple[str, pa.Table]]:
    """Return folder and rows, in the order of the folders; rows keep their order and lose these columns.

    An empty text becomes the folder of nulls, as Spark writes it.
    """
    if not columns:
        return [("", table)]
    folders = [_folders(column, table.column(column)) for column in columns]
    whole = pc.binary_join_element_wise(*folders, "/") if len(folders) > 1 else folders[0]
    encoded = whole.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    rows = table.drop_columns(list(columns))
    found = [
        (str(folder), rows.filter(pc.equal(encoded.indices, number)))
        for number, folder in enumerate(encoded.dictionary.to_pylist())
    ]
    return sorted(found, key=lambda one: one[0])


def _folders(name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return `column=value` for every row; each different value is escaped once."""
    encoded = values.combine_chunks().dictionary_encode("encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    shown = [f"{_escape(name)}={_shown(value)}" for value in encoded.dictionary.to_pylist()]
    return pa.chunked_array([pa.array(shown, pa.string()).take(encoded.indices)])


def _shown(value: object) -> str:
    if value is None or value == "":
        return NULL_FOLDER
    return _escape(str(value).lower() if isinstance(value, bool) else str(value))


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found.group()):02X}", text)
