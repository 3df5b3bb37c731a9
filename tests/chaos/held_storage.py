"""A storage that stops a driver at the most delicate moment: every sink has pre-committed, the metadata is not written."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path

from penstock.storage import Storage

_METADATA = re.compile(r"chk-(\d+)/_metadata")
POLL_S = 0.02


class HeldStorage(Storage):
    """Does what `inner` does; once, before a `_metadata` beyond `after` is created, it touches `held` and waits for `release`.

    Tasks get `inner` itself.
    """

    def __init__(self, inner: Storage, folder: Path, after: int) -> None:
        self.inner = inner
        self.held, self.release = held_path(folder), release_path(folder)
        self.after = after

    def __reduce__(self):
        return _itself, (self.inner,)

    @property
    def uri(self) -> str:
        return self.inner.uri

    def put(self, name: str, data: bytes) -> None:
        self.inner.put(name, data)

    def create(self, name: str, data: bytes) -> bool:
        match = _METADATA.fullmatch(name)
        if match and int(match[1]) > self.after and not self.held.exists():
            self.held.write_text(match[1])
            while not self.release.exists():
                time.sleep(POLL_S)
        return self.inner.create(name, data)

    def get(self, name: str) -> bytes:
        return self.inner.get(name)

    def upload(self, local: Path, name: str) -> None:
        self.inner.upload(local, name)

    def download(self, name: str, local: Path) -> None:
        self.inner.download(name, local)

    def names(self, prefix: str = "") -> list[str]:
        return self.inner.names(prefix)

    def delete(self, names: Iterable[str]) -> None:
        self.inner.delete(names)


def held_path(folder: Path) -> Path:
    return folder / "held"


def release_path(folder: Path) -> Path:
    return folder / "release"


def _itself(storage: Storage) -> Storage:
    return storage
