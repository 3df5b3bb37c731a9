"""Why a task failed: the report of the task, and the error that the driver makes of it. Executors and driver.

Exceptions reach the driver only as text inside Spark's own. The facts on which the driver decides are sent as data.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from penstock import errors
from penstock.clock import Clock
from penstock.errors import (
    BadRecordError,
    ConfigError,
    CorruptStateError,
    FencedError,
    IncompatibleStateError,
    PenstockError,
    UnavailableError,
    UserCodeError,
)
from penstock.ids import SubtaskId
from penstock.operators.bad_records import is_of_the_row
from penstock.operators.process.failed_call import failed_call
from penstock.places import AT, safe_text
from penstock.recovery.restart import may_pass, place_of
from penstock.run.assignment import Answer, Assignment, Executor, OperatorAnswer
from penstock.snapshot.mailbox import RepeatedTask, TaskFailed
from penstock.wording import NOT_SHOWN, storable

_log = logging.getLogger(__name__)

MOST_NOTES = 3
LONGEST_NOTE = 300
_NO_SECOND_TRY = frozenset(
    kind.__name__ for kind in (ConfigError, IncompatibleStateError, BadRecordError, UserCodeError)
)


def report_failure(executor: Executor, assignment: Assignment, subtask: SubtaskId, error: Exception) -> None:
    """Report the error of a task that is about to fail."""
    report = _report(assignment, subtask, error)
    try:
        executor.tell(report)
    except ConnectionRefusedError as refused:
        _log.debug(
            "the run is over, so the failure of %s is not reported (%s): %s", subtask, report.cause, refused
        )
    except OSError as unreachable:
        _log.warning(
            "the failure of %s could not be reported to the driver (%s): %s",
            subtask,
            report.cause,
            unreachable,
        )


def _report(assignment: Assignment, subtask: SubtaskId, error: Exception) -> TaskFailed:
    kind = type(error).__name__ if isinstance(error, PenstockError) else ""
    file = error.facts.get("file", "") if isinstance(error, PenstockError) else ""
    call = failed_call(error)
    return TaskFailed(
        assignment.place.run,
        assignment.batch,
        subtask,
        kind,
        safe_text(str(error) if kind else f"{type(error).__name__}: {error}"),
        storable(str(file)),
        place_of(error),
        may_pass(error),
        call.place,
        safe_text(call.key),
        safe_text(call.row),
        call.names,
        call.is_wrong_name,
        tuple(
            safe_text(one.split("\n")[0])[:LONGEST_NOTE]
            for one in getattr(error, "__notes__", ())[:MOST_NOTES]
        ),
    )


class FailureReports:
    """The failure reports of one batch. A late report, from a task of an earlier batch that Spark had given up, is ignored."""

    def __init__(self, batch: int | None = None, *, shows_rows: bool = True) -> None:
        self._batch = batch
        self._shows_rows = shows_rows
        self._reports: list[TaskFailed] = []

    def take(self, report: TaskFailed) -> None:
        """Add a report. From any thread."""
        if report.batch == self._batch:
            self._reports.append(report if self._shows_rows else _without_rows(report))

    @property
    def reports(self) -> tuple[TaskFailed, ...]:
        """All reports, in the order of their arrival."""
        return tuple(self._reports)

    @property
    def decisive(self) -> TaskFailed | None:
        """The failure that ends the batch: one that a retry would repeat, else the first, which may have caused the others."""
        return self.hopeless or (self._reports[0] if self._reports else None)

    @property
    def hopeless(self) -> TaskFailed | None:
        """A failure that another attempt would only repeat: its kind says so, or an attempt failed at the same place before."""
        met: set[tuple[SubtaskId, str]] = set()
        for report in tuple(self._reports):
            if report.error in _NO_SECOND_TRY or report.is_wrong_name:
                return report
            if not report.error and not report.may_pass:
                if (report.subtask, report.place) in met:
                    return report
                met.add((report.subtask, report.place))
        return None


def _without_rows(report: TaskFailed) -> TaskFailed:
    """The report without values of rows: only the exception and its place remain."""
    kind = report.error or report.cause.partition(":")[0]
    cause = f"{kind} {NOT_SHOWN}"
    # also an exception of ours, if the user's code raised it
    of_rows = report.at is not None or report.error in (
        "",
        BadRecordError.__name__,
    )
    return msgspec.structs.replace(
        report,
        cause=cause if of_rows else report.cause,
        key="",
        row="",
        notes=() if of_rows else report.notes,
    )


def as_error(report: TaskFailed, in_checkpoint: Callable[[str], bool]) -> PenstockError:
    """The error of a task, as far as the driver relies on the report. Its notes help the user to find the cause."""
    kind = getattr(errors, report.error, UserCodeError)
    if kind is FencedError:
        kind = UnavailableError  # storage shows who owns the job, at the latest at the next claim
    if kind is CorruptStateError and not in_checkpoint(report.file):
        kind = UnavailableError  # an executor is gone with files that it had not uploaded: go back to the checkpoint
    text = f"{report.subtask}: {report.cause}"
    if report.at is not None and kind is UserCodeError:
        text += f" ({report.at.short})"
    error: PenstockError = kind(text, **_facts(report))
    for note in _notes(report):
        error.add_note(note)
    return error


def _facts(report: TaskFailed) -> dict[str, object]:
    facts = {
        "operator": report.subtask.uid,
        "subtask": report.subtask.index,
        "batch": report.batch,
        "key": report.key or None,
        "row": report.row or None,
        "is_wrong_name": report.is_wrong_name,
    }
    if report.at is not None:
        facts |= {"file": report.at.file, "line": report.at.line}
    return facts


def _notes(report: TaskFailed) -> list[str]:
    facts = (
        (AT, "" if report.at is None else str(report.at)),
        ("  key: ", report.key),
        ("  row: ", report.row),
        ("  ", report.names),
    )
    return [*(f"{what}{value}" for what, value in facts if value), *(f"  {note}" for note in report.notes)]


def tolerates(error: Exception) -> bool:
    """Whether an exception of user code concerns only the row."""
    return is_of_the_row(error, may_pass)


REPORT_EVERY_S = 60.0
"""Reports about one operator are this far apart: code that fails in every batch must not fill the journal."""


def repeated_tasks(
    batch: int, reports: Sequence[TaskFailed], answers: Sequence[Answer]
) -> tuple[RepeatedTask, ...]:
    """The repeated tasks of a batch, by operator or sink. `answers` come from the attempts that Spark kept.

    Several operators and sinks may share one Spark task, and are repeated together: if one has reported why, the others add nothing.
    """
    failed: defaultdict[str, list[TaskFailed]] = defaultdict(list)
    for one in reports:
        failed[one.subtask.uid].append(one)
    if failed:
        return tuple(_explained(batch, uid, ones) for uid, ones in failed.items())
    silent: defaultdict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        if answer.tries > 1:
            silent[answer.uid].append(answer)
    return tuple(_unexplained(batch, uid, ones) for uid, ones in silent.items())


def _explained(batch: int, uid: str, failed: Sequence[TaskFailed]) -> RepeatedTask:
    indexes = [one.subtask.index for one in failed]
    at = f" ({failed[0].at.short})" if failed[0].at is not None else ""
    attempts = 1 + max(indexes.count(index) for index in indexes)
    return RepeatedTask(uid, batch, tuple(sorted(set(indexes))), attempts, f"{failed[0].cause}{at}")


def _unexplained(batch: int, uid: str, answers: Sequence[Answer]) -> RepeatedTask:
    known = {index for answer in answers if (index := _index(answer)) is not None}
    return RepeatedTask(uid, batch, tuple(sorted(known)), max(answer.tries for answer in answers), "")


def _index(answer: Answer) -> int | None:
    """The index of the subtask that answered. A task of an operator without rows does not know it."""
    if isinstance(answer, OperatorAnswer):
        return None if answer.handle is None else answer.handle.subtask.index
    return answer.subtask


@dataclass
class RepeatReporter:
    """Reports the repeated tasks of each operator at intervals, with the number of batches that were left out."""

    tell: Callable[[RepeatedTask], None]
    clock: Clock
    _reported_s: dict[str, float] = field(default_factory=dict)
    _left_out: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def take(self, found: Sequence[RepeatedTask]) -> None:
        """Take the repeated tasks of one batch."""
        now_s = self.clock.monotonic()
        for one in found:
            if now_s - self._reported_s.get(one.uid, -REPORT_EVERY_S) < REPORT_EVERY_S:
                self._left_out[one.uid] += 1
                continue
            self._reported_s[one.uid] = now_s
            self.tell(replace(one, batches_before=self._left_out.pop(one.uid, 0)))
