"""Turns the answers of a batch into acknowledgements, transactions of the sinks, and counts of bad and late rows. Driver."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from penstock.checkpoint.model import PreCommitted, SubtaskReport
from penstock.errors import InternalError, UnavailableError
from penstock.ids import CheckpointId, SubtaskId
from penstock.log_fields import about
from penstock.places import without_secrets
from penstock.run.assignment import Answer, Assignment, BadCount, OperatorAnswer, SinkAnswer
from penstock.state.handle import StateHandle
from penstock.wording import counted

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Acknowledged:
    """The result of a batch after every operator and every sink has answered."""

    handles: Mapping[SubtaskId, StateHandle]
    reports: Mapping[SubtaskId, SubtaskReport]
    transactions: tuple[PreCommitted, ...]
    with_rows: frozenset[SubtaskId]
    """The subtasks whose tasks opened their state."""
    bad_records: Mapping[str, BadCount]
    """By the uids of operators and sinks that could not process some of their rows."""
    late_rows: Mapping[str, int]
    """By the uids of operators that received late rows."""


def acknowledged(assignment: Assignment, operators: Sequence[str], answers: Sequence[Answer]) -> Acknowledged:
    """Combine the answers of the kept attempts. A subtask without rows acknowledges with its previous handle."""
    given = [answer for answer in answers if isinstance(answer, OperatorAnswer)]
    _check_once(given, operators, assignment)
    _check_written_once([answer for answer in answers if isinstance(answer, SinkAnswer)], assignment.batch)
    handles = {
        subtask: _carried_over(assignment, subtask)
        for uid in operators
        for subtask in (SubtaskId(uid, index) for index in range(assignment.place.parallelism))
    }
    reports = {
        subtask: SubtaskReport(subtask, state_bytes=handle.size) for subtask, handle in handles.items()
    }
    with_rows = set()
    for answer in given:
        if answer.handle is not None and answer.report is not None:
            handles[answer.handle.subtask] = answer.handle
            reports[answer.handle.subtask] = answer.report
            with_rows.add(answer.handle.subtask)
    late = Counter[str]()
    for answer in given:
        late[answer.uid] += answer.late
    return Acknowledged(
        handles, reports, _transactions(answers), frozenset(with_rows), _bad_records(answers), +late
    )


def _bad_records(answers: Sequence[Answer]) -> dict[str, BadCount]:
    found: dict[str, BadCount] = {}
    for answer in answers:
        found[answer.uid] = found.get(answer.uid, BadCount()).plus(answer.bad)
    return {uid: bad for uid, bad in found.items() if bad.rows}


def _carried_over(assignment: Assignment, subtask: SubtaskId) -> StateHandle:
    before = assignment.handles.get(subtask)
    if before is None:
        return StateHandle(subtask, assignment.place.backend.name, assignment.batch)
    return msgspec.structs.replace(before, version=assignment.batch)


def _transactions(answers: Sequence[Answer]) -> tuple[PreCommitted, ...]:
    return tuple(
        answer.transaction for answer in answers if isinstance(answer, SinkAnswer) and answer.transaction
    )


def _check_once(given: Sequence[OperatorAnswer], operators: Sequence[str], assignment: Assignment) -> None:
    """Check that each subtask ran once. One that ran again after its results were used may have answered differently."""
    ran = Counter(answer.uid for answer in given)
    for uid in operators:
        _check_times(uid, ran[uid], assignment.place.parallelism, assignment.batch)


def _check_written_once(given: Sequence[SinkAnswer], batch: CheckpointId) -> None:
    """Check that each sink task wrote once. If its bad rows are kept, Spark may run its lost tasks again, and they write again."""
    wrote = Counter((answer.uid, answer.subtask) for answer in given)
    for (uid, subtask), times in wrote.items():
        if times > 1:
            raise UnavailableError(
                f"batch {batch} is given up: Spark lost a task of the sink {uid} and wrote the rows of its subtask {subtask} again; the "
                "job goes back to its checkpoint",
                sink=uid,
            )


def _check_times(uid: str, times: int, parallelism: int, batch: CheckpointId) -> None:
    if times > parallelism:
        raise UnavailableError(
            f"batch {batch} is given up: Spark lost results of operator {uid} and ran {times - parallelism} of its "
            f"{parallelism} subtasks again; the job goes back to its checkpoint",
            operator=uid,
        )
    if times < parallelism:
        raise InternalError(
            f"batch {batch}: only {times} of {parallelism} subtasks of operator {uid} answered"
        )


class BadRecordCounts:
    """Counts bad rows over the life of the job. It starts with the counts of the checkpoint, so a repeated batch counts once."""

    def __init__(self, restored: Mapping[str, int], *, shows_reasons: bool = True) -> None:
        self._so_far = Counter(restored)
        self._shows_reasons = shows_reasons

    @property
    def so_far(self) -> dict[str, int]:
        """The rows so far, by operator or sink."""
        return dict(self._so_far)

    def add(self, batch: CheckpointId, found: Mapping[str, BadCount]) -> None:
        """Add the counts of a batch, and log them."""
        for uid, bad in found.items():
            self._so_far[uid] += bad.rows
            _log.log(
                logging.ERROR if bad.rows == bad.of else logging.WARNING,
                "batch %d: %s of %d rows were bad at %r, %d so far; the first: %s",
                *(batch, "ALL" if bad.rows == bad.of else bad.rows, bad.of, uid, self._so_far[uid]),
                without_secrets(bad.first_reason) if self._shows_reasons else "(not shown)",
                extra=about(checkpoint=batch, operator=uid),
            )


class LateRowCounts:
    """Counts late rows over the life of the job. It starts with the counts of the checkpoint, so a repeated batch counts once."""

    def __init__(self, restored: Mapping[str, int]) -> None:
        self._so_far = Counter(restored)
        self._told: set[str] = set()

    @property
    def so_far(self) -> dict[str, int]:
        """The rows so far, by operator."""
        return dict(self._so_far)

    def add(self, batch: CheckpointId, found: Mapping[str, int]) -> None:
        """Add the counts of a batch, and log them. Only the first of a run is a warning: rows may be late in every batch."""
        for uid, rows in found.items():
            self._so_far[uid] += rows
            _log.log(
                logging.INFO if uid in self._told else logging.WARNING,
                "batch %d: %s too late for %r, %d so far: older than the watermark, or with a time that is missing or not believed",
                *(batch, counted(rows, "row came", "rows came"), uid, self._so_far[uid]),
                extra=about(checkpoint=batch, operator=uid),
            )
            self._told.add(uid)
