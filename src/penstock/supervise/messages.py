"""What a supervisor and the program that it started say to each other: a JSON line each, over one socket. Both ends on one machine.

The program inherits the socket; its number is in the environment. Neither end needs the other: a supervisor whose program says nothing goes
by how that ends, and a program whose supervisor is gone goes on alone.
"""

from __future__ import annotations

import os
import stat

import msgspec

from penstock.decoding import decoded

ENVIRONMENT = "PENSTOCK_SUPERVISOR_FD"
"""Has the number of the socket, and which one it is: what a program starts may have the variable, and another socket of that number."""
ID_ENVIRONMENT = "PENSTOCK_SUPERVISOR_ID"
"""Has a word that all attempts of one supervisor have in common, see `ownership.attempts`."""
LONGEST_LINE = 64 * 1024
LONGEST_TEXT = 2000
"""Characters of an error: it may have a user's rows in it."""


def socket_name(number: int) -> str:
    """What `ENVIRONMENT` says of a socket of this process; '' where there is none of this number."""
    try:
        found = os.fstat(number)
    except OSError:
        return ""
    return f"{number}:{found.st_dev}:{found.st_ino}" if stat.S_ISSOCK(found.st_mode) else ""


class ProgramReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the program says. Every line has some of it."""

    job: str = ""
    """A job is about to start, of this name and in this storage. From now on the program hears wishes over the socket."""
    storage: str = ""
    """Alone: where a job lies that the program starts, and whose signals it takes itself."""
    going: bool = False
    """The first batch is done."""
    signal: int = 0
    """This signal came to the program itself: what follows from it is left to the supervisor, which may have got the same one."""
    failed: str = ""
    """The class of the error with which the job failed."""
    why: str = ""
    exit_code: int = 0
    """Which code that failure has, see `exit_codes`: a program of the user's may end with any."""


class SignalRequest(msgspec.Struct, frozen=True):
    """What the supervisor says: do what you do at this signal."""

    signal: int


SAID = msgspec.json.Decoder(ProgramReport)
WISHES = msgspec.json.Decoder(SignalRequest)


def line(words: ProgramReport | SignalRequest) -> bytes:
    """As it is sent."""
    return msgspec.json.encode(words) + b"\n"


class Lines:
    """Cuts what comes into lines. One that is too long, or is no line of ours, is passed over."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, more: bytes) -> list[bytes]:
        """The lines that are whole now."""
        *whole, self._rest = (self._rest + more).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            self._rest = b""
        return [one for one in whole if one]


def read_said(lines: list[bytes]) -> list[ProgramReport]:
    """What can be understood of them."""
    found: list[ProgramReport] = []
    for one in lines:
        try:
            found.append(decoded(SAID, one))
        except msgspec.DecodeError:
            continue
    return found
