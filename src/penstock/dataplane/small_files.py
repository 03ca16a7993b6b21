"""Reads the small files of a checkpoint: whole, up to a limit, and decoded into a fixed type.

Whoever may write into a checkpoint may put anything there, so nothing that stands in a file is believed: too many bytes,
nesting without end, and values that do not fit are one error that names the file. Knows no format by itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

import msgspec
import pyarrow as pa

from penstock.dataplane.disk import Disk
from penstock.dataplane.frames import FrameKind, decode_frame
from penstock.errors import CorruptFileError, DeclarationError, PenstockError

SMALL_BYTES: Final = 1 << 20
"""More than any claim, heartbeat, request or name of a log part takes."""
LARGE_BYTES: Final = 256 << 20
"""More than any topology, manifest or answer takes."""
NOT_OF_THE_KIND: Final = (
    *(msgspec.MsgspecError, pa.ArrowException, struct.error, ValueError, OverflowError),
    *(LookupError, RecursionError, EOFError, OSError),
)
"""What decoders raise of bytes that are not what they decode."""
T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Decodes(Protocol[T_co]):
    """A decoder of msgspec."""

    def decode(self, data: bytes, /) -> T_co: ...


def read_whole(disk: Disk, path: str, limit: int = SMALL_BYTES) -> bytes:
    """Return a file that is known to be small.

    Raises:
        FileNotFoundError: there is none.
        CorruptFileError: it is larger, or no file.
    """
    data = disk.read(path, 0, limit + 1)
    if len(data) > limit:
        raise CorruptFileError(
            f"{path} has more than {limit} bytes, which no file of its kind has; restore the file from a copy."
        )
    return data


def read_framed(disk: Disk, path: str, kind: FrameKind, limit: int = SMALL_BYTES) -> bytes:
    """Return the payload of a small file that is one frame. Raises as `read_whole` and `decode_frame` do."""
    return bytes(decode_frame(read_whole(disk, path, limit), kind, path))


def decode(decoder: Decodes[T], data: bytes, path: str, what: str) -> T:
    """Decode what stood in a file.

    Raises:
        CorruptFileError: it is nothing of the kind.
    """
    with naming(path, what):
        return decoder.decode(data)


@contextmanager
def folding(path: str) -> Iterator[None]:
    """Turn whatever a pure function of what a file holds raises, of what was forged, into an error that names it."""
    try:
        yield
    except (CorruptFileError, DeclarationError) as error:
        if path in str(error):
            raise
        raise CorruptFileError(f"{path}: {error}") from error
    except PenstockError:
        raise
    except Exception as error:
        raise CorruptFileError(
            f"{path} holds what contradicts itself ({type(error).__name__}: {error}); restore the file from a copy."
        ) from error


@contextmanager
def naming(path: str, what: str) -> Iterator[None]:
    """Turn whatever decoding raises of bytes that are no `what` into an error that names the file."""
    try:
        yield
    except NOT_OF_THE_KIND as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise CorruptFileError(f"{path} holds no {what} ({reason}); restore the file from a copy.") from error
