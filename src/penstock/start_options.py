"""Start options as errors name them: `restore=3` in a program, `--restore 3` on the command line. Driver.

While the command line runs a user's file to find the job in it, no job may start: it would run there, and then once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from penstock.errors import ConfigError
from penstock.places import AT, calling_place


class StartArguments(TypedDict, total=False):
    """The arguments of `Job.start` that the command line can give; `Job.start` explains them."""

    available_now: bool
    restore: int | None
    takeover: bool
    drop_state: tuple[str, ...]
    drop_sources: tuple[str, ...]
    rename: Mapping[str, str]
    positions: Mapping[str, object]
    drain: bool
    savepoint: str | None
    claim: bool
    ui: str | bool | None
    ui_token: str | None
    ui_read_only: bool


class _Asked:
    """Where the start was requested. One for the process: a restart in another thread names options in the same way."""

    on_the_command_line = False


@contextmanager
def asked_on_the_command_line() -> Iterator[None]:
    """Inside the context, options are named as on the command line."""
    before, _Asked.on_the_command_line = _Asked.on_the_command_line, True
    try:
        yield
    finally:
        _Asked.on_the_command_line = before


def takeover() -> str:
    """The option that fences off a run that seems to be alive."""
    return "--takeover" if _Asked.on_the_command_line else "takeover=True"


def restore(checkpoint: int) -> str:
    """The option that resumes from this checkpoint."""
    return f"--restore {checkpoint}" if _Asked.on_the_command_line else f"restore={checkpoint}"


def savepoint(folder: str) -> str:
    """The option that starts from a savepoint."""
    return f"--savepoint {folder}" if _Asked.on_the_command_line else f"savepoint={folder!r}"


def claim() -> str:
    """The option that makes a savepoint the job's own."""
    return "--claim" if _Asked.on_the_command_line else "claim=True"


def drop_state(*uids: str) -> str:
    """The option that allows the loss of the state of these operators; without any, its name."""
    if _Asked.on_the_command_line:
        return " ".join(f"--drop-state {uid}" for uid in uids) or "--drop-state"
    return f"drop_state={uids!r}" if uids else "drop_state"


def drop_sources(*uids: str) -> str:
    """The option that allows the loss of the positions of these sources; without any, its name."""
    if _Asked.on_the_command_line:
        return " ".join(f"--drop-source {uid}" for uid in uids) or "--drop-source"
    return f"drop_sources={uids!r}" if uids else "drop_sources"


def rename(old: str = "", new: str = "") -> str:
    """The option that renames a uid; without any, its name."""
    if _Asked.on_the_command_line:
        return f"--rename {old}={new}" if old else "--rename"
    return f"rename={{{old!r}: {new!r}}}" if old else "rename"


def positions(uid: str = "", value: object = "") -> str:
    """The option that sets the position of a source; without one, its name."""
    if _Asked.on_the_command_line:
        return f"--position {uid}={value}" if uid else "--position"
    return f"positions={{{uid!r}: {value!r}}}" if uid else "positions"


def available_now() -> str:
    """The option that ends the job when the input known now is done."""
    return "--available-now" if _Asked.on_the_command_line else "available_now=True"


def drain() -> str:
    """The option that advances event time to its end with the input."""
    return "--drain" if _Asked.on_the_command_line else "drain=True"


# ── jobs that must not start ───────────────────────────────────────────────────────────────────


GUARD = 'if __name__ == "__main__":'


class _Loading:
    """The file that is being loaded: one for the process, since a program may start its job in any thread."""

    file: Path | None = None


@contextmanager
def loading(file: Path) -> Iterator[None]:
    """Refuse every start of a job inside the context."""
    before, _Loading.file = _Loading.file, file
    try:
        yield
    finally:
        _Loading.file = before


def refuse_while_loading(call: str) -> None:
    """Called first by everything that starts a job; `call` is the call in the user's file."""
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
