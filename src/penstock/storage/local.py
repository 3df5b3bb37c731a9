"""Storage in a folder of a local or shared POSIX file system. Driver and executors.

Invariants:
1. A file appears under its name by rename or link of a synced temporary file in the same folder.
   Nothing is ever written in place: uploaded and downloaded files may share their content through hard links.
2. The folder chain up to the root is synced before a write returns.
3. Deleting the last file of a folder removes the folder; a writer whose folder vanishes creates it again.
4. Files (0600) and folders (0700) are private to their owner: state and journal contain rows of users.
5. The root is created once. A root that existed and vanishes (deleted, moved, unmounted) is not created again, here or in any
   process that a copy of this object was sent to: half a job would be worse than none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from typing_extensions import override

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import UnavailableError
from penstock.storage.base import Storage
from penstock.storage.file_system import (
    checked_file_name,
    checked_prefix,
    is_temporary,
    link_or_copy,
    no_local_file,
    sync_file,
    sync_folder,
    temporary_name,
)
from penstock.storage.place_checks import refuse_place

_ADVICE = {
    errno.ENOSPC: "disk full; free space there or move the storage",
    errno.EDQUOT: "disk quota used up; raise it or free space",
    errno.EROFS: "the file system is read-only; remount it or move the storage",
    errno.EACCES: "permission denied; let this user write there",
    errno.EPERM: "not permitted; let this user write there, on a file system that has hard links",
    errno.ENOTDIR: "a part of the path is a file, or a broken link; remove it or move the storage",
    errno.ENOENT: "no folder can be created there; check the path and whether it is mounted",
}
_FOLDER_ATTEMPTS = 100
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
_NOTHING = (errno.ENOENT, errno.ELOOP)
"""There is no file; this includes links that form a loop."""


class LocalStorage(Storage):
    """Files below `root`, which the first write creates."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(os.path.abspath(os.path.expanduser(root)))  # noqa: PTH100, PTH111 - resolve() would follow links
        self._was_there = False

    def __repr__(self) -> str:
        return f"LocalStorage({str(self.root)!r})"

    @property
    @override
    def uri(self) -> str:
        """The address with a scheme; Hadoop resolves an address without one by its `fs.defaultFS`."""
        return self.root.as_uri()

    @override
    def check_place(self) -> None:
        """Refuses file systems on which two runs could own the job."""
        refuse_place(self.root, "storage")
        self._was_there = False

    @override
    def check_writable(self) -> None:
        """Write a probe. Folders that this creates are removed again if they are still empty."""
        self.check_place()
        made = [folder for folder in (self.root, *self.root.parents) if not folder.exists()]
        super().check_writable()
        self._was_there = (
            False  # another start may remove the root as this one does; the first write then creates it
        )
        with contextlib.suppress(OSError):  # another process uses it already
            for folder in made:
                folder.rmdir()

    @override
    def put(self, name: str, data: bytes) -> None:
        target = self._path(name)
        with self._failures("put", name):
            self._appear(target, lambda temporary: _write_synced(temporary, data), os.replace)

    @override
    def create(self, name: str, data: bytes) -> bool:
        """Create a file with a hard link, which fails if the name exists, so there is one winner."""
        target = self._path(name)
        with self._failures("create", name):
            try:
                self._appear(target, lambda temporary: _write_synced(temporary, data), os.link)
            except FileExistsError:
                return False
        return True

    @override
    def get(self, name: str) -> bytes:
        with self._failures("get", name, missing_is_an_answer=True):
            return _read_regular(self._path(name))

    @override
    def size(self, name: str) -> int | None:
        with self._failures("look at", name):
            try:
                found = self._path(name).stat()
            except OSError as error:
                if error.errno in _NOTHING:
                    return None
                raise
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    @override
    def upload(self, local: Path, name: str) -> None:
        """Upload with a hard link if the file system allows it."""
        target = self._path(name)
        if not local.is_file():
            raise no_local_file(name, local)
        try:
            with self._failures("upload", name):
                self._appear(target, lambda temporary: _link_synced(local, temporary), os.replace)
        except UnavailableError as error:
            if not local.is_file():  # deleted in between, which is no fault of the storage
                raise no_local_file(name, local) from error
            raise

    @override
    def download(self, name: str, local: Path) -> None:
        """Not synced, since local files are a cache."""
        source = self._path(name)
        temporary = local.with_name(temporary_name())
        with self._failures("download", name, missing_is_an_answer=True):
            _refuse_irregular(source, source.stat())
            try:
                link_or_copy(source, temporary)
                os.replace(temporary, local)  # noqa: PTH105 - one idiom for link, replace and unlink here
            finally:
                _unlink(temporary)

    @override
    def names(self, prefix: str = "") -> list[str]:
        with self._failures("list", prefix):
            return sorted(name for name in self._walk(checked_prefix(prefix)) if not is_temporary(name))

    @override
    def folders(self, prefix: str = "") -> list[str]:
        """Nothing below them is looked at. A link is none, as in `names`: it can lead anywhere."""
        return self._entries(prefix, lambda entry: entry.is_dir(follow_symlinks=False))

    def linked_folders(self) -> dict[str, Path]:
        """Links to folders directly below the root, and where they lead."""
        names = self._entries("", lambda entry: entry.is_symlink() and entry.is_dir())
        return {name: Path(os.path.realpath(self.root / name)) for name in names}

    def is_link(self, name: str) -> bool:
        """Return whether a file or folder is a link."""
        return (self.root / checked_file_name(name)).is_symlink()

    def leads_away(self, name: str) -> bool:
        """Return whether a name leads through a link below the root. The root itself may be a link."""
        root = os.path.realpath(self.root)
        return os.path.realpath(self.root / checked_file_name(name)) != os.path.join(root, *name.split("/"))  # noqa: PTH118 - the form of realpath

    def _entries(self, prefix: str, is_wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
        with self._failures("list", prefix):
            try:
                with os.scandir(self.root / checked_prefix(prefix)) as found:
                    return sorted(entry.name for entry in found if _is(entry, is_wanted))
            except (FileNotFoundError, NotADirectoryError):
                return []

    @override
    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            path = self._path(name)
            with self._failures("delete", name):
                _unlink(path)
                self._remove_empty(path.parent)

    @override
    def clean_temporary(self, older_than_s: float) -> int:
        """Delete old temporary files. Choose a time longer than any write, so that no live writer loses its file."""
        oldest = SYSTEM_CLOCK.wall() - older_than_s
        cleaned = 0
        with self._failures("clean", ""):
            for name in [name for name in self._walk("") if is_temporary(name)]:
                with contextlib.suppress(FileNotFoundError):
                    path = self.root / name
                    # The change time: a hard link keeps the modification time of the file it was made from.
                    if path.stat().st_ctime <= oldest:
                        path.unlink()
                        cleaned += 1
                        self._remove_empty(path.parent)
        return cleaned

    def _path(self, name: str) -> Path:
        return self.root / checked_file_name(name)

    def _appear(
        self, target: Path, fill: Callable[[Path], None], publish: Callable[[Path, Path], None]
    ) -> None:
        """Make `target` appear complete: `fill` a temporary file beside it, `publish` it, sync the folders."""
        temporary = target.with_name(temporary_name())
        try:
            self._in_folder(target.parent, lambda: fill(temporary))
            publish(temporary, target)
        finally:
            _unlink(temporary)  # os.replace leaves it when both names are links to one file already
        self._was_there = True
        self._sync_folders(target.parent)

    def _in_folder(self, folder: Path, fill: Callable[[], None]) -> None:
        """Create `folder` and `fill` a file in it; retried if another process removes the empty folder in between."""
        for left in reversed(range(_FOLDER_ATTEMPTS)):
            try:
                self._make_folder(folder)
                return fill()
            except FileExistsError as error:  # must not escape: `create` would read it as its answer
                if not left or (folder.exists() and not folder.is_dir()):
                    raise NotADirectoryError(
                        errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename
                    ) from error
            except FileNotFoundError:
                self._refuse_if_gone()
                if not left:
                    raise
        return None

    def _make_folder(self, folder: Path) -> None:
        """Create a folder and its missing parents, but the root only if it has not existed yet."""
        if folder == self.root:
            if not self._was_there:
                folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            return
        try:
            folder.mkdir(PRIVATE_FOLDER, exist_ok=True)
        except FileNotFoundError:
            self._make_folder(folder.parent)
            folder.mkdir(PRIVATE_FOLDER, exist_ok=True)

    def _refuse_if_gone(self) -> None:
        if self._was_there and not self.root.exists():
            raise UnavailableError(
                f"storage {self.uri} is gone: its folder existed, and was deleted, moved or unmounted; it is not created "
                "again, because it would hold half a job; bring it back, then start the job again",
                uri=self.uri,
            )

    def _sync_folders(self, folder: Path) -> None:
        """Sync a folder and those above it, which another process may have just created."""
        while True:
            # Removed meanwhile, or above the root without the right to open it: it holds none of our files.
            with contextlib.suppress(FileNotFoundError, PermissionError):
                sync_folder(folder)
            if folder in (self.root.parent, Path(folder.anchor)):
                return
            folder = folder.parent

    def _remove_empty(self, folder: Path) -> None:
        while folder != self.root:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    return
                raise
            folder = folder.parent

    def _walk(self, prefix: str) -> Iterator[str]:
        def unless_gone(error: OSError) -> None:
            named_a_file = isinstance(error, NotADirectoryError) and Path(error.filename).is_file()
            if not isinstance(error, FileNotFoundError) and not named_a_file:
                raise error

        for folder, _, files in os.walk(self.root / prefix, onerror=unless_gone):
            below = Path(folder).relative_to(self.root)
            for file in files:
                yield (below / file).as_posix()

    @contextlib.contextmanager
    def _failures(self, operation: str, name: str, *, missing_is_an_answer: bool = False) -> Iterator[None]:
        """Translate errors of the operating system into those that `Storage` promises."""
        try:
            yield
        except OSError as error:
            if missing_is_an_answer and error.errno in _NOTHING:
                raise FileNotFoundError(errno.ENOENT, str(error), name) from error
            cause = _ADVICE.get(error.errno or 0, error.strerror or str(error))
            raise self._unavailable(operation, name, f"{cause} ({error})", error) from error


def _is(entry: os.DirEntry[str], is_wanted: Callable[[os.DirEntry[str]], bool]) -> bool:
    """Return whether an entry is wanted; an entry that cannot be read is not, and does not hide others."""
    try:
        return is_wanted(entry)
    except OSError:
        return False


def _read_regular(path: Path) -> bytes:
    """Read a regular file. Another program may have put a pipe there; opened this way, it does not block.

    Links are not followed, because they may lead to the files of another job.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        _refuse_irregular(path, os.fstat(descriptor))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def _refuse_irregular(path: Path, found: os.stat_result) -> None:
    """Treat everything but a regular file as missing, like `Storage.size`."""
    if not stat.S_ISREG(found.st_mode):
        raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path))


def _write_synced(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a path has no mode
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _link_synced(source: Path, target: Path) -> None:
    """Link or copy a file and sync it. A linked working file becomes private; a copy was in a private folder."""
    sync_file(source)
    is_link = link_or_copy(source, target)
    target.chmod(PRIVATE_FILE)
    if not is_link:
        sync_file(target)


def _unlink(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
