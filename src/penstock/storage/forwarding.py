"""A storage that forwards every call to another one: the base class of storages that watch, delay or refuse calls. Driver and executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, TypeVar

from typing_extensions import override

from penstock.ids import SubtaskId
from penstock.storage.base import Storage

T = TypeVar("T")
Operation = Literal[
    "put", "create", "get", "size", "upload", "download", "names", "delete", "clean_temporary"
]
"""The calls that reach a storage; `delete` counts as one call, whatever the number of names."""


class ForwardingStorage(Storage):
    """Forwards to `inner`. Override `_perform` to intercept every call, or a method to intercept that call."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    def _perform(self, operation: Operation, name: str, work: Callable[[], T]) -> T:  # noqa: ARG002 - for overrides
        """Forward one call. `name` is the file, the listed folder, or the first of the names to delete."""
        return work()

    def _inner_name(self, name: str) -> str:
        """The name that a file has in `inner`."""
        return name

    def _on_file(self, operation: Operation, name: str, work: Callable[[str], T]) -> T:
        inner_name = self._inner_name(name)
        return self._perform(operation, inner_name, lambda: work(inner_name))

    @property
    @override
    def uri(self) -> str:
        return self.inner.uri

    @override
    def put(self, name: str, data: bytes) -> None:
        self._on_file("put", name, lambda inner_name: self.inner.put(inner_name, data))

    @override
    def create(self, name: str, data: bytes) -> bool:
        return self._on_file("create", name, lambda inner_name: self.inner.create(inner_name, data))

    @override
    def get(self, name: str) -> bytes:
        return self._on_file("get", name, self.inner.get)

    @override
    def size(self, name: str) -> int | None:
        return self._on_file("size", name, self.inner.size)

    @override
    def upload(self, local: Path, name: str) -> None:
        self._on_file("upload", name, lambda inner_name: self.inner.upload(local, inner_name))

    @override
    def download(self, name: str, local: Path) -> None:
        self._on_file("download", name, lambda inner_name: self.inner.download(inner_name, local))

    @override
    def names(self, prefix: str = "") -> list[str]:
        return self._perform("names", prefix, lambda: self.inner.names(prefix))

    @override
    def delete(self, names: Iterable[str]) -> None:
        wanted = [self._inner_name(name) for name in names]
        if wanted:
            self._perform("delete", wanted[0], lambda: self.inner.delete(wanted))

    @override
    def clean_temporary(self, older_than_s: float) -> int:
        return self._perform("clean_temporary", "", lambda: self.inner.clean_temporary(older_than_s))

    @override
    def check_place(self) -> None:
        """Forward without `_perform`: this is not I/O of a job."""
        self.inner.check_place()

    @override
    def wait_for_turn(self, subtask: SubtaskId) -> None:
        """Forward without `_perform`: this is no I/O."""
        self.inner.wait_for_turn(subtask)


class Subfolder(ForwardingStorage):
    """The folder `folder` of another storage."""

    def __init__(self, inner: Storage, folder: str) -> None:
        super().__init__(inner)
        self.folder = folder

    @override
    def _inner_name(self, name: str) -> str:
        return f"{self.folder}/{name}"

    @property
    @override
    def uri(self) -> str:
        return f"{self.inner.uri}/{self.folder}"

    @override
    def names(self, prefix: str = "") -> list[str]:
        found = super().names(self._inner_name(prefix) if prefix else self.folder)
        return [name.removeprefix(f"{self.folder}/") for name in found]

    @override
    def clean_temporary(self, older_than_s: float) -> int:
        """Do nothing; `inner` cleans all folders."""
        return 0
