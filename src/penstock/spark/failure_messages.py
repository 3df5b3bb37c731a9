"""Turns failures of Spark into short errors, and recognises a failure that comes again. Driver.

Spark reports lost messages or a missing topic of a Kafka source in a text of several lines that ends with a plan; only this text names the
kind of failure and the topic.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from datetime import UTC, datetime

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import CapturedException

from penstock.errors import (
    BadRecordError,
    ConfigError,
    FencedError,
    JobFailedError,
    PenstockError,
    SourceLostError,
    UnavailableError,
    UserCodeError,
    names_refused_login,
    refuses_login,
)
from penstock.graph import Graph
from penstock.ownership.claim import StorageAwayError
from penstock.places import AT, Place, place_in_text, place_in_user_code, safe_text
from penstock.recovery.restart import Failure, may_pass, may_pass_by_name, place_of, times_in_a_row
from penstock.run.run import Run
from penstock.snapshot.mailbox import TaskFailed
from penstock.status.live import Progress
from penstock.wording import NOT_SHOWN, counted, duration

_log = logging.getLogger(__name__)

_DATA_LOSS = re.compile(
    r"Some data may have been lost because they are not available in Kafka any more;"
    r".*?Reason:\s*(.+?)(?:\s*SQLSTATE|\n|$)",
    re.DOTALL,
)
_UNKNOWN_TOPIC = "UnknownTopicOrPartitionException"
_SOURCE = re.compile(r"KafkaV2\[(?:Subscribe|SubscribePattern|Assign)\[(.+?)\]\]")
_WITHOUT_THEM = (
    "set the source's option failOnDataLoss to false for one start, to go on without what was not read; "
    "or start a job with a new name"
)


def source_failure(error: BaseException) -> PenstockError | None:
    """An explanation of a failed Kafka source; None if the error is about something else."""
    text = str(error)
    lost = _DATA_LOSS.search(text)
    if lost is not None:
        return _lost(text, lost[1])
    return _unknown(text) if _UNKNOWN_TOPIC in text else None


def _lost(text: str, reason: str) -> SourceLostError:
    sources = _sources(text)
    return SourceLostError(
        f"Kafka no longer has messages that were not read yet{_named(sources)}: {reason.strip()} The job ends at its last checkpoint, "
        f"and what it has written stays. Bring the messages back; or {_WITHOUT_THEM}",
        sources=sources,
        reason=reason.strip(),
    )


def _unknown(text: str) -> UnavailableError:
    sources = _sources(text)
    return UnavailableError(
        f"Kafka does not know a topic that the job reads{_named(sources)}: it was deleted, or the brokers are not ready, or this user "
        "may not see it. The job goes back to its checkpoint, and tries again as often as its restart strategy allows. If the topic was "
        f"deleted, create it again; then {_WITHOUT_THEM}",
        sources=sources,
    )


def _sources(text: str) -> tuple[str, ...]:
    """The topics that the query subscribes to, as Spark names them."""
    return tuple(dict.fromkeys(_SOURCE.findall(text)))


def _named(sources: tuple[str, ...]) -> str:
    return f" (topics of its sources: {', '.join(sources)})" if sources else ""


_OF_THE_QUERY = ("21", "22", "38", "42", "P0")
"""Classes of SQLSTATE caused by data, a user's function or the query: cardinality, data, routine, syntax, raised."""
_NOT_THERE = ("42P01", "42K03", "42704")
"""A missing table, path or schema may come back: it may be in the middle of a replacement, or its catalog may be unavailable."""
_OF_PYTHON = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)", re.MULTILINE)
"""A line of a traceback that names an exception; its other lines are indented, or end otherwise."""


class BatchFailedError(Exception):
    """The error that Spark gets for a failed batch, without the cause: Spark's parsing of a long text can overflow its stack."""

    def __init__(self, number: int) -> None:
        super().__init__(f"batch {number} failed")


class _NotAgain(logging.Filter):
    """Drops the log records, with stacks, that Py4J writes about this exception on its way to Java: the failure is reported elsewhere."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], BatchFailedError))


logging.getLogger("py4j.clientserver").addFilter(_NotAgain())


_MOST_CHARACTERS = 1000
_OF_A_STACK = re.compile(r"\s|Caused by: |Driver stacktrace:|Traceback \(most recent")
_PLAN = re.compile(r"(?<=SQLSTATE: [0-9A-Z]{5}).*", re.DOTALL)
"""The plan that follows the message of a query's error."""
_NOT_IMPORTED = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
_UNPICKLING = re.compile(
    r"pyspark/(?:worker_util|serializers)\.py\"?, line \d+, in (?:read_command|_read_with_length|loads)"
)


def in_brief(error: BaseException, *, shows_rows: bool = True) -> BaseException:
    """A short error for a failure of Spark, whose text contains stacks of Java and Python. The original error is its cause.

    If the user's code raised, on the driver or in a worker, its line is named. Without `shows_rows` only the name of the error remains.
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
    """The message of an exception in one line, without stacks and plans."""
    if not isinstance(error, Py4JError | PySparkException):
        return safe_text(f"{type(error).__name__}: {error}")
    text = _PLAN.sub("", safe_text(str(error)))
    brief = " ".join(line for line in text.splitlines() if line and not _OF_A_STACK.match(line))
    return brief if len(brief) <= _MOST_CHARACTERS else f"{brief[:_MOST_CHARACTERS]}..."


def _not_imported(error: BaseException) -> ConfigError | None:
    """An error for a module that workers cannot import. The user's functions were not even called."""
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


def cause_of(error: BaseException, report: TaskFailed | None) -> str:
    """A text that is equal when the same failure comes again; '' for transient failures. `report` is the report of the failed task."""
    if isinstance(error, PenstockError):
        return ""
    if report is not None:
        return "" if report.error or report.may_pass else f"{report.subtask.uid}: {report.place}"
    if isinstance(error, CapturedException):
        return _cause_in_spark(error)
    return "" if isinstance(error, Py4JError) or may_pass(error) else place_of(error)


def _cause_in_spark(error: CapturedException) -> str:
    """The same for an error of Spark. An exception of a user's Python function arrives as text."""
    state = error.getSqlState() or ""
    if not state.startswith(_OF_THE_QUERY) or state in _NOT_THERE:
        return ""
    if not names_refused_login(str(error)) and any(
        may_pass_by_name(name) for name in _OF_PYTHON.findall(str(error))
    ):
        return ""
    return f"{error.getCondition()} ({state})"


def explained(error: BaseException, run: Run, graph: Graph, *, shows_rows: bool) -> BaseException:
    """Choose the error to report for a failed run: of a source Spark's, shortened; else the task's own; else Spark's, shortened.

    `shows_rows`: whether Spark's message, which may contain values of rows, is shown.
    """
    if isinstance(error, PenstockError):
        return error
    lost = source_failure(error)
    if lost is not None:
        lost.__cause__ = error if shows_rows else None
        return lost
    report = run.explained(error)
    if report is not None:
        graph.say_where(report, run.task_failure.subtask.uid if run.task_failure else "")
        return report
    return in_brief(error, shows_rows=shows_rows)


def ownership_failure(failure: BaseException, run: Run, job: str) -> BaseException:
    """A fenced run, or one without its storage, fails in many ways, because its files are gone. Report why they are gone instead."""
    if isinstance(failure, FencedError | StorageAwayError):
        return failure
    try:
        run.check_claim()
    except (FencedError, StorageAwayError) as error:
        error.__cause__ = failure
        return error
    except Exception as error:  # noqa: BLE001 - storage is unavailable, so the owner is unknown, and the failure itself is reported
        _log.debug("who owns job %s could not be seen", job, exc_info=error)
    return failure


def retries_start(error: BaseException) -> bool:
    """Whether a start that failed with this error is retried. A login that is refused at the start is a wrong setting, not an outage."""
    return isinstance(error, UnavailableError) and not refuses_login(error)


def notes_of(error: BaseException) -> list[str]:
    """The notes below the message of an exception."""
    return list(getattr(error, "__notes__", ()))


def restart_line(job: str, error: Exception, delay_s: float, progress: Progress, *, met_before: bool) -> str:
    """One line for a failure; the first of its kind with notes that help to find the cause."""
    line = f"job {job} failed ({type(error).__name__}: {error}); it goes back to its last checkpoint in {duration(delay_s)}"
    if progress.failed_in_a_row > 1:
        since = f"{datetime.fromtimestamp(progress.down_since, UTC):%H:%M:%S} UTC"
        line += f". It has failed {progress.failed_in_a_row} times since {since}, without a batch in between"
    return safe_text("\n".join([line] if met_before else [line, *notes_of(error)]))


def why_restarted(strategy: str, failures: int, delay_s: float) -> str:
    """Why the job is restarted."""
    return f"after {counted(failures, 'failure')} {strategy} allows another try, in {duration(delay_s)}"


def why_final(error: BaseException) -> str:
    """Why the job is not restarted."""
    if isinstance(error, JobFailedError):
        notes = notes_of(error)
        return notes[-1].strip() if notes else str(error)
    return f"given up: another attempt would only meet {type(error).__name__} again"


def failed_for_good(job: str, error: Exception, why: str, **facts: object) -> JobFailedError:
    """The final error of a job, with the reason `why` it is not restarted, and the notes of the cause."""
    failed = JobFailedError(f"job {job} failed for good: {error}", **facts)
    for note in (*notes_of(error), f"  {why}"):
        failed.add_note(note)
    failed.__cause__ = error
    return failed


def repeated_failure(job: str, error: Exception, met: Sequence[Failure]) -> JobFailedError:
    """The final error of a job that failed at the same place again and again."""
    why = (
        f"It failed {times_in_a_row(met)} times in a row at the same place, in batch {met[-1].batch}: the cause is in the code or in the "
        "data. (A restart strategy with `attempts` tries as often as it says.)"
    )
    return failed_for_good(job, error, why, failures=len(met), batch=met[-1].batch)


def add_next_step(error: BaseException, progress: Progress) -> None:
    """Add a note on how to continue after a failure of the job's code or data. Other errors say it themselves."""
    if not isinstance(error, BadRecordError | UserCodeError | JobFailedError):
        return
    start = f"from checkpoint {progress.checkpoint}" if progress.checkpoint >= 0 else "from the beginning"
    error.add_note(
        f"  The job has failed{_in_batch(error)}, and nothing is lost: fix the cause and start again; it continues {start}."
    )


def _in_batch(error: PenstockError) -> str:
    batch = error.facts.get("batch")
    return "" if batch is None else f" in batch {batch}"
