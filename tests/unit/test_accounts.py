"""What the driver makes of what tasks say of their failures."""

from __future__ import annotations

import pytest

from penstock.engine.task_failures import Accounts, as_error
from penstock.errors import BadRecordError, CorruptStateError, UnavailableError
from penstock.ids import SubtaskId
from penstock.snapshot.messages import TaskFailed
from penstock.spark.handle import FINAL


def told(error: str, batch: int = 7, file: str = "") -> TaskFailed:
    return TaskFailed(3, batch, SubtaskId("out", 0), error, "the cause", file)


def test_a_task_of_another_batch_explains_nothing() -> None:
    """A task that Spark had given up wakes up in a later batch: what it says is not why that batch fails."""
    accounts = Accounts(7)
    accounts.take(told("BadRecordError", batch=6))
    assert accounts.first is None
    accounts.take(told("UnavailableError"))
    accounts.take(told("BadRecordError"))
    assert accounts.first == told("UnavailableError")


def test_nothing_is_taken_before_the_first_batch() -> None:
    """Between two batches no task is at work whose failure counts."""
    accounts = Accounts()
    accounts.take(told("BadRecordError"))
    assert accounts.first is None


@pytest.mark.parametrize(
    ("error", "file", "kind"),
    [
        ("BadRecordError", "", BadRecordError),
        ("UnavailableError", "", UnavailableError),
        ("CorruptStateError", "named", CorruptStateError),
        ("CorruptStateError", "unnamed", UnavailableError),
        ("", "", RuntimeError),
    ],
)
def test_what_a_task_says_becomes_an_error(error: str, file: str, kind: type[Exception]) -> None:
    """It is of the class that the task named; a file that no checkpoint names is not lost state."""
    made = as_error(told(error, file=file), lambda name: name == "named")
    assert type(made) is kind
    assert "out-0: the cause" in str(made)


def test_a_task_does_not_end_the_job_by_saying_that_it_is_fenced() -> None:
    """A sink may fence a late task of the same run: whether the run is fenced the driver sees for itself, when it goes back."""
    assert not isinstance(as_error(told("FencedError"), lambda _: False), FINAL)
