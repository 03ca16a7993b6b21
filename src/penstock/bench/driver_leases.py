"""Leases without work: one process that answers for many, so that nothing but the driver is measured.

Connects and proves its tokens as a lease does, and answers every message with what a task of a keyed count would
report. Reads no row and writes no file.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
from dataclasses import dataclass, field

import msgspec
import numpy as np

from penstock.dataplane import messages, records
from penstock.spark.wire import (
    NONCE_BYTES,
    FrameBuffer,
    WireError,
    is_proof,
    proof,
    receive_frame,
    send_frame,
)
from penstock.version import __version__

ROWS_PER_SHARD = 4


class Order(msgspec.Struct, frozen=True):
    """What the driver's side asks for: who connects where, and which edge each stage publishes to."""

    address: tuple[str, int]
    tokens: dict[str, bytes]
    edges: dict[str, tuple[int, int]]
    """Stage -> (edge, shards of its consumer)."""


@dataclass
class Line:
    """One connected lease."""

    lease: str
    sock: socket.socket
    frames: FrameBuffer = field(default_factory=FrameBuffer)


def connect(order: Order, lease: str, token: bytes) -> Line:
    sock = socket.create_connection(order.address, timeout=20.0)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    challenge, nonce = receive_frame(sock), os.urandom(NONCE_BYTES)
    send_frame(sock, lease.encode().ljust(32) + nonce + proof(token, b"lease", challenge))
    if not is_proof(receive_frame(sock), token, b"driver", nonce):
        raise WireError("the driver does not know this lease.")
    send_frame(sock, messages.encode(messages.Hello(lease, "node", "localhost", os.getpid(), __version__)))
    return Line(lease, sock)


def answer(order: Order, lease: str, message: messages.ToLease) -> messages.FromLease | None:
    """Return what a lease says when all its work is done in no time."""
    if isinstance(message, messages.Bring):
        brought = [messages.BroughtShard(one.shard, True, "empty") for one in message.shards]
        return messages.Brought(message.stage, message.task, brought)
    if isinstance(message, messages.Release):
        released = [messages.ReleasedShard(n, "local") for n in records.unpack_u16(message.shards).tolist()]
        return messages.Released(message.stage, message.task, released)
    if isinstance(message, messages.Work):
        return messages.Done(message.stage, message.epoch, _part(order, lease, message))
    return None


def _part(order: Order, lease: str, work: messages.Work) -> records.TaskPart:
    edge, shards = order.edges[work.stage]
    extent = records.Extent(f"g000001-{lease}-000001.seg", 0, 4096, 1)
    if work.offsets is not None:
        rows = work.offsets[1] - work.offsets[0]
        counts = np.full(shards, rows // shards, np.uint32)
        counts[: rows % shards] += 1
        segment = records.Segment(edge, extent, rows, counts.tobytes())
        return records.TaskPart(work.task, lease, b"", rows, rows, [segment])
    mine = b"".join(group.shards for group in work.groups)
    changed = len(mine) // 2
    rows = ROWS_PER_SHARD * shards
    segment = records.Segment(edge, extent, rows, np.full(shards, ROWS_PER_SHARD, np.uint32).tobytes())
    snapshots = [
        records.Snapshot(shard, 0, b"", extent, extent.length)
        for shard in records.unpack_u16(work.snapshots).tolist()
    ]
    return records.TaskPart(
        work.task,
        lease,
        mine,
        rows,
        rows,
        [segment],
        delta=extent if changed else None,
        changed=mine,
        digests=bytes(16 * changed),
        delta_bytes=np.full(changed, 64, np.uint32).tobytes(),
        snapshots=snapshots,
        busy_us=1,
        sync_us=1,
    )


def serve(order: Order) -> None:
    """Answer until the driver closes a connection."""
    selector = selectors.DefaultSelector()
    for lease, token in order.tokens.items():
        line = connect(order, lease, token)
        selector.register(line.sock, selectors.EVENT_READ, line)
    while True:
        for key, _ in selector.select():
            line = key.data
            data = line.sock.recv(1 << 18)
            if not data:
                return
            for frame in line.frames.feed(data):
                said = answer(order, line.lease, messages.decode_to_lease(frame))
                if said is not None:
                    send_frame(line.sock, messages.encode(said))


if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # it reaches this process too, and it is the bench that says so
    try:
        serve(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Order))
    except (OSError, WireError):
        sys.exit(0)  # the driver has gone: the trial is over
