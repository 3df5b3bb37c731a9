"""A virtual clock and a storage in memory, for tests and simulations."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Iterable
from pathlib import Path

from typing_extensions import override

from penstock.storage import Storage
from penstock.storage.file_system import checked_file_name, checked_prefix

EPOCH_S = 1_700_000_000.0


class VirtualClock:
    """A `Clock` whose time passes only by `sleep`, `wait` and `advance`; `slept` lists every pause."""

    def __init__(self, wall_s: float = EPOCH_S) -> None:
        self._passed_s = 0.0
        self._wall_s = wall_s
        self.slept: list[float] = []

    def monotonic(self) -> float:
        """The seconds that have passed on this clock."""
        return self._passed_s

    def wall(self) -> float:
        """The time of day, in seconds since the epoch."""
        return self._wall_s + self._passed_s

    def sleep(self, seconds: float) -> None:
        """Move the clock forward at once, instead of waiting."""
        self.slept.append(seconds)
        self.advance(seconds)

    def wait(self, until: threading.Event, seconds: float) -> bool:
        """Let the whole time pass, because nothing sets the event meanwhile."""
        if not until.is_set():
            self.sleep(seconds)
        return until.is_set()

    def advance(self, seconds: float) -> None:
        """Move the clock forward by some seconds."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s")
        self._passed_s += seconds


class VirtualStorage(Storage):
    """A storage in memory. It cannot be pickled into another process, so it is for simulations."""

    def __init__(self, uri: str = "virtual://storage") -> None:
        self._uri = uri
        self._files: dict[str, bytes] = {}
        self._names: list[str] = []

    @property
    @override
    def uri(self) -> str:
        return self._uri

    @override
    def put(self, name: str, data: bytes) -> None:
        if checked_file_name(name) not in self._files:
            insort(self._names, name)
        self._files[name] = bytes(data)

    @override
    def create(self, name: str, data: bytes) -> bool:
        if checked_file_name(name) in self._files:
            return False
        self.put(name, data)
        return True

    @override
    def get(self, name: str) -> bytes:
        try:
            return self._files[checked_file_name(name)]
        except KeyError:
            raise FileNotFoundError(f"{name} is not in {self.uri}") from None

    @override
    def size(self, name: str) -> int | None:
        found = self._files.get(checked_file_name(name))
        return None if found is None else len(found)

    @override
    def upload(self, local: Path, name: str) -> None:
        self.put(name, local.read_bytes())

    @override
    def download(self, name: str, local: Path) -> None:
        local.write_bytes(self.get(name))

    @override
    def names(self, prefix: str = "") -> list[str]:
        folder = checked_prefix(prefix)
        if not folder:
            return list(self._names)
        first = bisect_left(self._names, f"{folder}/")
        behind = bisect_left(self._names, f"{folder}0")  # '0' follows '/'
        return self._names[first:behind]

    @override
    def delete(self, names: Iterable[str]) -> None:
        for name in list(names):
            if self._files.pop(checked_file_name(name), None) is not None:
                self._names.remove(name)


class VirtualObjectStore(VirtualStorage):
    """The same with the conditional put of an object store, see `exclusive_create.ConditionalStore`."""

    def __init__(self, uri: str = "virtual://object-store") -> None:
        super().__init__(uri)
        self._tokens: dict[str, str] = {}
        self.stored: set[str] = set()
        """The tokens of all files that were ever stored as new ones."""

    @override
    def put(self, name: str, data: bytes) -> None:
        super().put(name, data)
        self._tokens.pop(name, None)

    def put_new(self, name: str, data: bytes, token: str) -> bool:
        """Store a file with its token, if the name is free."""
        if not self.create(name, data):
            return False
        self._tokens[name] = token
        self.stored.add(token)
        return True

    def token_of(self, name: str) -> str | None:
        """The token with which a file was stored; None if there is no file."""
        return None if self.size(name) is None else self._tokens.get(name, "")
