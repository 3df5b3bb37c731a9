"""Size and checksum of files, and which files this process has hashed already. Runs in tasks on executors, and on the driver.

A file of state never changes, but a disk may change it. So every process hashes a file before it first uses it. It remembers which file
that was (device, inode, size, time of the last write): in later batches a look at the folder is enough. Hashing runs at some GB/s, and
the state of a subtask may have many. A file that was written to since, or another one under the same name, is hashed again.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow as pa
import xxhash

from penstock.errors import UnavailableError
from penstock.state.handle import FileRef

MOST_REMEMBERED = 65_536
"""More files than the subtasks of a worker use at a time; what is forgotten is only hashed again."""

Fingerprint = tuple[int, str]


def fingerprint(path: Path) -> Fingerprint:
    """Size and checksum of a file."""
    if os.path.getsize(path) == 0:  # noqa: PTH202  an empty file cannot be mapped
        return 0, xxhash.xxh3_64_hexdigest(b"")
    with pa.memory_map(str(path)) as mapped:
        data = mapped.read_buffer()
        return data.size, xxhash.xxh3_64_hexdigest(data)


class HashedFiles:
    """The fingerprints that one process knows. A file keeps its own when it is renamed or linked."""

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most = most
        self._known: dict[tuple[int, int, int, int], Fingerprint] = {}
        self._lock = threading.Lock()

    def hash(self, path: Path) -> Fingerprint:
        """Read the whole file, whatever is known about it, and remember what was found."""
        identity = _identity(path)  # before its bytes: what is written meanwhile makes it another
        found = fingerprint(path)
        with self._lock:
            self._known.pop(identity, None)
            self._known[identity] = found
            while len(self._known) > self._most:
                del self._known[next(iter(self._known))]
        return found

    def known(self, path: Path) -> Fingerprint:
        """Read the file if this process has not, or not since it was last written."""
        found = self._known.get(_identity(path))
        return found if found is not None else self.hash(path)

    def refuse_changed(self, path: Path, ref: FileRef, follows: str) -> None:
        """Read the whole file; raise `UnavailableError` when it is not what was written. `follows` says what becomes of it then."""
        found = self.hash(path)
        if found != (ref.size, ref.checksum):
            raise UnavailableError(
                f"the working file {path} has changed since it was written: expected {ref.size} bytes with checksum {ref.checksum}, found "
                f"{found[0]} bytes with checksum {found[1]}; {follows}; check the disk",
                path=str(path),
                expected=(ref.size, ref.checksum),
                found=found,
            )


def _identity(path: Path) -> tuple[int, int, int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


HASHED_FILES = HashedFiles()
