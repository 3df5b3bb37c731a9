"""Working files of one machine: a folder for each run of the job, side by side. Driver and executors.

    <local_dir>/<job>-<hash of its storage>/run-<k>-<token>/state/<operator>/...

Every file here is a copy of what is, or will be, in storage, and may be lost at any time. A new run takes over what an earlier run left,
file by file, where size and checksum are right: that is local recovery. It links such a file into its own folder, so that an earlier
run, should it still be alive, can delete nothing that a later one uses.

The token is drawn for every run. Run numbers start again when somebody deletes a job's storage; without it the new life would find a
folder of its own name with files of their names in it, and take what the old life counted for its own state.
"""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import xxhash

from penstock.errors import UnavailableError

_log = logging.getLogger(__name__)

MERGED = "merged"
"""Where results of background merges wait until a handle names them."""
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
    """What the system refuses about working files may pass: a full disk, too many open files, a folder that was deleted."""
    try:
        yield
    except OSError as cause:
        raise UnavailableError(
            f"cannot use the working folder {path}: {cause}; check that it is there, its space and its permissions; it is tried again",
            path=str(path),
        ) from cause


def job_dir(base: Path | None, job: str, storage_uri: str) -> Path:
    """The folder of a job, which all its runs on this machine share."""
    root = base or Path(tempfile.gettempdir()) / "penstock"
    return root / f"{job}-{xxhash.xxh3_64_hexdigest(storage_uri.encode())}"


def run_dir(job_folder: Path, run: int, token: str = "") -> Path:
    """The folder of one run."""
    return job_folder / (f"{_PREFIX}{run}-{token}" if token else f"{_PREFIX}{run}")


def begin_run(local_dir: Path, named: AbstractSet[str]) -> None:
    """Make the folder of a run, and leave of earlier runs only files that the restored state names.

    Called by the driver and by every task; only the first of them on a machine has something to do.
    """
    try:
        local_dir.mkdir(parents=True)
    except FileExistsError:
        return
    for earlier in earlier_runs(local_dir):
        for path in _files(earlier):
            if path.relative_to(earlier).as_posix() not in named:
                path.unlink(missing_ok=True)


def earlier_runs(local_dir: Path) -> list[Path]:
    """The folders of runs before this one on this machine, the newest first."""
    own = _number(local_dir)
    if own is None:
        return []
    try:
        found = [
            (number, path) for path in local_dir.parent.iterdir() if (number := _number(path)) is not None
        ]
    except FileNotFoundError:
        return []
    return [path for number, path in sorted(found, reverse=True) if number < own]


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
    return (path for path in folder.rglob("*") if path.is_file())
