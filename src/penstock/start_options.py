"""How an option of a start is named to whoever gave it: `restore=3` in a program, `--restore 3` on the command line. Driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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
