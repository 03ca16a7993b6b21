from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import lmdb
import pytest

from penstock.dataplane.state import local as local_module
from penstock.dataplane.state.local import LocalShard, StaleOwnerError
from penstock.dataplane.state.protocol import EMPTY_DIGEST
from penstock.errors import CorruptFileError, StorageError

DIGEST = bytes(range(16))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "shard")


def test_a_new_shard_is_empty_and_of_version_zero(path: str) -> None:
    shard = LocalShard.create(path, "a")
    assert (shard.version, shard.digest, shard.count, shard.used_bytes) == (0, EMPTY_DIGEST, 0, 0)
    assert shard.scan() == [] and shard.get(b"\x01x") is None and shard.last(b"\x01") is None
    shard.close()


def test_create_removes_what_stood_there(path: str) -> None:
    shard = LocalShard.create(path, "a")
    shard.write([(b"\x01k", b"v")], [], 1, DIGEST)
    shard.close()
    shard = LocalShard.create(path, "b")
    assert shard.count == 0 and shard.version == 0
    shard.close()


def test_a_write_changes_entries_version_and_digest_together(path: str) -> None:
    shard = LocalShard.create(path, "a")
    shard.write([(b"\x01a", b"1"), (b"\x01b", b"2"), (b"\x02a", b"3")], [], 4, DIGEST)
    shard.write([(b"\x01b", b"22")], [b"\x01a", b"\x01absent"], 5, DIGEST[::-1])
    assert shard.scan() == [(b"\x01b", b"22"), (b"\x02a", b"3")]
    assert shard.scan(b"\x01") == [(b"\x01b", b"22")]
    assert shard.get_many([b"\x01a", b"\x01b", b"\x02a"]) == {b"\x01b": b"22", b"\x02a": b"3"}
    shard.close()
    again = LocalShard.take_over(path, "b", 5)
    assert again is not None and again.digest == DIGEST[::-1] and again.count == 2
    again.close()


def test_keys_longer_than_lmdb_holds_are_kept_whole(path: str) -> None:
    shard = LocalShard.create(path, "a")
    keys = [b"\x01" + b"k" * size for size in (400, 493, 494, 495, 509, 510, 511, 600, 900)]
    keys += [b"\x01" + b"k" * 899 + tail for tail in (b"x", b"y")]
    shard.write([(key, key[-3:] + b"%d" % len(key)) for key in keys], [], 1, DIGEST)
    assert shard.count == len(keys)
    assert dict(shard.scan()) == {key: key[-3:] + b"%d" % len(key) for key in keys}
    assert shard.get_many(sorted(keys)) == dict(shard.scan())
    assert all(shard.get(key) == key[-3:] + b"%d" % len(key) for key in keys)
    assert {key for key, _ in shard.scan(b"\x01" + b"k" * 700)} == {key for key in keys if len(key) > 700}
    assert shard.get(keys[-1] + b"z") is None
    shard.write([], [keys[-1]], 2, DIGEST)
    assert shard.get(keys[-1]) is None and shard.get(keys[-2]) is not None
    shard.close()


@pytest.mark.parametrize("size", [10, 488, 700])
def test_last_finds_the_greatest_index_under_a_prefix(path: str, size: int) -> None:
    shard = LocalShard.create(path, "a")
    prefix = b"\x05" + b"p" * size
    index = [n.to_bytes(8, "big") for n in (0, 1, 255, 256)]
    others = [(b"\x05" + b"q" * size + index[3], b"v"), (b"\x05" + b"o" * size + index[3], b"v")]
    shard.write([*((prefix + i, b"v") for i in index), *others], [], 1, DIGEST)
    assert shard.last(prefix) == prefix + index[3]
    assert shard.last(b"\x05" + b"z" * size) is None
    shard.close()


def test_a_scan_can_be_limited(path: str) -> None:
    shard = LocalShard.create(path, "a")
    shard.write([(b"\x01%03d" % n, b"v") for n in range(50)], [], 1, DIGEST)
    assert [key for key, _ in shard.scan(b"\x01", 3)] == [b"\x01000", b"\x01001", b"\x01002"]
    shard.close()


def test_the_map_grows_with_what_is_written(path: str) -> None:
    shard = LocalShard.create(path, "a")
    for version in range(1, 9):
        shard.write([(b"\x01%d-%d" % (version, n), bytes(1000)) for n in range(1000)], [], version, DIGEST)
    shard.write([(b"\x01one", bytes(16 << 20))], [], 9, DIGEST)
    assert shard.count == 8001
    shard.close()
    again = LocalShard.take_over(path, "b", 9)
    assert again is not None and len(again.scan()) == 8001
    again.close()


def test_only_the_exact_version_of_the_same_boot_is_taken_over(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LocalShard.take_over(path, "b", 0) is None
    shard = LocalShard.create(path, "a")
    shard.write([(b"\x01k", b"v")], [], 7, DIGEST)
    shard.close()
    assert LocalShard.take_over(path, "b", 6) is None
    with monkeypatch.context() as patch:
        patch.setattr(local_module, "boot_id", lambda: "another boot")
        assert LocalShard.take_over(path, "b", 7) is None
    taken = LocalShard.take_over(path, "b", 7)
    assert taken is not None
    taken.close()


def test_a_writer_that_lost_the_shard_changes_nothing(path: str) -> None:
    shard = LocalShard.create(path, "old")
    with shard._environment.begin(write=True) as transaction:
        other = LocalShard(path, "new", shard._environment, 3, DIGEST)
        local_module._put_meta(transaction, other, 3, DIGEST)
    with pytest.raises(StaleOwnerError, match="owner new and version 3"):
        shard.write([(b"\x01k", b"v")], [], 1, DIGEST)
    assert shard.count == 0
    shard.close()


def test_an_environment_is_never_open_twice_in_a_process(path: str) -> None:
    shard = LocalShard.create(path, "a")
    with pytest.raises(RuntimeError, match="already open"):
        LocalShard.create(path, "b")
    with pytest.raises(RuntimeError, match="already open"):
        LocalShard.take_over(path, "b", 0)
    shard.close()
    with pytest.raises(RuntimeError, match="is closed"):
        shard.get(b"\x01k")
    shard.close()
    shard.destroy()
    assert not os.path.exists(path)


def test_a_full_disk_is_an_error_that_names_the_directory_and_the_fix(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = LocalShard.create(path, "a")

    def full(transaction: object, *_: object) -> None:
        raise lmdb.DiskError("mdb_txn_commit: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(local_module, "_put_meta", full)
        with pytest.raises(
            StorageError, match=r"full; free space there or point .*spark\.local\.dir"
        ) as raised:
            shard.write([(b"\x01k", b"v")], [], 1, DIGEST)
    assert path in str(raised.value)
    shard.write([(b"\x01k", b"v")], [], 1, DIGEST)
    assert shard.count == 1
    shard.close()


def test_a_damaged_meta_entry_is_refused(path: str) -> None:
    shard = LocalShard.create(path, "a")
    with shard._environment.begin(write=True) as transaction:
        raw = bytearray(transaction.get(local_module.META_KEY))
        raw[-1] ^= 1
        transaction.put(local_module.META_KEY, bytes(raw))
    with pytest.raises(CorruptFileError, match="meta"):
        shard.write([], [], 1, DIGEST)
    shard.close()
    assert LocalShard.take_over(path, "b", 0) is None


def test_a_truncated_file_is_not_taken_over(path: str) -> None:
    shard = LocalShard.create(path, "a")
    shard.write([(b"\x01%04d" % n, bytes(100)) for n in range(1000)], [], 1, DIGEST)
    shard.close()
    data = os.path.join(path, "data.mdb")
    whole = os.path.getsize(data)
    for size in (whole - 1, whole // 2, 8192, 4096, 100, 0):
        os.truncate(data, size)
        if size:
            assert LocalShard.take_over(path, "b", 1) is None
    assert LocalShard.take_over(path, "b", 1) is None


# What a reader makes of a damaged file: every entry it is given is checked against its seal by the layer above; here
# only the process and the kind of error count. Each try runs in a child, since a wild page may kill it.
FLIPS = textwrap.dedent(
    """
    import os, random, shutil, sys
    from penstock.dataplane.state.local import LocalShard
    from penstock.errors import CorruptFileError
    source, seed = sys.argv[1], int(sys.argv[2])
    chance = random.Random(seed)
    for turn in range(25):
        copy = f"{source}-{seed}-{turn}"
        shutil.copytree(source, copy)
        with open(os.path.join(copy, "data.mdb"), "r+b") as file:
            size = file.seek(0, 2)
            at = chance.randrange(size)
            file.seek(at)
            byte = file.read(1)[0] ^ (1 << chance.randrange(8))
            file.seek(at)
            file.write(bytes([byte]))
        shard = LocalShard.take_over(copy, "b", 1)
        if shard is not None:
            try:
                shard.scan()
                shard.get_many([b"\\x01%04d" % n for n in range(0, 400, 7)])
            except CorruptFileError as error:
                assert copy in str(error)
            shard.close()
        shutil.rmtree(copy)
    """
)


@pytest.mark.parametrize("field", ["branch_pages", "leaf_pages", "overflow_pages"])
def test_an_environment_that_says_it_is_larger_than_its_file_is_not_taken_over(path: str, field: str) -> None:
    """It would be taken for one too large to be read as a whole, and be believed."""
    shard = LocalShard.create(path, "a")
    shard.write([(b"\x01k", b"v")], [], 1, DIGEST)
    shard.close()
    main_db = 16 + 24 + 48  # the page's header, what stands before the databases, and the database of free pages
    at = main_db + {"branch_pages": 8, "leaf_pages": 16, "overflow_pages": 24}[field]
    with open(os.path.join(path, "data.mdb"), "r+b") as file:
        for meta_page in (0, 4096):
            file.seek(meta_page + at + 6)
            file.write(b"\x02")  # pages by the quadrillion
    assert LocalShard.take_over(path, "b", 1) is None


def test_bit_flips_end_in_a_refusal_an_error_or_sealed_data_but_never_in_another_exception(path: str) -> None:
    shard = LocalShard.create(path, "a")
    shard.write([(b"\x01%04d" % n, bytes(60)) for n in range(400)], [], 1, DIGEST)
    shard.close()
    for seed in range(4):
        command = [sys.executable, "-c", FLIPS, path, str(seed)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=environment, check=False
        )
        # A signal (negative code) is the kernel's refusal of a wild page; the lease dies and the shard is rebuilt.
        assert ended.returncode <= 0, ended.stderr


def test_a_large_transaction_leaves_the_environment_open_and_as_it_was_written(tmp_path: Path) -> None:
    shard = LocalShard.create(str(tmp_path / "shard"), "me")
    before = shard._environment
    entries = [(b"\x01%06d" % at, b"v%d" % at) for at in range(5_000)]
    shard.write(entries, [], 3, b"d" * 16)
    assert shard._environment is not before, "its pages were let go"
    assert (shard.count, shard.version) == (5_000, 3)
    shard.write([(b"\x01000000", b"new")], [b"\x01000001"], 4, b"e" * 16)
    assert shard.get(b"\x01000000") == b"new" and shard.count == 4_999
    shard.close()
    again = LocalShard.take_over(str(tmp_path / "shard"), "other", 4)
    assert again is not None and again.digest == b"e" * 16
    again.close()
