"""The sinks `MySQL` and `MariaDB` while processes, connections and the server die, and readers look."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from typing import Any

import pymysql
import pytest
from mysql_targets import ALL, MySQLPrepared, MySQLStaged, MySQLUpsert, fresh
from sql_crashes import (
    CrashPlan,
    stop_abort_everywhere,
    stop_commit_everywhere,
    stop_task_everywhere,
    stop_validate_everywhere,
)

from penstock.errors import UnavailableError
from penstock.testing.sink_contract import JOB, SINK


@pytest.fixture
def crashes(monkeypatch: pytest.MonkeyPatch) -> CrashPlan:
    """Every statement counts, BEGIN and COMMIT too."""
    plan = CrashPlan(lambda connection: connection._force_close())
    kind = pymysql.connections.Connection
    for name in ("query", "begin", "commit"):
        usual = getattr(kind, name)

        def counted(connection: Any, *args: Any, usual: Any = usual, **options: Any) -> Any:
            return plan.send(connection, lambda: usual(connection, *args, **options))

        monkeypatch.setattr(kind, name, counted)
    return plan


@pytest.mark.parametrize(("kind", "at_least"), [(MySQLPrepared, 4), (MySQLStaged, 12), (MySQLUpsert, 12)])
def test_commit_goes_on_after_a_crash_anywhere(
    kind, at_least: int, crashes: CrashPlan, mariadb_server
) -> None:
    """Wherever commit_all stops, the next one makes every row visible once and leaves nothing."""
    assert stop_commit_everywhere(crashes, fresh(kind, mariadb_server)) >= at_least


@pytest.mark.parametrize(("kind", "at_least"), [(MySQLPrepared, 4), (MySQLStaged, 6), (MySQLUpsert, 6)])
def test_abort_goes_on_after_a_crash_anywhere(
    kind, at_least: int, crashes: CrashPlan, mariadb_server
) -> None:
    """Wherever abort stops, aborting what is listed removes the rest, and a commit is refused."""
    assert stop_abort_everywhere(crashes, fresh(kind, mariadb_server)) >= at_least


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_task_that_dies_anywhere_leaves_what_abort_removes(kind, crashes: CrashPlan, mariadb_server) -> None:
    """Wherever a task stops before pre_commit has returned, the driver finds what is left, if anything, and removes it."""
    assert stop_task_everywhere(crashes, fresh(kind, mariadb_server)) >= 6


@pytest.mark.parametrize("kind", [MySQLPrepared, MySQLStaged], ids=lambda kind: kind.__name__)
def test_validate_goes_on_after_a_crash_anywhere(kind, crashes: CrashPlan, mariadb_server) -> None:
    """Wherever validate stops, the next one finds or makes all that a task and a commit need."""
    assert stop_validate_everywhere(crashes, fresh(kind, mariadb_server)) >= 6


KILLED_COMMIT = """
import json, os, signal, sys
import pymysql
from penstock.sinks import MariaDB

url, options, where, transactions = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
send = pymysql.connections.Connection.query

def query(connection, statement, *args, **more):
    answer = send(connection, statement, *args, **more)
    if statement.startswith(where):
        os.kill(os.getpid(), signal.SIGKILL)
    return answer

pymysql.connections.Connection.query = query
MariaDB(url, "results", **options).commit_all(transactions)
"""


@pytest.mark.parametrize(
    ("kind", "where", "visible"),
    [
        (MySQLPrepared, "XA COMMIT", 20),
        (MySQLStaged, "INSERT INTO `results`", 0),
        (MySQLStaged, "DELETE", 0),
        (MySQLUpsert, "INSERT INTO ", 0),
    ],
)
def test_killed_in_commit_all(kind, where: str, visible: int, mariadb_server) -> None:
    """After kill -9 in the middle of commit_all a reader sees whole transactions, and the next commit_all makes it all, once."""
    suite = fresh(kind, mariadb_server)
    staged = [suite.staged(range(20 * c, 20 * c + 20), checkpoint=c) for c in range(3)]
    url = mariadb_server.url(suite.database)
    command = [sys.executable, "-c", KILLED_COMMIT, url, json.dumps(suite.options), where, json.dumps(staged)]
    killed = subprocess.run(command, check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    suite.assert_visible(*range(visible))
    suite.sink().commit_all(staged)
    suite.assert_visible(*range(60))
    assert suite.left_behind() == 0


def test_the_server_is_killed_while_transactions_wait() -> None:
    """What was pre-committed survives kill -9 of the server, what was not is gone; meanwhile all calls say unavailable."""
    from services.mariadb_process import running

    with running() as server:
        suites = [fresh(kind, server) for kind in ALL]
        waiting = [[suite.staged([n], checkpoint=n) for n in range(3)] for suite in suites]
        suites[0].sink().commit(waiting[0][0])
        drivers = [suite.sink() for suite in suites]
        tasks = [suite.sink() for suite in suites]
        begun = [
            task.begin_transaction(suite.context(checkpoint=9))
            for task, suite in zip(tasks, suites, strict=True)
        ]
        server.kill()
        for suite, driver, prepared in zip(suites, drivers, waiting, strict=True):
            with pytest.raises(UnavailableError, match=r"owner@127\.0\.0\.1"):
                driver.commit_all(prepared)
            with pytest.raises(UnavailableError):
                driver.find_transactions(JOB, SINK)
            with pytest.raises(UnavailableError):
                driver.begin_transaction(suite.context())
        server.start()
        for suite, task, transaction in zip(suites, tasks, begun, strict=True):
            with pytest.raises(UnavailableError):
                task.write(transaction, suite.batch([9]))
            task.abort(transaction)
        for suite, driver, prepared in zip(suites, drivers, waiting, strict=True):
            assert len(suite.unfinished()) == (2 if suite is suites[0] else 3)
            driver.commit_all(prepared)
            driver.commit_all(prepared)
            suite.assert_visible(0, 1, 2)
            assert suite.left_behind() == 0


def test_a_prepared_transaction_is_aborted_after_the_server_was_killed() -> None:
    """XA transactions that no checkpoint names are found in the server that came back, and rolled back."""
    from services.mariadb_process import running

    with running() as server:
        suite = fresh(MySQLPrepared, server)
        lost = suite.staged([1])
        server.kill()
        server.start()
        suite.sink().abort(lost)
        assert suite.unfinished() == []
        suite.sink().commit(suite.staged([1], attempt=1))
        suite.assert_visible(1)


def test_reader_never_sees_a_part_of_a_staged_commit(mariadb_server) -> None:
    """A reader sees the rows of all transactions of a commit_all or of none."""
    suite = fresh(MySQLStaged, mariadb_server)
    waiting = [[suite.staged(range(50), checkpoint=c, subtask=s) for s in (0, 1)] for c in range(8)]
    seen: list[int] = []
    done = threading.Event()

    def read() -> None:
        with suite.server.connect(suite.database) as connection, connection.cursor() as cursor:
            while not done.is_set():
                cursor.execute("SELECT count(*) AS n FROM results")
                seen.append(cursor.fetchone()["n"])

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
