"""What is said when a run fails: whether it is tried again, the line for a restart, and the last words of a job that failed. Driver."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from penstock.errors import (
    BadRecordError,
    JobFailedError,
    PenstockError,
    UnavailableError,
    UserCodeError,
)
from penstock.logins import refuses_login
from penstock.recovery.repeated import Failure, times_in_a_row
from penstock.status.observer import Progress
from penstock.wording import counted, duration


def may_come_up(error: BaseException) -> bool:
    """Whether a start that failed so is tried again by itself. A login that is refused at the start is a wrong setting, not an outage."""
    return isinstance(error, UnavailableError) and not refuses_login(error)


def notes_of(error: BaseException) -> list[str]:
    """What is said below the text of an exception."""
    return list(getattr(error, "__notes__", ()))


def restart_line(job: str, error: Exception, delay_s: float, progress: Progress, *, met_before: bool) -> str:
    """One line a failure; below the first of its kind what helps to find its cause."""
    line = f"job {job} failed ({type(error).__name__}: {error}); it goes back to its last checkpoint in {duration(delay_s)}"
    if progress.failed_in_a_row > 1:
        since = f"{datetime.fromtimestamp(progress.down_since, UTC):%H:%M:%S} UTC"
        line += f". It has failed {progress.failed_in_a_row} times since {since}, without a batch in between"
    return "\n".join([line] if met_before else [line, *notes_of(error)])


def allowed(strategy: str, failures: int, delay_s: float) -> str:
    """Why it is tried again."""
    return f"after {counted(failures, 'failure')} {strategy} allows another try, in {duration(delay_s)}"


def last_words(error: BaseException) -> str:
    """Why it is not tried again."""
    if isinstance(error, JobFailedError):
        said = notes_of(error)
        return said[-1].strip() if said else str(error)
    return f"given up: another attempt would only meet {type(error).__name__} again"


def given_up(job: str, error: Exception, why: str, **facts: object) -> JobFailedError:
    """The job has failed for good, and `why` it is not tried again. What helps to find the cause is said of this error too."""
    failed = JobFailedError(f"job {job} failed for good: {error}", **facts)
    for note in (*notes_of(error), f"  {why}"):
        failed.add_note(note)
    failed.__cause__ = error
    return failed


def comes_again(job: str, error: Exception, met: Sequence[Failure]) -> JobFailedError:
    """The job has failed for good because it met the same again and again."""
    why = (
        f"It came {times_in_a_row(met)} times in a row at the same place, in batch {met[-1].batch}: it is in the code or in the data. (A "
        "restart strategy with `attempts` tries as often as it says.)"
    )
    return given_up(job, error, why, failures=len(met), batch=met[-1].batch)


def add_what_follows(error: BaseException, progress: Progress) -> None:
    """Say of a failure of the job's code or data how it goes on. Other errors say it themselves."""
    if not isinstance(error, BadRecordError | UserCodeError | JobFailedError):
        return
    start = f"from checkpoint {progress.checkpoint}" if progress.checkpoint >= 0 else "from the beginning"
    error.add_note(
        f"  The job has failed{_in_batch(error)}, and nothing is lost: mend the cause and start again, it goes on {start}."
    )


def _in_batch(error: PenstockError) -> str:
    batch = error.facts.get("batch")
    return "" if batch is None else f" in batch {batch}"
