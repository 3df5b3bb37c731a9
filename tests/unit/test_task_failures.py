"""What the driver makes of what tasks say of their failures."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest

from builders.sink_double import RefusingSink
from penstock.config import OnBadRecord
from penstock.errors import (
    BadRecordError,
    ConfigError,
    CorruptStateError,
    UnavailableError,
    UserCodeError,
    is_final,
)
from penstock.ids import SubtaskId
from penstock.places import Place
from penstock.run.sink_writer import SinkWriter
from penstock.run.task_failures import FailureReports, as_error, report_failure
from penstock.snapshot.mailbox import TaskFailed


def told(error: str, batch: int = 7, file: str = "", **more: Any) -> TaskFailed:
    return TaskFailed(3, batch, SubtaskId("out", 0), error, "the cause", file, **more)


def test_a_task_of_another_batch_explains_nothing() -> None:
    """A task that Spark had given up wakes up in a later batch: what it says is not why that batch fails."""
    accounts = FailureReports(7)
    accounts.take(told("BadRecordError", batch=6))
    assert accounts.decisive is None
    accounts.take(told("UnavailableError"))
    accounts.take(told("CorruptStateError"))
    assert accounts.decisive == told("UnavailableError")


RAISED = told("", place="KeyError at job.py:3")


@pytest.mark.parametrize(
    ("accounts", "decisive"),
    [
        ([told("BadRecordError")], 0),
        ([told("ConfigError")], 0),
        ([told("", is_wrong_name=True)], 0),
        ([told("UnavailableError"), RAISED, told("BadRecordError")], 2),
        ([RAISED], None),
        ([RAISED, RAISED], 1),
        ([RAISED, told("", place="KeyError at job.py:4")], None),
        ([RAISED, msgspec.structs.replace(RAISED, subtask=SubtaskId("out", 1))], None),
        ([told("", may_pass=True)] * 4, None),
        ([told("UnavailableError")] * 4, None),
        ([told("CorruptStateError")] * 4, None),
    ],
)
def test_when_another_attempt_is_of_no_use(accounts: list[TaskFailed], decisive: int | None) -> None:
    """A bad record, a name that nothing has, or the same exception at the same place again; what may pass is left to Spark's attempts."""
    batch = FailureReports(7)
    for account in accounts:
        batch.take(account)
    assert batch.hopeless == (None if decisive is None else accounts[decisive])
    assert batch.decisive == accounts[decisive or 0]


def test_an_error_says_where_to_look() -> None:
    """Its text is one line; below it stand the user's line, the key, the row and the names there are, which are facts, too."""
    at = Place("/home/me/job.py", 3, "process", "row.usr")
    made = as_error(
        told("", at=at, key="'a'", row="user=1", names="columns: user", notes=("more",)), lambda _: False
    )
    assert str(made) == "out-0: the cause (job.py:3)"
    assert made.__notes__ == [
        "  at: /home/me/job.py:3, in process: row.usr", "  key: 'a'", "  row: user=1", "  columns: user", "  more",
    ]  # fmt: skip
    assert made.facts.items() >= {"batch": 7, "operator": "out", "line": 3, "row": "user=1"}.items()
    assert isinstance(bad := as_error(told("BadRecordError", key="'a'"), lambda _: False), BadRecordError)
    assert (bad.operator, bad.key, bad.row) == ("out", "'a'", None)


class Teller:
    """Takes what a task tells as the driver does: encoded."""

    def __init__(self) -> None:
        self.reports = b""

    def tell(self, message: TaskFailed) -> None:
        self.reports = msgspec.json.encode(message)


def test_what_is_no_text_can_be_told() -> None:
    """An exception about a name that is no UTF-8 reaches the driver; that it could not be encoded would hide it."""
    teller, error = Teller(), ValueError("no file \udcff")
    error.add_note("nor \udcfe")
    plan = SimpleNamespace(place=SimpleNamespace(run=3), batch=7)
    report_failure(cast("Any", teller), cast("Any", plan), SubtaskId("out", 0), error)
    told = msgspec.json.decode(teller.reports, type=TaskFailed)
    assert (told.cause, told.notes) == ("ValueError: no file \\udcff", ("nor \\udcfe",))


def test_nothing_is_taken_before_the_first_batch() -> None:
    """Between two batches no task is at work whose failure counts."""
    accounts = FailureReports()
    accounts.take(told("BadRecordError"))
    assert accounts.decisive is None


@pytest.mark.parametrize(
    ("error", "file", "kind"),
    [
        ("BadRecordError", "", BadRecordError),
        ("UnavailableError", "", UnavailableError),
        ("CorruptStateError", "named", CorruptStateError),
        ("CorruptStateError", "unnamed", UnavailableError),
        ("", "", UserCodeError),
    ],
)
def test_what_a_task_says_becomes_an_error(error: str, file: str, kind: type[Exception]) -> None:
    """It is of the class that the task named; a file that no checkpoint names is not lost state."""
    made = as_error(told(error, file=file), lambda name: name == "named")
    assert type(made) is kind
    assert "out-0: the cause" in str(made)


def test_a_task_does_not_end_the_job_by_saying_that_it_is_fenced() -> None:
    """A sink may fence a late task of the same run: whether the run is fenced the driver sees for itself, when it goes back."""
    assert not is_final(as_error(told("FencedError"), lambda _: False))


class Telling:
    """An executor that keeps what a task tells."""

    def __init__(self) -> None:
        self.reports: list[Any] = []

    def attempt(self) -> int:
        return 0

    partition = attempt

    def tell(self, message: Any) -> None:
        self.reports.append(message)


def told_by_a_sink(batches: Iterator[pa.RecordBatch], policy: OnBadRecord) -> tuple[list[Any], set[int]]:
    """What a sink's task tells of its failure, and what it leaves open."""
    telling = Telling()
    plan: Any = SimpleNamespace(batch=7, place=SimpleNamespace(job="job", run=3))
    sink = RefusingSink(lambda rows: [row for row in rows if row > 8], "pre_commit")
    executor: Any = telling
    with pytest.raises((BadRecordError, pa.ArrowInvalid)):
        list(SinkWriter("out", sink, plan, executor, policy)(batches))
    return telling.reports, sink.open


@pytest.mark.parametrize("policy", [OnBadRecord.FAIL, OnBadRecord.SKIP])
def test_a_sink_tells_nothing_of_what_happened_before_it(policy: OnBadRecord) -> None:
    """Rows that break off are a consequence: the account of whoever made them is decisive, not that of the reader."""

    def breaking_off() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([1])], names=["v"])
        raise pa.ArrowInvalid("Tried reading schema message, was null or length 0")

    assert told_by_a_sink(breaking_off(), policy) == ([], set())


def test_a_sink_tells_its_own_failures() -> None:
    """What it refuses itself is its account."""
    told_, still_open = told_by_a_sink(
        iter([pa.record_batch([pa.array([9])], names=["v"])]), OnBadRecord.FAIL
    )
    assert [one.error for one in told_] == ["BadRecordError"]
    assert still_open == set()


def raised(error: Exception) -> Exception:
    """By a line of somebody's program, which this file is."""
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def told_of(error: Exception) -> TaskFailed:
    teller = Telling()
    plan: Any = SimpleNamespace(batch=7, place=SimpleNamespace(job="job", run=3))
    report_failure(cast("Any", teller), plan, SubtaskId("mine", 0), error)
    (message,) = teller.reports
    assert isinstance(message, TaskFailed)
    return message


def test_passwords_do_not_leave_the_task() -> None:
    """Neither in the text of an exception, nor in its notes, nor in a row."""
    error = BadRecordError(
        "no answer of postgresql://me:hunter2@db/shop", row={"user": "me", "password": "hunter2"}
    )
    error.add_note("pwd=hunter2")
    assert "hunter2" not in str(told_of(error))
    assert "hunter2" not in str(told_of(ValueError("api_key: 'hunter2'")))


@pytest.mark.parametrize(
    "error",
    [
        BadRecordError("operator op: process() yielded 'Ann Lee'", row={"name": "Ann Lee"}, key="Ann"),
        ValueError("Ann Lee"),
        raised(ConfigError("Ann Lee")),
        raised(UnavailableError("Ann Lee")),
    ],
)
def test_a_job_that_shows_no_rows_tells_no_values(error: Exception) -> None:
    """Which exception it was and where is told, and nothing that may come from a row."""
    shown, hidden = FailureReports(7), FailureReports(7, shows_rows=False)
    for accounts in (shown, hidden):
        accounts.take(told_of(error))
    assert "Ann" in str(shown.reports)
    assert "Ann" not in str(hidden.reports)
    made = as_error(hidden.reports[0], lambda _: False)
    assert type(error).__name__ in str(made)
    assert "its text is not shown" in str(made)
