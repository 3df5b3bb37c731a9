"""Bring the files of a handle to this machine and open them. Runs in tasks on executors.

A file is verified once, when it comes to this run on this machine: it appears under its name only after size and checksum were right,
whether an earlier run left it here or it came from storage. A file that is there already was written or verified by this run,
so only its size is looked at.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from uuid import uuid4

import xxhash

from penstock.errors import CorruptStateError, IncompatibleStateError
from penstock.state.backends.base import RunRef, StateHandle, StateLayout, Workplace
from penstock.state.backends.run_file import Run, fingerprint, load_run, run_label
from penstock.state.backends.writers import check_writers
from penstock.state.local_files import earlier_runs

_log = logging.getLogger(__name__)

READABLE_BACKENDS = frozenset({"memory", "filesystem"})
"""Both keep the same runs, so either opens what the other wrote."""


def open_runs(workplace: Workplace, layout: StateLayout, handle: StateHandle | None) -> tuple[Run, ...]:
    """The runs of a handle, newest first."""
    if handle is None:
        return ()
    if handle.backend not in READABLE_BACKENDS:
        raise IncompatibleStateError(
            f"the state of {workplace.subtask} was written by backend {handle.backend!r}, "
            "which keeps no runs; use that backend, or start from a savepoint",
            subtask=str(workplace.subtask),
            backend=handle.backend,
        )
    # After a rescale several former handles may name the same run.
    runs = tuple(_open_run(workplace, layout, ref) for ref in dict.fromkeys(handle.runs))
    check_writers(workplace, [(run_label(ref), run.header) for run in runs if (ref := run.ref)])
    return runs


def _open_run(workplace: Workplace, layout: StateLayout, ref: RunRef) -> Run:
    if ref.name:
        return load_run(ref, local_file(workplace, ref), layout)
    verify(ref, len(ref.inline), xxhash.xxh3_64_hexdigest(ref.inline))
    return load_run(ref, ref.inline, layout)


def open_verified(workplace: Workplace, layout: StateLayout, ref: RunRef) -> Run:
    """Open a run whose bytes are checked once more; a damaged working file is removed, so that the next look fetches it again."""
    path = local_file(workplace, ref)
    try:
        verify(ref, *fingerprint(path))
    except CorruptStateError:
        path.unlink(missing_ok=True)
        raise
    return load_run(ref, path, layout)


def local_file(workplace: Workplace, ref: RunRef) -> Path:
    """Where a named file lies on this machine; taken over from an earlier run, or fetched from storage, when it was not here."""
    path = workplace.local_path(ref.name)
    if _has_size(path, ref) or _take_merged(workplace, ref, path):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    if _take_over(workplace, ref, path):
        workplace.origins.reused(ref.size)
    else:
        _download(workplace, ref, path)
        workplace.origins.fetched(ref.size)
    return path


def _has_size(path: Path, ref: RunRef) -> bool:
    try:
        return os.path.getsize(path) == ref.size  # noqa: PTH202  one call for 'exists' and 'size'
    except FileNotFoundError:
        return False


def _take_merged(workplace: Workplace, ref: RunRef, path: Path) -> bool:
    """Put a run in place that was merged in the background on this machine."""
    waiting = workplace.merged_path(ref.name)
    if not _has_size(waiting, ref):
        return False
    with contextlib.suppress(FileNotFoundError):  # another task was faster
        waiting.replace(path)
    return _has_size(path, ref)


def _take_over(workplace: Workplace, ref: RunRef, path: Path) -> bool:
    """Link a file that an earlier run left on this machine, if it is still what was written."""
    for earlier in earlier_runs(workplace.local_dir):
        left = earlier / ref.name
        try:
            if not _has_size(left, ref):
                continue
            if fingerprint(left) != (ref.size, ref.checksum):
                _log.warning("%s on this machine has changed; it is fetched from storage instead", left)
                left.unlink(missing_ok=True)
                continue
            _link(left, path)
        except OSError as error:  # lost meanwhile, or not readable: storage has it
            _log.info("%s cannot be used again: %s", left, error)
            continue
        return True
    return False


def _link(source: Path, path: Path) -> None:
    scratch = path.with_name(f"{path.name}.{uuid4().hex}.tmp")
    try:
        os.link(source, scratch)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _download(workplace: Workplace, ref: RunRef, path: Path) -> None:
    unverified = path.with_name(f"{path.name}.{uuid4().hex}.tmp")
    try:
        workplace.storage.download(ref.name, unverified)
        verify(ref, *fingerprint(unverified))
        unverified.replace(path)
    except FileNotFoundError as cause:
        raise CorruptStateError(
            f"{ref.name} is missing in {workplace.storage.uri} (expected {ref.size} bytes, "
            f"checksum {ref.checksum}); restore an older checkpoint",
            run=ref.name,
            expected=(ref.size, ref.checksum),
            found=None,
        ) from cause
    finally:
        unverified.unlink(missing_ok=True)


def verify(ref: RunRef, size: int, checksum: str) -> None:
    """Raise `CorruptStateError` unless size and checksum are those of the handle."""
    if (size, checksum) == (ref.size, ref.checksum):
        return
    raise CorruptStateError(
        f"{run_label(ref)} is not what was written: expected {ref.size} bytes with checksum {ref.checksum}, "
        f"found {size} bytes with checksum {checksum}; restore an older checkpoint",
        run=run_label(ref),
        expected=(ref.size, ref.checksum),
        found=(size, checksum),
    )
