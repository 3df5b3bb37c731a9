"""Copy one file of state from this machine into storage. Driver and executors.

What is uploaded must be what the handle promises. A working file that was damaged since it was written, by a bad disk or a crash of the
machine, must never replace a good copy that an earlier upload has left in storage.
"""

from __future__ import annotations

from pathlib import Path

from penstock.errors import UnavailableError
from penstock.state.backends.run_file import fingerprint
from penstock.state.handle import RunRef, StateHandle
from penstock.storage import Storage


def refs_of(handle: StateHandle, names: frozenset[str]) -> list[RunRef]:
    """The files of a handle with these names, in the order of the names."""
    return sorted((run for run in handle.runs if run.name in names), key=lambda run: run.name)


def store(storage: Storage, local_dir: Path, ref: RunRef) -> None:
    """Upload a working file; raises `UnavailableError` when it is not what was written any more."""
    path = local_dir / ref.name
    found = fingerprint(path)
    if found != (ref.size, ref.checksum):
        raise UnavailableError(
            f"the working file {path} has changed since it was written: expected {ref.size} bytes with checksum {ref.checksum}, "
            f"found {found[0]} bytes with checksum {found[1]}; it is not stored, check the disk",
            path=str(path),
            expected=(ref.size, ref.checksum),
            found=found,
        )
    storage.upload(path, ref.name)
