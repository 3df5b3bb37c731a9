"""The actions that a page offers for a running job, and what each will do. Pure.

A confirmation shows the values of this moment: how many rows the job will process again, and what it deletes.
"""

from __future__ import annotations

import re

import msgspec

from penstock.config import OnCancel
from penstock.requests.request_client import Outcome
from penstock.status.health import Tone
from penstock.status.view import JobView
from penstock.wording import counted

_LAST_CHECKPOINT = (
    "The job finishes the running batch, then completes and commits a checkpoint of everything processed."
)
_ENDS = "The job ends. Nothing is processed until you start it again."


class ActionForm(msgspec.Struct, frozen=True, kw_only=True):
    """One button and its confirmation dialog."""

    name: str
    kind: str
    """The last part of the path that the form is sent to."""
    title: str
    summary: str
    button: str
    question: str
    steps: tuple[str, ...]
    warning: str = ""
    tone: Tone = Tone.QUIET
    fields: tuple[tuple[str, str], ...] = ()
    takes_folder: bool = False
    takes_drain: bool = False
    typed: str = ""
    """A regular expression for the text that the user must type first; '' if none is needed."""


def action_forms(view: JobView) -> tuple[ActionForm, ...]:
    """All actions, the harmless ones first."""
    rows = counted(view.live.rows_since_checkpoint if view.live else 0, "row")
    return (_checkpoint(rows), _savepoint(), _stop(), _stop(savepoint=True), _cancel(view, rows))


def _checkpoint(rows: str) -> ActionForm:
    return ActionForm(
        name="checkpoint",
        kind="checkpoint",
        title="Checkpoint now",
        summary="Make everything processed so far safe, without waiting for the interval.",
        button="Trigger a checkpoint",
        question="Trigger a checkpoint now?",
        steps=(
            f"The next barrier carries a checkpoint of everything processed until then ({rows} since the last one).",
            "When the checkpoint is completed, the job commits its output. The job keeps running.",
        ),
    )


def _savepoint() -> ActionForm:
    return ActionForm(
        name="savepoint",
        kind="savepoint",
        title="Savepoint",
        summary="Write the whole state into its own folder: for a new version, another parallelism, or a backup.",
        button="Make a savepoint",
        question="Make a savepoint?",
        steps=(
            "The job completes and commits a checkpoint of everything processed until now.",
            "A low-priority process writes the state into the folder. Until it is done, no older checkpoint is deleted.",
            "The job keeps running.",
        ),
        takes_folder=True,
    )


def _stop(*, savepoint: bool = False) -> ActionForm:
    title = "Stop with savepoint" if savepoint else "Stop"
    made = (
        "The job makes a savepoint of that checkpoint. If this fails, the job still ends and keeps the checkpoint, "
        "so you can make one later."
    )
    return ActionForm(
        name="stop-with-savepoint" if savepoint else "stop",
        kind="stop",
        title=title,
        summary="End cleanly and leave a savepoint of the end."
        if savepoint
        else "End cleanly. The next start continues exactly there.",
        button=title if savepoint else "Stop the job",
        question=f"Stop the job{' with a savepoint' if savepoint else ''}?",
        steps=(_LAST_CHECKPOINT, *((made,) if savepoint else ()), _ENDS),
        tone=Tone.WARNING,
        fields=(("savepoint", "true"),) if savepoint else (),
        takes_folder=savepoint,
        takes_drain=True,
    )


def _cancel(view: JobView, rows: str) -> ActionForm:
    deletes = view.plan is not None and view.plan.settings.on_cancel == OnCancel.DELETE_ON_CANCELLATION.value
    last = view.last_completed
    if deletes:
        then = "The job deletes its checkpoints, its state and its progress log, as its setting on_cancel demands."
    elif last:
        then = f"The job keeps its checkpoints. The next start goes back to checkpoint {last.checkpoint}."
    else:
        then = "No checkpoint was completed yet: the next start begins from nothing."
    return ActionForm(
        name="cancel",
        kind="cancel",
        title="Cancel",
        summary="End now, without a last checkpoint.",
        button="Cancel the job",
        question="Cancel the job?",
        steps=(
            "The job finishes the running batch. It makes no last checkpoint.",
            f"The job does not commit what it processed since the last checkpoint ({rows}).",
            then,
        ),
        warning="This cannot be undone: the job can never continue from where it is." if deletes else "",
        tone=Tone.BAD,
        typed=re.escape(view.name) if deletes else "",
    )


def outcome_words(outcome: Outcome) -> tuple[Tone, str]:
    """The tone and headline for the outcome of a request."""
    return _OUTCOMES.get(outcome.state, (Tone.QUIET, f"The request is {outcome.state}"))


_OUTCOMES = {
    "waiting": (Tone.BUSY, "Requested. The job accepts it within a second or two"),
    "under way": (Tone.BUSY, "The job has accepted it"),
    "done": (Tone.GOOD, "Done"),
    "failed": (Tone.BAD, "It failed"),
    "unknown": (
        Tone.QUIET,
        "This request is unknown: it was never made, or the job answered it more than an hour ago",
    ),
}
