"""Deleting a savepoint, for `flink savepoint -dispose`. The dashboard's process.

What always holds:
1. Only what has a readable manifest of ours is a savepoint, and only the files that it names are deleted, then the manifest
   itself, and the folder if nothing else is in it.
2. Nothing is deleted in the storage of a job, nor behind a link inside the folder.
3. The manifest goes last: a disposal that was interrupted can be repeated.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from penstock.engine.savepoints import check_folder, shown
from penstock.errors import ConfigError
from penstock.ownership.claim import JOB_FILE
from penstock.savepoint.manifest import MANIFEST, read_manifest
from penstock.storage import LocalStorage, Storage, open_storage


def dispose(path: str, jobs: Iterable[Storage]) -> int:
    """Delete the savepoint at a path or `file:` URI; says how many files that were. `jobs`: the storages of all that are known.

    Raises `ConfigError`, `CorruptStateError` or `IncompatibleStateError` when it is none, or none that may be deleted; nothing is deleted
    then.
    """
    folder = opened(path)
    _refuse_in_a_job(folder, path)
    for job in jobs:
        check_folder(job, path)
    manifest = read_manifest(folder)
    names = [file.path for file in manifest.files]
    for name in [*names, MANIFEST]:
        _refuse_behind_a_link(folder, name)
    folder.delete(names)
    folder.delete([MANIFEST])
    with contextlib.suppress(OSError):  # somebody else's files are in it: it stays
        folder.root.rmdir()
    return len(names) + 1


def opened(path: str) -> LocalStorage:
    """The folder at an absolute path, or a `file:` URI."""
    if not path.startswith(("/", "file:/")):
        raise ConfigError(
            f"{path!r} is no absolute path: what it means depends on where a process was started; nothing was done; give a path that "
            "begins with /, or a file: URI",
            path=path,
        )
    try:
        folder = open_storage(path)
        folder.size(MANIFEST)
    except (OSError, ValueError) as error:  # a name that is too long, or has a zero in it
        raise ConfigError(
            f"{path[:100]!r} cannot be a folder: {error}; nothing was done; choose another path"
        ) from error
    assert isinstance(folder, LocalStorage)  # there is no other kind behind these
    return folder


def _refuse_in_a_job(folder: LocalStorage, path: str) -> None:
    """Also in one that nobody has told this server of."""
    real = Path(os.path.realpath(folder.root))
    for above in (real, *real.parents):
        if (above / JOB_FILE).exists():
            raise ConfigError(
                f"{path} lies in the storage of a job, {above}: nothing was deleted; what lies there is the job's own business",
                path=path,
            )


def _refuse_behind_a_link(folder: LocalStorage, name: str) -> None:
    real = Path(os.path.realpath(folder.root), *name.split("/"))
    if Path(os.path.realpath(real)) != real:
        raise ConfigError(
            f"{name} in {shown(folder)} is a link, or lies behind one: nothing was deleted; Penstock makes no links in savepoints, so "
            "look at what it is, and delete it by hand",
            name=name,
        )
