"""Start options as errors name them: `restore=3` in a program, `--restore 3` on the command line. Driver.

While the command line runs a user's file to find the job in it, no job may start: it would run there, and then once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import ConfigError
from penstock.places import AT, calling_place


class _Asked:
    """Where the start was asked for. One for the process: a restart says the same, in another thread."""

    on_the_command_line = False


@contextmanager
def asked_on_the_command_line() -> Iterator[None]:
    """Inside, options are named as one types them."""
    before, _Asked.on_the_command_line = _Asked.on_the_command_line, True
    try:
        yield
    finally:
        _Asked.on_the_command_line = before


def takeover() -> str:
    """What fences off a run that seems to be alive."""
    return "--takeover" if _Asked.on_the_command_line else "takeover=True"


def restore(checkpoint: int) -> str:
    """What goes on from this checkpoint."""
    return f"--restore {checkpoint}" if _Asked.on_the_command_line else f"restore={checkpoint}"


def savepoint(folder: str) -> str:
    """What begins with a savepoint."""
    return f"--savepoint {folder}" if _Asked.on_the_command_line else f"savepoint={folder!r}"


def claim() -> str:
    """What makes a savepoint the job's own."""
    return "--claim" if _Asked.on_the_command_line else "claim=True"


def drop_state(*uids: str) -> str:
    """What allows that the state of these operators is lost; without any, the name of the option."""
    if _Asked.on_the_command_line:
        return " ".join(f"--drop-state {uid}" for uid in uids) or "--drop-state"
    return f"drop_state={uids!r}" if uids else "drop_state"


def drop_sources(*uids: str) -> str:
    """What allows that the positions of these sources are lost; without any, the name of the option."""
    if _Asked.on_the_command_line:
        return " ".join(f"--drop-source {uid}" for uid in uids) or "--drop-source"
    return f"drop_sources={uids!r}" if uids else "drop_sources"


def rename(old: str = "", new: str = "") -> str:
    """What says that a uid has become another; without any, the name of the option."""
    if _Asked.on_the_command_line:
        return f"--rename {old}={new}" if old else "--rename"
    return f"rename={{{old!r}: {new!r}}}" if old else "rename"


def positions(uid: str = "", value: object = "") -> str:
    """What sets where a source goes on; without one, the name of the option."""
    if _Asked.on_the_command_line:
        return f"--position {uid}={value}" if uid else "--position"
    return f"positions={{{uid!r}: {value!r}}}" if uid else "positions"


def available_now() -> str:
    """What ends the job when the input known now is done."""
    return "--available-now" if _Asked.on_the_command_line else "available_now=True"


def drain() -> str:
    """What brings event time to its end with the input."""
    return "--drain" if _Asked.on_the_command_line else "drain=True"


# ── jobs that must not start ───────────────────────────────────────────────────────────────────


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
