"""The story of a program and its supervisor, in the journal of the job. Driver, in the supervisor.

The supervisor does not know where the job's storage is until the program has said so; what happens before is kept. What cannot be
written is kept for the next time: no job ends for want of it. Where no program ever says where, nothing is written. Nothing is deleted:
that is for the run that owns the job.
"""

from __future__ import annotations

import logging
import os
import platform

import msgspec

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PenstockError
from penstock.journal.events import Lost, ProcessDied, ProcessStarted
from penstock.journal.files import SEGMENT_BYTES, segment_name
from penstock.ownership.claim import process_start
from penstock.randomness import SYSTEM_RANDOMNESS
from penstock.storage import Storage

_log = logging.getLogger(__name__)

MOST_KEPT = 1000
"""So many events wait for a storage that does not answer."""
_DIGITS = 16
_NOBODY = 0
"""The run that says so: none does."""


class Story:
    """Writes the events of one supervisor, in files of its own."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._started = clock.wall()
        self._token = SYSTEM_RANDOMNESS.token(_DIGITS)
        self._storage: Storage | None = None
        self._number = 1
        self._written = b""
        """What the present file holds."""
        self._waiting: list[bytes] = []
        self._lost = 0

    def lies_in(self, storage: Storage) -> None:
        """The job's storage is known now."""
        if self._storage is None:
            self._storage = storage
            self._write()

    def started(self, pid: int, attempt: int) -> None:
        """The program was started."""
        self._tell(
            ProcessStarted(
                at=self._clock.wall(),
                run=_NOBODY,
                pid=pid,
                attempt=attempt,
                host=platform.node(),
                supervisor=os.getpid(),
                supervisor_started=process_start(os.getpid()),
            )
        )

    def died(self, pid: int, how: str, decision: str, *, restarts: bool, delay_s: float = 0.0) -> None:
        """The program has ended."""
        self._tell(
            ProcessDied(
                at=self._clock.wall(),
                run=_NOBODY,
                pid=pid,
                how=how,
                restarts=restarts,
                delay_s=delay_s,
                decision=decision,
            )
        )

    def _tell(self, event: ProcessStarted | ProcessDied) -> None:
        self._waiting.append(msgspec.json.encode(event) + b"\n")
        if len(self._waiting) > MOST_KEPT:
            self._lost += len(self._waiting) - MOST_KEPT
            self._waiting = self._waiting[-MOST_KEPT:]
        self._write()

    def _write(self) -> None:
        if self._storage is None or not self._waiting:
            return
        try:
            self._write_to(self._storage)
        except (PenstockError, OSError) as error:
            _log.warning("the journal in %s does not take what happened: %s", self._storage.uri, error)

    def _write_to(self, storage: Storage) -> None:
        if len(self._written) >= SEGMENT_BYTES:
            self._number, self._written = self._number + 1, b""
        lost = Lost(at=self._clock.wall(), run=_NOBODY, events=self._lost)
        before = msgspec.json.encode(lost) + b"\n" if self._lost else b""
        content = b"".join((self._written, before, *self._waiting))
        storage.put(segment_name(self._started, self._token, self._number), content)
        self._written, self._waiting, self._lost = content, [], 0
