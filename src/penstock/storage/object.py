"""Storage in an object store: S3, Google Cloud Storage, Azure Blob Storage. Driver and executors.

Invariants:
1. The address is all that an instance knows. Credentials, region and endpoint come from the environment or the platform, in every
   process again: they are in no pickle, no text and no file.
2. `create` is a conditional put with a token, and reads back after any doubt (`exclusive_create`).
3. An object appears whole. A large one is uploaded in parts, and exists when all of them do; a download in ranges is of one version.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

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
    no_local_file,
    temporary_name,
)
from penstock.storage.place_checks import RemotePlace, place_of
from penstock.storage.store_errors import failure_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore

TOKEN = "penstocktoken"  # noqa: S105 - letters only: Azure allows no hyphen in the name of metadata
PART_BYTES = 8 * 1024 * 1024
MOST_PARTS = 5_000
"""S3 allows 10,000."""
PARALLEL = 8
MOST_VERSIONS = 20
"""How often an object may be replaced while it is downloaded."""
LISTED_AT_ONCE = 1_000
DELETED_AT_ONCE = 1_000
CONNECT_TIMEOUT = timedelta(seconds=5)
REQUEST_TIMEOUT = timedelta(seconds=30)
RETRIES = 4
RETRY_TIMEOUT = timedelta(seconds=60)
_ENDPOINTS = (
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_ENDPOINT",
)
_NO_SUCH_RANGE = ("InvalidRange", "416")
_CLASSES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}


@dataclass(frozen=True)
class Client:
    """The connection of one process. obstore has threads, one set for all clients, which do not survive a fork."""

    pid: int
    obstore: Any
    store: ObjectStore


class ObjectStorage(Storage):
    """Objects below `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`."""

    PACKAGE: ClassVar = "obstore"
    EXTRA: ClassVar = "s3"

    def __init__(self, uri: str) -> None:
        self._place = place_of(uri)
        self._client: Client | None = None
        self._opening = threading.Lock()

    def __reduce__(self) -> tuple[Callable[[str], Storage], tuple[str]]:
        return ObjectStorage, (self.uri,)

    def __repr__(self) -> str:
        return f"ObjectStorage({self.uri!r})"

    @property
    @override
    def uri(self) -> str:
        return self._place.uri

    @override
    def put(self, name: str, data: bytes) -> None:
        with self._failures("put", name):
            client = self._opened()
            client.obstore.put(client.store, self._key(name), data, use_multipart=False)

    @override
    def create(self, name: str, data: bytes) -> bool:
        return create_once(self, name, data, token=SYSTEM_RANDOMNESS.token(), sleep=SYSTEM_CLOCK.sleep)

    def put_new(self, name: str, data: bytes, token: str) -> bool:
        """Store an object with its token, with If-None-Match; see `ConditionalStore`."""
        with self._failures("create", name):
            client = self._opened()
            try:
                client.obstore.put(
                    client.store, self._key(name), data, mode="create", attributes={TOKEN: token}
                )
            except client.obstore.exceptions.AlreadyExistsError:
                return False
        return True

    def token_of(self, name: str) -> str | None:
        """The token of an object; see `ConditionalStore`."""
        try:
            with self._failures("look at", name, missing_is_an_answer=True):
                client = self._opened()
                found = client.obstore.get(client.store, self._key(name))
        except FileNotFoundError:
            return None
        return str(found.attributes.get(TOKEN, ""))

    @override
    def get(self, name: str) -> bytes:
        with self._failures("get", name, missing_is_an_answer=True):
            client = self._opened()
            return bytes(client.obstore.get(client.store, self._key(name)).bytes())

    @override
    def size(self, name: str) -> int | None:
        try:
            with self._failures("look at", name, missing_is_an_answer=True):
                client = self._opened()
                return int(client.obstore.head(client.store, self._key(name))["size"])
        except FileNotFoundError:
            return None

    @override
    def upload(self, local: Path, name: str) -> None:
        """Upload in parts if the file is large. They become an object when all of them are there."""
        key = self._key(name)
        if not local.is_file():
            raise no_local_file(name, local)
        size = local.stat().st_size
        with self._failures("upload", name):
            client = self._opened()
            client.obstore.put(
                client.store,
                key,
                local,
                use_multipart=size > PART_BYTES,
                chunk_size=max(PART_BYTES, size // MOST_PARTS + 1),
                max_concurrency=PARALLEL,
            )

    @override
    def download(self, name: str, local: Path) -> None:
        """Download ranges side by side if the object is large. Not synced, since local files are a cache."""
        key = self._key(name)
        temporary = local.with_name(temporary_name())
        with self._failures("download", name, missing_is_an_answer=True):
            try:
                _fetch(self._opened(), key, temporary)
                os.replace(temporary, local)  # noqa: PTH105 - as in `LocalStorage`
            finally:
                temporary.unlink(missing_ok=True)

    @override
    def names(self, prefix: str = "") -> list[str]:
        root = self._below(prefix)
        with self._failures("list", prefix):
            client = self._opened()
            chunks = client.obstore.list(client.store, root or None, chunk_size=LISTED_AT_ONCE)
            paths = [str(found["path"]) for chunk in chunks for found in chunk]
        return sorted(self._names(root, paths))

    @override
    def folders(self, prefix: str = "") -> list[str]:
        root = self._below(prefix)
        with self._failures("list", prefix):
            client = self._opened()
            found = client.obstore.list_with_delimiter(client.store, root or None)["common_prefixes"]
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)

    @override
    def delete(self, names: Iterable[str]) -> None:
        """Many at a time. Those of one call disappear in no particular order."""
        keys = [self._key(name) for name in names]
        for first in range(0, len(keys), DELETED_AT_ONCE):
            some = keys[first : first + DELETED_AT_ONCE]
            with self._failures("delete", some[0]):
                self._delete(self._opened(), some)

    @override
    def check_writable(self) -> None:
        self._check_all_operations()

    def _delete(self, client: Client, keys: list[str]) -> None:
        try:
            client.obstore.delete(client.store, keys)
        except FileNotFoundError as error:
            if not failure_of(error).is_missing_object:
                raise
            # GCS and Azure report a missing object, and what happened to the others is not said
            for key in keys:
                with contextlib.suppress(FileNotFoundError):
                    client.obstore.delete(client.store, key)

    def _key(self, name: str) -> str:
        return self._place.key(checked_file_name(name))

    def _below(self, prefix: str) -> str:
        """The prefix of all keys in a folder, with a slash at its end: 'chk-2' is not a prefix of 'chk-2x'."""
        folder = checked_prefix(prefix)
        key = self._place.key(folder) if folder else self._place.folder
        return f"{key}/" if key else ""

    def _names(self, root: str, paths: Iterable[str]) -> Iterator[str]:
        """Names relative to the storage. An object with the name of the folder is none of its files."""
        above = f"{self._place.folder}/" if self._place.folder else ""
        return (path.removeprefix(above) for path in paths if path.startswith(root))

    def _opened(self) -> Client:
        client = self._client
        if client is None:
            with self._opening:
                client = self._client = _open(self._place)
        if client.pid != os.getpid():
            raise UnavailableError(
                f"storage {self.uri} was used before this process was forked, and the threads of its client do not survive that: start the "
                "process anew instead (multiprocessing: 'spawn')",
                uri=self.uri,
            )
        return client

    @contextlib.contextmanager
    def _failures(self, operation: str, name: str, *, missing_is_an_answer: bool = False) -> Iterator[None]:
        """Translate what obstore and the operating system raise into what `Storage` promises, in one line."""
        try:
            yield
        except Exception as error:
            if (
                isinstance(error, OSError) and error.errno is not None
            ):  # of the local disk: errors of obstore have no number
                raise self._unavailable(operation, name, f"{error.strerror} ({error})", error) from error
            if not _is_of_the_store(error):
                raise
            failure = failure_of(error)
            if isinstance(error, FileNotFoundError) and failure.is_missing_object and missing_is_an_answer:
                raise FileNotFoundError(errno.ENOENT, f"not in {self.uri}", name) from None
            cause = PermissionError(failure.text) if failure.denied else OSError(failure.text)
            raise UnavailableError(
                f"storage {self.uri} could not {operation} {name or '/'!r}: {failure.text}",
                operation=operation,
                name=name,
                uri=self.uri,
                code=failure.code,
                denied=failure.denied,
            ) from cause


def _open(place: RemotePlace) -> Client:
    obstore = optional_package(
        "obstore", needed_by=f"storage at {place.scheme}://", extra=ObjectStorage.EXTRA
    )
    stores = optional_package(
        "obstore.store", needed_by=f"storage at {place.scheme}://", extra=ObjectStorage.EXTRA
    )
    optional_package(
        "obstore.exceptions", needed_by=f"storage at {place.scheme}://", extra=ObjectStorage.EXTRA
    )
    store = getattr(stores, _CLASSES[place.scheme])(
        place.bucket,
        client_options={
            "connect_timeout": CONNECT_TIMEOUT,
            "timeout": REQUEST_TIMEOUT,
            "allow_http": is_plain_http(os.environ),
        },
        retry_config={"max_retries": RETRIES, "retry_timeout": RETRY_TIMEOUT},
    )
    return Client(os.getpid(), obstore, store)


def _is_of_the_store(error: Exception) -> bool:
    return isinstance(error, OSError | ValueError) or type(error).__module__.startswith("obstore")


def is_plain_http(environ: Mapping[str, str]) -> bool:
    """Whether the endpoint in the environment is one without TLS: who writes http:// there means it."""
    return any(environ.get(name, "").startswith("http://") for name in _ENDPOINTS)


def _fetch(client: Client, key: str, to: Path) -> None:
    """Write one version of an object to a local file."""
    for left in reversed(range(MOST_VERSIONS)):
        try:
            return _fetch_version(client, key, to)
        except client.obstore.exceptions.PreconditionError:  # it was replaced between two ranges
            if not left:
                raise
    raise AssertionError("there is a last version")


def _fetch_version(client: Client, key: str, to: Path) -> None:
    try:
        found = client.obstore.get(client.store, key, options={"range": (0, PART_BYTES)})
    except client.obstore.exceptions.GenericError as error:
        if failure_of(error).code not in _NO_SUCH_RANGE:
            raise
        to.write_bytes(bytes(client.obstore.get(client.store, key).bytes()))  # an empty object has no ranges
        return
    size, version = int(found.meta["size"]), found.meta["e_tag"]
    with to.open("wb") as file:
        file.write(found.bytes())

        def fetch(first: int) -> None:
            span = first, min(first + PART_BYTES, size)
            part = client.obstore.get(client.store, key, options={"range": span, "if_match": version})
            os.pwrite(file.fileno(), part.bytes(), first)

        rest = range(PART_BYTES, size, PART_BYTES)
        if rest:
            file.flush()
            with ThreadPoolExecutor(min(PARALLEL, len(rest))) as pool:
                list(pool.map(fetch, rest))
