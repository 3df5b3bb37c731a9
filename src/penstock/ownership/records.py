"""The files below `runs/`: `<k>.json`, `<k>.restored`, `<k>.alive`, `<k>.ended` of run k (`.plan`, `.live`: see `status.journal`). Driver.

Anyone who can write to the storage may have written these files, and requests, answers and holds. Reading them must not harm the job: no
pipe that never ends, no file that fills the memory, no nesting that a decoder cannot follow.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from penstock.decoding import decoded
from penstock.errors import CorruptStateError
from penstock.storage import Storage
from penstock.wording import size

LARGEST_BYTES = 1 << 20
"""Ours have some hundred, or some thousand with the text of an error."""


def read_small(storage: Storage, name: str, decoder: msgspec.json.Decoder[_T]) -> _T:
    """What the file says. Raises `msgspec.DecodeError` when it is none of ours, `FileNotFoundError` when no file is there."""
    return decoded(decoder, small_content(storage, name))


def small_content(storage: Storage, name: str) -> bytes:
    """The same, not decoded yet."""
    found = storage.size(name)
    if found is None:
        raise FileNotFoundError(f"there is no file {name} in {storage.uri}")
    if found > LARGEST_BYTES:
        raise msgspec.DecodeError(
            f"it has {size(found)}, and none of ours has more than {size(LARGEST_BYTES)}"
        )
    return storage.get(name)


_FILE = re.compile(r"runs/(\d{1,18})\.(json|restored|alive|ended|plan|live)")
"""Anything else in the folder is not ours: file managers and network file systems leave their own."""

_ABOUT = {
    "json": (
        "who owns the job, and whether that run is alive",
        "Make sure that no run of the job is alive, then start it with takeover=True (--takeover): that does not need the file",
    ),
    "alive": (
        "when a run was last alive",
        "Delete the file, if no run of the job is alive, and start the job again",
    ),
    "restored": (
        "from which checkpoint a run went on, and so which checkpoints belong to the job",
        "Bring it back from a copy, or delete the job's folder to begin from nothing",
    ),
    "ended": ("how a run ended", "Delete the file, or leave it: no start reads it"),
}
"""What each kind of record is for, and what to do without it. A claim is never to be deleted: its number would be used twice."""

_T = TypeVar("_T")


def records(storage: Storage, *kinds: str) -> list[tuple[str, int]]:
    """The records of these kinds, each with its run."""
    matches = ((name, _FILE.fullmatch(name)) for name in storage.names("runs"))
    return [(name, int(match[1])) for name, match in matches if match and match[2] in kinds]


def read_record(storage: Storage, name: str, decoder: msgspec.json.Decoder[_T]) -> _T:
    """One of them. Decoders are made before there are threads, see `snapshot.mailbox`."""
    try:
        return decoded(decoder, small_content(storage, name))
    except msgspec.DecodeError as error:
        raise damaged(storage, name, str(error)) from error


def damaged(storage: Storage, name: str, why: str) -> CorruptStateError:
    """The error for a record that cannot be what was written."""
    what, advice = _ABOUT[name.rpartition(".")[2]]
    return CorruptStateError(
        f"{name} in {storage.uri} is not readable: {why}. It says {what}. Nothing was changed. {advice}",
        name=name,
    )
