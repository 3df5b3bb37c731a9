"""Why a task failed: told by the task itself, and what the driver makes of it. Executors and driver.

Exceptions reach the driver only as text inside Spark's own; what it must decide on is sent as data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock import errors
from penstock.engine.assignment import Assignment
from penstock.engine.executor import Executor
from penstock.errors import CorruptStateError, FencedError, PenstockError, UnavailableError
from penstock.ids import SubtaskId
from penstock.recovery.repeated import may_pass, place_of
from penstock.snapshot.messages import TaskFailed

_log = logging.getLogger(__name__)


def tell_failure(executor: Executor, plan: Assignment, subtask: SubtaskId, error: Exception) -> None:
    """Called in a task that is about to fail."""
    kind = type(error).__name__ if isinstance(error, PenstockError) else ""
    file = error.facts.get("file", "") if isinstance(error, PenstockError) else ""
    cause = str(error) if kind else f"{type(error).__name__}: {error}"
    told = TaskFailed(
        plan.place.run, plan.batch, subtask, kind, cause, str(file), place_of(error), may_pass(error)
    )
    try:
        executor.tell(told)
    except OSError as unreachable:
        _log.warning("the driver could not be told why %s failed (%s): %s", subtask, cause, unreachable)


class Accounts:
    """The accounts of one batch. What comes late, of a task of another batch that Spark had given up, explains nothing."""

    def __init__(self, batch: int | None = None) -> None:
        self._batch = batch
        self._told: list[TaskFailed] = []

    def take(self, told: TaskFailed) -> None:
        """From any thread."""
        if told.batch == self._batch:
            self._told.append(told)

    @property
    def first(self) -> TaskFailed | None:
        """The failure that the others may have followed from."""
        return self._told[0] if self._told else None


def as_error(told: TaskFailed, in_checkpoint: Callable[[str], bool]) -> Exception:
    """The exception of a task, as far as the driver takes its word for it."""
    kind = getattr(errors, told.error, RuntimeError)
    if kind is FencedError:
        kind = UnavailableError  # who owns the job is seen in storage, at the latest when it is claimed again
    if kind is CorruptStateError and not in_checkpoint(told.file):
        kind = (
            UnavailableError  # an executor is gone with files it had not uploaded: go back to the checkpoint
        )
    error: Exception = kind(f"{told.subtask}: {told.cause}")
    return error
