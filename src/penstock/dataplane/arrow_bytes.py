"""Reads Arrow's encapsulated messages out of bytes that nobody vouches for: sizes are checked before a row is touched.

Readers check what costs next to nothing: nothing is compressed (so no frame takes more memory than its bytes), and every
buffer is as long as the rows and the first and last offset of each column say. `check_whole` looks at every value, for
`penstock checkpoint verify`. Knows neither frames nor records.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

from penstock.dataplane.small_files import NOT_OF_THE_KIND, naming
from penstock.errors import CorruptFileError, DeclarationError
from penstock.topology.types import canonical_field

_FIRST = struct.Struct("<4s4x32s8x16s")
_CONTINUED: Final = b"\xff\xff\xff\xff"
_PLAIN: Final = (
    _CONTINUED,
    # Root, and table and vtable of the message; its header stands 24 bytes behind its slot.
    bytes.fromhex("14000000000000000c0016000600050008000c000c0000000003040018000000"),
    # Vtable of the record batch, with no slot for compression, and where it is seen from the table.
    bytes.fromhex("00000a0018000c00040008000a000000"),
)
"""How a message begins that Arrow wrote of a plain batch: all that the pointers to its compression go through."""
_MESSAGE_HEADER, _BATCH_COMPRESSION = 8, 10
"""Where the vtables of a message and of a batch name these fields."""


def read_batch(body: pa.Buffer, schema: pa.Schema, path: str, offset: int) -> pa.RecordBatch:
    """Return the batch that a message holds, without a copy.

    Raises:
        CorruptFileError: names the file; it holds no rows of this schema, or its sizes contradict each other.
    """
    try:
        if _FIRST.unpack_from(body) != _PLAIN:
            _refuse_compressed(body)
        batch = pa.ipc.read_record_batch(body, schema)
        batch.validate()
    except NOT_OF_THE_KIND as error:
        raise CorruptFileError(
            f"{path} holds rows of another schema at offset {offset} ({error}); restore the file from a copy."
        ) from error
    return batch


def read_stream(data: pa.Buffer, path: str) -> pa.Table:
    """Return the rows of a whole stream of messages, schema first.

    Raises:
        CorruptFileError: names the file.
    """
    with naming(path, "rows"):
        for message in pa.ipc.MessageReader.open_stream(data):
            if message.type != "schema":
                _refuse_compressed(message.serialize())
        table = pa.ipc.open_stream(data).read_all()
        table.validate()
    return table


def read_schema(data: bytes, path: str) -> pa.Schema:
    """Return a schema as Arrow encodes it.

    Raises:
        CorruptFileError: names the file; it is no schema, or has a type that no row of Penstock has.
    """
    with naming(path, "schema"):
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        try:
            for field in schema:
                canonical_field(field, "it")
        except DeclarationError as error:
            raise ValueError(str(error)) from error
    return schema


def check_whole(batch: pa.RecordBatch | pa.Table, path: str, offset: int) -> None:
    """Look at every offset, length and value. Text may be any bytes, as it may be in Spark.

    Raises:
        CorruptFileError: names the file.
    """
    try:
        for column in batch.columns:
            chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
            for chunk in chunks:
                chunk.view(_with_any_bytes(chunk.type)).validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise CorruptFileError(
            f"{path} holds a batch at offset {offset} whose values contradict each other ({error}); restore the file "
            "from a copy."
        ) from error


def _with_any_bytes(type_: pa.DataType) -> pa.DataType:
    """The type with binary in place of text."""
    if pa.types.is_string(type_):
        return pa.binary()
    if pa.types.is_map(type_):
        return pa.map_(_with_any_bytes(type_.key_type), _with_any_bytes(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_with_any_bytes(type_.value_type)))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_with_any_bytes(field.type)) for field in type_])
    return type_


def _refuse_compressed(body: pa.Buffer) -> None:
    """Refuse what Penstock does not write: a compressed batch says by itself how many bytes it becomes.

    Follows the same pointers as Arrow, which checks the rest of them.
    """
    mark, message = struct.unpack_from("<4s4xI", body)
    if mark != _CONTINUED:
        raise ValueError("no message begins there")
    message += 8
    header = message + _slot(body, message, _MESSAGE_HEADER)
    batch: int = header + struct.unpack_from("<I", body, header)[0]
    if header == message or _slot(body, batch, _BATCH_COMPRESSION):
        raise ValueError("it is compressed, which nothing of Penstock writes")


def _slot(body: pa.Buffer, table: int, field: int) -> int:
    """Where a table has a field, seen from its beginning; 0 where it has none."""
    vtable: int = table - struct.unpack_from("<i", body, table)[0]
    if vtable < 0 or struct.unpack_from("<H", body, vtable)[0] <= field:
        return 0
    return int(struct.unpack_from("<H", body, vtable + field)[0])
