"""The coordinator's thread: takes events one by one, sends `TimePassed`, and keeps the failure that ended it. Driver.

Each sink has a thread of its own (`SinkLanes`), so that one that is down holds up neither checkpoints and batches nor the other sinks.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from penstock.checkpoint.commits import Post, RunCommit
from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.events import Drain, Event, JobEnded, TimePassed
from penstock.checkpoint.sink_lanes import SinkLanes
from penstock.clock import SYSTEM_CLOCK
from penstock.errors import FencedError, PenstockError
from penstock.log_fields import about, in_context
from penstock.ownership.claim import Claim, StorageAwayError
from penstock.ownership.heartbeat import HEARTBEAT_S, beat

_log = logging.getLogger(__name__)

TIME_PASSED_S = 0.1
"""How often the coordinator gets a `TimePassed`."""


class CoordinatorLoop:
    """Runs a coordinator until it is stopped or fails. `on_failure` is called once, from one of its threads."""

    def __init__(
        self,
        make: Callable[[Post, RunCommit], Coordinator],
        *,
        claim: Claim,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._lanes = SinkLanes(self._guard)
        self.coordinator = make(self.post, self._lanes.put)
        self.failure: BaseException | None = None
        self._on_failure = on_failure
        self._claim = claim
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=in_context(target), name=f"penstock-{name}", daemon=True)
            for name, target in (
                ("coordinator", self._work),
                ("heart", self._beat),
            )
        ]
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the thread that takes events."""
        for thread in self._threads:
            thread.start()

    def post(self, event: Event) -> None:
        """Hand in an event; returns at once."""
        self._events.put(event)

    def drain(
        self,
        meanwhile: Callable[[], None] = lambda: None,
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait until the newest batch is completed and committed; raises the error that makes it impossible.

        A sink that is down may delay it without limit. The caller may give up and leave the commits to the next run.
        """
        self.post(Drain())
        while not self.coordinator.settled and self.failure is None and not given_up():
            with self._changed:
                self._changed.wait(TIME_PASSED_S)
            meanwhile()
        if self.failure is not None:
            raise self.failure

    def stop(self, given_up: Callable[[], bool] = lambda: False) -> None:
        """End the threads. Pending checkpoints are given up; unfinished commits are left to the next run.

        `given_up`: whether to abandon a sink's call that does not return, because the job ends now.
        """
        if self._stopped.is_set():
            return
        self._stopped.set()
        self.coordinator.stop()
        if self.failure is None:
            self.post(JobEnded())
        self._events.put(None)
        self._lanes.close()
        for thread in self._threads:
            thread.join()
        for sink in self._lanes.join(given_up):
            _log.warning(
                "sink %s: a call has not returned, and the job ends without it. See whether its target answers; what a checkpoint "
                "promised is committed by the next run",
                sink,
                extra=about(operator=sink),
            )

    def _work(self) -> None:
        next_time_s = SYSTEM_CLOCK.monotonic() + TIME_PASSED_S
        while True:
            try:
                event = self._events.get(timeout=max(0.0, next_time_s - SYSTEM_CLOCK.monotonic()))
            except queue.Empty:
                event, next_time_s = TimePassed(), SYSTEM_CLOCK.monotonic() + TIME_PASSED_S
            if event is None or not self._guard(lambda event=event: self.coordinator.handle(event)):  # type: ignore[misc]
                return

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT_S):
            run, storage = self._claim.run, self._claim.storage
            try:
                self._claim.check()  # a run whose storage was taken away must not create it again
                beat(storage, run, SYSTEM_CLOCK.wall(), completed=self.coordinator.last_completed)
            except (FencedError, StorageAwayError) as error:
                self._fail(error)
                return
            except PenstockError as error:
                _log.warning("the heartbeat of run %d could not be written: %s", run, error)

    def _guard(self, work: Callable[[], None]) -> bool:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - handed to the run, which decides
            self._fail(error)
            return False
        with self._changed:
            self._changed.notify_all()
        return True

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self.failure is not None:
                return
            self.failure = error
            self._changed.notify_all()
        self._on_failure(error)
