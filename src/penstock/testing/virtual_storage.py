"""Storage in the memory of this process: as durable as the process, and as quick. Runs wherever tests run."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from pathlib import Path

from penstock.storage import Storage
from penstock.storage.names import checked_file_name, checked_prefix


class VirtualStorage(Storage):
    """Files by name, none of them on a disk. It cannot be pickled into another process, so it is for simulations."""

    def __init__(self, uri: str = "virtual://storage") -> None:
        self._uri = uri
        self._files: dict[str, bytes] = {}
        self._names: list[str] = []

    @property
    def uri(self) -> str:
        """See `Storage.uri`."""
        return self._uri

    def put(self, name: str, data: bytes) -> None:
        """See `Storage.put`."""
        if checked_file_name(name) not in self._files:
            insort(self._names, name)
        self._files[name] = bytes(data)

    def create(self, name: str, data: bytes) -> bool:
        """See `Storage.create`."""
        if checked_file_name(name) in self._files:
            return False
        self.put(name, data)
        return True

    def get(self, name: str) -> bytes:
        """See `Storage.get`."""
        try:
            return self._files[checked_file_name(name)]
        except KeyError:
            raise FileNotFoundError(f"{name} is not in {self.uri}") from None

    def size(self, name: str) -> int | None:
        """See `Storage.size`."""
        found = self._files.get(checked_file_name(name))
        return None if found is None else len(found)

    def upload(self, local: Path, name: str) -> None:
        """See `Storage.upload`."""
        self.put(name, local.read_bytes())

    def download(self, name: str, local: Path) -> None:
        """See `Storage.download`."""
        local.write_bytes(self.get(name))

    def names(self, prefix: str = "") -> list[str]:
        """See `Storage.names`."""
        folder = checked_prefix(prefix)
        if not folder:
            return list(self._names)
        first = bisect_left(self._names, f"{folder}/")
        behind = bisect_left(self._names, f"{folder}0")  # '0' follows '/'
        return self._names[first:behind]

    def delete(self, names: Iterable[str]) -> None:
        """See `Storage.delete`."""
        for name in list(names):
            if self._files.pop(checked_file_name(name), None) is not None:
                self._names.remove(name)
