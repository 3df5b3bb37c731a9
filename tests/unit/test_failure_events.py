"""What is told of a failure."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError

from penstock.errors import JobFailedError, UserCodeError
from penstock.status.events import LONGEST_TEXT, RunFailed
from penstock.status.make_events import run_failed


def told(error: BaseException, *, shows_rows: bool = True) -> RunFailed:
    return run_failed(
        error,
        shows_rows=shows_rows,
        at=1.0,
        run=1,
        strategy="s",
        delay_s=None,
        decision="d",
        batch=0,
        batch_at=0.0,
        checkpoint=-1,
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
