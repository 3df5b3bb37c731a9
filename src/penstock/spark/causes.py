"""What Spark says of a failure in few words, and by what a failed batch is recognised when it fails again. Driver."""

from __future__ import annotations

import logging
import re

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import CapturedException

from penstock.engine.task_failures import NOT_SHOWN
from penstock.errors import ConfigError, PenstockError, UserCodeError
from penstock.logins import says_so
from penstock.places import AT, Place, place_in_text, place_in_user_code
from penstock.recovery.restart import may_pass, may_pass_by_name, place_of
from penstock.snapshot.messages import TaskFailed

_OF_THE_QUERY = ("21", "22", "38", "42", "P0")
"""Classes of SQLSTATE for which data, a user's function or the query itself is to blame: cardinality, data, routine, syntax, raised."""
_NOT_THERE = ("42P01", "42K03", "42704")
"""A table, path or schema that is not there may be there again: somebody may be replacing it, or a catalog is away."""
_OF_PYTHON = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)", re.MULTILINE)
"""A line of a traceback that names an exception; its other lines are indented, or end otherwise."""


class BatchFailedError(Exception):
    """What Spark is told of a batch that failed: not why, for it takes a long text apart in a way that can overflow its stack."""

    def __init__(self, number: int) -> None:
        super().__init__(f"batch {number} failed")


class _NotAgain(logging.Filter):
    """Py4J logs, with a stack, every exception that it hands on to Java; of this one everything is said elsewhere."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], BatchFailedError))


logging.getLogger("py4j.clientserver").addFilter(_NotAgain())


_MOST_CHARACTERS = 1000
_OF_A_STACK = re.compile(r"\s|Caused by: |Driver stacktrace:|Traceback \(most recent")
_PLAN = re.compile(r"(?<=SQLSTATE: [0-9A-Z]{5}).*", re.DOTALL)
"""What follows the words of an error in a query."""
_NOT_IMPORTED = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
_UNPICKLING = re.compile(
    r"pyspark/(?:worker_util|serializers)\.py\"?, line \d+, in (?:read_command|_read_with_length|loads)"
)


def in_brief(error: BaseException, *, shows_rows: bool = True) -> BaseException:
    """Spark's errors carry stacks of Java and of Python in their text; what is left says what happened. The whole is its cause.

    Where it was the user's code that raised, here or in a worker, the line is said. Without `shows_rows` only what it is called is.
    """
    of_spark = isinstance(error, Py4JError | PySparkException)
    place = place_in_user_code(error.__traceback__) or (place_in_text(str(error)) if of_spark else None)
    if not of_spark and place is None:
        return error
    text = brief_text(error) if shows_rows else f"{_called(error)} {NOT_SHOWN}"
    brief = _not_imported(error) or _brief(text, place)
    brief.__cause__ = error if shows_rows else None
    return brief


def _called(error: BaseException) -> str:
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    return condition or type(error).__name__


def _brief(text: str, place: Place | None) -> Exception:
    if place is None:
        return RuntimeError(text)
    brief = UserCodeError(f"{text} ({place.short})", file=place.file, line=place.line)
    brief.add_note(f"{AT}{place}")
    return brief


def brief_text(error: BaseException) -> str:
    """What an exception says in one line, without stacks and plans."""
    if not isinstance(error, Py4JError | PySparkException):
        return f"{type(error).__name__}: {error}"
    text = _PLAN.sub("", str(error))
    said = " ".join(line for line in text.splitlines() if line and not _OF_A_STACK.match(line))
    return said if len(said) <= _MOST_CHARACTERS else f"{said[:_MOST_CHARACTERS]}..."


def _not_imported(error: BaseException) -> ConfigError | None:
    """A worker could not take the job's code apart: that is no fault in a function of the user, which was never called."""
    text = str(error)
    missing = _NOT_IMPORTED.search(text)
    if missing is None or not _UNPICKLING.search(text):
        return None
    return ConfigError(
        f"Spark's Python workers cannot import the module {missing[1]!r}, which the job's code uses; this program can. Nothing of your "
        f"code was called. Install {missing[1]!r} in the Python of the workers, give them the file with "
        f"spark.sparkContext.addPyFile(...), or put its folder on their PYTHONPATH",
        module=missing[1],
    )


def cause_of(error: BaseException, told: TaskFailed | None) -> str:
    """A text that is the same when the same happens again; '' for what may pass. `told` is what a task said of its failure."""
    if isinstance(error, PenstockError):
        return ""
    if told is not None:
        return "" if told.error or told.may_pass else f"{told.subtask.uid}: {told.place}"
    if isinstance(error, CapturedException):
        return _cause_in_spark(error)
    return "" if isinstance(error, Py4JError) or may_pass(error) else place_of(error)


def _cause_in_spark(error: CapturedException) -> str:
    """An exception of a user's Python function arrives as text."""
    state = error.getSqlState() or ""
    if not state.startswith(_OF_THE_QUERY) or state in _NOT_THERE:
        return ""
    if not says_so(str(error)) and any(may_pass_by_name(name) for name in _OF_PYTHON.findall(str(error))):
        return ""
    return f"{error.getCondition()} ({state})"
