"""What a disk promises, and the named steps that its operations are made of: the points where tests interfere."""

from __future__ import annotations

import enum
import errno
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa


Part: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"
TEMP_SUFFIX = ".tmp"


class Step(enum.StrEnum):
    """What the disk is asked to do, one call at a time; the points at which a test may interfere."""

    MKDIR = "mkdir"
    CREATE = "create"
    WRITE = "write"
    SYNC = "sync"
    SYNC_DIR = "sync_dir"
    LINK = "link"
    DELETE = "delete"
    READ = "read"
    LIST = "list"


STEPS_OF: Mapping[str, tuple[Step, ...]] = {
    "make_dirs": (Step.MKDIR, Step.SYNC_DIR),
    "open_append": (Step.CREATE,),
    "append": (Step.WRITE,),
    "sync": (Step.SYNC, Step.SYNC_DIR),
    "create_exclusive": (Step.CREATE, Step.WRITE, Step.SYNC, Step.LINK, Step.SYNC_DIR, Step.DELETE),
    "start_append": (Step.CREATE, Step.WRITE, Step.SYNC, Step.LINK, Step.SYNC_DIR, Step.DELETE),
    "put": (Step.CREATE, Step.WRITE, Step.SYNC, Step.LINK, Step.SYNC_DIR),
    "settle": (Step.READ, Step.SYNC, Step.SYNC_DIR),
    "link": (Step.READ, Step.SYNC, Step.LINK, Step.SYNC_DIR),
    "read": (Step.READ,),
    "view": (Step.READ,),
    "size": (Step.READ,),
    "list": (Step.LIST,),
    "delete": (Step.DELETE,),
}
"""The steps of each operation, in order, when nothing is in its way (``sync``: the first one of a file)."""
DROPPABLE = frozenset({Step.SYNC, Step.SYNC_DIR, Step.DELETE})
"""Steps that a disk may claim to have done without doing them."""


class IrregularFileError(OSError):
    """What has the name of a file is a folder, a link, a FIFO, a socket or a device."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(errno.EINVAL, f"it is {what}", path)
        self.what = what


class SkipStep(Exception):
    """Raised by ``Faults.before`` to make a droppable step lie: it is reported done and was not done."""


class Faults(Protocol):
    """Sees every step from both sides; may raise ``OSError`` or ``SkipStep``, sleep, or end the process."""

    def before(self, step: Step, path: str) -> None: ...

    def after(self, step: Step, path: str) -> None: ...


class AppendFile(Protocol):
    """A file that only grows, with one owner; after a failed call every later one raises ``StorageError``."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int:
        """Bytes appended so far, synced or not."""

    def append(self, *parts: Part) -> int:
        """Write the parts one after the other and return the offset of the first; durable after ``sync``."""

    def sync(self) -> None:
        """Return once everything appended so far, and the file's name, survives a power loss."""

    def close(self) -> None:
        """Give the file back; syncs nothing, never raises, may be called twice."""


class Disk(Protocol):
    """Durable files under absolute paths. A failed change raises ``StorageError``, whatever the cause.

    Reads never wait for another process: a folder, link, FIFO, socket or device under the name of a file is refused
    with a ``CorruptFileError``. Folders may be links.
    """

    def make_dirs(self, path: str) -> None:
        """Make the folder and its missing parents; on return all of them survive a power loss."""

    def open_append(self, path: str) -> AppendFile:
        """Create a file to append to. Raises ``FileExistsError`` if there is one."""

    def start_append(self, path: str, data: Part) -> AppendFile | None:
        """Create a file that begins with ``data`` and goes on growing; ``None`` if the name is taken.

        The name appears only after ``data`` is durable: whoever finds the file finds its beginning whole.
        """

    def create_exclusive(self, path: str, data: Part) -> bool:
        """Create a whole file, durable on return; ``False`` if the name is taken, by a file that is durable.

        There is never a partial file under ``path``. After a ``StorageError`` the whole file may or may not
        be there: a second call that returns ``False`` may have lost to the first.
        """

    def put(self, path: str, data: Part) -> None:
        """Replace the whole file, durable on return; readers see the old or the new bytes, never both."""

    def settle(self, path: str) -> None:
        """Make a file that another program wrote, and its name, durable. Raises ``FileNotFoundError``."""

    def link(self, path: str, name: str) -> bool:
        """Give a file that another program wrote a second name, bytes and name durable on return.

        ``False`` where the file system cannot: the two lie on different ones, or it has no hard links. Raises
        ``FileNotFoundError``.
        """

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return the bytes from ``offset``, fewer where the file ends. Raises ``FileNotFoundError``."""

    def view(self, path: str, offset: int = 0, length: int | None = None) -> bytes | memoryview:
        """As ``read``, for files that only grow: many bytes may be mapped, not copied. Raises ``FileNotFoundError``."""

    def size(self, path: str) -> int | None:
        """Return the size of what has this name, file or not; ``None`` if nothing has."""

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a folder, temporary ones included; ``[]`` if there is no such folder."""

    def delete(self, path: str) -> bool:
        """Remove a file; ``False`` if it was not there. A power loss may bring it back."""


def is_temp(name: str) -> bool:
    """Whether a name is that of a write under way, or of one that was cut off and left an orphan."""
    return name.endswith(TEMP_SUFFIX)


class Calls(Protocol):
    """What a disk does in one call: raises ``OSError`` as POSIX does, makes nothing durable unasked."""

    def mkdir(self, path: str) -> None: ...

    def create(self, path: str) -> int: ...

    def open(self, path: str) -> int: ...

    def write(self, file: int, parts: Sequence[memoryview]) -> int: ...

    def sync(self, file: int) -> None: ...

    def close(self, file: int) -> None: ...

    def sync_dir(self, path: str) -> None: ...

    def link(self, source: str, target: str) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def is_dir(self, path: str) -> bool: ...

    def read(self, path: str, offset: int, length: int | None) -> bytes: ...

    def view(self, path: str, offset: int, length: int | None) -> bytes | memoryview: ...

    def size(self, path: str) -> int: ...

    def list(self, path: str) -> list[str]: ...
