"""What can be asked of a running job from a page, and what exactly will happen then. Pure.

A confirmation has the values of this moment in it: how many rows are done again, what is deleted. Who reads it shall not have to know more.
"""

from __future__ import annotations

import re

import msgspec

from penstock.config import OnCancel
from penstock.requests.request_client import Outcome
from penstock.status.health import Tone
from penstock.status.view import JobView
from penstock.wording import counted


class ActionForm(msgspec.Struct, frozen=True, kw_only=True):
    """One button, and the dialog behind it."""

    name: str
    kind: str
    """The last part of the path that it is sent to."""
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
    """What has to be typed first, as a regular expression; '' for nothing."""


def action_forms(view: JobView) -> tuple[ActionForm, ...]:
    """All of them, the harmless ones first."""
    return (_checkpoint(view), _savepoint(), _stop(), _stop_with_savepoint(), _cancel(view))


def _checkpoint(view: JobView) -> ActionForm:
    rows = view.live.rows_since_checkpoint if view.live else 0
    return ActionForm(
        name="checkpoint",
        kind="checkpoint",
        title="Checkpoint now",
        summary="Make safe what was processed so far, without waiting for the interval.",
        button="Trigger a checkpoint",
        question="Trigger a checkpoint now?",
        steps=(
            f"The next barrier carries a checkpoint; it has everything processed until now ({counted(rows, 'row')} since the last one).",
            "Its output is committed when it is completed. The job goes on meanwhile.",
        ),
    )


def _savepoint() -> ActionForm:
    return ActionForm(
        name="savepoint",
        kind="savepoint",
        title="Savepoint",
        summary="Write the whole state into a folder of its own, for a new version, another parallelism, or as a backup.",
        button="Make a savepoint",
        question="Make a savepoint?",
        steps=(
            "A checkpoint of everything processed until now is completed and committed.",
            "A process of low priority writes its state into the folder. Until it is done no older checkpoint is deleted.",
            "The job goes on meanwhile.",
        ),
        takes_folder=True,
    )


def _stop() -> ActionForm:
    return ActionForm(
        name="stop",
        kind="stop",
        title="Stop",
        summary="End in good order. The next start goes on exactly there.",
        button="Stop the job",
        question="Stop the job?",
        steps=(
            "The batch that is running ends.",
            "Everything processed is completed and committed.",
            "The job ends, and nothing is processed until somebody starts it again.",
        ),
        tone=Tone.WARNING,
        takes_drain=True,
    )


def _stop_with_savepoint() -> ActionForm:
    return ActionForm(
        name="stop-with-savepoint",
        kind="stop",
        title="Stop with savepoint",
        summary="End in good order, and leave a savepoint of the end.",
        button="Stop with savepoint",
        question="Stop the job with a savepoint?",
        steps=(
            "The batch that is running ends. Everything processed is completed and committed.",
            "A savepoint is made of that. If it fails, the job ends all the same; its checkpoint is kept, so one can be made later.",
            "The job ends, and nothing is processed until somebody starts it again.",
        ),
        tone=Tone.WARNING,
        fields=(("savepoint", "true"),),
        takes_folder=True,
        takes_drain=True,
    )


def _cancel(view: JobView) -> ActionForm:
    rows = view.live.rows_since_checkpoint if view.live else 0
    deletes = view.plan is not None and view.plan.settings.on_cancel == OnCancel.DELETE_ON_CANCELLATION.value
    last = view.last_completed
    then = (
        "Its checkpoints, its state and its progress log are deleted: the job is told to do so (on_cancel)."
        if deletes
        else f"Checkpoints are kept. The next start goes back to checkpoint {last.checkpoint}."
        if last
        else "No checkpoint was completed yet: the next start begins from nothing."
    )
    return ActionForm(
        name="cancel",
        kind="cancel",
        title="Cancel",
        summary="End now, without a last checkpoint.",
        button="Cancel the job",
        question="Cancel the job?",
        steps=(
            "The batch that is running ends. No last checkpoint is made.",
            f"What was processed since the last checkpoint ({counted(rows, 'row')}) is not committed.",
            then,
        ),
        warning="This cannot be undone: the job can never go on from where it is." if deletes else "",
        tone=Tone.BAD,
        typed=re.escape(view.name) if deletes else "",
    )


def outcome_words(outcome: Outcome) -> tuple[Tone, str]:
    """What has become of a request, as tone and headline."""
    return _OUTCOMES.get(outcome.state, (Tone.QUIET, f"It is {outcome.state}"))


_OUTCOMES = {
    "waiting": (Tone.BUSY, "Asked. The job takes it on within a second or two"),
    "under way": (Tone.BUSY, "The job has taken it on"),
    "done": (Tone.GOOD, "Done"),
    "failed": (Tone.BAD, "It came to nothing"),
    "unknown": (
        Tone.QUIET,
        "Nothing is known of this request: it was never asked, or was answered more than an hour ago",
    ),
}
