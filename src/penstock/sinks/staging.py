"""Staged transactions on a file system: their folders, their errors and the log of their commits. Driver and executors.

The commit log proves that a transaction was committed (driver only):

    <folder>/<run>-<block>.<writer>.log      one line per transaction: <checkpoint>.<subtask>.<attempt>.<token>

A file in its final place proves little: users and compactions remove files. So each commit is recorded here, and
the record is kept. Nothing shorter is safe: any number of checkpoints is retained, a savepoint may be restored
after months, and either makes the driver commit again what it names. A record such as 'everything up to checkpoint
n' would also cover transactions that were aborted on the way to n. A line takes about 20 bytes: 8 subtasks that
commit every 10 seconds write 1.5 MB a day. Whole blocks may be deleted by hand once no checkpoint or savepoint
that old will be restored.

Each process writes to its own files and reads all of them: a run that was replaced and its successor may record the
same commit, and NFS does not append to a file atomically.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import msgspec

from penstock.errors import CommitLostError, ConfigError, UnavailableError
from penstock.ids import SYSTEM_RANDOMNESS
from penstock.sinks.transaction import NamedTransaction
from penstock.storage.file_system import sync_file, sync_folder
from penstock.storage.place_checks import refuse_stale_listings

PRIVATE_FOLDER = 0o700
_PRIVATE_FILE = 0o600
_OPEN_FOLDER = 0o777
_IN_THE_WAY = "There is a file where a folder should be, or a folder where a file should be."
_NEVER_PASSES: Mapping[int | None, str] = {
    errno.EXDEV: "It is on another file system than the folder of the sink, so files cannot be moved there in one step.",
    errno.ENAMETOOLONG: "The path is longer than the file system allows.",
    errno.ELOOP: "Its symbolic links form a loop.",
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.EISDIR: _IN_THE_WAY,
    errno.ENOTEMPTY: _IN_THE_WAY,
}


class StagedTransaction(NamedTransaction, frozen=True):
    """A transaction whose rows wait in files until their checkpoint completes."""


# Registers the type before there are threads, see `snapshot.mailbox`.
msgspec.json.Decoder(StagedTransaction)


def local_path(setting: str, value: str | os.PathLike[str]) -> Path:
    """Turn the user's setting into an absolute path: a task may run in another working directory."""
    text = os.fspath(value)
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):(//)?", text)
    if scheme is not None and scheme[1].lower() != "file":
        raise ConfigError(
            f"{setting} {text!r} has the scheme {scheme[1]!r}, but this sink writes only to a local or mounted file system; mount it, "
            "or give a plain path that the driver and all executors share",
            setting=setting,
            value=text,
        )
    plain = re.sub(r"(?i)^file:(//)?", "", text)
    if not plain or "\0" in plain:
        raise ConfigError(f"{setting} {text!r} is not a path", setting=setting, value=text)
    return Path(os.path.abspath(plain))  # noqa: PTH100 - resolve() follows links, which may change later


def make_private(folder: Path, top: Path) -> None:
    """Create `folder` and missing folders up to and including `top`, for this user alone; existing folders stay as they are."""
    top.parent.mkdir(parents=True, exist_ok=True)
    for each in reversed(folders_up_to(folder, top)):
        each.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def create_private(path: Path) -> None:
    """Create an empty file that only this user can read: it will hold rows that are not committed."""
    path.touch(mode=_PRIVATE_FILE, exist_ok=False)


def check_writable(folder: Path, called: str, *, below: Path | None = None, mode: int = _OPEN_FOLDER) -> None:
    """Create a folder and write to it, or raise `ConfigError`; `called` names it in the message. Before the query starts.

    New folders above it are made durable up to `below`, or only its parent if `below` is not given.
    """
    refuse_stale_listings(folder, f"{called}:")
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"penstock")
        for above in folders_up_to(folder.parent, below or folder.parent):
            sync_folder(above)
    except OSError as error:
        raise ConfigError(
            f"{called} cannot be written: {error}; create it, or give this user the right to write there",
            path=str(folder),
        ) from error


def names_in(folder: Path) -> list[str]:
    """List the names in a folder, sorted; empty if it does not exist. Unlike with `glob`, a folder that cannot be listed is an error."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - only names are needed
    except FileNotFoundError:
        return []


@contextmanager
def storage_errors(doing: str, path: Path) -> Iterator[None]:
    """Raise errors of the file system as `UnavailableError`, which is retried."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"cannot {doing} {path}: {error}; check space, permissions and the mount",
            path=str(path),
            cause=str(error),
        ) from error


@contextmanager
def commit_errors(doing: str, path: Path) -> Iterator[None]:
    """Like `storage_errors`, for a commit: an error that retrying cannot change becomes `CommitLostError`."""
    try:
        with storage_errors(doing, path):
            yield
    except UnavailableError as error:
        cause = error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in _NEVER_PASSES:
            raise
        raise CommitLostError(
            f"cannot {doing} {path}, which a completed checkpoint promised: {cause}. {_NEVER_PASSES[cause.errno]} The staged files are "
            "kept. Correct this, then start the job again: it commits them first",
            path=str(path),
            cause=str(cause),
        ) from cause


def folders_up_to(folder: Path, top: Path) -> list[Path]:
    """List `folder` and the folders above it, `top` included."""
    return [folder, *(above for above in folder.parents if above == top or top in above.parents)]


CHECKPOINTS_PER_BLOCK = 10_000
_WRITER = SYSTEM_RANDOMNESS.token(8)
_BLOCK = re.compile(r"(\d+)-(\d+)\..*\.log")
_LINE = re.compile(r"(\d+)\.\d+\.\d+\.[0-9a-f]+")


class CommitLog:
    """The committed transactions of one job and sink below `folder`, which may not exist yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def append(self, transactions: Iterable[StagedTransaction]) -> None:
        """Record these commits durably; recording one twice does no harm."""
        with storage_errors("record commits in", self._folder):
            for block, members in groupby(sorted(transactions, key=self._block), key=self._block):
                self._append_lines(block, [_line(member) for member in members])

    def _append_lines(self, name: str, lines: list[str]) -> None:
        block = self._folder / f"{name}.{_WRITER}.log"
        created = not block.exists()
        block.parent.mkdir(parents=True, exist_ok=True)
        with block.open("a", encoding="ascii") as file:
            # The leading newline ends a line that a crash cut off; such a line is not valid.
            file.write("\n" + "\n".join(lines) + "\n")
        sync_file(block)
        if created:
            for folder in folders_up_to(self._folder, self._folder.parent):
                sync_folder(folder)

    def committed(self, transactions: Iterable[StagedTransaction]) -> set[StagedTransaction]:
        """Return those that are recorded."""
        found: set[StagedTransaction] = set()
        with storage_errors("read the commits in", self._folder):
            for block, members in groupby(sorted(transactions, key=self._block), key=self._block):
                lines = set().union(*(_complete_lines(file) for file in self._files(block)))
                found |= {member for member in members if _line(member) in lines}
        return found

    def newest(self) -> tuple[int, int] | None:
        """Return the newest run with a recorded commit, and its newest checkpoint."""
        with storage_errors("read the commits in", self._folder):
            blocks = [match for name in names_in(self._folder) if (match := _BLOCK.fullmatch(name))]
            for run, block in sorted({(int(match[1]), int(match[2])) for match in blocks}, reverse=True):
                lines = set().union(*(_complete_lines(file) for file in self._files(f"{run}-{block}")))
                numbers = [int(match[1]) for line in lines if (match := _LINE.fullmatch(line))]
                if numbers:
                    return run, max(numbers)
        return None

    def _files(self, block: str) -> list[Path]:
        """List the files of a block. `glob` would take a folder that cannot be listed for an empty one."""
        names = names_in(self._folder)
        return [
            self._folder / name for name in names if name.startswith(f"{block}.") and name.endswith(".log")
        ]

    def _block(self, transaction: StagedTransaction) -> str:
        return f"{transaction.run}-{transaction.checkpoint // CHECKPOINTS_PER_BLOCK}"


def _line(transaction: StagedTransaction) -> str:
    return f"{transaction.checkpoint}.{transaction.subtask}.{transaction.attempt}.{transaction.token}"


def _complete_lines(block: Path) -> set[str]:
    try:
        text = block.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return set()
    return set(text.split("\n")[:-1])
