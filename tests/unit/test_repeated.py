"""A failure that comes again at the same batch is told from one that may pass."""

from __future__ import annotations

import pytest

from penstock.recovery.repeated import Failure, may_pass, place_of, times_in_a_row, would_come_again
from penstock.recovery.restart import exponential_delay, failure_rate, fixed_delay, no_restart

BAD = Failure(7, "counts: ValueError at job.py:3")


@pytest.mark.parametrize(
    ("failures", "times"),
    [
        ([BAD], 1),
        ([BAD, BAD, BAD], 3),
        ([BAD, Failure(8, BAD.cause), BAD], 1),
        ([BAD, Failure(7, "counts: KeyError at job.py:9"), BAD, BAD], 2),
        ([BAD, Failure(), BAD], 1),
        ([BAD, BAD, Failure()], 0),
        ([Failure(7, ""), Failure(7, "")], 0),
        ([Failure(None, BAD.cause)] * 2, 0),
    ],
)
def test_times_in_a_row(failures: list[Failure], times: int) -> None:
    """Only the same cause at the same batch, with nothing else in between, counts."""
    assert times_in_a_row(failures) == times


def test_who_waits_is_told_sooner() -> None:
    """A job ends at the third time in a row, one that reads what is there now at the second."""
    assert [would_come_again([BAD] * n, available_now=False) for n in (1, 2, 3)] == [False, False, True]
    assert [would_come_again([BAD] * n, available_now=True) for n in (1, 2)] == [False, True]
    assert not would_come_again([Failure(7, "")] * 9, available_now=True)


def test_a_number_of_attempts_is_kept() -> None:
    """Only a strategy that would go on for ever is cut short."""
    assert fixed_delay(attempts=9).counts_attempts
    assert exponential_delay(attempts=9).counts_attempts
    assert not any(
        strategy.counts_attempts for strategy in (exponential_delay(), failure_rate(), no_restart())
    )


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error from cause
    return caught.value


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ConnectionRefusedError("no"), True),
        (TimeoutError("no"), True),
        (OSError(28, "No space left on device"), True),
        (MemoryError(), True),
        (raised(RuntimeError("the client's own kind"), ConnectionResetError("no")), True),
        (ZeroDivisionError(), False),
        (FileNotFoundError("lookup.csv"), False),
        (PermissionError("lookup.csv"), False),
        (raised(ValueError("bad row"), KeyError("n")), False),
    ],
)
def test_what_may_pass(error: BaseException, passes: bool) -> None:
    """The network and the machine may get well; a mistake does not."""
    assert may_pass(error) is passes


def test_an_exception_is_recognised_by_its_place() -> None:
    """The same line with another text is the same failure, another line is another."""
    first, second = (raised(ValueError(text)) for text in ("row 1", "row 2"))
    assert place_of(first) == place_of(second)
    assert place_of(first).startswith("ValueError at ")
    with pytest.raises(ValueError) as elsewhere:  # noqa: PT011 - any
        int("x")
    assert place_of(elsewhere.value) != place_of(first)
    assert place_of(ValueError("never raised")) == "ValueError"
