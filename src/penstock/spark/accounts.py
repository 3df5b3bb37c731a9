"""What tasks said of their failures, and what the driver makes of it. Driver."""

from __future__ import annotations

from collections.abc import Callable

from penstock import errors
from penstock.errors import CorruptStateError, FencedError, UnavailableError
from penstock.snapshot.messages import TaskFailed


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
