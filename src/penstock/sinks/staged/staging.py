"""How what is staged is found again and made durable on a file system. Driver and executors."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from penstock.errors import CommitLostError, ConfigError, UnavailableError
from penstock.sinks.transaction import NamedTransaction
from penstock.storage.file_system import sync_folder
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
