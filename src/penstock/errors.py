"""Every error Penstock raises, grouped by what the reader must do.

    PenstockError
    ├── ConfigError             fix the job; raised before Spark starts wherever that is possible
    │   └── RunningAlreadyError stop the other run first, or take the job over
    ├── UnavailableError        something outside did not work and may pass; look at it if it does not
    ├── CheckpointFailedError   nothing to do: the job goes on from the checkpoint before
    ├── FencedError             stop: another run owns the job now
    ├── CorruptStateError       restore an older checkpoint
    ├── IncompatibleStateError  change the job back, or start from another checkpoint
    ├── BadRecordError          fix the data or the user code; a restart would meet it again
    ├── UserCodeError           fix the user code: it raised
    ├── CommitLostError         a person must look: a promised commit cannot be made
    ├── SourceLostError         a person must look: input that was not read yet is gone
    ├── JobFailedError          the restart strategy gave up; its cause says why
    └── InternalError           a bug in Penstock: report it with the text

Runs on the driver and on executors. Exceptions do not cross from an executor to the driver as objects,
so whatever the coordinator must decide on travels as data, never as one of these.
"""

from __future__ import annotations

import logging

_log = logging.getLogger("penstock")


class PenstockError(Exception):
    """The root of all errors raised by Penstock; `facts` holds the values that the text mentions."""

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.facts = facts


class ConfigError(PenstockError):
    """A setting or a part of the job cannot work; nothing has been started and nothing is lost."""


class RunningAlreadyError(ConfigError):
    """The newest run of the job seems to be alive; `facts` has its `run`, `pid` and `host`."""


class UnavailableError(PenstockError):
    """Storage, a machine or a server lacks what may be there again. A commit is tried until it succeeds, a running job goes back."""


class CheckpointFailedError(PenstockError):
    """One checkpoint was given up; its files are deleted and the job goes on."""


class FencedError(PenstockError):
    """A newer run owns the job; this one may neither complete a checkpoint nor commit."""


class CorruptStateError(PenstockError):
    """What was read from storage is not what was written there."""


class IncompatibleStateError(PenstockError):
    """The stored state does not belong to the job as it is now."""


class BadRecordError(PenstockError):
    """A record (or the user code that handles it) cannot be processed; a restart would fail again.

    `key` and `row` are values where it is raised, in the task, and texts on the driver; each is None where it is not known.
    """

    @property
    def operator(self) -> str | None:
        """The uid of the operator or sink that could not process it."""
        operator = self.facts.get("operator")
        return None if operator is None else str(operator)

    @property
    def key(self) -> object:
        """The key of the record."""
        return self.facts.get("key")

    @property
    def row(self) -> object:
        """The record."""
        return self.facts.get("row")


class UserCodeError(PenstockError):
    """Code of the user raised an exception; `facts` say where in their file, for which key and row."""


class CommitLostError(PenstockError):
    """A transaction that a completed checkpoint names can no longer be committed."""


class SourceLostError(PenstockError):
    """A source no longer has records that come after the last checkpoint."""


class JobFailedError(PenstockError):
    """The job failed for good; the restart strategy allows no further attempt."""


class InternalError(PenstockError):
    """Penstock broke one of its own rules."""


FATAL = (ConfigError, IncompatibleStateError, BadRecordError)
"""What is wrong in the job or in its data."""
FINAL = (*FATAL, FencedError, CorruptStateError, CommitLostError, SourceLostError)
"""What another attempt would only meet again."""


def is_final(error: BaseException) -> bool:
    """Whether another attempt would only meet it again."""
    return isinstance(error, FINAL) or (
        isinstance(error, UserCodeError) and bool(error.facts.get("is_wrong_name"))
    )


def error_named(name: str, text: str) -> Exception:
    """The error that another process has met, as if it had been met here."""
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, PenstockError):
        return kind(text)
    if name == "FileNotFoundError":
        return FileNotFoundError(text)
    return InternalError(f"{name}: {text}")


def shown_alone(error: BaseException) -> BaseException:
    """Let Python print an error by itself, without Penstock's own calls and without the errors that led to it.

    What led to it stays in its `__context__`. An interrupt was wanted: where it met Penstock says nothing. A bug in Penstock is shown
    whole, and so is everything with the level DEBUG for 'penstock'.
    """
    is_told = isinstance(error, PenstockError | KeyboardInterrupt) and not isinstance(error, InternalError)
    if not is_told or _log.isEnabledFor(logging.DEBUG):
        return error
    error.__context__ = error.__cause__ or error.__context__
    error.__cause__ = None
    error.__suppress_context__ = True
    return error.with_traceback(None)
