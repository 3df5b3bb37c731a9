"""With which code a program of Penstock's ends. A supervisor goes by it: what another attempt would only meet again gets none. Driver."""

from __future__ import annotations

from penstock.errors import ConfigError, FencedError, JobFailedError, is_final

DONE = 0
FAILED = 1
"""Something failed, and another attempt may cure it."""
WRONG_SETTING = 2
"""The command or the job is wrong, or the job is running already."""
FAILED_FOR_GOOD = 3
"""Another attempt would only meet it again, or the job's restart strategy has given up."""
FENCED = 4
"""Another start owns the job now."""
BY_SIGNAL = 128
"""And the number of the signal: it ended at once."""


def exit_code_of(error: BaseException) -> int:
    """The code that tells what kind of failure it was."""
    if isinstance(error, ConfigError):
        return WRONG_SETTING
    if isinstance(error, FencedError):
        return FENCED
    return FAILED_FOR_GOOD if is_final(error) or _was_given_up(error) else FAILED


def _was_given_up(error: BaseException) -> bool:
    """The restart strategy has counted its failures. A job whose Spark is gone could not even ask it: that is cured by a new process."""
    return isinstance(error, JobFailedError) and "failures" in error.facts
