"""Deleting a savepoint, for `flink savepoint -dispose`. The dashboard's process.

What always holds:
1. Only what has a readable manifest of ours is a savepoint, and only the files that it names are deleted, then the manifest
   itself, and the folder if nothing else is in it.
2. Nothing is deleted in the storage of a job, nor behind a link inside the folder. The folder is held open from the first look to the
   last deed: whatever takes its place meanwhile is not touched.
3. The manifest goes last: a disposal that was interrupted can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.engine.savepoints import check_folder, shown
from penstock.errors import ConfigError, UnavailableError
from penstock.ownership.claim import JOB_FILE
from penstock.savepoint.manifest import MANIFEST, MOST_BYTES, Manifest, checked_manifest, read_manifest
from penstock.storage import LocalStorage, Storage, open_storage
from penstock.storage.held_folder import BehindLinkError, HeldFolder
from penstock.wording import counted


def dispose(path: str, jobs: Iterable[Storage]) -> int:
    """Delete the savepoint at a path or `file:` URI; says how many files that were. `jobs`: the storages of all that are known.

    Raises `ConfigError`, `CorruptStateError` or `IncompatibleStateError` when it is none, or none that may be deleted; nothing is deleted
    then.
    """
    folder = opened(path)
    try:
        with _held(folder) as held:
            _refuse_in_a_job(held, path)
            for job in jobs:
                check_folder(job, path)
            names = [file.path for file in _manifest(held, folder).files]
            for name in names:
                _refuse_behind_a_link(held, folder, name)
            return _deleted(held, folder, [*names, MANIFEST])
    except OSError as error:
        raise UnavailableError(
            f"the savepoint {shown(folder)} could not be deleted, or not all of it: {error}; its manifest goes last, so see to it that it "
            "can be written there, and ask again",
            folder=shown(folder),
        ) from error


def _held(folder: LocalStorage) -> HeldFolder:
    try:
        return HeldFolder(folder.root)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(
            f"{folder.uri} is no savepoint: nothing is there; check the path", folder=folder.uri
        ) from error


def _manifest(held: HeldFolder, folder: LocalStorage) -> Manifest:
    """That of the folder which is held; what the path leads to by now only says in words why there is none."""
    _refuse_behind_a_link(held, folder, MANIFEST)
    if held.is_file(MANIFEST):
        return checked_manifest(held.read(MANIFEST, MOST_BYTES), folder)
    read_manifest(folder)
    raise ConfigError(
        f"{folder.uri} has become another folder; nothing was deleted; ask again", folder=folder.uri
    )


def _deleted(held: HeldFolder, folder: LocalStorage, names: Sequence[str]) -> int:
    for done, name in enumerate(names):
        try:
            held.delete(name)
        except BehindLinkError as error:
            raise ConfigError(
                f"{name} in {shown(folder)} lies behind a link that has come in this moment: {counted(done, 'file')} of the savepoint "
                "were deleted, and nothing behind the link; see who makes links there, then ask again",
                name=name,
            ) from error
    held.remove_if_empty()  # unless somebody else's files are in it
    return len(names)


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


def _refuse_in_a_job(held: HeldFolder, path: str) -> None:
    """Also in one that nobody has told this server of."""
    if held.lies_below(JOB_FILE):
        raise ConfigError(
            f"{path} lies in the storage of a job: nothing was deleted; what lies there is the job's own business",
            path=path,
        )


def _refuse_behind_a_link(held: HeldFolder, folder: LocalStorage, name: str) -> None:
    """Before anything is deleted; should a link come later, the deed refuses."""
    try:
        held.is_file(name)
    except BehindLinkError as error:
        raise ConfigError(
            f"{name} in {shown(folder)} is a link, or lies behind one: nothing was deleted; Penstock makes no links in savepoints, so "
            "look at what it is, and delete it by hand",
            name=name,
        ) from error
