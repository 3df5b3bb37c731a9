"""The story of a program and its supervisor, in the journal of the job. Driver, in the supervisor.

The supervisor does not know where the job's storage is until the program has reported it; earlier events are kept. From then on a
`JournalWriter` writes: no storage that hangs holds up a restart, and no job ends for want of the story. Where no program ever says where,
nothing is written. Nothing is deleted: that is for the run that owns the job.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections import deque

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PenstockError
from penstock.ownership.claim import pid_space, process_start
from penstock.status.events import Event, Lost, ProcessDied, ProcessStarted
from penstock.status.journal import JournalWriter
from penstock.storage import open_storage

_log = logging.getLogger(__name__)

MOST_KEPT = 1000
"""The number of events that are kept until it is known where they belong."""
LAST_WORDS_S = 2.0
"""So long the end waits for a storage to take them."""
_NOBODY = 0
"""The run that says so: none does."""


class Story:
    """Tells the events of one supervisor, and never waits for storage, except at its end. By one thread."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        """Protects the two fields below: events move to the writer while others are recorded."""
        self._waiting: deque[Event] = deque(maxlen=MOST_KEPT)
        self._writer: JournalWriter | None = None
        self._lost = 0
        self._opening: threading.Thread | None = None

    def lies_in(self, uri: str) -> None:
        """The job's storage is known now. It is opened in a thread: a mount that hangs may not answer even that."""
        if self._opening is None:
            self._opening = threading.Thread(
                target=self._open, args=(uri,), name="penstock-story", daemon=True
            )
            self._opening.start()

    def close(self) -> None:
        """Write down what there is, if storage takes it soon."""
        until = self._clock.monotonic() + LAST_WORDS_S
        opening = self._opening
        if opening is not None:
            opening.join(LAST_WORDS_S)
        if self._writer is not None:
            self._writer.close(max(0.0, until - self._clock.monotonic()))

    def _open(self, uri: str) -> None:
        try:
            storage = open_storage(uri)
        except (PenstockError, OSError) as error:
            _log.warning(
                "the story of this supervisor is not written down yet, %s cannot be opened: %s", uri, error
            )
            self._opening = None  # tried again when the next program says where it lies
            return
        with self._lock:
            self._writer = JournalWriter(storage, clock=self._clock)
            if self._lost:
                self._writer.tell(Lost(at=self._clock.wall(), run=_NOBODY, events=self._lost))
            for event in self._waiting:
                self._writer.tell(event)
            self._waiting.clear()

    def started(self, pid: int, attempt: int) -> None:
        """Record that the program was started."""
        self._tell(
            ProcessStarted(
                at=self._clock.wall(),
                run=_NOBODY,
                pid=pid,
                attempt=attempt,
                host=platform.node(),
                supervisor=os.getpid(),
                supervisor_started=process_start(os.getpid()),
                pid_space=pid_space(),
            )
        )

    def died(self, pid: int, how: str, decision: str, *, restarts: bool, delay_s: float = 0.0) -> None:
        """Record how the program ended, and whether it is started again."""
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

    def _tell(self, event: Event) -> None:
        with self._lock:
            if self._writer is not None:
                self._writer.tell(event)
            else:
                self._lost += len(self._waiting) == self._waiting.maxlen
                self._waiting.append(event)
