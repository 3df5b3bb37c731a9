"""The log as JSON lines, and what its lines are about: job, run, checkpoint, operator. Driver and executors.

Which job and run a line is about is known by the thread that says it: `of_job` and `of_run` tell it once, `in_context` hands it on to
threads that it starts. What only the message knows comes with it: `extra=about(checkpoint=7)`. This needs no setup,
and with a `Formatter` of one's own nothing changes.
"""

from __future__ import annotations

import enum
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TextIO, TypeVar

from penstock.errors import ConfigError
from penstock.ids import SubtaskId

_T = TypeVar("_T")

SETTING = "PENSTOCK_LOG"
"""The setting of the environment: `json` or `text`."""
FIELDS = ("job", "run", "checkpoint", "operator", "subtask")


class LogForm(enum.StrEnum):
    """How the log is written."""

    TEXT = "text"
    JSON = "json"


# ── what a line is about ───────────────────────────────────────────────────────────────────────────


@dataclass
class _Whose:
    """A job of this process. All its threads have the same one, so that they know of the next run when it has begun."""

    job: str
    run: int = 0


_HERE: ContextVar[_Whose | None] = ContextVar("penstock_job", default=None)
_JOBS: dict[str, _Whose] = {}


def of_job(name: str) -> None:
    """From here on this thread speaks of this job."""
    _HERE.set(_JOBS.setdefault(name, _Whose(name)))


def of_run(run: int) -> None:
    """The job of this thread has come to this run."""
    whose = _HERE.get()
    if whose is not None:
        whose.run = run


def in_context(work: Callable[..., None]) -> Callable[..., None]:
    """The target of a thread that speaks of the same job as the one that starts it."""
    return partial(copy_context().run, work)


def about(
    *, checkpoint: int | None = None, operator: str | None = None, error: BaseException | None = None
) -> dict[str, Any]:
    """What a message is about, for `extra=`. The uid of a sink or a source counts as an operator's.

    A subtask or an error among the values of the message need not be given: it is found there.
    """
    named = None if error is None else type(error).__name__
    number = checkpoint if checkpoint is not None and checkpoint >= 0 else None
    given = {"checkpoint": number, "operator": operator, "error": named}
    return {name: value for name, value in given.items() if value is not None}


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """All that is known of what a line is about. To be asked in the thread that says it, as handlers are."""
    whose = _whose()
    known: dict[str, Any] = {} if whose is None else {"job": whose.job, "run": whose.run or None}
    known |= next(({"operator": one.uid, "subtask": one.index} for one in _values(record, SubtaskId)), {})
    known |= {name: _plain(value) for name in FIELDS if (value := getattr(record, name, None)) is not None}
    return {name: known[name] for name in FIELDS if known.get(name) is not None}


def _plain(value: object) -> str | int:
    """A user's own `extra=` may hold any value under these names, even one that cannot be encoded."""
    if isinstance(value, str | int):
        return value
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a line of the log is not lost for it
        return type(value).__name__


def _values(record: logging.LogRecord, kind: type[_T]) -> Iterator[_T]:
    """Those of a message that are of this kind."""
    values = record.args if isinstance(record.args, tuple) else ()
    return (value for value in values if isinstance(value, kind))


def _whose() -> _Whose | None:
    """The job of this thread. In a thread of Spark, which has none, it is the only job of the process."""
    here = _HERE.get()
    if here is not None:
        return here
    if len(_JOBS) == 1:
        return next(iter(_JOBS.values()))
    return _JOBS.get(threading.current_thread().name.removeprefix("penstock-"))


class LogFields(logging.Filter):
    """Puts the fields on every record, for a handler with a format of its own: `%(job)s %(run)s %(message)s`. '' where one is not known."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass every record on, with the fields added."""
        found = fields_of(record)
        for name in FIELDS:
            setattr(record, name, found.get(name, ""))
        return True


# ── lines ──────────────────────────────────────────────────────────────────────────────────────────


class JsonLines(logging.Formatter):
    """A formatter for any handler: one JSON object a line. Fields that are not known are left out."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; line breaks in it are escaped."""
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
            **self._error(record),
        }
        return json.dumps(line, default=str)

    def _error(self, record: logging.LogRecord) -> dict[str, str]:
        """The class of the error that the line is about, and where it comes from, if that was to be said."""
        if record.exc_info and record.exc_info[0] is not None:
            return {"error": record.exc_info[0].__name__, "trace": self.formatException(record.exc_info)}
        said = getattr(record, "error", None) or next(
            (type(one).__name__ for one in _values(record, BaseException)), None
        )
        return {} if said is None else {"error": str(said)}


# ── setting it up ──────────────────────────────────────────────────────────────────────────────────


class _Asked:
    """Whether JSON was requested by a call, and not by the environment."""

    json = False


def wanted_form() -> LogForm:
    """How the log is to be written here; raises `ConfigError` for a word that is none."""
    said = os.environ.get(SETTING, "").strip().lower() or LogForm.TEXT
    if said not in tuple(LogForm):
        raise ConfigError(f"{SETTING}={said} is not allowed: it is text or json", setting=SETTING, value=said)
    return LogForm.JSON if _Asked.json else LogForm(said)


def log_as_json(stream: TextIO | None = None, *, debug: bool = False) -> None:
    """Write the log of this process as JSON lines, from INFO on; `debug`: all of Penstock's. On standard error, unless a stream is given.

    Handlers of the root logger that print elsewhere, such as into a file, stay as they are. Those that print on a stream are replaced.
    """
    _Asked.json = True
    root = logging.getLogger()
    for handler in list(root.handlers):
        if type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
    root.addHandler(json_handler(stream or sys.stderr))
    if root.level in (logging.NOTSET, logging.WARNING):
        root.setLevel(logging.INFO)
    logging.getLogger("penstock").setLevel(logging.DEBUG if debug else logging.INFO)
    logging.captureWarnings(capture=True)


def is_json() -> bool:
    """Whether the log is to be JSON; a wrong word in the environment is no reason to fail here."""
    return _Asked.json or os.environ.get(SETTING, "").strip().lower() == LogForm.JSON


def json_handler(stream: TextIO) -> logging.StreamHandler[TextIO]:
    """A handler that prints JSON lines."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    return handler


def _last_resort_as_json() -> None:
    """Format as JSON also the warnings that Python prints itself where no log is set up, as in Spark's Python workers."""
    if is_json() and logging.lastResort is not None:
        logging.lastResort.setFormatter(JsonLines())


_last_resort_as_json()
