"""A folder that is held open: all operations happen in it, even if its path leads elsewhere meanwhile, and none follows a link. Anywhere.

Between a check of a path and an operation on it, a folder can be replaced by a link to another one. Here every folder is opened relative to
the one above it, and the system refuses links.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from penstock.storage.file_system import checked_file_name

_STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
"""On Linux this needs only the right to traverse the folder."""
_INSIDE = _STEP | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)
_NO_FOLDER = (errno.ENOTDIR, errno.ELOOP)


class BehindLinkError(Exception):
    """A name is a link, or a part of it is not a folder."""


class HeldFolder:
    """One open folder; names are relative to it. Raises `OSError` if the system refuses an operation. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, _STEP)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    @property
    def owner(self) -> int:
        """The id of the user that owns the folder."""
        return os.fstat(self._descriptor).st_uid

    def lies_below(self, file: str) -> bool:
        """Return whether this folder, or a real parent of it, has such a file."""
        with ExitStack() as opened:
            at = self._descriptor
            while not _has(file, at):
                above = os.open("..", _INSIDE, dir_fd=at)
                opened.callback(os.close, above)
                if os.path.samestat(os.fstat(at), os.fstat(above)):
                    return False
                at = above
        return True

    def is_file(self, name: str) -> bool:
        """Return whether a regular file exists; raises `BehindLinkError` if the name is a link or leads through one."""
        with suppress(FileNotFoundError), self._inside(name) as (folder, last):
            mode = os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                raise BehindLinkError(name)
            return stat.S_ISREG(mode)
        return False

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """Open a regular file for reading; raises `FileNotFoundError` if there is none, `BehindLinkError` for a link."""
        with self._inside(name) as (folder, last):
            try:
                descriptor = os.open(last, _FILE, dir_fd=folder)
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise BehindLinkError(name) from error
                raise
            with open(descriptor, "rb") as file:  # noqa: PTH123 - a path would lead elsewhere
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise FileNotFoundError(errno.ENOENT, "not a regular file", name)
                yield file

    def read(self, name: str, most_bytes: int) -> bytes:
        """Read at most `most_bytes` of a file; raises `FileNotFoundError` if there is none."""
        with self._inside(name) as (folder, last):
            descriptor = os.open(last, _FILE, dir_fd=folder)
            with open(descriptor, "rb") as file:  # noqa: PTH123 - a path would lead elsewhere
                return file.read(most_bytes)

    def delete(self, name: str) -> None:
        """Delete a file, and folders that become empty; a missing file is not an error."""
        with suppress(FileNotFoundError), self._inside(name) as (folder, last):
            os.unlink(last, dir_fd=folder)  # deletes a link itself, not its target
        above = name.rpartition("/")[0]
        while above and self._remove_empty(above):
            above = above.rpartition("/")[0]

    def remove_if_empty(self) -> bool:
        """Remove the folder itself; returns False if it is not empty, or its path leads elsewhere now."""
        real = Path(os.path.realpath(self._path))
        above = os.open("..", _INSIDE, dir_fd=self._descriptor)
        try:
            found = os.stat(real.name, dir_fd=above, follow_symlinks=False)
            if not os.path.samestat(found, os.fstat(self._descriptor)):
                return False
            os.rmdir(real.name, dir_fd=above)
        except OSError:
            return False
        finally:
            os.close(above)
        return True

    def _remove_empty(self, name: str) -> bool:
        try:
            with self._inside(name) as (folder, last):
                os.rmdir(last, dir_fd=folder)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in _NOT_EMPTY:
                return False
            raise
        return True

    @contextmanager
    def _inside(self, name: str) -> Iterator[tuple[int, str]]:
        """Open the parent folder of a name; yields it with the last part of the name."""
        *folders, last = checked_file_name(name).split("/")
        with ExitStack() as opened:
            at = self._descriptor
            for folder in folders:
                at = _entered(folder, at, name)
                opened.callback(os.close, at)
            yield at, last


def _has(file: str, folder: int) -> bool:
    try:
        os.stat(file, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def _entered(folder: str, above: int, name: str) -> int:
    try:
        return os.open(folder, _INSIDE, dir_fd=above)
    except OSError as error:
        if error.errno in _NO_FOLDER:
            raise BehindLinkError(name) from error
        raise
