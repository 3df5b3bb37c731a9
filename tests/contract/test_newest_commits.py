"""What SQL servers know of the newest commit of a job; for the other sinks `tests/unit/test_outdated_storage.py` has it."""

from __future__ import annotations

from typing import Any

import pytest
from sql_targets import MySQLPrepared, MySQLStaged, PostgresPrepared, PostgresStaged, SqlTarget

from penstock.testing.sink_contract import JOB, SINK


@pytest.mark.parametrize("kind", [PostgresPrepared, PostgresStaged, MySQLPrepared, MySQLStaged])
def test_the_newest_commit(kind: type[SqlTarget], request: Any) -> None:
    """The newest run that has a commit, and its newest checkpoint; what is staged, and other jobs and sinks, do not count."""
    target = kind()  # type: ignore[abstract]
    target.use(request.getfixturevalue(kind.fixture))
    sink = target.sink()
    assert sink.newest_commit(JOB, SINK) is None
    for run, checkpoint in [(1, 30), (2, 9), (2, 10)]:
        sink.commit(target.staged([checkpoint], run=run, checkpoint=checkpoint))
    left = target.staged([99], run=3, checkpoint=11)
    sink.commit(target.staged([1], run=7, checkpoint=70, sink="other"))
    assert sink.newest_commit(JOB, SINK) == (2, 10)
    assert sink.newest_commit("nobody", SINK) is None
    sink.abort(left)
