"""What the driver of the demonstration tells its supervisor: one JSON object a line on standard output. Both."""

from __future__ import annotations

import msgspec

from penstock.testing.kill_points import Moment


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The job has been taken over and restored; -1 means that there was no checkpoint."""

    run: int
    restored_from: int
    read: int


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """A batch or a checkpoint was finished."""

    batch: int
    checkpoint: int
    read: int


class Killed(msgspec.Struct, frozen=True, tag="killed"):
    """The driver is about to be killed. Another of its threads may still say something."""

    moment: Moment
    checkpoint: int


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The input is done, everything is committed."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The job gave up."""

    error: str


Ending = Killed | Finished | Failed
Message = Started | Moved | Killed | Finished | Failed


def read_message(line: bytes) -> Message | None:
    """Return the message in a line; None for what others print there."""
    try:
        message: Message = msgspec.json.decode(line, type=Message)
    except msgspec.DecodeError:
        return None
    return message
