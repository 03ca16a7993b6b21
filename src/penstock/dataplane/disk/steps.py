"""The order in which a durable write is made of steps, and what a failure in the middle leaves behind.

Every call goes through `StepDisk._step`, between its two fail points. Knows neither the operating system nor what the
bytes mean.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from penstock.dataplane.disk.failures import not_a_file, storage_error
from penstock.dataplane.disk.protocol import (
    DROPPABLE,
    TEMP_SUFFIX,
    AppendFile,
    Calls,
    Faults,
    IrregularFileError,
    Part,
    SkipStep,
    Step,
)
from penstock.errors import StorageError

T = TypeVar("T")
_IOV_MAX = 1024
_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS})
"""What a file system says that cannot give a file this second name."""


class StepDisk:
    """The ``Disk`` made of steps: owns their order and what a failure in the middle leaves behind.

    Args:
        calls: what carries a step out.
        faults: is told of every step, from both sides.
        writer: names whoever writes, unlike any other at this moment; goes into temporary names.
        temps: folder for files under way, on the same file system; beside their targets when not given.
    """

    def __init__(
        self, calls: Calls, faults: Faults | None, writer: Callable[[], str], temps: str | None = None
    ) -> None:
        self._calls = calls
        self._faults = faults
        self._writer = writer
        self._temps = itertools.count()
        self._temp_folder = temps

    def make_dirs(self, path: str) -> None:
        missing: list[str] = []
        existing = path
        while not self._calls.is_dir(existing) and os.path.dirname(existing) != existing:
            missing.append(existing)
            existing = os.path.dirname(existing)
        # Whoever made the deepest existing folder may have crashed before its entry was synced.
        self._sync_parent_if_readable(existing)
        for folder in reversed(missing):
            try:
                self._step(Step.MKDIR, folder, self._calls.mkdir, folder, expect=FileExistsError)
            except FileExistsError as error:
                if not self._calls.is_dir(folder):
                    raise storage_error(Step.MKDIR, folder, error) from error
            self._sync_dir_of(folder)

    def open_append(self, path: str) -> AppendFile:
        return StepAppendFile(self, path, self._create(path))

    def create_exclusive(self, path: str, data: Part) -> bool:
        return self._link_durably(self._write_temp(path, data), path)

    def start_append(self, path: str, data: Part) -> AppendFile | None:
        temp = self._temp_name(path)
        try:
            begun = StepAppendFile(self, temp, self._create(temp))
            begun.append(data)
            self._sync(temp, begun._opened())
        except StorageError:
            self._discard(temp)
            raise
        if not self._link_durably(temp, path):
            begun.close()
            return None
        begun.path, begun._named = path, True
        return begun

    def put(self, path: str, data: Part) -> None:
        temp = self._write_temp(path, data)
        try:
            self._step(Step.LINK, path, self._calls.rename, temp, path)
        except StorageError:
            self._discard(temp)
            raise
        self._sync_dir_of(path)

    def settle(self, path: str) -> None:
        self._sync_theirs(path)
        self._sync_dir_of(path)

    def link(self, path: str, name: str) -> bool:
        self._sync_theirs(path)
        try:
            self._step(Step.LINK, name, self._calls.link, path, name, expect=OSError)
        except OSError as error:
            if error.errno in _NO_LINKS:
                return False
            raise storage_error(Step.LINK, name, error) from error
        self._sync_dir_of(name)
        return True

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._step(Step.READ, path, self._calls.read, path, offset, length, expect=FileNotFoundError)

    def view(self, path: str, offset: int = 0, length: int | None = None) -> bytes | memoryview:
        return self._step(Step.READ, path, self._calls.view, path, offset, length, expect=FileNotFoundError)

    def size(self, path: str) -> int | None:
        try:
            return self._step(Step.READ, path, self._calls.size, path, expect=FileNotFoundError)
        except FileNotFoundError:
            return None

    def list(self, path: str) -> list[str]:
        try:
            return sorted(self._step(Step.LIST, path, self._calls.list, path, expect=FileNotFoundError))
        except FileNotFoundError:
            return []

    def delete(self, path: str) -> bool:
        try:
            self._step(Step.DELETE, path, self._calls.unlink, path, expect=FileNotFoundError)
        except FileNotFoundError:
            return False
        return True

    def _step(
        self,
        step: Step,
        path: str,
        call: Callable[..., T],
        *args: object,
        expect: type[OSError] | tuple[type[OSError], ...] = (),
        undo: Callable[[T], None] | None = None,
    ) -> T:
        """Make one call between its two fail points; an unexpected ``OSError`` is a StorageError, what is
        no file a CorruptFileError."""
        try:
            if self._faults is not None:
                self._faults.before(step, path)
            result = call(*args)
        except SkipStep:
            if step not in DROPPABLE:
                raise
            return None  # type: ignore[return-value]  # droppable steps return nothing
        except expect:
            raise
        except IrregularFileError as error:
            raise not_a_file(path, error) from error
        except OSError as error:
            raise storage_error(step, path, error) from error
        try:
            if self._faults is not None:
                self._faults.after(step, path)
        except OSError as error:
            if undo is not None:
                undo(result)
            raise storage_error(step, path, error) from error
        return result

    def _create(self, path: str) -> int:
        undo = self._calls.close
        return self._step(Step.CREATE, path, self._calls.create, path, expect=FileExistsError, undo=undo)

    def _write_all(self, path: str, file: int, parts: Sequence[Part]) -> int:
        left = [view for view in (memoryview(part).cast("B") for part in parts) if view.nbytes]
        total = sum(view.nbytes for view in left)
        while left:
            written = self._step(Step.WRITE, path, self._calls.write, file, left[:_IOV_MAX])
            left = _drop_prefix(left, written)
        return total

    def _sync(self, path: str, file: int) -> None:
        self._step(Step.SYNC, path, self._calls.sync, file)

    def _sync_theirs(self, path: str) -> None:
        """Sync the bytes of a file that another program wrote."""
        file = self._step(
            Step.READ, path, self._calls.open, path, expect=FileNotFoundError, undo=self._calls.close
        )
        try:
            self._sync(path, file)
        finally:
            self._calls.close(file)

    def _sync_dir_of(self, path: str) -> None:
        folder = os.path.dirname(path)
        self._step(Step.SYNC_DIR, folder, self._calls.sync_dir, folder)

    def _sync_parent_if_readable(self, path: str) -> None:
        folder = os.path.dirname(path)
        with suppress(PermissionError):  # a folder whose parent we may not even read was not made by us
            self._step(Step.SYNC_DIR, folder, self._calls.sync_dir, folder, expect=PermissionError)

    def _write_temp(self, path: str, data: Part) -> str:
        temp = self._temp_name(path)
        try:
            file = self._create(temp)
            try:
                self._write_all(temp, file, [data])
                self._sync(temp, file)
            finally:
                self._calls.close(file)
        except StorageError:
            self._discard(temp)
            raise
        return temp

    def _link_durably(self, temp: str, path: str) -> bool:
        """Give a synced temporary file its name, ``False`` if that is taken; drops the temporary one."""
        try:
            try:
                self._step(Step.LINK, path, self._calls.link, temp, path, expect=FileExistsError)
                created = True
            except FileExistsError:
                created = False
            # Also when it lost: nobody may act on a winner's file that a power loss could take away.
            self._sync_dir_of(path)
        except StorageError:
            self._discard(temp)
            raise
        self._discard(temp)
        return created

    def _temp_name(self, path: str) -> str:
        if self._temp_folder is not None:
            path = os.path.join(self._temp_folder, os.path.basename(path))
        return f"{path}.{self._writer()}-{next(self._temps):x}{TEMP_SUFFIX}"

    def _discard(self, temp: str) -> None:
        with suppress(StorageError):  # an orphan that clean-up finds by its suffix; the rest is decided
            self.delete(temp)


class StepAppendFile:
    """The ``AppendFile`` of a ``StepDisk``."""

    def __init__(self, disk: StepDisk, path: str, file: int) -> None:
        self.path = path
        self.size = 0
        self._disk = disk
        self._file: int | None = file
        self._named = False
        self._failure: str | None = None

    def append(self, *parts: Part) -> int:
        offset = self.size
        self.size += self._guarded(lambda file: self._disk._write_all(self.path, file, parts))
        return offset

    def sync(self) -> None:
        self._guarded(self._sync)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            self._disk._calls.close(file)

    def _sync(self, file: int) -> None:
        self._disk._sync(self.path, file)
        if not self._named:
            self._disk._sync_dir_of(self.path)
            self._named = True

    def _opened(self) -> int:
        if self._failure is not None:
            raise StorageError(
                f"{self.path} is not used any more because an earlier write to it failed ({self._failure}); "
                "write what it should hold to a new file."
            )
        if self._file is None:
            raise StorageError(f"{self.path} is closed; open a new file to append to.")
        return self._file

    def _guarded(self, change: Callable[[int], T]) -> T:
        file = self._opened()
        try:
            return change(file)
        except BaseException as error:
            # After a failed sync the kernel may report the next one as fine without the lost pages.
            self._failure = str(error) or type(error).__name__
            raise


def _drop_prefix(views: list[memoryview], count: int) -> list[memoryview]:
    for index, view in enumerate(views):
        if count < view.nbytes:
            return [view[count:], *views[index + 1 :]]
        count -= view.nbytes
    return []
