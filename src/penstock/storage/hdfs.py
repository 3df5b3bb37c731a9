"""Storage in HDFS, by hdfs-native: no Java, no libhdfs. Driver and executors.

Invariants:
1. The address is all that an instance knows. The cluster's settings come from HADOOP_CONF_DIR, a Kerberos ticket from its cache.
2. A file appears under its name by rename of a whole, synced temporary file in the same folder: a file of HDFS that is being written can
   be seen while it is empty.
3. `create` renames without overwriting, which has one winner. If the answer is lost, the temporary file decides: what still exists was
   not renamed. What is gone was, or was cleaned up as that of a dead writer; then the content decides.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from typing_extensions import override

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import UnavailableError
from penstock.ids import SYSTEM_RANDOMNESS
from penstock.lazy_imports import optional_package
from penstock.storage.base import Storage
from penstock.storage.exclusive_create import create_once
from penstock.storage.file_system import (
    checked_file_name,
    checked_prefix,
    is_temporary,
    no_local_file,
    temporary_name,
)
from penstock.storage.place_checks import RemotePlace, place_of
from penstock.storage.store_errors import hdfs_failure_of

if TYPE_CHECKING:
    from hdfs_native import Client as HdfsClient
    from hdfs_native import FileStatus, WriteOptions

T = TypeVar("T")
PART_BYTES = 8 * 1024 * 1024
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
MOST_LOOKS = 20
SETTINGS = {"dfs.client.failover.max.attempts": "5", "dfs.client.failover.sleep.max.millis": "2000"}
"""By default a name node that is gone is called for three minutes. A job would rather know."""


class HdfsStorage(Storage):
    """Files below `hdfs://namenode:8020/path`, `hdfs://nameservice/path`, or `hdfs:///path` for the default file system."""

    PACKAGE: ClassVar = "hdfs_native"
    EXTRA: ClassVar = "hdfs"

    def __init__(self, uri: str) -> None:
        self._place = place_of(uri)
        self._root = f"/{self._place.folder}"
        self._client: _Client | None = None
        self._opening = threading.Lock()

    def __reduce__(self) -> tuple[Callable[[str], Storage], tuple[str]]:
        return HdfsStorage, (self.uri,)

    def __repr__(self) -> str:
        return f"HdfsStorage({self.uri!r})"

    @property
    @override
    def uri(self) -> str:
        return self._place.uri

    @override
    def put(self, name: str, data: bytes) -> None:
        self._appear("put", name, [data])

    @override
    def create(self, name: str, data: bytes) -> bool:
        """A name that exists is looked up first: writing a small file takes much longer than that."""
        if self.size(name) is not None:
            return False
        token = SYSTEM_RANDOMNESS.token()
        attempt = _Creation(self, self._beside(name, token), data)
        try:
            return create_once(attempt, name, data, token=token, sleep=SYSTEM_CLOCK.sleep)
        finally:
            with contextlib.suppress(UnavailableError):
                attempt.clean_up()

    @override
    def get(self, name: str) -> bytes:
        return self._read(name, lambda file: bytes(file.read()))

    @override
    def size(self, name: str) -> int | None:
        with self.failures("look at", name):
            found = self.status(self._path(name))
        return None if found is None or found.isdir else int(found.length)

    @override
    def upload(self, local: Path, name: str) -> None:
        self._path(name)  # is refused before anything is read
        if not local.is_file():
            raise no_local_file(name, local)
        with local.open("rb") as file:
            self._appear("upload", name, iter(lambda: file.read(PART_BYTES), b""))

    @override
    def download(self, name: str, local: Path) -> None:
        """Not synced, since local files are a cache."""
        temporary = local.with_name(temporary_name())

        def copy(file: Any) -> None:
            with temporary.open("wb") as to:
                for part in file.read_range_stream(0, len(file)):
                    to.write(part)
            os.replace(temporary, local)  # noqa: PTH105 - as in `LocalStorage`

        try:
            self._read(name, copy)
        finally:
            temporary.unlink(missing_ok=True)

    @override
    def names(self, prefix: str = "") -> list[str]:
        with self.failures("list", prefix):
            paths = (status.path for status in self._walk(prefix) if not status.isdir)
            return sorted(self._name(path) for path in paths if not is_temporary(path))

    @override
    def folders(self, prefix: str = "") -> list[str]:
        with self.failures("list", prefix):
            found = self._walk(prefix, recursive=False)
        return sorted(status.path.rpartition("/")[2] for status in found if status.isdir)

    @override
    def delete(self, names: Iterable[str]) -> None:
        above: set[str] = set()
        for name in names:
            path = self._path(name)
            with self.failures("delete", name):
                self.client.delete(path, recursive=False)
            above.add(path.rpartition("/")[0])
        for folder in sorted(above, reverse=True):
            self._remove_empty(folder)

    @override
    def clean_temporary(self, older_than_s: float) -> int:
        oldest_ms = (SYSTEM_CLOCK.wall() - older_than_s) * 1000
        with self.failures("clean", ""):
            old = [
                status.path
                for status in self._walk("")
                if is_temporary(status.path) and status.modification_time <= oldest_ms
            ]
            for path in old:
                self.client.delete(path, recursive=False)
        for folder in sorted({path.rpartition("/")[0] for path in old}, reverse=True):
            self._remove_empty(folder)
        return len(old)

    @override
    def check_writable(self) -> None:
        self._check_all_operations()

    # ── what one creation needs ────────────────────────────────────────────────────────────────

    @property
    def client(self) -> HdfsClient:
        """The client of this process; a fork opens one of its own."""
        found = self._client
        if found is None or found.pid != os.getpid():
            with self._opening:
                found = self._client = _open(self._place)
        return found.client

    def status(self, path: str) -> FileStatus | None:
        """What the name node says of a path."""
        try:
            return self.client.get_file_info(path)
        except FileNotFoundError:
            return None

    def write(self, path: str, parts: Iterable[bytes]) -> None:
        """Write and sync a file that nobody looks at yet."""
        self.client.mkdirs(self._root, PRIVATE_FOLDER, create_parent=True)
        with self.client.create(path, _options(overwrite=True)) as file:
            for part in parts:
                file.write(part)
            file.hsync()

    def rename(self, temporary: str, name: str, *, overwrite: bool) -> None:
        """Give a whole file its name."""
        self.client.rename(temporary, self._path(name), overwrite)

    @contextlib.contextmanager
    def failures(self, operation: str, name: str, *, missing_is_an_answer: bool = False) -> Iterator[None]:
        """Translate what hdfs-native and the operating system raise into what `Storage` promises, in one line."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            if isinstance(error, FileNotFoundError) and missing_is_an_answer:
                raise FileNotFoundError(errno.ENOENT, f"not in {self.uri}", name) from None
            if isinstance(error, OSError) and error.errno is not None:  # of the local disk
                raise self._unavailable(operation, name, f"{error.strerror} ({error})", error) from error
            cause, denied = hdfs_failure_of(error)
            raise UnavailableError(
                f"storage {self.uri} could not {operation} {name or '/'!r}: {cause}",
                operation=operation,
                name=name,
                uri=self.uri,
                denied=denied,
            ) from (PermissionError(cause) if denied else OSError(cause))

    # ── ways through the folders ───────────────────────────────────────────────────────────────

    def _appear(self, operation: str, name: str, parts: Iterable[bytes]) -> None:
        temporary = self._beside(name, SYSTEM_RANDOMNESS.token())
        with self.failures(operation, name):
            try:
                self.write(temporary, parts)
                self.rename(temporary, name, overwrite=True)
            except BaseException:
                with contextlib.suppress(OSError, RuntimeError):
                    self.client.delete(temporary, recursive=False)
                raise

    def _read(self, name: str, use: Callable[[Any], T]) -> T:
        """Read a file; again if it is replaced while it is read, because its blocks go with it."""
        path = self._path(name)
        for left in reversed(range(MOST_LOOKS)):
            with self.failures("get", name, missing_is_an_answer=True):
                try:
                    return use(self.client.read(path))
                except (OSError, RuntimeError) as error:
                    of_this_disk = isinstance(error, OSError) and error.errno is not None
                    if not left or of_this_disk or self.status(path) is None or hdfs_failure_of(error)[1]:
                        raise
        raise AssertionError("there is a last look")

    def _walk(self, prefix: str, *, recursive: bool = True) -> list[FileStatus]:
        """What is below a folder; listed again if one of its folders is removed meanwhile."""
        root = self._folder(prefix)
        for left in reversed(range(MOST_LOOKS)):
            try:
                return [
                    one for one in self.client.list_status(root, recursive) if one.path.startswith(f"{root}/")
                ]
            except FileNotFoundError:
                if self.status(root) is None:
                    return []
                if not left:
                    raise
        raise AssertionError("there is a last look")

    def _remove_empty(self, folder: str) -> None:
        while folder != self._root and folder.startswith(self._root):
            with self.failures("delete", self._name(folder)):
                try:
                    self.client.delete(folder, recursive=False)
                except RuntimeError as error:
                    if "PathIsNotEmptyDirectory" in str(error):
                        return
                    raise
            folder = folder.rpartition("/")[0]

    def _path(self, name: str) -> str:
        return f"{self._root}/{checked_file_name(name)}"

    def _folder(self, prefix: str) -> str:
        folder = checked_prefix(prefix)
        return f"{self._root}/{folder}" if folder else self._root

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self._root}/")

    def _beside(self, name: str, token: str) -> str:
        return f"{self._path(name).rpartition('/')[0]}/{temporary_name(token)}"


@dataclass(frozen=True)
class _Creation:
    """One create: its temporary file says whether the rename was performed."""

    storage: HdfsStorage
    temporary: str
    data: bytes

    def put_new(self, name: str, data: bytes, token: str) -> bool:  # noqa: ARG002 - the token is in the temporary name
        """Rename onto a free name; see `ConditionalStore`."""
        with self.storage.failures("create", name):
            self.storage.write(self.temporary, [data])
            try:
                self.storage.rename(self.temporary, name, overwrite=False)
            except FileExistsError:
                return False
        return True

    def token_of(self, name: str) -> str | None:
        """The token of this creation if the file is its own; see `ConditionalStore`."""
        with self.storage.failures("look at", name):
            if self.storage.size(name) is None:
                return None
            if self.storage.status(self.temporary) is not None:
                return ""
        try:
            is_own = self.storage.get(name) == self.data
        except FileNotFoundError:
            return None
        return self.temporary.rpartition("-")[2] if is_own else ""

    def clean_up(self) -> None:
        """Delete the temporary file if it is still there."""
        with self.storage.failures("delete", self.temporary):
            self.storage.client.delete(self.temporary, recursive=False)


@dataclass(frozen=True)
class _Client:
    """The connection of one process. hdfs-native has threads, which do not survive a fork."""

    pid: int
    client: HdfsClient


def _open(place: RemotePlace) -> _Client:
    hdfs = optional_package(HdfsStorage.PACKAGE, needed_by="storage at hdfs://", extra=HdfsStorage.EXTRA)
    url = f"hdfs://{place.bucket}" if place.bucket else None
    return _Client(os.getpid(), hdfs.Client(url, SETTINGS))


def _options(*, overwrite: bool) -> WriteOptions:
    hdfs = optional_package(HdfsStorage.PACKAGE, needed_by="storage at hdfs://", extra=HdfsStorage.EXTRA)
    options: WriteOptions = hdfs.WriteOptions(
        overwrite=overwrite, permission=PRIVATE_FILE, create_parent=True
    )
    return options
