"""Bring the files of a handle to this machine and open them. Runs in tasks on executors.

A file appears under its name only after size and checksum were right, whether an earlier run left it here or it came from storage. Every
process hashes it once more before it first uses it (`checksums`): a disk may have changed it since, and a merge would give it a new,
right checksum. What is not right any more comes from storage. Only what is wrong or missing there is corrupt state.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import xxhash

from penstock.errors import CorruptStateError, IncompatibleStateError, InternalError, UnavailableError
from penstock.state.backends.base import FileRef, StateHandle, StateLayout, Workplace
from penstock.state.backends.sorted_file import SortedFile, file_label, load_sorted_file
from penstock.state.keys import share_groups
from penstock.state.local_files import HASHED_FILES, earlier_runs, working_files
from penstock.storage.file_system import beside, link_or_copy
from penstock.wording import duration


class WriterHeader(Protocol):
    """The header of stored state: which subtask wrote it."""

    @property
    def uid(self) -> str:
        """The uid of the operator."""

    @property
    def subtask(self) -> int:
        """The index of the subtask that wrote it."""

    @property
    def parallelism(self) -> int:
        """How many subtasks there were."""

    @property
    def max_parallelism(self) -> int:
        """How many key groups there were."""


def check_writers(workplace: Workplace, written: Sequence[tuple[str, WriterHeader]]) -> None:
    """Refuse state that is not this subtask's, or whose order is not known; every header comes with the name of its file.

    Files of former subtasks hold different keys, so they can stand in any order, but only if all were written
    at one parallelism. A file from before one rescale next to a file from after it may hold an old value in
    front of a new one.
    """
    for label, header in written:
        _check_key_groups(workplace, header)
        _check_owner(workplace, label, header)
    parallelisms = sorted({header.parallelism for _, header in written})
    if len(parallelisms) > 1:
        raise InternalError(
            f"the handle of {workplace.subtask} mixes files written at parallelism {parallelisms}: "
            "after a rescale every subtask must freeze once before its handle enters a checkpoint",
            subtask=str(workplace.subtask),
            parallelisms=parallelisms,
        )


def _check_key_groups(workplace: Workplace, header: WriterHeader) -> None:
    if header.max_parallelism != workplace.max_parallelism:
        raise IncompatibleStateError(
            f"the state of {workplace.subtask} was written with max_parallelism "
            f"{header.max_parallelism}, the job now has {workplace.max_parallelism}; "
            "it cannot change in the life of a job: set it back",
            subtask=str(workplace.subtask),
            expected=header.max_parallelism,
            found=workplace.max_parallelism,
        )


def _check_owner(workplace: Workplace, label: str, header: WriterHeader) -> None:
    """Read by another subtask, state would look as if its keys had never been there."""
    mine = workplace.subtask
    same_operator = header.uid in (mine.uid, *workplace.former_uids)
    if same_operator and share_groups(mine.index, workplace.parallelism, header.subtask, header.parallelism):
        return
    writer = f"{header.uid}-{header.subtask}"
    raise CorruptStateError(
        f"{label} holds state of {writer} of {header.parallelism}, but the checkpoint names it for {mine} of "
        f"{workplace.parallelism}: its handles are mixed up; restore an older checkpoint",
        file=label,
        expected=str(mine),
        found=writer,
    )


_log = logging.getLogger(__name__)

ARRIVAL_PATIENCE_S = 20.0
"""How long an attempt of a task waits for a file that another machine is storing. Spark makes four attempts on a cluster."""
FIRST_LOOK_S = 0.02
LONGEST_LOOK_S = 1.0
TELL_AFTER_S = 5.0
READABLE_BACKENDS = frozenset({"memory", "filesystem"})
"""Both keep the same sorted files, so either opens what the other wrote."""


def open_files(
    workplace: Workplace, layout: StateLayout, handle: StateHandle | None
) -> tuple[SortedFile, ...]:
    """The sorted files of a handle, newest first."""
    if handle is None:
        return ()
    if handle.backend not in READABLE_BACKENDS:
        raise IncompatibleStateError(
            f"the state of {workplace.subtask} was written by backend {handle.backend!r}, "
            "which keeps no sorted files; use that backend, or start from a savepoint",
            subtask=str(workplace.subtask),
            backend=handle.backend,
        )
    # After a rescale several former handles may name the same file.
    files = tuple(_open_file(workplace, layout, ref) for ref in dict.fromkeys(handle.refs))
    check_writers(workplace, [(file_label(ref), file.header) for file in files if (ref := file.ref)])
    return files


def _open_file(workplace: Workplace, layout: StateLayout, ref: FileRef) -> SortedFile:
    if ref.name:
        return load_sorted_file(ref, local_file(workplace, ref), layout)
    verify(ref, len(ref.inline), xxhash.xxh3_64_hexdigest(ref.inline))
    return load_sorted_file(ref, ref.inline, layout)


def open_verified(workplace: Workplace, layout: StateLayout, ref: FileRef) -> SortedFile:
    """Open a file and always hash its bytes again, for callers that write them under another checksum."""
    return load_sorted_file(ref, local_file(workplace, ref, again=True), layout)


def check_unchanged(workplace: Workplace, ref: FileRef) -> None:
    """Raise `UnavailableError` when an open file is not what it was: what was read from it may be wrong. The next try fetches it."""
    path = workplace.local_path(ref.name)
    with working_files(path.parent):
        HASHED_FILES.refuse_changed(path, ref, "the next try takes the copy in storage")


def local_file(workplace: Workplace, ref: FileRef, *, again: bool = False) -> Path:
    """Where a named file lies on this machine; taken over from an earlier run, or fetched from storage, when it was not here.

    `again`: its bytes are read even if this process has done so before.
    """
    path = workplace.local_path(ref.name)
    with working_files(path.parent):
        if _is_right(path, ref, again=again) or _take_merged(workplace, ref, path):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        if _take_over(workplace, ref, path):
            workplace.origins.reused(ref.size)
        else:
            _download(workplace, ref, path)
            workplace.origins.fetched(ref.size)
    return path


def _is_right(path: Path, ref: FileRef, *, again: bool = False) -> bool:
    """Whether the file is here, whole and unchanged. One that is not stays until the right one takes its place: others may look at it."""
    if not _has_size(path, ref):
        return False
    try:
        found = HASHED_FILES.hash(path) if again else HASHED_FILES.known(path)
    except FileNotFoundError:
        return False
    if found != (ref.size, ref.checksum):
        _log.warning("%s on this machine has changed; it is fetched from storage instead", path)
        return False
    return True


def _has_size(path: Path, ref: FileRef) -> bool:
    try:
        return os.path.getsize(path) == ref.size  # noqa: PTH202  one call for 'exists' and 'size'
    except FileNotFoundError:
        return False


def _take_merged(workplace: Workplace, ref: FileRef, path: Path) -> bool:
    """Put a file in place that was merged in the background on this machine."""
    waiting = workplace.merged_path(ref.name)
    if not _is_right(waiting, ref):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        waiting.replace(path)
    except FileNotFoundError:
        _log.debug("%s was put in place by another task", path)
    return _is_right(path, ref)


def _take_over(workplace: Workplace, ref: FileRef, path: Path) -> bool:
    """Link a file that an earlier run left on this machine, if it is still what was written."""
    for earlier in earlier_runs(workplace.local_dir):
        left = earlier / ref.name
        try:
            if _is_right(left, ref) and _put_in_place(left, ref, path):
                return True
        except OSError as error:  # lost meanwhile, or not readable: storage has it
            _log.info("%s cannot be used again: %s", left, error)
    return False


def _put_in_place(left: Path, ref: FileRef, path: Path) -> bool:
    scratch = beside(path)
    try:
        if not link_or_copy(left, scratch) and not _is_right(scratch, ref):
            return False
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    return True


def _download(workplace: Workplace, ref: FileRef, path: Path) -> None:
    if ref.name in workplace.arriving:
        _await_arrival(workplace, ref)
    unverified = beside(path)
    try:
        workplace.storage.download(ref.name, unverified)
        verify(ref, *HASHED_FILES.hash(unverified))
        unverified.replace(path)
    except FileNotFoundError as cause:
        if workplace.storage.size(ref.name) is not None:
            raise  # it is there: what is gone is the folder on this machine
        raise CorruptStateError(
            f"{ref.name} is missing in {workplace.storage.uri} (expected {ref.size} bytes, "
            f"checksum {ref.checksum}); restore an older checkpoint",
            file=ref.name,
            expected=(ref.size, ref.checksum),
            found=None,
        ) from cause
    finally:
        unverified.unlink(missing_ok=True)


def _await_arrival(workplace: Workplace, ref: FileRef) -> None:
    """The previous version was just frozen on another machine, and its upload may still run while this batch begins."""
    clock, storage = workplace.clock, workplace.storage
    begun = clock.monotonic()
    pause_s = FIRST_LOOK_S
    while storage.size(ref.name) != ref.size:
        waited_s = clock.monotonic() - begun
        if waited_s >= ARRIVAL_PATIENCE_S:
            raise UnavailableError(
                f"{ref.name} is neither on this machine nor in {storage.uri}, after {duration(waited_s)}: the machine that wrote it is "
                "gone, or cannot store it; the job goes back to its checkpoint",
                file=ref.name,
                waited_s=waited_s,
            )
        clock.sleep(pause_s)
        pause_s = min(pause_s * 2, LONGEST_LOOK_S)
    waited_s = clock.monotonic() - begun
    if waited_s >= TELL_AFTER_S:
        _log.warning("%s: %s took %s to arrive in storage", workplace.subtask, ref.name, duration(waited_s))


def verify(ref: FileRef, size: int, checksum: str) -> None:
    """Raise `CorruptStateError` unless size and checksum are those of the handle."""
    if (size, checksum) == (ref.size, ref.checksum):
        return
    raise CorruptStateError(
        f"{file_label(ref)} is not what was written: expected {ref.size} bytes with checksum {ref.checksum}, "
        f"found {size} bytes with checksum {checksum}; restore an older checkpoint",
        file=file_label(ref),
        expected=(ref.size, ref.checksum),
        found=(size, checksum),
    )
