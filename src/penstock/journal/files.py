"""The files of the journal in storage, and how they are read back: at any time, whatever lies there. Driver; wherever one looks.

    events/<started>-<token>-<n>.jsonl   what one writer has told, a line an event; written anew as it grows, no more once n+1 is there
    runs/<k>.plan                        what the job is
    runs/<k>.live                        what it does at this moment

No start reads them. A line that cannot be read is passed over and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from penstock.decoding import decoded
from penstock.journal.events import Event
from penstock.journal.live import Live
from penstock.journal.plan import Plan
from penstock.ownership.small_files import LARGEST_BYTES, read_small
from penstock.storage import Storage

SEGMENT_BYTES = 64 * 1024
"""A file that is as large gets a successor: it is written anew whenever something happens."""
KEEP_BYTES = 4 * 1024 * 1024
KEEP_FILES = 400
"""So much of the journal is kept: some thousand checkpoints. Each start of the program has a file of its own, however little is in it."""

_NAME = re.compile(r"events/(\d{13})-([0-9a-f]{16})-(\d{6})\.jsonl")
_EVENTS = msgspec.json.Decoder(Event)
_PLANS = msgspec.json.Decoder(Plan)
_LIVES = msgspec.json.Decoder(Live)
_T = TypeVar("_T")


def segment_name(started: float, token: str, number: int) -> str:
    """The name of a file of events. Names in order are in the order of the writers' beginnings."""
    return f"events/{int(started * 1000):013d}-{token}-{number:06d}.jsonl"


def segments(storage: Storage) -> list[str]:
    """All files of events, the oldest first."""
    return [name for name in storage.names("events") if _NAME.fullmatch(name)]


def too_many(storage: Storage, names: Iterable[str]) -> list[str]:
    """Those of the oldest that are beyond what is kept."""
    newest_first = sorted(names, reverse=True)
    kept_bytes, old = 0, []
    for number, name in enumerate(newest_first):
        kept_bytes += storage.size(name) or 0
        if number and (number >= KEEP_FILES or kept_bytes > KEEP_BYTES):
            old.append(name)
    return old


class ReadEvents(msgspec.Struct, frozen=True):
    """What could be read of a journal: in the order in which it happened."""

    events: tuple[Event, ...]
    unreadable: int = 0
    """Lines, or whole files, that could not be read: of a newer version, or damaged."""


def read_segment(storage: Storage, name: str) -> ReadEvents:
    """One file, in the order in which it was written."""
    lines = _lines(storage, name)
    if lines is None:
        return ReadEvents((), 1)
    found: list[Event] = []
    for line in lines:
        try:
            found.append(decoded(_EVENTS, line))
        except msgspec.DecodeError:
            continue
    return ReadEvents(tuple(found), len(lines) - len(found))


def _lines(storage: Storage, name: str) -> list[bytes] | None:
    if (storage.size(name) or 0) > LARGEST_BYTES:
        return None
    try:
        return [line for line in storage.get(name).splitlines() if line]
    except FileNotFoundError:  # forgotten meanwhile
        return []


def write_plan(storage: Storage, run: int, plan: Plan) -> None:
    """Say what the job is."""
    storage.put(f"runs/{run}.plan", msgspec.json.encode(plan))


def write_live(storage: Storage, live: Live) -> None:
    """Say what it does."""
    storage.put(f"runs/{live.run}.live", msgspec.json.encode(live))


def read_plan(storage: Storage, run: int) -> Plan | None:
    """What a run said that the job is; None where it did not, or nobody can read it."""
    return _readable(storage, f"runs/{run}.plan", _PLANS)


def read_live(storage: Storage, run: int) -> Live | None:
    """What a run said last of what it does; None where it did not, or nobody can read it."""
    return _readable(storage, f"runs/{run}.live", _LIVES)


def _readable(storage: Storage, name: str, decoder: msgspec.json.Decoder[_T]) -> _T | None:
    try:
        return read_small(storage, name, decoder)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
