"""Which names a checkpoint may give to files. What it names is read, copied and, when it is subsumed, deleted. Driver.

Metadata has a checksum, which an accident does not get right. Somebody who writes it on purpose does: then a name must not reach beyond the
files of state, whoever's they are.
"""

from __future__ import annotations

import re

from penstock.checkpoint.completed import Completed
from penstock.errors import CorruptStateError

_STATE = re.compile(r"state(/[^/\0]+)+")
_NOTE = re.compile(r"\d+(/[^/\0]+)+")


def is_note(path: str) -> bool:
    """Whether a source of Spark's may have noted something here: below its number."""
    return _NOTE.fullmatch(path) is not None and _stays(path)


def is_state_file(name: str) -> bool:
    """Whether a file of state, or a copy of a source's note, may be called so."""
    return _STATE.fullmatch(name) is not None and _stays(name)


def check_names(completed: Completed, name: str) -> None:
    """Raise `CorruptStateError` for metadata that names anything else."""
    for file in completed.files:
        if not is_state_file(file):
            raise _foreign(name, file)
    for note in completed.barrier.source_log:
        if not is_note(note.path):
            raise _foreign(name, note.path)


def _stays(path: str) -> bool:
    return not {"..", "."} & set(path.split("/"))


def _foreign(name: str, file: str) -> CorruptStateError:
    return CorruptStateError(
        f"{name} is corrupt: it names {file!r}, which is no file of state; nothing was read or deleted; restore an older checkpoint",
        name=name,
        file=file,
    )
