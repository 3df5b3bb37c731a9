"""Storage behind any file system that `pyarrow.fs` opens by URI. Driver and executors.

Object stores (S3, Google Cloud Storage, Azure) show an object when its upload is finished: files are written
under their own name. On the other file systems a file is written beside and moved into place.

pyarrow (up to 26) has no way to ask any of these stores for an exclusive create: its streams always
replace, and its moves do. Checking first and writing then would let two runs both believe they own the job,
so `create` refuses with `ConfigError`, and `check_writable` does so before a job starts. The exception is a
local folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.errors import ConfigError, UnavailableError
from penstock.storage.base import Storage
from penstock.storage.local import LocalStorage
from penstock.storage.names import checked_file_name, checked_prefix, is_temporary, temporary_name

SCHEMES = ("abfs", "abfss", "file", "gcs", "gs", "hdfs", "mock", "s3", "viewfs")
_WHOLE_OBJECTS = frozenset({"s3", "gcs", "abfs"})
_CHUNK_BYTES = 8 << 20


class ArrowStorage(Storage):
    """Files below `uri`; the connection is opened on first use, in each process anew.

    Over `file:` nothing is synced to disk: `open_storage` takes `LocalStorage` there.
    """

    def __init__(self, uri: str) -> None:
        scheme = urlsplit(uri).scheme
        if scheme not in SCHEMES:
            raise ConfigError(
                f"storage {uri!r} has the scheme {scheme!r}, which cannot be opened; "
                f"use a path or one of {', '.join(SCHEMES)}",
                uri=uri,
                scheme=scheme,
            )
        self._uri = uri
        self._opened: tuple[Any, str] | None = None

    def __repr__(self) -> str:
        return f"ArrowStorage({self._uri!r})"

    def __getstate__(self) -> dict[str, object]:
        return {"_uri": self._uri, "_opened": None}

    @property
    def uri(self) -> str:
        """See `Storage.uri`."""
        return self._uri

    @property
    def creates_exclusively(self) -> bool:
        """Whether `create` works here: without it the storage cannot decide which of two runs owns a job."""
        return (
            urlsplit(self._uri).scheme == "file"
        )  # said without opening it, which may take seconds on the network

    def put(self, name: str, data: bytes) -> None:
        """See `Storage.put`."""
        with self._failures("put", name):
            self._write(name, data)

    def create(self, name: str, data: bytes) -> bool:
        """See `Storage.create`; refused with `ConfigError` where the store offers no exclusive create."""
        if not self.creates_exclusively:
            raise ConfigError(
                f"storage {self._uri} cannot create {name!r} exclusively: pyarrow {pa.__version__} offers no "
                "conditional write for this store, and without one two runs of a job could both own it; "
                "keep the job's storage on a local or shared file system path",
                uri=self._uri,
                name=name,
            )
        _, root = self._open()
        return LocalStorage(root).create(name, data)

    def get(self, name: str) -> bytes:
        """See `Storage.get`."""
        with self._failures("get", name), self._open_input(name) as stream:
            return bytes(stream.read())

    def size(self, name: str) -> int | None:
        """See `Storage.size`."""
        path = self._path(name)
        with self._failures("look at", name):
            filesystem, _ = self._open()
            found = filesystem.get_file_info(path)
        return int(found.size) if found.type == pafs.FileType.File else None

    def upload(self, local: Path, name: str) -> None:
        """See `Storage.upload`."""
        # One write of the mapped file: closing an object's stream after a failed read would publish a part.
        content = pa.memory_map(str(local)).read_buffer() if local.stat().st_size else b""
        with self._failures("upload", name):
            self._write(name, content)

    def download(self, name: str, local: Path) -> None:
        """See `Storage.download`."""
        temporary = local.with_name(temporary_name())
        try:
            with (
                self._failures("download", name),
                self._open_input(name) as stream,
                temporary.open("xb") as file,
            ):
                while chunk := stream.read(_CHUNK_BYTES):
                    file.write(chunk)
            os.replace(temporary, local)  # noqa: PTH105 - the idiom of the package
        finally:
            temporary.unlink(missing_ok=True)

    def names(self, prefix: str = "") -> list[str]:
        """See `Storage.names`."""
        folder = checked_prefix(prefix)
        with self._failures("list", prefix):
            filesystem, root = self._open()
            base = f"{root}/{folder}" if folder else root
            if filesystem.get_file_info(base).type == pafs.FileType.File:
                return []
            found = filesystem.get_file_info(pafs.FileSelector(base, recursive=True, allow_not_found=True))
        files = [
            info.path.removeprefix(root).lstrip("/") for info in found if info.type == pafs.FileType.File
        ]
        return sorted(name for name in files if not is_temporary(name))

    def delete(self, names: Iterable[str]) -> None:
        """See `Storage.delete`; empty folders stay on file systems that have real ones."""
        for name in names:
            path = self._path(name)
            with self._failures("delete", name), contextlib.suppress(FileNotFoundError):
                filesystem, _ = self._open()
                filesystem.delete_file(path)

    def check_writable(self) -> None:
        """See `Storage.check_writable`; refuses a store without exclusive create, before a job starts."""
        if not self.creates_exclusively:
            self.create("_probe", b"")
        super().check_writable()

    def _open(self) -> tuple[Any, str]:
        """Return the file system and the root in it, without a trailing '/'."""
        if self._opened is None:
            try:
                filesystem, root = pafs.FileSystem.from_uri(self._uri)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise ConfigError(
                    f"storage {self._uri!r} cannot be opened: {error}; correct the URI", uri=self._uri
                ) from error
            except OSError as error:
                raise UnavailableError(
                    f"storage {self._uri!r} cannot be opened: {error}", uri=self._uri
                ) from error
            self._opened = filesystem, root.rstrip("/")
        return self._opened

    def _path(self, name: str) -> str:
        _, root = self._open()
        return f"{root}/{checked_file_name(name)}"

    def _open_input(self, name: str) -> Any:
        filesystem, _ = self._open()
        return filesystem.open_input_stream(self._path(name))

    def _write(self, name: str, data: bytes | pa.Buffer) -> None:
        filesystem, _ = self._open()
        path = self._path(name)
        if filesystem.type_name in _WHOLE_OBJECTS:
            with filesystem.open_output_stream(path) as stream:
                stream.write(data)
            return
        folder = path.rpartition("/")[0]
        temporary = f"{folder}/{temporary_name()}"
        filesystem.create_dir(folder, recursive=True)
        try:
            with filesystem.open_output_stream(temporary) as stream:
                stream.write(data)
            filesystem.move(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                filesystem.delete_file(temporary)
            raise

    @contextlib.contextmanager
    def _failures(self, operation: str, name: str) -> Iterator[None]:
        """Turn what pyarrow raises into the errors that `Storage` promises."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            cause = "disk full; free space there" if error.errno == errno.ENOSPC else str(error)
            raise self._unavailable(operation, name, cause, error) from error
