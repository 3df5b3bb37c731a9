"""What is told of a failure."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from py4j.protocol import Py4JError

from penstock.errors import JobFailedError, UserCodeError
from penstock.ids import RunId
from penstock.ownership.runs import RunOutcome, end_of
from penstock.requests.request_files import Done
from penstock.spark.failure_messages import in_brief, restart_line
from penstock.spark.tasks import readable_errors
from penstock.status.events import LONGEST_TEXT, RunFailed
from penstock.status.live import Progress
from penstock.status.make_events import run_failed


def told(error: BaseException, *, shows_rows: bool = True) -> RunFailed:
    return run_failed(
        error,
        Progress(run=1, at=1.0, status="running"),
        shows_rows=shows_rows,
        at=1.0,
        strategy="s",
        delay_s=None,
        decision="d",
        rows_again=0,
    )


def caused_by(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def test_the_root_is_what_the_user_can_mend() -> None:
    """Not what Spark has wrapped around it, on its way from a task to the driver."""
    own = caused_by(
        UserCodeError("counts-0: ValueError: no price"), Py4JError("An error occurred while calling")
    )
    assert told(own).root == ""
    assert (
        told(caused_by(JobFailedError("failed for good"), own)).root
        == "UserCodeError: counts-0: ValueError: no price"
    )
    assert told(caused_by(RuntimeError("outer"), OSError("disk full"))).root == "OSError: disk full"
    assert told(Py4JError("alone")).root == ""


def test_long_texts_are_cut_where_they_say_least() -> None:
    """An error at its end, a trace at its beginning; half characters are spelt out."""
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - made here
        raise ValueError("first " + "x" * 9000 + " last \udcff")
    event = told(raised.value)
    assert event.why.startswith("first x")
    assert event.trace.endswith("last \\udcff\n")
    assert max(len(event.why), len(event.trace)) <= LONGEST_TEXT


def test_the_journal_has_no_passwords() -> None:
    """Also not those in lines of a program and in what Spark says."""
    with pytest.raises(UserCodeError) as raised:
        raise UserCodeError("no answer, pwd=hunter2") from Py4JError("postgresql://me:hunter2@db/shop")
    raised.value.add_note('  at: job.py:3: connect(api_key="hunter2")')
    assert "hunter2" not in str(told(raised.value))


def test_a_journal_without_rows_has_no_texts_of_spark() -> None:
    """They have the exception of user code in them, with whatever it says."""
    error = caused_by(
        UserCodeError("mine-0: ValueError (its text is not shown)"), Py4JError("ValueError: Ann Lee")
    )
    assert "Ann Lee" in told(error).trace
    assert "Ann Lee" not in str(told(error, shows_rows=False))


def through_spark(error: Exception) -> str:
    """What the Python worker of a task hands to Spark."""
    try:
        with readable_errors():
            raise error  # noqa: TRY301 - as user code would
    except Exception as raised:  # noqa: BLE001 - its text is what is asked for
        return str(raised)


@pytest.mark.parametrize(
    "written",
    [
        lambda error: end_of(RunId(1), RunOutcome.FAILED, 1.0, error).why,
        lambda error: Done.failed(error).error,
        lambda error: str(in_brief(Py4JError(f"An error occurred: {error}"))),
        lambda error: restart_line(
            "views", error, 1.0, Progress(run=1, at=1.0, status="restarting"), met_before=False
        ),
        through_spark,
        lambda error: told(error).why,
        lambda error: told(error).notes[0],
        lambda error: told(caused_by(RuntimeError(), error)).root,
    ],
    ids=[
        "end of the run",
        "answer to a request",
        "of Spark",
        "log",
        "through Spark",
        "event",
        "note",
        "root",
    ],
)
def test_passwords_are_masked_where_errors_are_written(written: Callable[[Exception], str]) -> None:
    """Records in storage, the log, and what a Python worker hands to Spark show where the connection went, and no password."""
    error = ConnectionError("no route to postgresql://app:hunter2@db/shop, password='hunter2'")
    error.add_note("tried postgresql://app:hunter2@db/shop")
    shown = written(error)
    assert "hunter2" not in shown
    assert "postgresql://app:...@db/shop" in shown
