"""While the command line runs a user's file to find the job in it, no job may start: it would run here, and then once more. Driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import ConfigError
from penstock.places import AT, calling_place

GUARD = 'if __name__ == "__main__":'


class _Loading:
    """The file that is being loaded: one for the process, since a program may start its job in any thread."""

    file: Path | None = None


@contextmanager
def loading(file: Path) -> Iterator[None]:
    """Every start of a job is refused inside."""
    before, _Loading.file = _Loading.file, file
    try:
        yield
    finally:
        _Loading.file = before


def refuse_while_loading(call: str) -> None:
    """Called by whatever starts a job, before anything else; `call` is what the user wrote."""
    file, place = _Loading.file, calling_place()
    if file is None:
        return
    error = ConfigError(
        f"{file.name if place is None else place.short}: {call} starts the job while the command line only looks for it in "
        f"{file.name}; nothing was started. Put that line under `{GUARD}`: then `python {file.name}` runs the job as before, "
        f"and `penstock run {file.name}` starts it itself",
        file=str(file) if place is None else place.file,
        line=None if place is None else place.line,
    )
    if place is not None:
        error.add_note(f"{AT}{place}")
    raise error
