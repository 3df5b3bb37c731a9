"""The journal of a job: its files in storage, a writer with a thread of its own, and an incremental reader. Driver and readers.

    events/<started>-<token>-<budget>-<n>.jsonl   events of one writer, one per line; rewritten as it grows, and left alone once n+1 exists
    runs/<k>.plan                                 the graph and the settings of the job
    runs/<k>.live                                 its progress

Invariants:
1. `tell` returns at once and never fails: no batch waits for the journal, and no job fails because of it.
2. A writer only writes files whose names carry its own token, and never reuses a name. So two runs do not overwrite each other's events.
3. The newest file of a writer is rewritten as a whole: a reader sees a line or does not.
4. Only the owner of the job deletes old files, after it has checked its claim.
5. Each kind of event belongs to a budget, and each budget has files and limits of its own: no number of checkpoints or of requests deletes
   the events of a failure, or the record of who cancelled the job.
6. No start reads these files. A line that cannot be read is skipped and counted.
"""

from __future__ import annotations

import enum
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import TypeVar

import msgspec

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.decoding import sanely_decoded
from penstock.errors import PenstockError
from penstock.ids import SYSTEM_RANDOMNESS
from penstock.ownership.records import LARGEST_BYTES, small_content
from penstock.status.events import (
    Answered,
    Asked,
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    Event,
    Lost,
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
from penstock.wording import storable

_log = logging.getLogger(__name__)


_T = TypeVar("_T")


SEGMENT_BYTES = 64 * 1024
"""A file that is as large gets a successor: it is written anew whenever something happens."""


KEEP_BYTES = 4 * 1024 * 1024
"""Limit for checkpoints: some thousands of them. Every other budget gets a quarter of it."""


KEEP_FILES = 200
"""Limit per budget: each start of the program has files of its own, however little is in them."""


PAUSE_S = 0.5
"""At least so long between two writes: what happens meanwhile is written together."""


CLOSE_S = 5.0


TOKEN_DIGITS = 16


MOST_FILES = 2 * KEEP_FILES


MOST_BYTES = KEEP_BYTES + 2 * SEGMENT_BYTES
"""How much is read of each budget, newest first: more than is kept, but not everything that others may have put there."""


_EVENTS = msgspec.json.Decoder(Event)


_PLANS = msgspec.json.Decoder(Plan)


_LIVES = msgspec.json.Decoder(Progress)


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
    """The segments, grouped by budget."""
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
    """Write the progress of a run."""
    storage.put(f"runs/{live.run}.live", msgspec.json.encode(live))


def read_plan(storage: Storage, run: int) -> Plan | None:
    """The plan of a run; None if it has written none, or it cannot be read."""
    return _readable(storage, f"runs/{run}.plan", _PLANS)


def read_live(storage: Storage, run: int) -> Progress | None:
    """The last progress of a run; None if it has written none, or it cannot be read."""
    return _readable(storage, f"runs/{run}.live", _LIVES)


def _readable(storage: Storage, name: str, decoder: msgspec.json.Decoder[_T]) -> _T | None:
    try:
        return sanely_decoded(decoder, small_content(storage, name))
    except (FileNotFoundError, msgspec.DecodeError):
        return None


May = Callable[[], bool]
"""Whether the storage is still this job's own, or is this run's to delete in. May raise `PenstockError`: then it is asked again later."""


@dataclass(frozen=True)
class _Lot:
    """Events that are written together, into one file."""

    budget: Budget
    lines: bytes
    events: int
    """How many of those that wait are in it."""
    lost: int
    """How many it says were lost before them."""


@dataclass
class _Segment:
    """The newest file of a budget."""

    number: int = 0
    written: bytes = b""


class JournalWriter:
    """One start of a job, or one supervisor. `tell` from any thread."""

    def __init__(
        self,
        storage: Storage,
        *,
        may_write: May = lambda: True,
        may_delete: May = lambda: False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._storage = storage
        self._may_write = may_write
        self._may_delete = may_delete
        self._clock = clock
        self._started = clock.wall()
        self._token = SYSTEM_RANDOMNESS.token(TOKEN_DIGITS)
        self._waiting: deque[Event] = deque(maxlen=Lost.MOST_WAITING)
        self._lost = 0
        self._changed = threading.Condition()
        """Around what waits. A signal may come in the midst of telling, and its handler may tell something, too: this bears it."""
        self._has_news = False
        self._closing = threading.Event()
        self._segments = {budget: _Segment() for budget in Budget}
        self._warned = False
        self._thread = threading.Thread(target=self._work, name="penstock-journal", daemon=True)
        self._thread.start()

    def tell(self, event: Event) -> None:
        """Queue an event to be written soon."""
        with self._changed:
            self._lost += len(self._waiting) == self._waiting.maxlen
            self._waiting.append(event)
        self._wake()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write down what there is, and end. A storage that does not answer is not waited for longer than this."""
        self._closing.set()
        self._wake()
        self._thread.join(timeout_s)

    def _wake(self) -> None:
        with self._changed:
            self._has_news = True
            self._changed.notify()

    def _sleep(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._has_news)
            self._has_news = False

    def _work(self) -> None:
        while not self._closing.is_set():
            self._sleep()
            self._write_what_there_is()
            self._closing.wait(PAUSE_S)
        self._write_what_there_is()

    def _write_what_there_is(self) -> None:
        try:
            while (lot := self._next_lot()) and self._may_write():
                self._put(lot)
        except Exception as error:  # noqa: BLE001 - this thread must not end before the job
            self._warn(error)
            self._wake()  # tried again, with what comes meanwhile
        else:
            self._warned = False

    def _warn(self, error: Exception) -> None:
        level = logging.DEBUG if self._warned else logging.WARNING
        _log.log(
            level, "the journal in %s could not be written, and the job goes on: %s", self._storage.uri, error
        )
        self._warned = True

    def _next_lot(self) -> _Lot | None:
        """The first events that wait and share a budget: as many as its newest file has room for, or the next one if it has none."""
        with self._changed:
            waiting, lost = list(self._waiting), self._lost
        if not waiting:
            return None
        budget = budget_of(waiting[0])
        segment = self._segments[budget]
        if len(segment.written) >= SEGMENT_BYTES:
            segment.number += 1
            segment.written = b""
        lines = [_line(Lost(at=waiting[0].at, run=waiting[0].run, events=lost))] if lost else []
        room = SEGMENT_BYTES - len(segment.written)
        for event in takewhile(lambda one: budget_of(one) is budget, waiting):
            lines.append(_line(event))
            room -= len(lines[-1])
            if room <= 0:
                break
        return _Lot(budget, b"".join(lines), len(lines) - bool(lost), lost)

    def _put(self, lot: _Lot) -> None:
        segment = self._segments[lot.budget]
        before = segment.written
        content = before + lot.lines
        self._storage.put(segment_name(self._started, self._token, lot.budget, segment.number), content)
        segment.written = content
        with self._changed:
            lost = self._lost - lot.lost  # meanwhile; they were the oldest of these
            for _ in range(max(0, lot.events - lost)):
                self._waiting.popleft()
            self._lost = max(0, lost - lot.events)
        if not before:
            self._delete_what_is_old(lot.budget)

    def _delete_what_is_old(self, budget: Budget) -> None:
        try:
            if self._may_delete():
                names = by_budget(segments(self._storage))[budget]
                self._storage.delete(too_many(self._storage, budget, names))
        except PenstockError as error:
            _log.debug("old parts of the journal in %s stay for now: %s", self._storage.uri, error)


def _line(event: Event) -> bytes:
    """Encode an event. A text that cannot be encoded is made storable first."""
    try:
        return msgspec.json.encode(event) + b"\n"
    except UnicodeEncodeError:
        told = {name: storable(value) if isinstance(value, str) else value for name, value in _fields(event)}
        return msgspec.json.encode(msgspec.structs.replace(event, **told)) + b"\n"


def _fields(event: Event) -> list[tuple[str, object]]:
    return [(name, getattr(event, name)) for name in event.__struct_fields__]


class JournalReader:
    """The journal of one job."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._read: dict[str, tuple[int, ReadEvents]] = {}
        """By name: how large a file was, and what was in it."""

    def read(self) -> ReadEvents:
        """All that could be read, in the order in which it happened."""
        found = by_budget(segments(self._storage)).values()
        self._read = {name: read for names in found for name, read in self._newest(names).items()}
        parts = [read for _, read in self._read.values()]
        events: list[Event] = list(chain.from_iterable(one.events for one in parts))
        events.sort(key=lambda event: event.at)
        return ReadEvents(tuple(events), sum(one.unreadable for one in parts))

    def _newest(self, names: list[str]) -> dict[str, tuple[int, ReadEvents]]:
        found: dict[str, tuple[int, ReadEvents]] = {}
        read_bytes = 0
        for name in names[: -MOST_FILES - 1 : -1]:
            size = self._storage.size(name) or 0
            read_bytes += size
            if found and read_bytes > MOST_BYTES:
                break
            found[name] = self._segment(name, size)
        return dict(reversed(found.items()))

    def _segment(self, name: str, size: int) -> tuple[int, ReadEvents]:
        before = self._read.get(name)
        return (
            before if before is not None and before[0] == size else (size, read_segment(self._storage, name))
        )
