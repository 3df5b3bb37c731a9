"""What a job was asked for, by whomever, and what came of it: made of the journal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.status.events import Answered, Asked, Event
from penstock.status.view import RequestView, RunView


def asked_for(events: Iterable[Event], runs: Sequence[RunView], present: int) -> tuple[RequestView, ...]:
    """Newest first. `events`: oldest first. `present`: the run that is alive; 0: none is.

    Another run of the same process goes on with what one had taken on. A process that is gone answers nothing any more: if the request lies
    in storage, the next one takes it on, and says so.
    """
    found: dict[str, RequestView] = {}
    processes = {run.run: (run.host, run.pid) for run in runs}
    here = processes.get(present)
    for number, event in enumerate(events):
        match event:
            case Asked():
                name = event.request or f"without an id, {number}"
                goes_on = bool(event.request) and here is not None and processes.get(event.run) == here
                before = found.pop(name, None)
                found[name] = RequestView(
                    request=event.request,
                    what=event.what,
                    by=event.by,
                    asked_at=before.asked_at if before else event.at,
                    state="under way" if goes_on else "unknown",
                )
            case Answered():
                before = found.pop(event.request, None)
                found[event.request] = RequestView(
                    request=event.request,
                    what=event.what,
                    by=event.by,
                    asked_at=before.asked_at if before else event.at,
                    state="done" if event.ok else "failed",
                    answered_at=event.at,
                    error=event.error,
                    checkpoint=event.checkpoint,
                    folder=event.folder,
                )
    return tuple(sorted(found.values(), key=lambda one: one.asked_at, reverse=True))
