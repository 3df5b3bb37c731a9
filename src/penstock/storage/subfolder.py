"""A folder of a storage as a storage of its own. Driver and executors."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from penstock.storage.base import Storage
from penstock.storage.forwarding import ForwardingStorage


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
