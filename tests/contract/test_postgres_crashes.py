"""The sink `Postgres` while processes, connections and the server die, and readers look."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from typing import Any

import psycopg
import pytest
from postgres_targets import ALL, PostgresPrepared, PostgresStaged, PostgresUpsert, fresh
from sql_crashes import (
    CrashPlan,
    stop_abort_everywhere,
    stop_commit_everywhere,
    stop_task_everywhere,
    stop_validate_everywhere,
)

from penstock.errors import UnavailableError
from penstock.testing.sink_contract import JOB, SINK
from services.postgres_process import running


@pytest.fixture
def crashes(monkeypatch: pytest.MonkeyPatch) -> CrashPlan:
    """Statements and the ends of transactions are counted; rows that are copied are not a statement of their own."""
    plan = CrashPlan(lambda connection: connection.close())
    execute, leave = psycopg.Connection.execute, psycopg.Transaction.__exit__

    def counted_execute(connection: Any, *args: Any, **options: Any) -> Any:
        return plan.send(connection, lambda: execute(connection, *args, **options))

    def counted_leave(transaction: Any, kind: Any, *rest: Any) -> Any:
        if kind is not None:
            return leave(transaction, kind, *rest)
        return plan.send(transaction.connection, lambda: leave(transaction, kind, *rest))

    monkeypatch.setattr(psycopg.Connection, "execute", counted_execute)
    monkeypatch.setattr(psycopg.Transaction, "__exit__", counted_leave)
    return plan


@pytest.mark.parametrize(
    ("kind", "at_least"), [(PostgresPrepared, 4), (PostgresStaged, 12), (PostgresUpsert, 12)]
)
def test_commit_goes_on_after_a_crash_anywhere(
    kind, at_least: int, crashes: CrashPlan, postgres_server
) -> None:
    """Wherever commit_all stops, the next one makes every row visible once and leaves nothing."""
    assert stop_commit_everywhere(crashes, fresh(kind, postgres_server)) >= at_least


@pytest.mark.parametrize(
    ("kind", "at_least"), [(PostgresPrepared, 4), (PostgresStaged, 6), (PostgresUpsert, 6)]
)
def test_abort_goes_on_after_a_crash_anywhere(
    kind, at_least: int, crashes: CrashPlan, postgres_server
) -> None:
    """Wherever abort stops, aborting what is listed removes the rest, and a commit is refused."""
    assert stop_abort_everywhere(crashes, fresh(kind, postgres_server)) >= at_least


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_task_that_dies_anywhere_leaves_what_abort_removes(kind, crashes: CrashPlan, postgres_server) -> None:
    """Wherever a task stops before pre_commit has returned, the driver finds what is left, if anything, and removes it."""
    assert stop_task_everywhere(crashes, fresh(kind, postgres_server)) >= 4


@pytest.mark.parametrize("kind", [PostgresPrepared, PostgresStaged], ids=lambda kind: kind.__name__)
def test_validate_goes_on_after_a_crash_anywhere(kind, crashes: CrashPlan, postgres_server) -> None:
    """Wherever validate stops, the next one finds or makes all that a task and a commit need."""
    assert stop_validate_everywhere(crashes, fresh(kind, postgres_server)) >= 6


KILLED_COMMIT = """
import json, os, signal, sys
import psycopg
from penstock.sinks import Postgres

dsn, options, where, transactions = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
send = psycopg.Connection.execute

def execute(connection, statement, *args, **more):
    answer = send(connection, statement, *args, **more)
    if statement.startswith(where):
        os.kill(os.getpid(), signal.SIGKILL)
    return answer

psycopg.Connection.execute = execute
Postgres(dsn, "results", **options).commit_all(transactions)
"""


@pytest.mark.parametrize(
    ("kind", "where", "visible"),
    [
        (PostgresPrepared, "COMMIT PREPARED", 20),
        (PostgresStaged, 'INSERT INTO "results"', 0),
        (PostgresStaged, "DELETE", 0),
        (PostgresUpsert, "INSERT INTO ", 0),
    ],
)
def test_killed_in_commit_all(kind, where: str, visible: int, postgres_server) -> None:
    """After kill -9 in the middle of commit_all a reader sees whole transactions, and the next commit_all makes it all, once."""
    suite = fresh(kind, postgres_server)
    staged = [suite.staged(range(20 * c, 20 * c + 20), checkpoint=c) for c in range(3)]
    dsn = postgres_server.dsn(database=suite.database)
    command = [sys.executable, "-c", KILLED_COMMIT, dsn, json.dumps(suite.options), where, json.dumps(staged)]
    killed = subprocess.run(command, check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    suite.assert_visible(*range(visible))
    suite.sink().commit_all(staged)
    suite.assert_visible(*range(60))
    assert suite.left_behind() == 0


def test_the_server_is_killed_while_transactions_wait() -> None:
    """What was pre-committed survives kill -9 of the server, what was not is gone; meanwhile all calls say unavailable."""
    with running() as server:
        suites = [fresh(kind, server) for kind in ALL]
        waiting = [[suite.staged([n], checkpoint=n) for n in range(3)] for suite in suites]
        suites[0].sink().commit(waiting[0][0])
        drivers = [suite.sink() for suite in suites]
        tasks = [suite.sink() for suite in suites]
        open_ones = [
            task.begin_transaction(suite.context(checkpoint=9))
            for task, suite in zip(tasks, suites, strict=True)
        ]
        server.process.kill()
        server.process.wait()
        for suite, driver, prepared in zip(suites, drivers, waiting, strict=True):
            with pytest.raises(UnavailableError, match=r"owner@127\.0\.0\.1"):
                driver.commit_all(prepared)
            with pytest.raises(UnavailableError):
                driver.find_transactions(JOB, SINK)
            with pytest.raises(UnavailableError):
                driver.begin_transaction(suite.context())
        server.kill()
        for suite, task, begun in zip(suites, tasks, open_ones, strict=True):
            with pytest.raises(UnavailableError):
                task.write(begun, suite.batch([9]))
            task.abort(begun)
        for suite, driver, prepared in zip(suites, drivers, waiting, strict=True):
            assert len(suite.unfinished()) == (2 if suite is suites[0] else 3)
            driver.commit_all(prepared)
            suite.assert_visible(0, 1, 2)
            assert suite.left_behind() == 0


def test_reader_never_sees_a_part_of_a_staged_commit(postgres_server) -> None:
    """A reader sees the rows of all transactions of a commit_all or of none."""
    suite = fresh(PostgresStaged, postgres_server)
    waiting = [[suite.staged(range(50), checkpoint=c, subtask=s) for s in (0, 1)] for c in range(8)]
    seen: list[int] = []
    done = threading.Event()

    def read() -> None:
        with suite.server.connect(suite.database) as connection:
            while not done.is_set():
                seen.append(connection.execute("SELECT count(*) FROM results").fetchone()[0])

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for transactions in waiting:
            suite.sink().commit_all(transactions)
    finally:
        done.set()
        reader.join()
    assert {count % 100 for count in seen} == {0}
    assert seen == sorted(seen)
