"""Encodings of typed values of state.

Values are in their normal form (see `normal`) here, which is exactly what their encoding reads back as, so that what a
function sees never depends on whether its state was in memory. Encodings are msgpack without type names: reading one
can run no code.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.dataplane.state.held import grown_struct, held_type
from penstock.dataplane.state.normal import Normal, copier_of, normal_of
from penstock.errors import CheckpointError
from penstock.topology.types import ddl_of

MAX_VALUE_BYTES: Final = 16 << 20


class ValueCodec:
    """Normalise, encode and decode the values of one declared type.

    Args:
        local_times: see `normal_of`.
    """

    def __init__(self, type_: pa.DataType, local_times: bool = False) -> None:
        self.arrow_type = type_
        self.type = ddl_of(type_)
        self.local_times = local_times
        self.normal: Normal = normal_of(type_, local_times)
        """From what a function gives to what state holds; raises `Misfit`."""
        self.copier = copier_of(type_)
        """Copies a value that could be changed in place; None where no value could be."""
        self._decoder = msgspec.msgpack.Decoder(held_type(type_))
        # A struct that gained nullable fields since a value was stored: what it lacks reads as null.
        self._grown = msgspec.msgpack.Decoder(grown_struct(type_)) if pa.types.is_struct(type_) else None
        self._encoder = msgspec.msgpack.Encoder()

    def decode(self, raw: bytes) -> Any:
        """Return the value of an encoding.

        Raises:
            CheckpointError: it is no value of this type.
        """
        try:
            return self._decoder.decode(raw)
        except msgspec.MsgspecError as error:
            if self._grown is not None:
                with suppress(msgspec.MsgspecError):
                    return self._decoder.decode(self._encoder.encode(self._grown.decode(raw)))
            raise CheckpointError(
                f"stored state is no {self.type} ({error}); the checkpoint is of another topology"
            ) from error

    def encode_all(self, values: list[Any]) -> list[bytes]:
        """Return the encodings of normal values: of one that was decoded, the very bytes that are stored."""
        encode = self._encoder.encode
        return [encode(value) for value in values]
