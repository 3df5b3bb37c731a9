"""A storage that stops a driver at the most delicate moment: every sink has pre-committed, the metadata is not written."""

from __future__ import annotations

import re
import time
from pathlib import Path

from penstock.storage import Storage
from penstock.storage.forwarding import ForwardingStorage

_METADATA = re.compile(r"chk-(\d+)-r\d+/_metadata")
POLL_S = 0.02


class HeldStorage(ForwardingStorage):
    """Does what `inner` does; once, before a `_metadata` beyond `after` is created, it touches `held` and waits for `release`.

    Tasks get `inner` itself.
    """

    def __init__(self, inner: Storage, folder: Path, after: int) -> None:
        super().__init__(inner)
        self.held, self.release = held_path(folder), release_path(folder)
        self.after = after

    def __reduce__(self):
        return _itself, (self.inner,)

    def create(self, name: str, data: bytes) -> bool:
        match = _METADATA.fullmatch(name)
        if match and int(match[1]) > self.after and not self.held.exists():
            self.held.write_text(match[1])
            while not self.release.exists():
                time.sleep(POLL_S)
        return super().create(name, data)


def held_path(folder: Path) -> Path:
    return folder / "held"


def release_path(folder: Path) -> Path:
    return folder / "release"


def _itself(storage: Storage) -> Storage:
    return storage
