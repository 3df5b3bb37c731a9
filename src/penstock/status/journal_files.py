"""The files of the journal in storage, and how they are read back: at any time, whatever lies there. Driver; wherever one looks.

    events/<started>-<token>-<budget>-<n>.jsonl   events of one writer, one per line; rewritten as it grows, and left alone once n+1 exists
    runs/<k>.plan                                 what the job is
    runs/<k>.live                                 what it does at this moment

Each kind of event belongs to a budget, and each budget has files and limits of its own: no number of checkpoints or of requests deletes the
story of a failure, or the record of who cancelled the job.

No start reads them. A line that cannot be read is passed over and counted.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from penstock.decoding import sanely_decoded
from penstock.ownership.records import LARGEST_BYTES, small_content
from penstock.status.events import (
    Answered,
    Asked,
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    Event,
    RunFailed,
    SavepointDeleted,
    SavepointMade,
    SinkDown,
    SinkUp,
    TasksRepeated,
)
from penstock.status.live import Progress
from penstock.status.plan import Plan
from penstock.storage import Storage

SEGMENT_BYTES = 64 * 1024
"""A file that is as large gets a successor: it is written anew whenever something happens."""
KEEP_BYTES = 4 * 1024 * 1024
"""Limit for checkpoints: some thousands of them. Every other budget gets a quarter of it."""
KEEP_FILES = 200
"""Limit per budget: each start of the program has files of its own, however little is in them."""
_EVENTS = msgspec.json.Decoder(Event)
_PLANS = msgspec.json.Decoder(Plan)
_LIVES = msgspec.json.Decoder(Progress)
_T = TypeVar("_T")


class Budget(enum.StrEnum):
    """Events that make room only for each other."""

    CHECKPOINTS = "checkpoints"
    """Those that come all the time while a job is well."""
    TROUBLES = "troubles"
    """Failed checkpoints, repeated tasks, sinks that are down: the job survives them, and they may come with every batch."""
    FAILURES = "failures"
    REQUESTS = "requests"
    """Requests for checkpoints and savepoints: a script may send one every second."""
    RUNS = "runs"
    """Starts and ends, and who asked for an end."""

    @property
    def keep_bytes(self) -> int:
        """How much of it is kept."""
        return KEEP_BYTES if self is Budget.CHECKPOINTS else KEEP_BYTES // 4


_ENDING = ("stop", "cancel")
"""Kinds of requests after which the job ends."""


def budget_of(event: Event) -> Budget:
    """The budget that an event belongs to."""
    match event:
        case CheckpointCompleted() | CheckpointCommitted():
            return Budget.CHECKPOINTS
        case CheckpointFailed() | TasksRepeated() | SinkDown() | SinkUp():
            return Budget.TROUBLES
        case RunFailed():
            return Budget.FAILURES
        case SavepointMade() | SavepointDeleted():
            return Budget.REQUESTS
        case Asked() | Answered() if event.what not in _ENDING:
            return Budget.REQUESTS
        case _:
            return Budget.RUNS


_NAME = re.compile(rf"events/(\d{{13}})-([0-9a-f]{{16}})-(?:({'|'.join(Budget)})-)?(\d{{6}})\.jsonl")
"""Files without a budget have events of all kinds: an earlier version wrote them."""


def segment_name(started: float, token: str, budget: Budget, number: int) -> str:
    """The name of a file of events. The names of one budget, in order, are in the order of the writers' beginnings."""
    return f"events/{int(started * 1000):013d}-{token}-{budget}-{number:06d}.jsonl"


def segments(storage: Storage) -> list[str]:
    """All files of events, the oldest first."""
    return [name for name in storage.names("events") if _NAME.fullmatch(name)]


def by_budget(names: Iterable[str]) -> dict[Budget, list[str]]:
    """The same by budget."""
    found: dict[Budget, list[str]] = {budget: [] for budget in Budget}
    for name in names:
        match = _NAME.fullmatch(name)
        found[Budget((match and match[3]) or Budget.CHECKPOINTS)].append(name)
    return found


def too_many(storage: Storage, budget: Budget, names: Iterable[str]) -> list[str]:
    """The oldest files of a budget, beyond what is kept."""
    newest_first = sorted(names, reverse=True)
    kept_bytes, old = 0, []
    for number, name in enumerate(newest_first):
        kept_bytes += storage.size(name) or 0
        if number and (number >= KEEP_FILES or kept_bytes > budget.keep_bytes):
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
            found.append(sanely_decoded(_EVENTS, line))
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


def write_live(storage: Storage, live: Progress) -> None:
    """Say what it does."""
    storage.put(f"runs/{live.run}.live", msgspec.json.encode(live))


def read_plan(storage: Storage, run: int) -> Plan | None:
    """What a run said that the job is; None where it did not, or nobody can read it."""
    return _readable(storage, f"runs/{run}.plan", _PLANS)


def read_live(storage: Storage, run: int) -> Progress | None:
    """What a run said last of what it does; None where it did not, or nobody can read it."""
    return _readable(storage, f"runs/{run}.live", _LIVES)


def _readable(storage: Storage, name: str, decoder: msgspec.json.Decoder[_T]) -> _T | None:
    try:
        return sanely_decoded(decoder, small_content(storage, name))
    except (FileNotFoundError, msgspec.DecodeError):
        return None
