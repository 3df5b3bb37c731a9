"""Listeners hear every event in order, each in a thread of its own, and nothing that they do holds up whoever tells."""

from __future__ import annotations

import logging
import sys
import threading

import pytest

from penstock.errors import ConfigError
from penstock.start_options import StartOptions
from penstock.status.events import Event, FirstBatch, Lost
from penstock.status.listeners import MOST_WAITING, Listener, Listeners
from services.patience import PATIENCE_S


def event(number: int) -> FirstBatch:
    return FirstBatch(at=float(number), run=1, batch=number, took_s=0.1)


class Hearing(Listener):
    """Notes what it hears, and by which thread."""

    def __init__(self) -> None:
        self.heard: list[Event] = []
        self.threads: set[str] = set()
        self.closed = 0

    def on_event(self, event: Event) -> None:
        self.heard.append(event)
        self.threads.add(threading.current_thread().name)

    def close(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.closed += 1


class Raising(Hearing):
    """Raises at every event."""

    def __init__(self, *errors: type[BaseException]) -> None:
        super().__init__()
        self.errors = errors

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        raise self.errors[len(self.heard) % len(self.errors)](f"at {event.at}")

    def close(self) -> None:
        super().close()
        raise OSError("cannot flush")


class Hanging(Hearing):
    """Stays in its first call until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.go_on = threading.Event(), threading.Event()

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        self.inside.set()
        assert self.go_on.wait(PATIENCE_S)


def test_all_events_in_order() -> None:
    """Each listener hears all that was told, in order, by one thread that is its own, and is closed once behind the last."""
    one, two = Hearing(), Hearing()
    listeners = Listeners([one, two])
    for number in range(200):
        listeners.tell(event(number))
    assert listeners.close(PATIENCE_S)
    assert one.heard == two.heard == [event(number) for number in range(200)]
    assert (one.closed, two.closed) == (1, 1)
    assert (len(one.threads), len(two.threads)) == (1, 1)
    assert not one.threads & {*two.threads, threading.current_thread().name}
    listeners.tell(event(200))
    assert listeners.close(PATIENCE_S)
    assert one.heard[-1] == event(199)


def test_what_it_raises_is_logged_once_per_kind(caplog: pytest.LogCaptureFixture) -> None:
    """A listener that raises goes on, also when it wants to end the process; each kind of error is a warning once."""
    raising, hearing = Raising(ValueError, SystemExit), Hearing()
    listeners = Listeners([raising, hearing])
    with caplog.at_level(logging.DEBUG, logger="penstock"):
        for number in range(20):
            listeners.tell(event(number))
        assert listeners.close(PATIENCE_S)
    assert len(raising.heard) == len(hearing.heard) == 20
    warnings = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert sorted(str(one.exc_info[0].__name__) for one in warnings if one.exc_info and one.exc_info[0]) == [
        "OSError",
        "SystemExit",
        "ValueError",
    ]
    assert len(caplog.records) == 21


def test_one_that_hangs_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """While it hangs, others hear, whoever tells goes on, and what is too much is dropped and counted; the end does not wait for it."""
    hanging, hearing = Hanging(), Hearing()
    listeners = Listeners([hanging, hearing])
    listeners.tell(event(0))
    assert hanging.inside.wait(PATIENCE_S)
    for number in range(1, MOST_WAITING + 6):
        listeners.tell(event(number))
    assert not listeners.close(timeout_s=0.05)
    assert "Hanging is not done" in caplog.text
    hanging.go_on.set()
    assert listeners.close(PATIENCE_S)
    assert hanging.heard[:-1] == [event(number) for number in range(MOST_WAITING + 1)]
    assert hanging.heard[-1] == Lost(at=float(MOST_WAITING), run=1, events=5)
    assert hanging.closed == 1


def test_what_was_lost_is_told_before_what_follows() -> None:
    """When there is room again, a listener hears first how many it has missed."""
    hanging = Hanging()
    listeners = Listeners([hanging])
    for number in range(MOST_WAITING + 1):
        listeners.tell(event(number))
        if number == 0:
            assert hanging.inside.wait(PATIENCE_S)
    listeners.tell(event(7777))  # one too many
    hanging.go_on.set()
    while len(hanging.heard) < 10:
        threading.Event().wait(0.001)
    listeners.tell(event(8888))
    assert listeners.close(PATIENCE_S)
    assert hanging.heard[-2:] == [Lost(at=8888.0, run=1, events=1), event(8888)]


def test_no_listeners_is_nothing() -> None:
    """Without listeners there is no thread, and telling costs nothing."""
    before = threading.active_count()
    listeners = Listeners()
    listeners.tell(event(1))
    assert threading.active_count() == before
    assert listeners.close()


class Async(Listener):
    async def on_event(self, event: Event) -> None:  # type: ignore[override]
        """Nobody would wait for it."""


@pytest.mark.parametrize(
    ("listener", "words"),
    [(Async(), "is async"), (Hearing, "is no listener"), (sys, "is no listener"), (print, "is no listener")],
)
def test_what_is_no_listener_is_refused(listener: object, words: str) -> None:
    """A class instead of an object, a coroutine, anything without on_event: refused before the job starts, with what to give instead."""
    with pytest.raises(ConfigError, match=words):
        StartOptions(listeners=[listener])  # type: ignore[list-item]
