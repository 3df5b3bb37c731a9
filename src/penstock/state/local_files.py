"""Working files of one machine: a folder for each run of the job. Driver and executors.

    <local_dir>/<job>-<hash of its storage>/run-<k>-<token>/state/<operator>/...

The default of `local_dir` is `penstock-<user>` in the machine's folder for temporary files, which every user may write to. So this
folder and the folders of jobs are created for this user alone. A folder that is a link, or belongs to another user, is refused, and
nothing is deleted through a link.

Every file here is a copy of a file that is, or will be, in storage, and may be lost at any time. A new run reuses the files of an earlier
run if size and checksum are right: this is local recovery. It links each file into its own folder, so that an earlier run that is
still alive cannot delete a file that a later run uses.

Every run draws a new token. Run numbers start again after a job's storage was deleted. Without the token, the new run could find a folder
of its own name with files of the same names, and mistake the old job's state for its own.

A file of state never changes, but a disk may corrupt it. So every process hashes a file before its first use, and remembers the result by
device, inode, size and time of the last write. Later batches only look at the folder: hashing runs at some GB/s, and the state of a
subtask may have many. A file that was written to since, or another file of the same name, is hashed again.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import xxhash

from penstock.errors import ConfigError, UnavailableError
from penstock.state.handle import FileRef

_log = logging.getLogger(__name__)

MERGED = "merged"
"""Where results of background merges wait until a handle names them."""
_DEFAULT_ROOT = "penstock-"
_PRIVATE = 0o700
_OTHERS_WRITE = 0o022
_PREFIX = "run-"
_NAME = re.compile(rf"{_PREFIX}(\d+)(?:-[0-9a-f]+)?")


@dataclass
class Origins:
    """Where the files that a task opened came from, beyond those that its own run had here already."""

    reused_files: int = 0
    reused_bytes: int = 0
    fetched_files: int = 0
    fetched_bytes: int = 0

    def reused(self, size: int) -> None:
        """A file of an earlier run on this machine was right."""
        self.reused_files += 1
        self.reused_bytes += size

    def fetched(self, size: int) -> None:
        """A file came from storage."""
        self.fetched_files += 1
        self.fetched_bytes += size


@contextmanager
def working_files(path: Path) -> Iterator[None]:
    """Errors of the operating system about working files may be temporary: a full disk, too many open files, a deleted folder."""
    try:
        yield
    except OSError as cause:
        raise UnavailableError(
            f"cannot use the working folder {path}: {cause}; check that it is there, its space and its permissions",
            path=str(path),
        ) from cause


def job_dir(base: Path | None, job: str, storage_uri: str) -> Path:
    """The folder of a job, which all its runs on this machine share."""
    root = base or Path(tempfile.gettempdir()) / f"{_DEFAULT_ROOT}{os.geteuid()}"
    return root / f"{job}-{xxhash.xxh3_64_hexdigest(storage_uri.encode())}"


def make_job_dir(folder: Path) -> None:
    """Make the folder of a job for this user alone; raises `ConfigError` where another user could have put it there, or could change it."""
    root = folder.parent
    with working_files(folder):
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=_PRIVATE, exist_ok=True)
        # a folder that the user gave is the user's affair
        if re.fullmatch(rf"{_DEFAULT_ROOT}\d+", root.name):
            _check_own(root)
            _tighten(root)
        folder.mkdir(mode=_PRIVATE, exist_ok=True)
        _check_own(folder)


def _check_own(folder: Path) -> None:
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        problem = f"is a link to {folder.readlink()}"
    elif found.st_uid != os.geteuid():
        problem = f"belongs to the user {found.st_uid}, not to {os.geteuid()}, who runs the job"
    else:
        return
    raise _not_trusted(folder, problem)


def _tighten(folder: Path) -> None:
    """Refuse a folder that others may write to: they may have placed files there already."""
    mode = stat.S_IMODE(folder.lstat().st_mode)
    if mode & _OTHERS_WRITE:
        raise _not_trusted(folder, f"can be written by others (mode {mode:o})")
    if mode != _PRIVATE:
        folder.chmod(_PRIVATE)


def _not_trusted(folder: Path, problem: str) -> ConfigError:
    return ConfigError(
        f"the working folder {folder} {problem}: another user could read or delete files through it; nothing was touched; remove it, or "
        "give the job a local_dir of its own",
        path=str(folder),
    )


def run_dir(job_folder: Path, run: int, token: str = "") -> Path:
    """The folder of one run."""
    return job_folder / (f"{_PREFIX}{run}-{token}" if token else f"{_PREFIX}{run}")


def begin_run(local_dir: Path, named: AbstractSet[str]) -> None:
    """Create the folder of a run, and keep of earlier runs only files that the restored state names.

    The driver and every task call it; only the first call on a machine has an effect.
    """
    make_job_dir(local_dir.parent)
    with working_files(local_dir):
        try:
            local_dir.mkdir(mode=_PRIVATE)
        except FileExistsError:
            return
        for earlier in earlier_runs(local_dir):
            for path in _files(earlier):
                if path.relative_to(earlier).as_posix() not in named:
                    path.unlink(missing_ok=True)


def earlier_runs(local_dir: Path) -> list[Path]:
    """The folders of runs before this one on this machine, the newest first; never a link to one."""
    own = _number(local_dir)
    if own is None:
        return []
    found = [
        (number, path)
        for path in _entries(local_dir.parent)
        if (number := _number(path)) is not None and number < own and not path.is_symlink()
    ]
    return [path for _, path in sorted(found, reverse=True)]


def forget_earlier_runs(local_dir: Path) -> None:
    """Remove what earlier runs left on this machine. Called when a checkpoint of this run is complete, again and again."""
    for earlier in earlier_runs(local_dir):
        shutil.rmtree(earlier, ignore_errors=True)


def forget_unnamed(
    local_dir: Path, *, run: int, batch: int, uid: str, subtask: int, named: AbstractSet[str], merging: bool
) -> None:
    """Delete what a subtask wrote in earlier batches of this run and nothing names any more.

    `merging`: a merge of the subtask was under way when the batch began. Nothing names its result yet, so that what was merged waits.
    """
    state = Path("state") / uid
    for folder in (local_dir / state, *(() if merging else (local_dir / MERGED / state,))):
        for path in _entries(folder):
            writer, written, index, *_ = [*path.name.split("-"), "", "", ""]
            mine = (writer, index) == (str(run), str(subtask)) and written.isdigit() and int(written) < batch
            if mine and (state / path.name).as_posix() not in named:
                path.unlink(missing_ok=True)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _number(path: Path) -> int | None:
    found = _NAME.fullmatch(path.name)
    return None if found is None else int(found[1])


def _files(folder: Path) -> Iterator[Path]:
    """All files below, links to something included but not followed."""
    return (Path(above) / name for above, _, names in os.walk(folder) for name in names)


MOST_REMEMBERED = 65_536
"""More files than the subtasks of a worker use at a time. A forgotten file is only hashed again."""

Fingerprint = tuple[int, str]


def fingerprint(path: Path) -> Fingerprint:
    """Size and checksum of a file."""
    if os.path.getsize(path) == 0:  # noqa: PTH202  an empty file cannot be mapped
        return 0, xxhash.xxh3_64_hexdigest(b"")
    with pa.memory_map(str(path)) as mapped:
        data = mapped.read_buffer()
        return data.size, xxhash.xxh3_64_hexdigest(data)


class HashedFiles:
    """The fingerprints of files that one process has hashed. A file keeps its fingerprint when it is renamed or linked."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int, int], Fingerprint] = {}
        self._lock = threading.Lock()

    def hash(self, path: Path) -> Fingerprint:
        """Hash the whole file, even if it is known, and remember the result."""
        identity = _identity(path)  # before its bytes: what is written meanwhile makes it another
        found = fingerprint(path)
        with self._lock:
            self._known.pop(identity, None)
            self._known[identity] = found
            while len(self._known) > MOST_REMEMBERED:
                del self._known[next(iter(self._known))]
        return found

    def known(self, path: Path) -> Fingerprint:
        """The fingerprint of a file, hashed only if this process has not done so since the last write to it."""
        found = self._known.get(_identity(path))
        return found if found is not None else self.hash(path)

    def refuse_changed(self, path: Path, ref: FileRef, follows: str) -> None:
        """Hash the whole file; raise `UnavailableError` if it has changed. `follows` is the message's part about the consequence."""
        found = self.hash(path)
        if found != (ref.size, ref.checksum):
            raise UnavailableError(
                f"the working file {path} has changed since it was written: expected {ref.size} bytes with checksum {ref.checksum}, found "
                f"{found[0]} bytes with checksum {found[1]}; {follows}; check the disk",
                path=str(path),
                expected=(ref.size, ref.checksum),
                found=found,
            )


def _identity(path: Path) -> tuple[int, int, int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


HASHED_FILES = HashedFiles()
