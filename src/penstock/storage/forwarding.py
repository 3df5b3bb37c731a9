"""A storage that hands every call on to another one: the base of all that watch, delay or refuse calls. Driver and executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, TypeVar

from penstock.ids import SubtaskId
from penstock.storage.base import Storage

T = TypeVar("T")
Operation = Literal[
    "put", "create", "get", "size", "upload", "download", "names", "delete", "clean_temporary"
]
"""The calls that reach a storage; `delete` counts as one, whatever the number of names."""


class ForwardingStorage(Storage):
    """Does what `inner` does. Override `_perform` to stand in front of every call, or one method for that call alone."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    def _perform(self, operation: Operation, name: str, work: Callable[[], T]) -> T:  # noqa: ARG002 - for those who override it
        """Let one call through. `name` is the file, the folder that is listed, or the first of the names to be deleted."""
        return work()

    @property
    def uri(self) -> str:
        """See `Storage.uri`."""
        return self.inner.uri

    def put(self, name: str, data: bytes) -> None:
        """See `Storage.put`."""
        self._perform("put", name, lambda: self.inner.put(name, data))

    def create(self, name: str, data: bytes) -> bool:
        """See `Storage.create`."""
        return self._perform("create", name, lambda: self.inner.create(name, data))

    def get(self, name: str) -> bytes:
        """See `Storage.get`."""
        return self._perform("get", name, lambda: self.inner.get(name))

    def size(self, name: str) -> int | None:
        """See `Storage.size`."""
        return self._perform("size", name, lambda: self.inner.size(name))

    def upload(self, local: Path, name: str) -> None:
        """See `Storage.upload`."""
        self._perform("upload", name, lambda: self.inner.upload(local, name))

    def download(self, name: str, local: Path) -> None:
        """See `Storage.download`."""
        self._perform("download", name, lambda: self.inner.download(name, local))

    def names(self, prefix: str = "") -> list[str]:
        """See `Storage.names`."""
        return self._perform("names", prefix, lambda: self.inner.names(prefix))

    def delete(self, names: Iterable[str]) -> None:
        """See `Storage.delete`."""
        wanted = list(names)
        if wanted:
            self._perform("delete", wanted[0], lambda: self.inner.delete(wanted))

    def clean_temporary(self, older_than_s: float) -> int:
        """See `Storage.clean_temporary`."""
        return self._perform("clean_temporary", "", lambda: self.inner.clean_temporary(older_than_s))

    def check_place(self) -> None:
        """See `Storage.check_place`; no I/O of a job."""
        self.inner.check_place()

    def wait_for_turn(self, subtask: SubtaskId) -> None:
        """See `Storage.wait_for_turn`; no I/O, so it does not pass `_perform`."""
        self.inner.wait_for_turn(subtask)


class Subfolder(ForwardingStorage):
    """Every name is one below `folder` of the storage that it stands in front of."""

    def __init__(self, inner: Storage, folder: str) -> None:
        super().__init__(inner)
        self.folder = folder

    def _below(self, name: str) -> str:
        return f"{self.folder}/{name}"

    @property
    def uri(self) -> str:
        """See `Storage.uri`."""
        return f"{self.inner.uri}/{self.folder}"

    def put(self, name: str, data: bytes) -> None:
        """See `Storage.put`."""
        super().put(self._below(name), data)

    def create(self, name: str, data: bytes) -> bool:
        """See `Storage.create`."""
        return super().create(self._below(name), data)

    def get(self, name: str) -> bytes:
        """See `Storage.get`."""
        return super().get(self._below(name))

    def size(self, name: str) -> int | None:
        """See `Storage.size`."""
        return super().size(self._below(name))

    def upload(self, local: Path, name: str) -> None:
        """See `Storage.upload`."""
        super().upload(local, self._below(name))

    def download(self, name: str, local: Path) -> None:
        """See `Storage.download`."""
        super().download(self._below(name), local)

    def names(self, prefix: str = "") -> list[str]:
        """See `Storage.names`."""
        found = super().names(self._below(prefix) if prefix else self.folder)
        return [name.removeprefix(f"{self.folder}/") for name in found]

    def delete(self, names: Iterable[str]) -> None:
        """See `Storage.delete`."""
        super().delete([self._below(name) for name in names])

    def clean_temporary(self, older_than_s: float) -> int:  # noqa: ARG002
        """See `Storage.clean_temporary`; the whole storage does that."""
        return 0
