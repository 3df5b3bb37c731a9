"""How what is staged is found again and made durable on a file system. Driver and executors.

The proof that a transaction of a file sink was committed. Driver only.

    <folder>/<run>-<block>.<writer>.log      one line a transaction: <checkpoint>.<subtask>.<attempt>.<token>

A file in its final place proves little: users and compactions take files away. So each commit is written
down here, and kept for good. Nothing shorter is safe: checkpoints are retained in any number, a savepoint
may be restored after months, and either makes the driver commit again what it names. 'Everything up to
checkpoint n' would also claim transactions that were aborted on the way to n. A line takes about 20 bytes:
8 subtasks that commit every 10 seconds write 1.5 MB a day. Whole blocks may be deleted by hand once no
checkpoint or savepoint that old will be restored.

Each process writes to files of its own, and reads all: a run that was replaced and its successor may both write down the same
commit, and NFS does not add to the end of a file in one step.
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
from penstock.storage.places import refuse_stale_listings

PRIVATE_FOLDER = 0o700
_PRIVATE_FILE = 0o600
_OPEN_FOLDER = 0o777
_IN_THE_WAY = "There is a file where a folder should be, or a folder where a file should be."
_NEVER_PASSES: Mapping[int | None, str] = {
    errno.EXDEV: "It lies on another file system than the folder of the sink, to which nothing can be moved in one step.",
    errno.ENAMETOOLONG: "The path is longer than the file system allows.",
    errno.ELOOP: "Its links lead in a circle.",
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.EISDIR: _IN_THE_WAY,
    errno.ENOTEMPTY: _IN_THE_WAY,
}


class StagedTransaction(NamedTransaction, frozen=True):
    """One whose rows wait in files until their checkpoint completes."""


msgspec.json.Decoder(
    StagedTransaction
)  # so that `convert` meets a type that is known, see `snapshot.mailbox`


def local_path(setting: str, value: str | os.PathLike[str]) -> Path:
    """Turn what the user gave into an absolute path: a task may run in another working directory."""
    text = os.fspath(value)
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):(//)?", text)
    if scheme is not None and scheme[1].lower() != "file":
        raise ConfigError(
            f"{setting} {text!r} has the scheme {scheme[1]!r}, but this sink writes to a local or mounted "
            "file system "
            "only; mount it, or give a plain path that the driver and all executors share",
            setting=setting,
            value=text,
        )
    plain = re.sub(r"(?i)^file:(//)?", "", text)
    if not plain or "\0" in plain:
        raise ConfigError(f"{setting} {text!r} is not a path", setting=setting, value=text)
    return Path(os.path.abspath(plain))  # noqa: PTH100 - resolve() follows links, which may change later


def make_private(folder: Path, top: Path) -> None:
    """Make `folder`, and what is missing between it and `top`, `top` included, for this user alone; what exists stays as it is."""
    top.parent.mkdir(parents=True, exist_ok=True)
    for each in reversed(folders_up_to(folder, top)):
        each.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def create_private(path: Path) -> None:
    """Create an empty file that nobody else can read; rows that are not committed are nobody else's business."""
    path.touch(mode=_PRIVATE_FILE, exist_ok=False)


def check_writable(folder: Path, called: str, *, below: Path | None = None, mode: int = _OPEN_FOLDER) -> None:
    """Make a folder and write to it, or refuse it with `ConfigError`; `called` is what a message calls it. Before the query.

    The folders above it that may be new are made durable, up to `below`; without it only the one above.
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
    """What a folder holds, sorted; nothing if there is none. Unlike `glob`, a folder that cannot be listed is an error."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names are all that is needed
    except FileNotFoundError:
        return []


@contextmanager
def storage_errors(doing: str, path: Path) -> Iterator[None]:
    """Report whatever the file system says as something that may pass."""
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
    """As `storage_errors`, of a commit: what no further try would change ends the job, and a person must look."""
    try:
        with storage_errors(doing, path):
            yield
    except UnavailableError as error:
        cause = error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in _NEVER_PASSES:
            raise
        raise CommitLostError(
            f"cannot {doing} {path}, which a completed checkpoint promised: {cause}. {_NEVER_PASSES[cause.errno]} What was staged is kept. "
            "Put that right, then start the job again: it commits it first",
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
        """Write them down, durably; writing one down twice does no harm."""
        with storage_errors("record commits in", self._folder):
            for block, members in groupby(sorted(transactions, key=self._block), key=self._block):
                self._append_lines(block, [_line(member) for member in members])

    def _append_lines(self, name: str, lines: list[str]) -> None:
        block = self._folder / f"{name}.{_WRITER}.log"
        created = not block.exists()
        block.parent.mkdir(parents=True, exist_ok=True)
        with block.open("a", encoding="ascii") as file:
            # The leading newline ends a line that a crash tore: alone, that is no valid line.
            file.write("\n" + "\n".join(lines) + "\n")
        sync_file(block)
        if created:
            for folder in folders_up_to(self._folder, self._folder.parent):
                sync_folder(folder)

    def committed(self, transactions: Iterable[StagedTransaction]) -> set[StagedTransaction]:
        """Tell which of these were written down."""
        found: set[StagedTransaction] = set()
        with storage_errors("read the commits in", self._folder):
            for block, members in groupby(sorted(transactions, key=self._block), key=self._block):
                lines = set().union(*(_complete_lines(file) for file in self._files(block)))
                found |= {member for member in members if _line(member) in lines}
        return found

    def newest(self) -> tuple[int, int] | None:
        """The newest run that has a commit here, and its newest checkpoint."""
        with storage_errors("read the commits in", self._folder):
            blocks = [match for name in names_in(self._folder) if (match := _BLOCK.fullmatch(name))]
            for run, block in sorted({(int(match[1]), int(match[2])) for match in blocks}, reverse=True):
                lines = set().union(*(_complete_lines(file) for file in self._files(f"{run}-{block}")))
                numbers = [int(match[1]) for line in lines if (match := _LINE.fullmatch(line))]
                if numbers:
                    return run, max(numbers)
        return None

    def _files(self, block: str) -> list[Path]:
        """Not by `glob`, which takes a folder that cannot be listed for an empty one."""
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
