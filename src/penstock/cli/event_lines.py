"""What happened to a job, each event in one sentence. Pure; driver."""

from __future__ import annotations

from penstock.cli.printing import in_brief, visible
from penstock.status import events as told
from penstock.status.events import Event
from penstock.wording import counted, duration, size

LONGEST = 400


def event_line(event: Event) -> str:
    """What happened, without the time."""
    return visible(_sentence(event))


def _sentence(event: Event) -> str:  # noqa: C901, PLR0911, PLR0912 - one case an event
    match event:
        case told.RunStarted():
            return f"run {event.run} starts on {event.host} (pid {event.pid}), {_origin(event)}"
        case told.FirstBatch():
            return (
                f"first batch of run {event.run} is done, batch {event.batch}, after {duration(event.took_s)}"
            )
        case told.CheckpointCompleted():
            return (
                f"checkpoint {event.checkpoint} completed in {duration(event.duration_ms / 1000)}: {size(event.state_bytes)} of state "
                f"({size(event.new_bytes)} new), {counted(event.transactions, 'transaction')}"
            )
        case told.CheckpointCommitted():
            return f"checkpoint {event.checkpoint} is committed, {duration(event.commit_ms / 1000)} later"
        case told.CheckpointFailed():
            return f"checkpoint {event.checkpoint} {event.text}: {_short(event.detail)}"
        case told.RunFailed():
            what_next = f"goes back in {duration(event.delay_s)}" if event.restarts else "is not tried again"
            return f"run {event.run} failed, the job {what_next}: {event.error}: {_short(event.why)}"
        case told.JobEnded():
            why = f": {event.error}: {_short(event.why)}" if event.error else ""
            return f"the job has ended: {event.how}{why}"
        case told.TasksRepeated():
            why = _short(event.why) or "one ended without a word"
            return f"batch {event.batch} is done after {event.attempts} attempts of tasks of {event.operator}: {why}"
        case told.SavepointMade():
            return (
                f"savepoint of checkpoint {event.checkpoint} made in {duration(event.took_s)}: {event.folder}"
            )
        case told.SavepointDeleted():
            return f"savepoint deleted for {_short(event.by) or 'somebody'}, {counted(event.files, 'file')}: {event.folder}"
        case told.Asked():
            return f"{event.what} asked for by {_short(event.by) or 'somebody'}"
        case told.Answered():
            said = "was done" if event.ok else f"came to nothing: {_short(event.error)}"
            return f"{event.what} that {_short(event.by) or 'somebody'} had asked for {said}"
        case told.SinkDown():
            waiting = counted(event.waiting, "transaction waits", "transactions wait")
            return f"sink {event.sink} does not take commits, {waiting}: {_short(event.why)}"
        case told.SinkUp():
            return f"sink {event.sink} takes commits again, after {duration(event.down_s)}"
        case told.ProcessDied():
            what_next = (
                f"started again in {duration(event.delay_s)}" if event.restarts else "not started again"
            )
            return f"the driver (pid {event.pid}) ended with {event.how}; {what_next}"
        case told.ProcessStarted():
            return f"the supervisor has started the program (pid {event.pid}), attempt {event.attempt}"
        case told.Lost():
            return f"{counted(event.events, 'event')} could not be written down"


def is_bad(event: Event) -> bool:
    """Whether somebody may want to know."""
    bad = (
        told.CheckpointFailed,
        told.RunFailed,
        told.TasksRepeated,
        told.SinkDown,
        told.ProcessDied,
        told.Lost,
    )
    return isinstance(event, bad) or (isinstance(event, told.JobEnded | told.Answered) and bool(event.error))


def _origin(event: told.RunStarted) -> str:
    if event.restored_from < 0:
        return "from the beginning"
    rescaled = f", rescaled from {event.rescaled_from} to {event.parallelism}" if event.rescaled_from else ""
    return f"from checkpoint {event.restored_from}{rescaled}"


def _short(text: str) -> str:
    return in_brief(text, LONGEST)
