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

A refused login is a wrong setting, and not an outage. Clients of databases raise an operational error for both; `refuses_login` goes by
the codes and texts of the servers. A supervisor decides by the exit code of the program whether it starts it again.
"""

from __future__ import annotations

import logging
import re

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
        """The record that could not be processed."""
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
"""Mistakes in the job or in its data."""


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


def causes_of(error: BaseException) -> list[BaseException]:
    """The error, and those that led to it, as a trace shows them."""
    found: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and not any(one is known for known in found):
        found.append(one)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return found


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


# ── refused logins ─────────────────────────────────────────────────────────────────────────────


_OF_MYSQL = frozenset({"pymysql", "MySQLdb", "mysql", "mariadb"})


_NUMBERS = frozenset({1044, 1045, 1049, 1130, 1142, 1143, 1227, 1251, 1370, 1698, 1862, 3118})
"""Of MySQL and MariaDB: user, password, database, host, rights, a way to log in, an account that is expired or locked."""


_STATES = ("28", "3D", "42501")
"""SQLSTATE: authorization, no such database, no right."""


_KINDS = frozenset({"AuthenticationError", "AuthorizationError", "NoPermissionError", "AuthenticationFailed"})


_WORDS = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry|(?:role|database) \"[^\"]*\" does not exist"
    r"|Access denied for user|Unknown database '"
)
"""What PostgreSQL and MySQL say while a connection is made, where psycopg has no state yet, or of which only the text is left."""


def refuses_login(error: BaseException) -> bool:
    """Whether user, password, database or rights are refused; of Penstock's errors the fact `denied` says it."""
    if isinstance(error, PenstockError):
        return bool(error.facts.get("denied"))
    kinds = type(error).__mro__
    if any(kind.__name__ in _KINDS for kind in kinds):
        return True
    if any(kind.__module__.partition(".")[0] in _OF_MYSQL for kind in kinds):
        return _number(error) in _NUMBERS
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return (
        str(state).startswith(_STATES)
        if state
        else _is_of_a_database(kinds) and names_refused_login(str(error))
    )


def names_refused_login(text: str) -> bool:
    """The same of an error of which only the text is known."""
    return _WORDS.search(text) is not None


def _number(error: BaseException) -> object:
    return getattr(error, "errno", None) or next(iter(error.args), None)


def _is_of_a_database(kinds: tuple[type, ...]) -> bool:
    """PEP 249 names the class."""
    return any(kind.__name__ == "OperationalError" for kind in kinds)


# ── exit codes ─────────────────────────────────────────────────────────────────────────────────


EXIT_DONE = 0


EXIT_FAILED = 1
"""Something failed, and another attempt may cure it."""


EXIT_WRONG_SETTING = 2
"""The command or the job is wrong, or the job is running already."""


EXIT_FAILED_FOR_GOOD = 3
"""Another attempt would only meet it again, or the job's restart strategy has given up."""


EXIT_FENCED = 4
"""Another start owns the job now."""


EXIT_BY_SIGNAL = 128
"""And the number of the signal: it ended at once."""


def exit_code_of(error: BaseException) -> int:
    """The code that tells what kind of failure it was."""
    if isinstance(error, ConfigError):
        return EXIT_WRONG_SETTING
    if isinstance(error, FencedError):
        return EXIT_FENCED
    return EXIT_FAILED_FOR_GOOD if is_final(error) or _was_given_up(error) else EXIT_FAILED


def _was_given_up(error: BaseException) -> bool:
    """The restart strategy has counted its failures. A job whose Spark is gone could not even ask it: that is cured by a new process."""
    return isinstance(error, JobFailedError) and "failures" in error.facts
