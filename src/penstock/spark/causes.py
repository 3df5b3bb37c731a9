"""What Spark says of a failure in few words, and by what a failed batch is recognised when it fails again. Driver."""

from __future__ import annotations

import logging
import re

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import CapturedException

from penstock.errors import PenstockError
from penstock.recovery.repeated import may_pass, place_of
from penstock.snapshot.messages import TaskFailed

_OF_THE_QUERY = ("21", "22", "38", "42", "P0")
"""Classes of SQLSTATE for which data, a user's function or the query itself is to blame: cardinality, data, routine, syntax, raised."""


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


def in_brief(error: BaseException) -> BaseException:
    """Spark's errors carry stacks of Java and of Python in their text; what is left says what happened. The whole is its cause."""
    if not isinstance(error, Py4JError | PySparkException):
        return error
    said = " ".join(line for line in str(error).splitlines() if line and not _OF_A_STACK.match(line))
    brief = RuntimeError(said if len(said) <= _MOST_CHARACTERS else f"{said[:_MOST_CHARACTERS]}...")
    brief.__cause__ = error
    return brief


def cause_of(error: BaseException, told: TaskFailed | None) -> str:
    """A text that is the same when the same happens again; '' for what may pass. `told` is what a task said of its failure."""
    if isinstance(error, PenstockError):
        return ""
    if told is not None:
        return "" if told.error or told.may_pass else f"{told.subtask.uid}: {told.place}"
    if isinstance(error, CapturedException):
        state = error.getSqlState() or ""
        return f"{error.getCondition()} ({state})" if state.startswith(_OF_THE_QUERY) else ""
    return "" if isinstance(error, Py4JError) or may_pass(error) else place_of(error)
