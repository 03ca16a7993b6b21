"""Every path of a checkpoint, formatted in one place.

```
CHECKPOINT/meta                            format version, query id, topology identity
CHECKPOINT/meta-<hash>                     a topology that changed since; the newest base names the one that holds
CHECKPOINT/drivers/g000001.claim           exclusive create: who owns the generation
CHECKPOINT/drivers/heartbeat               holder's generation and time, replaced whole
CHECKPOINT/log/g000001-p000001.log         records; every part begins with a base record
CHECKPOINT/log/newest                      the newest part there was, so that its loss is noticed
CHECKPOINT/data/g000001-<lease>-000001.seg segments and deltas appended by one lease (or ingest attempt)
CHECKPOINT/data/g000001-<lease>-000001.snp snapshots appended by one lease
CHECKPOINT/data/g000001-<batch>-000001.pln what Spark planned for a batch; .src: a second name of a file of Spark's
CHECKPOINT/ingest/<source>                 checkpoint of the Structured Streaming query
CHECKPOINT/imported/<operator>/            state that `penstock import` brought: a manifest and parts
CHECKPOINT/export/<operator>/head          whose export it is, and the schema of its rows
CHECKPOINT/export/<operator>/e000000001    manifest of one epoch of an export
CHECKPOINT/requests/<id>.ask               what a person asks of the running query; <id>.taken: it was begun
CHECKPOINT/requests/<id>.answer            what came of it
```
"""

from __future__ import annotations

import re
from typing import NamedTuple

FORMAT_VERSION = 2
"""2: an operator may have several chains. What version 1 wrote is read as it is."""


class LogPart(NamedTuple):
    generation: int
    part: int


class DataFile(NamedTuple):
    generation: int
    writer: str
    number: int
    kind: str


_META = re.compile(r"meta-([0-9a-f]{16})$")
_CLAIM = re.compile(r"g(\d{6,})\.claim$")
_LOG = re.compile(r"g(\d{6,})-p(\d{6,})\.log$")
_MANIFEST = re.compile(r"e(\d{9,})$")
_IMPORTED = re.compile(r"(\d{6,})\.part$")
_DATA = re.compile(r"g(\d{6,})-([A-Za-z0-9_]+)-(\d{6,})\.(seg|snp|pln|src)$")


def meta(checkpoint: str) -> str:
    return f"{checkpoint}/meta"


def meta_version(checkpoint: str, identity: bytes) -> str:
    return f"{checkpoint}/meta-{identity.hex()}"


def drivers(checkpoint: str) -> str:
    return f"{checkpoint}/drivers"


def claim(checkpoint: str, generation: int) -> str:
    return f"{checkpoint}/drivers/g{generation:06d}.claim"


def heartbeat(checkpoint: str) -> str:
    return f"{checkpoint}/drivers/heartbeat"


def logs(checkpoint: str) -> str:
    return f"{checkpoint}/log"


def log(checkpoint: str, part: LogPart) -> str:
    return f"{checkpoint}/log/g{part.generation:06d}-p{part.part:06d}.log"


def newest_log(checkpoint: str) -> str:
    return f"{checkpoint}/log/newest"


def requests(checkpoint: str) -> str:
    return f"{checkpoint}/requests"


def data(checkpoint: str) -> str:
    return f"{checkpoint}/data"


def data_name(file: DataFile) -> str:
    return f"g{file.generation:06d}-{file.writer}-{file.number:06d}.{file.kind}"


def data_file(checkpoint: str, name: str) -> str:
    return f"{checkpoint}/data/{name}"


def ingest(checkpoint: str, source: str) -> str:
    return f"{checkpoint}/ingest/{source}"


def imported(checkpoint: str) -> str:
    return f"{checkpoint}/imported"


def imported_manifest(checkpoint: str, operator: str) -> str:
    return f"{checkpoint}/imported/{operator}/manifest"


def imported_part(checkpoint: str, operator: str, number: int) -> str:
    return f"{checkpoint}/imported/{operator}/{number:06d}.part"


def exports(checkpoint: str) -> str:
    return f"{checkpoint}/export"


def export(checkpoint: str, operator: str) -> str:
    return f"{checkpoint}/export/{operator}"


def export_head(checkpoint: str, operator: str) -> str:
    return f"{checkpoint}/export/{operator}/head"


def export_manifest(checkpoint: str, operator: str, epoch: int) -> str:
    return f"{checkpoint}/export/{operator}/e{epoch:09d}"


def parse_manifest(name: str) -> int | None:
    found = _MANIFEST.fullmatch(name)
    return int(found[1]) if found else None


def parse_imported_part(name: str) -> int | None:
    found = _IMPORTED.fullmatch(name)
    return int(found[1]) if found else None


def parse_meta_version(name: str) -> bytes | None:
    found = _META.fullmatch(name)
    return bytes.fromhex(found[1]) if found else None


def parse_claim(name: str) -> int | None:
    found = _CLAIM.fullmatch(name)
    return int(found[1]) if found else None


def parse_log(name: str) -> LogPart | None:
    found = _LOG.fullmatch(name)
    return LogPart(int(found[1]), int(found[2])) if found else None


def parse_data(name: str) -> DataFile | None:
    found = _DATA.fullmatch(name)
    return DataFile(int(found[1]), found[2], int(found[3]), found[4]) if found else None
