"""One shard's entries in one LMDB environment of the node-local directory.

A local shard is a cache of the committed chain, never the proof: nothing here syncs, and whoever reads it
compares version and digest with a record before trusting it. Every transaction first compares owner and
version with what this process was told, so a late writer changes nothing. Never opened before a fork, nor
twice in one process. Values are stored as given: sealing them is the business of the layer above.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, takewhile
from typing import Any, Final, TypeVar

import google_crc32c
import lmdb
import msgspec

from penstock.dataplane.boot import boot_id
from penstock.dataplane.state.long_keys import KEPT_BYTES, PLAIN_BYTES, full_entry, stored_entry, stored_key
from penstock.dataplane.state.protocol import EMPTY_DIGEST
from penstock.errors import CorruptFileError, PenstockError, StorageError

META_KEY: Final = b"\x00meta"
"""Reserved; the entry keys of states begin with a byte of at least 1."""

LARGE_BYTES: Final = 512 << 10
"""Size from which on an environment that is handed over is not read as a whole; below, that takes a millisecond or so."""
_FORMAT: Final = 1
_FIRST_MAP_BYTES: Final = 1 << 20
_MANY_ENTRIES: Final = 4_096  # a transaction of more has dirtied some hundred pages
_CRC: Final = struct.Struct(">I")
_T = TypeVar("_T")


class StaleOwnerError(PenstockError):
    """Another task owns the environment by now, or has changed it; nothing was written."""


class _Meta(msgspec.Struct, array_like=True, frozen=True):
    format: int
    version: int
    digest: bytes
    owner: str
    boot: str


_meta_decoder = msgspec.msgpack.Decoder(_Meta)
_open_environments: set[tuple[int, str]] = set()


class LocalShard:
    """An open environment. Made by `create` or `take_over`, ended by `close` or `destroy`."""

    def __init__(self, path: str, owner: str, environment: Any, version: int, digest: bytes) -> None:
        self.path = path
        self.owner = owner
        self.version = version
        """Version stored by the last transaction."""
        self.digest = digest
        """Digest stored by the last transaction: 16 bytes."""
        self._environment = environment
        self._pid = os.getpid()
        self._closed = False

    @classmethod
    def create(cls, path: str, owner: str) -> LocalShard:
        """Make an empty environment of version 0 at `path`, removing whatever stood there."""
        _register(path)
        try:
            shutil.rmtree(path, ignore_errors=True)
            os.makedirs(path, mode=0o700, exist_ok=True)
            shard = cls(path, owner, _open(path, _FIRST_MAP_BYTES), 0, EMPTY_DIGEST)
        except (OSError, lmdb.Error) as error:
            _open_environments.discard((os.getpid(), path))
            raise _write_error(path, error) from error
        try:
            shard._transact(lambda transaction: _put_meta(transaction, shard, 0, EMPTY_DIGEST))
        except BaseException:
            shard.destroy()
            raise
        return shard

    @classmethod
    def take_over(cls, path: str, owner: str, version: int) -> LocalShard | None:
        """Open the environment at `path` and write `owner` into it, when it holds exactly `version`.

        Returns None, leaving nothing open, when it is absent, damaged, from another boot or of another
        version. The content is not verified here; only the digest of a full read proves it.
        """
        _register(path)
        shard = None
        try:
            map_bytes = max(_FIRST_MAP_BYTES, os.path.getsize(_data_file(path)))
            shard = cls(path, owner, _open(path, map_bytes), version, EMPTY_DIGEST)
            if shard._is_whole() and shard._claim(version):
                return shard
        except (OSError, lmdb.Error, CorruptFileError, StorageError):
            pass
        if shard is None:
            _open_environments.discard((os.getpid(), path))
        else:
            shard.close()
        return None

    @property
    def count(self) -> int:
        """Number of entries."""
        self._check_open()
        entries: int = self._environment.stat()["entries"]
        return entries - 1

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages that hold entries; 0 when there is none."""
        self._check_open()
        stat = self._environment.stat()
        pages: int = stat["leaf_pages"] + stat["overflow_pages"]
        return pages * int(stat["psize"]) if stat["entries"] > 1 else 0

    @property
    def is_large(self) -> bool:
        """Whether reading all of it takes so long that rows would wait for it at a hand-over."""
        return self.used_bytes > LARGE_BYTES

    def get(self, key: bytes) -> bytes | None:
        """Return the value of one entry, None when there is none."""
        stored = stored_key(key)
        value: bytes | None = self._read(lambda transaction: transaction.get(stored))
        if value is None or len(stored) <= PLAIN_BYTES:
            return value
        full, value = self._split(stored, value)
        return value if full == key else None

    def get_many(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the entries of `keys` (best given sorted) that there are."""
        if not keys:
            return {}
        if max(map(len, keys)) > PLAIN_BYTES:
            found = ((key, self.get(key)) for key in keys)
            return {key: value for key, value in found if value is not None}
        return self._read(lambda transaction: dict(transaction.cursor().getmulti(keys)))

    def scan(self, prefix: bytes = b"", limit: int | None = None) -> list[tuple[bytes, bytes]]:
        """Return entries whose key begins with `prefix`, at most `limit` of them.

        Keys come in ascending order, except that keys of more than 494 bytes that share their first 495 bytes
        stand in an arbitrary but fixed order among themselves.
        """
        cut = prefix[:KEPT_BYTES]

        def read(transaction: Any) -> list[tuple[bytes, bytes]]:
            cursor = transaction.cursor()
            if not cursor.set_range(cut or b"\x01"):  # b"\x01" is the first key after the meta entry
                return []
            items: Iterable[tuple[bytes, bytes]] = cursor.iternext(keys=True, values=True)
            if cut:
                items = takewhile(lambda item: item[0].startswith(cut), items)
            return list(items if limit is None or len(prefix) > len(cut) else islice(items, limit))

        items = self._read(read)
        if any(len(key) > PLAIN_BYTES for key, _ in items):
            items = [item if len(item[0]) <= PLAIN_BYTES else self._split(*item) for item in items]
            items = [item for item in items if item[0].startswith(prefix)][:limit]
        return items

    def scan_up_to(self, prefix: bytes, bound: bytes) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Return the entries from `prefix` whose key begins with nothing greater than `bound`, and the first key after
        them that begins with `prefix`. Both are short: they lie in the part of a key that is never cut."""

        def read(transaction: Any) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
            cursor = transaction.cursor()
            found: list[tuple[bytes, bytes]] = []
            if not cursor.set_range(prefix):
                return found, None
            for key, value in cursor.iternext(keys=True, values=True):
                if not key.startswith(prefix):
                    break
                if key[: len(bound)] > bound:
                    return found, key
                found.append((key, value))
            return found, None

        items, after = self._read(read)
        return [item if len(item[0]) <= PLAIN_BYTES else self._split(*item) for item in items], after

    def scan_leading(self, tag: bytes, bound: bytes) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Return the entries [tag][key length, 2 bytes][key] whose key begins with nothing greater than `bound`, and
        the least beginning among the others. Keys of one length lie together, so each length is one range."""

        def read(transaction: Any) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
            cursor = transaction.cursor()
            found: list[tuple[bytes, bytes]] = []
            after: bytes | None = None
            start = len(tag) + 2
            there = cursor.set_range(tag)
            while there and cursor.key().startswith(tag):
                key = cursor.key()
                leading = key[start : start + len(bound)]
                if leading <= bound:
                    found.append((key, cursor.value()))
                    there = cursor.next()
                    continue
                after = leading if after is None else min(after, leading)
                length = int.from_bytes(key[len(tag) : start], "big") + 1
                there = length < 1 << 16 and cursor.set_range(tag + length.to_bytes(2, "big"))
            return found, after

        items, after = self._read(read)
        return [item if len(item[0]) <= PLAIN_BYTES else self._split(*item) for item in items], after

    def last(self, prefix: bytes) -> bytes | None:
        """Return the greatest key made of `prefix` and eight more bytes, None when there is none."""
        if len(prefix) + 8 > PLAIN_BYTES:
            return max((key for key, _ in self.scan(prefix) if len(key) == len(prefix) + 8), default=None)

        def read(transaction: Any) -> bytes:
            cursor = transaction.cursor()
            cursor.set_range(prefix + b"\xff" * 9)  # past every key wanted, or at the end
            cursor.prev()
            key: bytes = cursor.key()
            return key

        found = self._read(read)
        return found if len(found) == len(prefix) + 8 and found.startswith(prefix) else None

    def write(
        self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes], version: int, digest: bytes
    ) -> None:
        """Change entries and store `version` and `digest` in one transaction.

        Raises:
            StaleOwnerError: the environment has another owner or version than this process was told.
            StorageError: the disk is full or failing; the environment is as it was.
            CorruptFileError: the environment is damaged.
        """
        if any(len(key) > PLAIN_BYTES for key, _ in puts):
            puts = [stored_entry(key, value) for key, value in puts]
        stored_deletes = [stored_key(key) for key in deletes]

        def change(transaction: Any) -> None:
            self._check_owner(transaction)
            for key in stored_deletes:
                transaction.delete(key)
            if puts:
                transaction.cursor().putmulti(puts)
            _put_meta(transaction, self, version, digest)

        self._transact(change)
        self.version, self.digest = version, digest
        if len(puts) + len(deletes) > _MANY_ENTRIES:
            self._let_pages_go()

    def _let_pages_go(self) -> None:
        """Open the environment anew: LMDB keeps the pages of a transaction for the next one, for ever, and hundreds of
        shards that are each written now and then would hold as much memory as their state."""
        map_bytes = self._environment.info()["map_size"]
        self._environment.close()
        try:
            self._environment = _open(self.path, map_bytes)
        except (OSError, lmdb.Error) as error:
            self._closed = True
            _open_environments.discard((self._pid, self.path))
            raise _write_error(self.path, error) from error

    def close(self) -> None:
        """Close the environment; what was written stays."""
        if not self._closed:
            self._closed = True
            if self._pid == os.getpid():
                self._environment.close()
                _open_environments.discard((self._pid, self.path))

    def destroy(self) -> None:
        """Close the environment and remove its files."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def _claim(self, version: int) -> bool:
        """Write this owner in when version and boot id are right."""

        def change(transaction: Any) -> bool:
            meta = self._meta(transaction)
            if (meta.format, meta.version, meta.boot) != (_FORMAT, version, boot_id()):
                return False
            _put_meta(transaction, self, version, meta.digest)
            self.digest = meta.digest
            return True

        return self._transact(change)

    def _is_whole(self) -> bool:
        """Whether the file has all pages it says it has: reading one past its end would kill the process, and one that
        says it is larger than it is would be taken for one too large to be read as a whole."""
        pages = self._environment.info()["last_pgno"] + 1
        stat = self._environment.stat()
        held = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        size: int = pages * stat["psize"]
        return held <= pages and size <= os.path.getsize(_data_file(self.path))

    def _check_owner(self, transaction: Any) -> None:
        meta = self._meta(transaction)
        if (meta.owner, meta.version) != (self.owner, self.version):
            raise StaleOwnerError(
                f"local state {self.path} has owner {meta.owner} and version {meta.version}, not "
                f"{self.owner} and {self.version}: the shard was handed on, and this task must end"
            )

    def _meta(self, transaction: Any) -> _Meta:
        raw = transaction.get(META_KEY)
        if raw is None or len(raw) < 4 or _crc(raw[4:]) != raw[:4]:
            raise _damaged(self.path, "no valid meta entry")
        try:
            return _meta_decoder.decode(raw[4:])
        except msgspec.MsgspecError as error:
            raise _damaged(self.path, f"a meta entry of another format: {error}") from error

    def _split(self, stored: bytes, value: bytes) -> tuple[bytes, bytes]:
        """Return the full entry of a cut key."""
        found = full_entry(stored, value)
        if found is None:
            raise _damaged(self.path, "an entry that is not under its key")
        return found

    def _check_open(self) -> None:
        if self._closed or self._pid != os.getpid():
            raise RuntimeError(f"local state {self.path} is closed, or was opened by another process")

    def _read(self, read: Callable[[Any], _T]) -> _T:
        self._check_open()
        try:
            with self._environment.begin() as transaction:
                return read(transaction)
        except lmdb.Error as error:
            raise _damaged(self.path, str(error)) from error

    def _transact(self, change: Callable[[Any], _T]) -> _T:
        """Run one write transaction, again with twice the map while the map is full."""
        self._check_open()
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    return change(transaction)
            except lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])
            except lmdb.Error as error:
                raise _write_error(self.path, error) from error


def _register(path: str) -> None:
    place = (os.getpid(), path)
    if place in _open_environments:
        raise RuntimeError(f"local state {path} is already open in this process")
    _open_environments.add(place)


def _data_file(path: str) -> str:
    return os.path.join(path, "data.mdb")


def _open(path: str, map_bytes: int) -> Any:
    # Pages go through pwrite, not through a writable map: a full disk is then an error instead of a SIGBUS.
    return lmdb.open(
        path,
        map_size=map_bytes,
        subdir=True,
        mode=0o600,
        max_readers=8,
        max_dbs=0,
        readahead=False,
        writemap=False,
        metasync=False,
        sync=False,
        lock=True,
    )


def _put_meta(transaction: Any, shard: LocalShard, version: int, digest: bytes) -> None:
    body = msgspec.msgpack.encode(_Meta(_FORMAT, version, digest, shard.owner, boot_id()))
    transaction.put(META_KEY, _crc(body) + body)


def _crc(body: bytes) -> bytes:
    return _CRC.pack(google_crc32c.value(body))


def _damaged(path: str, what: str) -> CorruptFileError:
    return CorruptFileError(f"local state {path} is damaged ({what}); rebuild it from the checkpoint")


def _write_error(path: str, error: Exception) -> PenstockError:
    text = str(error)
    if isinstance(error, (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.PanicError)):
        return _damaged(path, text)
    if os.strerror(errno.ENOSPC) in text or os.strerror(errno.EDQUOT) in text:
        return StorageError(
            f"the disk of the local state directory {path} is full; free space there or point Spark's local "
            "directory (spark.local.dir) at a larger disk"
        )
    return StorageError(f"local state {path} cannot be written: {text}; repair that disk or use another one")
