"""The interface of durable storage. Driver and executors.

What a caller may rely on:
1. When `put`, `create` or `upload` has returned, the file survives the death of every process and of the machine.
2. A reader sees the whole file or none: never a part, never a mixture of two writes.
3. `create` has exactly one winner, whoever calls it from wherever.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

from penstock.errors import UnavailableError
from penstock.ids import SYSTEM_RANDOMNESS, SubtaskId


class Storage(ABC):
    """Files under one root, by relative name with '/' (never a leading '/', never '..').

    An instance is pickled into Spark tasks: it may hold settings, never an open connection.
    Whatever goes wrong outside (network, permissions, a full disk) is raised as `UnavailableError` with the
    name and the cause; a missing file is `FileNotFoundError`. Callers retry `UnavailableError` only.
    """

    @property
    @abstractmethod
    def uri(self) -> str:
        """Where this is: with a scheme, characters escaped, so that `open_storage` finds the same place again."""

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Write `data`, replacing what is there."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Write `data` if nothing is there; False, and no change, if something is."""

    @abstractmethod
    def get(self, name: str) -> bytes:
        """Read a small file whole."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """The bytes of a file, None when there is none. Cheap: the file itself is not read."""

    @abstractmethod
    def upload(self, local: Path, name: str) -> None:
        """Copy an immutable local file here; may be called again for the same file by several processes."""

    @abstractmethod
    def download(self, name: str, local: Path) -> None:
        """Copy a file to `local`, whose folder exists; `local` appears whole or not at all."""

    @abstractmethod
    def names(self, prefix: str = "") -> list[str]:
        """List the names of all files below the folder `prefix`, sorted; empty when there is no such folder."""

    def folders(self, prefix: str = "") -> list[str]:
        """The names of the folders directly below the folder `prefix`, sorted: for those who need not know what is in them."""
        start = f"{prefix}/" if prefix else ""
        inside = (name.removeprefix(start).partition("/") for name in self.names(prefix))
        return sorted({first for first, slash, _ in inside if slash})

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete files, and folders that become empty; a name that is gone already is no error."""

    def wait_for_turn(self, subtask: SubtaskId) -> None:  # noqa: B027 - most storages need no queue
        """Return when this subtask may begin to upload. Called in the background; a storage that limits uploads blocks here."""

    def clean_temporary(self, older_than_s: float) -> int:  # noqa: ARG002 - most storages leave nothing behind
        """Delete what writers left that died `older_than_s` ago or earlier; returns how many files."""
        return 0

    def check_place(self) -> None:  # noqa: B027 - of most storages nothing is known before they are used
        """Raise `ConfigError` if a job can never be kept here; writes nothing. Called before anything else is done for a start.

        From here on the first write may make the root; after that nothing does, so that a storage that vanishes stays away.
        """

    def check_writable(self) -> None:
        """Write, read back and delete a probe; raises `UnavailableError` with what to do. Leaves nothing behind."""
        probe = f"_probe-{SYSTEM_RANDOMNESS.token()}"
        self.put(probe, b"penstock")
        self.get(probe)
        self.delete([probe])

    def _unavailable(self, operation: str, name: str, cause: str, error: OSError) -> UnavailableError:
        """The error for what an implementation could not do."""
        return UnavailableError(
            f"storage {self.uri} could not {operation} {name or '/'!r}: {cause}",
            operation=operation,
            name=name,
            uri=self.uri,
            errno=error.errno,
        )
