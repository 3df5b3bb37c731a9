"""What has changed since the last look, a line each: what `penstock watch` prints where there is no terminal. Pure; driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.cli.event_lines import event_line
from penstock.cli.printing import moment
from penstock.status.events import Event
from penstock.status.health import needs
from penstock.status.view import JobView


class Changes:
    """Remembers what was said."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._events: dict[str, frozenset[Event]] = {}
        self._needs: dict[str, frozenset[str]] = {}

    def lines(self, views: Sequence[JobView]) -> Iterator[str]:
        """Of a job that is new here its state, and nothing of what happened before; then what is new."""
        for view in views:
            yield from (f"{moment(at)} {view.name}: {text}" for at, text in self._of(view))
        for gone in set(self._states) - {view.storage for view in views}:
            del self._states[gone]
            yield f"{gone} is gone"

    def _of(self, view: JobView) -> Iterator[tuple[float, str]]:
        key = view.storage
        known = self._events.get(key)
        if known is not None:
            for event in reversed(view.events):
                if event not in known:
                    yield event.at, event_line(event)
        self._events[key] = frozenset(view.events)
        if self._states.get(key) != view.state:
            run = f", run {view.run}" if view.run else ""
            last = view.last_completed
            checkpoint = f", last checkpoint {last.checkpoint}" if last is not None else ""
            yield view.now, f"{view.state}{run}{checkpoint}"
        self._states[key] = view.state
        yield from ((view.now, text) for text in self._new_needs(view))

    def _new_needs(self, view: JobView) -> Iterator[str]:
        found = {_kind(need.text): f"{need.text}; {need.advice}" for need in needs(view)}
        for kind, text in found.items():
            if kind not in self._needs.get(view.storage, ()):
                yield " ".join(text.split())
        self._needs[view.storage] = frozenset(found)


def _kind(text: str) -> str:
    """The same need a second later: numbers in it may be others."""
    return "".join(one for one in text if not one.isdigit())
