"""The folder of a savepoint while it is being made: claimed first, its manifest written last. Driver.

Whoever makes one, of a checkpoint or of DataFrames, does it through here: two never write into one folder, and half a savepoint is none.
"""

from __future__ import annotations

from penstock.errors import ConfigError
from penstock.savepoint.manifest import MAKING, MANIFEST, Manifest, encode
from penstock.storage import Storage

_OWN = ("state/", "sources/")


def claim_folder(to: Storage, token: str) -> None:
    """The folder is this maker's alone, and has nothing in it. What an earlier attempt with the same token left is deleted.

    Raises `ConfigError` where anything else lies.
    """
    to.check_place()
    mine = token.encode()
    if not to.create(MAKING, mine):
        if to.get(MAKING) != mine:
            raise ConfigError(
                f"{to.uri} holds an unfinished savepoint of somebody else: it is being made, or was given up; choose another folder, or "
                "delete it",
                folder=to.uri,
            )
        to.delete([name for name in to.names() if name.startswith(_OWN)])
    foreign = [name for name in to.names() if name != MAKING]
    if foreign:
        to.delete([MAKING])
        what = "a savepoint" if MANIFEST in foreign else f"other files, such as {foreign[0]}"
        raise ConfigError(f"{to.uri} holds {what}; choose an empty folder", folder=to.uri)


def finish(to: Storage, manifest: Manifest) -> None:
    """Make it a savepoint: all files that the manifest names are there."""
    if not to.create(MANIFEST, encode(manifest)):
        raise ConfigError(f"{to.uri} has a savepoint by now; choose another folder", folder=to.uri)
    to.delete([MAKING])


def leave_only(to: Storage, manifest: Manifest) -> None:
    """Delete what attempts of tasks have left of which no answer came. Before `finish`, in a folder that was claimed."""
    needed = {file.path for file in manifest.files}
    to.delete([name for name in to.names() if name.startswith(_OWN) and name not in needed])


def give_up(to: Storage) -> None:
    """Empty a folder that was claimed: what was to be written cannot be."""
    to.delete([name for name in to.names() if name.startswith(_OWN)])
    to.delete([MAKING])
