"""Sinks for SQL servers that are stopped before every statement they send; the same for all of them.

To stop after a statement is to stop before the next one: the server has the same, and the memory of the process is gone either way.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import CommitLostError
from penstock.testing.sink_contract import JOB, SINK, through_json


class CrashError(BaseException):
    """The process is gone; no handler of the sink may catch it."""


class CrashPlan:
    """Counts what is sent to the server; cuts the connection before the statement it is armed for."""

    def __init__(self) -> None:
        self._left: int | None = None

    def send(self, cut: Callable[[], None], call: Callable[[], Any]) -> Any:
        """Send a statement, or cut the connection and die."""
        if self._left is None:
            return call()
        self._left -= 1
        if self._left >= 0:
            return call()
        self._left = None
        cut()
        raise CrashError

    def run(self, call: Callable[[], object], *, statements: int) -> bool:
        """Run `call` until it has sent that many statements; True if it was stopped."""
        self._left = statements
        try:
            call()
        except CrashError:
            return True
        finally:
            self._left = None
        return False


def everywhere(crashes: CrashPlan, suite: Any, *, stage, call, afterwards) -> int:
    """For n = 0, 1, ...: stop `call` before statement n and check `afterwards`; until it gets through."""
    validated_once(suite)
    for statements in range(100):
        staged = stage()
        stopped = crashes.run(lambda: call(staged), statements=statements)  # noqa: B023 - called at once
        afterwards(staged)
        suite.execute("DELETE FROM results")
        if not stopped:
            return statements
    raise AssertionError("the call never got through")


def validated_once(suite: Any) -> None:
    """Make every `sink()` a copy of one that was validated: no crash happens there, and it takes a session each time."""
    ready = pickle.dumps(suite.sink())
    suite.sink = lambda: pickle.loads(ready)


def stop_commit_everywhere(crashes: CrashPlan, suite: Any) -> int:
    """Wherever commit_all stops, the next one makes every row visible once and leaves nothing."""

    def recover(staged: list[Any]) -> None:
        suite.sink().commit_all(staged)
        suite.sink().commit_all(staged)
        suite.assert_visible(*range(8))
        assert suite.unfinished() == []
        assert suite.left_behind() == 0

    return everywhere(
        crashes, suite,
        stage=lambda: [suite.staged(range(4), checkpoint=1), suite.staged(range(4, 8), checkpoint=2)],
        call=lambda staged: suite.sink().commit_all(staged), afterwards=recover,
    )  # fmt: skip


def stop_abort_everywhere(crashes: CrashPlan, suite: Any) -> int:
    """Wherever abort stops, aborting what is listed removes the rest, and a commit is refused."""

    def recover(staged: Any) -> None:
        abort_what_is_found(suite)
        assert suite.left_behind() == 0
        suite.assert_visible()
        with pytest.raises(CommitLostError):
            suite.sink().commit(staged)

    return everywhere(
        crashes, suite, stage=lambda: suite.staged(range(4)), call=lambda staged: suite.sink().abort(staged), afterwards=recover
    )  # fmt: skip


def stop_task_everywhere(crashes: CrashPlan, suite: Any) -> int:
    """Wherever a task stops before pre_commit has returned, the driver finds what is left, if anything, and removes it."""

    def recover(_: None) -> None:
        abort_what_is_found(suite)
        suite.assert_visible()
        assert suite.left_behind() == 0

    return everywhere(
        crashes, suite, stage=lambda: None, call=lambda _: suite.staged(range(4)), afterwards=recover
    )


def stop_validate_everywhere(crashes: CrashPlan, suite: Any) -> int:
    """Wherever validate stops, the next one finds or makes all that a task and a commit need."""
    for statements in range(100):
        suite.drop_records()
        stopped = crashes.run(lambda: suite.make_sink().validate(suite.schema), statements=statements)
        suite.sink().commit(suite.staged([1]))
        suite.assert_visible(1)
        suite.execute("DELETE FROM results")
        if not stopped:
            return statements
    raise AssertionError("validate never got through")


def abort_what_is_found(suite: Any) -> None:
    """Recover as a driver does for which no checkpoint names anything."""
    for found in suite.sink().find_transactions(JOB, SINK):
        suite.sink().abort(through_json(found))
