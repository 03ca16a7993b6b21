"""What a person asks of a running query from outside its process: a file with the request, a file with the answer.

Whoever may write to the checkpoint may ask; there is no port to open and nothing to log in to. A request is taken once,
by the driver that owns the checkpoint; what it asks is the business of whoever carries it out.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import msgspec

from penstock.dataplane import paths
from penstock.dataplane.disk import Disk, is_temp
from penstock.errors import CheckpointError, PenstockError

ASK, ANSWER = ".ask", ".answer"
STALE_S = 600.0
"""Age after which files that nobody fetched are deleted."""


class Request(msgspec.Struct, frozen=True):
    """One thing asked: `rescale`, `move`, `drain`, `pause`, `resume`, `decisions`, ..."""

    verb: str
    asked_at: float
    operator: str = ""
    cores: int = 0
    shards: list[int] = []
    task: int = -1
    node: str = ""
    release: bool = False
    latency_s: float = 0.0
    policy: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What came of it."""

    ok: bool
    text: str
    lines: list[str] = []


def ask(
    disk: Disk,
    checkpoint: str,
    request: Request,
    timeout_s: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Answer:
    """Ask the running query and wait for its answer; the files are gone afterwards.

    Raises:
        CheckpointError: nobody answered in time.
    """
    folder = paths.requests(checkpoint)
    disk.make_dirs(folder)
    name = secrets.token_hex(8)
    asked, answered = f"{folder}/{name}{ASK}", f"{folder}/{name}{ANSWER}"
    disk.put(asked, msgspec.json.encode(request))
    deadline = clock() + timeout_s
    try:
        while clock() < deadline:
            if disk.size(answered) is not None:
                return msgspec.json.decode(disk.read(answered), type=Answer)
            sleep(0.05)
    finally:
        disk.delete(asked)
        disk.delete(answered)
    raise CheckpointError(
        f"no query that runs on {checkpoint} answered within {timeout_s:g} s; start it, or ask longer with --timeout."
    )


def answer_requests(disk: Disk, checkpoint: str, carry_out: Callable[[Request], Answer], now: float) -> int:
    """Take every request that waits, carry it out, and answer it; return how many there were.

    One that cannot be read, or that raises a PenstockError, is answered with the reason.
    """
    folder = paths.requests(checkpoint)
    names = [name for name in disk.list(folder) if not is_temp(name)]
    answered = {name.removesuffix(ANSWER) for name in names if name.endswith(ANSWER)}
    count = 0
    for name in names:
        key = name.removesuffix(ASK)
        if not name.endswith(ASK) or key in answered:
            continue
        try:
            request = msgspec.json.decode(disk.read(f"{folder}/{name}"), type=Request)
        except FileNotFoundError:
            continue  # whoever asked has given up
        except msgspec.MsgspecError as error:
            disk.put(
                f"{folder}/{key}{ANSWER}", msgspec.json.encode(Answer(False, f"it cannot be read: {error}"))
            )
            continue
        if now - request.asked_at > STALE_S:
            disk.delete(f"{folder}/{name}")
            continue
        count += 1
        try:
            answer = carry_out(request)
        except PenstockError as error:
            answer = Answer(False, str(error))
        disk.put(f"{folder}/{key}{ANSWER}", msgspec.json.encode(answer))
    return count
