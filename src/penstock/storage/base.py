"""The interface of durable storage. Driver and executors.

A caller may rely on this:
1. When `put`, `create` or `upload` has returned, the file survives a crash of every process and of the machine.
2. A reader sees the whole file or none: never a part, never a mixture of two writes.
3. `create` has exactly one winner among all processes on all machines.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

from penstock.errors import ConfigError, UnavailableError
from penstock.ids import SYSTEM_RANDOMNESS, SubtaskId


class Storage(ABC):
    """Files under one root, by relative name with '/' (never a leading '/', never '..').

    An instance is pickled into Spark tasks: it may hold settings, never an open connection.
    External failures (network, permissions, a full disk) are raised as `UnavailableError` with the name and
    the cause; a missing file is `FileNotFoundError`. Callers retry `UnavailableError` only.
    """

    @property
    @abstractmethod
    def uri(self) -> str:
        """The address, with a scheme and escaped characters, so that `open_storage` opens the same place again."""

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Write `data`, replacing an existing file."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Write `data` if the file does not exist; otherwise change nothing and return False."""

    @abstractmethod
    def get(self, name: str) -> bytes:
        """Return the content of a small file."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist. The file is not read."""

    @abstractmethod
    def upload(self, local: Path, name: str) -> None:
        """Copy an immutable local file here; may be called again for the same file by several processes."""

    @abstractmethod
    def download(self, name: str, local: Path) -> None:
        """Copy a file to `local`, whose folder exists; `local` appears complete or not at all."""

    @abstractmethod
    def names(self, prefix: str = "") -> list[str]:
        """List the names of all files below the folder `prefix`, sorted; empty when there is no such folder."""

    def folders(self, prefix: str = "") -> list[str]:
        """List the names of the folders directly below the folder `prefix`, sorted."""
        start = f"{prefix}/" if prefix else ""
        inside = (name.removeprefix(start).partition("/") for name in self.names(prefix))
        return sorted({first for first, slash, _ in inside if slash})

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete files, and folders that become empty; a missing file is not an error."""

    def wait_for_turn(self, subtask: SubtaskId) -> None:  # noqa: B027 - most storages need no queue
        """Return when this subtask may begin to upload. Called in the background; a storage that limits uploads blocks here."""

    def clean_temporary(self, older_than_s: float) -> int:  # noqa: ARG002 - most storages leave nothing behind
        """Delete temporary files of writers that crashed at least `older_than_s` ago; returns their number."""
        return 0

    def check_place(self) -> None:  # noqa: B027 - most storages cannot check this before they are used
        """Raise `ConfigError` if a job can never be kept here; writes nothing. Called before anything else at a start.

        After this call the first write may create the root. Later writes do not, so that a storage that vanishes is not created again.
        """

    def check_writable(self) -> None:
        """Write, read back and delete a probe; raises `UnavailableError` with what to do. Leaves nothing behind."""
        probe = f"_probe-{SYSTEM_RANDOMNESS.token()}"
        self.put(probe, b"penstock")
        self.get(probe)
        self.delete([probe])

    def _check_all_operations(self) -> None:
        """Try what a job needs, and that of two creates of one name one alone succeeds. Leaves nothing behind."""
        folder = f"_probe-{SYSTEM_RANDOMNESS.token()}"
        names = [f"{folder}/created", f"{folder}/put"]
        self.put(names[1], b"")
        try:
            problem = self._problem(folder, names)
        except BaseException:
            with contextlib.suppress(UnavailableError):
                self.delete(names)
            raise
        self.delete(names)
        if not problem and self.names(folder):
            problem = "a listing shows what was just deleted"
        if problem:
            raise ConfigError(
                f"storage {self.uri} cannot hold a job: {problem}; nothing was started; use another store",
                storage=self.uri,
            )

    def _problem(self, folder: str, names: list[str]) -> str:
        won = [self.create(names[0], data) for data in (b"first", b"second")]
        if won != [True, False] or self.get(names[0]) != b"first":
            return "a second create of one name replaces the first, so two runs could own it"
        return "" if self.names(folder) == names else "a listing does not show what was just written"

    def _unavailable(self, operation: str, name: str, cause: str, error: OSError) -> UnavailableError:
        """The error for an operation that failed."""
        return UnavailableError(
            f"storage {self.uri} could not {operation} {name or '/'!r}: {cause}",
            operation=operation,
            name=name,
            uri=self.uri,
            errno=error.errno,
        )
