"""Handing events to the user's own code, for those who push elsewhere: a chat, a log, a tracer. Driver.

Each listener has a thread and a queue of its own. So no batch, no checkpoint and no other listener ever waits for one.
"""

from __future__ import annotations

import inspect
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from penstock.clock import Stopwatch
from penstock.errors import ConfigError
from penstock.status.events import Event, Lost

_log = logging.getLogger(__name__)

MOST_WAITING = 1000
"""Events that wait for one listener. A job tells a few for each checkpoint."""
CLOSE_S = 10.0
"""So long the end of a job waits for its listeners, all together."""
MOST_KINDS = 100
"""Of different troubles of one listener that are logged."""


class Listener(ABC):
    """Whatever is to hear of the job's events: give it to `job.start(listeners=[...])`.

    `on_event` is called once for each event of this start of the job, in the order in which they occurred, and never for events of
    earlier starts. All calls are made by one thread that belongs to this listener, in the driver, after the event: a checkpoint is
    completed when its event is heard.

    It is not called again for the same event, whatever it raises. That is logged, once for each kind of exception, and the listener goes
    on with the next event. When a thousand events wait because a call takes long, newer ones are dropped, and a `Lost` event says how
    many. At the end of the job what waits is still handed over, for ten seconds at most.

    The classic mistake is a call to a server without a time-out: when that server hangs, nothing more is heard. The other one is to wait
    in `on_event` for the job itself, such as `handle.wait()`: the job's end waits for the listener.
    """

    @abstractmethod
    def on_event(self, event: Event) -> None:
        """Something has happened; `penstock.status.events` has the kinds. One that you do not know is to be passed over."""

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Called once, by the same thread, after the last event: the place to flush."""


class Listeners:
    """All listeners of one start of a job. `tell` may be called by any thread, and returns at once."""

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self._lanes = [_Lane(listener, number) for number, listener in enumerate(listeners)]

    def tell(self, event: Event) -> None:
        """Hand an event to each of them, as soon as it has time."""
        for lane in self._lanes:
            lane.put(event)

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Deliver the waiting events and end the threads; false if some did not end in time. Those end with the process."""
        watch = Stopwatch()
        for lane in self._lanes:
            lane.end()
        # each of them, so that each is logged
        done = [lane.join(max(0.0, timeout_s - watch.seconds)) for lane in self._lanes]
        return all(done)


def check_listener(listener: object) -> None:
    """Raise `ConfigError` for what cannot be a listener."""
    on_event = getattr(listener, "on_event", None)
    if not callable(on_event) or isinstance(listener, type):
        raise ConfigError(
            f"{listener!r} is no listener: give objects of a class that is derived from penstock.Listener and has on_event(event)",
            listener=repr(listener),
        )
    if inspect.iscoroutinefunction(on_event):
        raise ConfigError(
            f"on_event of {type(listener).__name__} is async: nothing would await it; make it a plain function: it has a thread of its "
            "own",
            listener=type(listener).__name__,
        )


class _Lane:
    """One listener, its queue and its thread."""

    def __init__(self, listener: Listener, number: int) -> None:
        self._listener = listener
        self._name = type(listener).__name__
        self._waiting: deque[Event] = deque()
        self._changed = threading.Condition()
        self._lost = 0
        self._is_ending = False
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._work, name=f"penstock-listener-{number}", daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        with self._changed:
            if self._is_ending:
                return
            if len(self._waiting) >= MOST_WAITING:
                self._lost += 1
                return
            self._say_what_was_lost(event)
            self._waiting.append(event)
            self._changed.notify()

    def _say_what_was_lost(self, event: Event) -> None:
        if self._lost:
            self._waiting.append(Lost(at=event.at, run=event.run, events=self._lost))
            self._lost = 0

    def end(self) -> None:
        with self._changed:
            if self._waiting:
                self._say_what_was_lost(self._waiting[-1])
            self._is_ending = True
            self._changed.notify()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            return True
        _log.warning(
            "listener %s is not done after the end of the job, %d events wait for it and are lost; give its calls a time-out",
            self._name,
            len(self._waiting),
        )
        return False

    def _work(self) -> None:
        while (event := self._next()) is not None:
            try:
                self._listener.on_event(event)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code; the job does not depend on it
                self._tell_once(f"raised at the event {type(event).__name__}", error)
        try:
            self._listener.close()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the same
            self._tell_once("raised in close()", error)

    def _next(self) -> Event | None:
        """The next one; None when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_ending)
            return self._waiting.popleft() if self._waiting else None

    def _tell_once(self, what: str, error: BaseException) -> None:
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        first = kind not in self._told and len(self._told) < MOST_KINDS
        _log.log(
            logging.WARNING if first else logging.DEBUG,
            "listener %s %s; the job and the listener go on, and further errors of this kind are logged as debug",
            self._name,
            what,
            exc_info=error,
        )
        self._told.add(kind)
