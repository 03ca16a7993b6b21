"""Framing and mutual authentication between driver and lease. Bytes only; what they mean is
`dataplane.messages`.

A frame is a length and a payload. Both sides prove that they know the lease's one-shot token, which travels
through Spark's own task channel.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct

from penstock.errors import PenstockError

LENGTH = struct.Struct("<I")
MAX_FRAME = 1 << 30
NONCE_BYTES = 16


class WireError(PenstockError):
    """The other side broke the protocol or went away."""


def proof(token: bytes, side: bytes, nonce: bytes) -> bytes:
    """Return what `side` must send to show that it knows the token."""
    return hmac.new(token, side + nonce, hashlib.sha256).digest()


def is_proof(given: bytes, token: bytes, side: bytes, nonce: bytes) -> bool:
    return hmac.compare_digest(given, proof(token, side, nonce))


def send_frame(sock: socket.socket, payload: bytes) -> None:
    sock.sendall(LENGTH.pack(len(payload)) + payload)


def receive_frame(sock: socket.socket) -> bytes:
    """Block until a whole frame is there.

    Raises:
        WireError: the connection ended, or the length is not credible.
    """
    (length,) = LENGTH.unpack(_receive(sock, LENGTH.size))
    if length > MAX_FRAME:
        raise WireError(f"a frame of {length} bytes was announced; the other side is not Penstock.")
    return _receive(sock, length)


def _receive(sock: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = sock.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise WireError("the connection ended.")
        parts += part
    return bytes(parts)


class FrameBuffer:
    """Collects bytes of a non-blocking connection and gives back whole frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._data += data
        frames: list[bytes] = []
        while len(self._data) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._data)
            if length > MAX_FRAME:
                raise WireError(f"a frame of {length} bytes was announced; the other side is not Penstock.")
            end = LENGTH.size + length
            if len(self._data) < end:
                break
            frames.append(bytes(self._data[LENGTH.size : end]))
            del self._data[:end]
        return frames
