"""Bring the runs of a handle to this machine and open them. Runs in tasks on executors.

A run is verified once, when it comes to this machine: it appears under its name only after size and checksum
were right. A file that is there already was written or verified by this run of the job, so only its size is
looked at.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import xxhash

from penstock.errors import CorruptStateError, IncompatibleStateError, InternalError
from penstock.state.backends.base import RunRef, StateHandle, StateLayout, Workplace
from penstock.state.backends.run_file import Run, fingerprint, load_run, run_label

READABLE_BACKENDS = frozenset({"memory", "filesystem"})
"""Both keep the same runs, so either opens what the other wrote."""


class WriterHeader(Protocol):
    """What stored state says about the job that wrote it."""

    @property
    def parallelism(self) -> int:
        """How many subtasks there were."""

    @property
    def max_parallelism(self) -> int:
        """How many key groups there were."""


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
    check_writers(workplace, [run.header for run in runs])
    return runs


def _open_run(workplace: Workplace, layout: StateLayout, ref: RunRef) -> Run:
    if ref.name:
        return load_run(ref, local_file(workplace, ref), layout)
    _verify(ref, len(ref.inline), xxhash.xxh3_64_hexdigest(ref.inline))
    return load_run(ref, ref.inline, layout)


def local_file(workplace: Workplace, ref: RunRef) -> Path:
    """Where a named file lies on this machine; fetched from storage and verified when it was not here."""
    path = workplace.local_path(ref.name)
    try:
        if os.path.getsize(path) == ref.size:  # noqa: PTH202  one call for 'exists' and 'size'
            return path
    except FileNotFoundError:
        pass
    _download(workplace, ref, path)
    return path


def _download(workplace: Workplace, ref: RunRef, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unverified = path.with_name(f"{path.name}.{uuid4().hex}.tmp")
    try:
        workplace.storage.download(ref.name, unverified)
        _verify(ref, *fingerprint(unverified))
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


def _verify(ref: RunRef, size: int, checksum: str) -> None:
    if (size, checksum) == (ref.size, ref.checksum):
        return
    raise CorruptStateError(
        f"{run_label(ref)} is not what was written: expected {ref.size} bytes with checksum {ref.checksum}, "
        f"found {size} bytes with checksum {checksum}; restore an older checkpoint",
        run=run_label(ref),
        expected=(ref.size, ref.checksum),
        found=(size, checksum),
    )


def check_writers(workplace: Workplace, headers: Sequence[WriterHeader]) -> None:
    """Refuse state whose order is not known.

    Runs of former subtasks hold different keys, so they can stand in any order, but only if all were written
    at one parallelism. A run from before one rescale next to a run from after it may hold an old value in
    front of a new one.
    """
    for header in headers:
        if header.max_parallelism != workplace.max_parallelism:
            raise IncompatibleStateError(
                f"the state of {workplace.subtask} was written with max_parallelism "
                f"{header.max_parallelism}, the job now has {workplace.max_parallelism}; "
                "it cannot change in the life of a job: set it back",
                subtask=str(workplace.subtask),
                expected=header.max_parallelism,
                found=workplace.max_parallelism,
            )
    parallelisms = sorted({header.parallelism for header in headers})
    if len(parallelisms) > 1:
        raise InternalError(
            f"the handle of {workplace.subtask} mixes runs written at parallelism {parallelisms}: "
            "after a rescale every subtask must freeze once before its handle enters a checkpoint",
            subtask=str(workplace.subtask),
            parallelisms=parallelisms,
        )
