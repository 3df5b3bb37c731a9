"""The sinks for SQL servers while processes, connections and the server die, and readers look."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

import psycopg
import pymysql
import pytest
from sql_crashes import (
    CrashPlan,
    stop_abort_everywhere,
    stop_commit_everywhere,
    stop_task_everywhere,
    stop_validate_everywhere,
)
from sql_targets import ALL, PREPARED_ONES, STAGED_ONES, MySQLTarget, PostgresTarget, each_of, fresh

from penstock.errors import UnavailableError
from penstock.testing.sink_contract import JOB, SINK
from services.patience import PATIENCE_S

suite = each_of(ALL)
staged = each_of(STAGED_ONES)
not_upsert = each_of([*PREPARED_ONES, *STAGED_ONES])


@pytest.fixture
def crashes(monkeypatch: pytest.MonkeyPatch) -> CrashPlan:
    """Every statement counts, and the ends of transactions; rows that are copied are not a statement of their own."""
    plan = CrashPlan()
    leave = psycopg.Transaction.__exit__

    def counted_leave(transaction: Any, kind: Any, *rest: Any) -> Any:
        if kind is not None:
            return leave(transaction, kind, *rest)
        return plan.send(transaction.connection.close, lambda: leave(transaction, kind, *rest))

    monkeypatch.setattr(psycopg.Transaction, "__exit__", counted_leave)
    for connection, cut, names in (
        (psycopg.Connection, "close", ["execute"]),
        (pymysql.connections.Connection, "_force_close", ["query", "begin", "commit"]),
    ):
        for name in names:
            monkeypatch.setattr(connection, name, _counted(plan, getattr(connection, name), cut))
    return plan


def _counted(plan: CrashPlan, usual: Any, cut: str) -> Any:
    def counted(connection: Any, *args: Any, **options: Any) -> Any:
        return plan.send(getattr(connection, cut), lambda: usual(connection, *args, **options))

    return counted


def test_commit_goes_on_after_a_crash_anywhere(crashes: CrashPlan, suite) -> None:
    """Wherever commit_all stops, the next one makes every row visible once and leaves nothing."""
    at_least = 4 if type(suite) in PREPARED_ONES else 12
    assert stop_commit_everywhere(crashes, suite) >= at_least


def test_abort_goes_on_after_a_crash_anywhere(crashes: CrashPlan, suite) -> None:
    """Wherever abort stops, aborting what is listed removes the rest, and a commit is refused."""
    at_least = 4 if type(suite) in PREPARED_ONES else 6
    assert stop_abort_everywhere(crashes, suite) >= at_least


def test_task_that_dies_anywhere_leaves_what_abort_removes(crashes: CrashPlan, suite) -> None:
    """Wherever a task stops before pre_commit has returned, the driver finds what is left, if anything, and removes it."""
    at_least = 4 if isinstance(suite, PostgresTarget) else 6
    assert stop_task_everywhere(crashes, suite) >= at_least


def test_validate_goes_on_after_a_crash_anywhere(crashes: CrashPlan, not_upsert) -> None:
    """Wherever validate stops, the next one finds or makes all that a task and a commit need."""
    assert stop_validate_everywhere(crashes, not_upsert) >= 6


KILLED_COMMITS = """
import importlib, json, os, signal, sys
from penstock import sinks

sink_class, module, name = sys.argv[1:4]
connection = importlib.import_module(module).Connection
send = getattr(connection, name)

def commit_until(where, address, options, transactions):
    def killing(self, statement, *args, **more):
        answer = send(self, statement, *args, **more)
        if statement.startswith(where):
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(connection, name, killing)
    getattr(sinks, sink_class)(address, "results", **options).commit_all(transactions)

for case in json.loads(sys.argv[4]):
    child = os.fork()
    if child == 0:
        try:
            commit_until(*case)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, case[0]
"""
"""Each commit is made in a process of its own, which is killed when the server has answered; they share what Python had to load."""
CASES = {
    PostgresTarget: ["COMMIT PREPARED", 'INSERT INTO "results"', "DELETE", 'INSERT INTO "results"'],
    MySQLTarget: ["XA COMMIT", "INSERT INTO `results`", "DELETE", "INSERT INTO `results`"],
}
DRIVERS = {PostgresTarget: ("psycopg", "execute"), MySQLTarget: ("pymysql.connections", "query")}


@pytest.mark.parametrize("of", [PostgresTarget, MySQLTarget], ids=lambda of: of.__name__)
def test_killed_in_commit_all(of, request) -> None:
    """After kill -9 in the middle of commit_all a reader sees whole transactions, and the next commit_all makes it all, once."""
    prepared, staged, upsert = (kind for kind in ALL if issubclass(kind, of))
    server = request.getfixturevalue(of.fixture)
    suites = [fresh(kind, server) for kind in (prepared, staged, staged, upsert)]
    waiting = [[suite.staged(range(20 * c, 20 * c + 20), checkpoint=c) for c in range(3)] for suite in suites]
    cases = [
        (where, suite.address(), suite.options, transactions)
        for where, suite, transactions in zip(CASES[of], suites, waiting, strict=True)
    ]
    command = [sys.executable, "-c", KILLED_COMMITS, of.sink_class.__name__, *DRIVERS[of], json.dumps(cases)]
    subprocess.run(command, check=True, timeout=PATIENCE_S)
    for suite, transactions, visible in zip(suites, waiting, (20, 0, 0, 0), strict=True):
        suite.assert_visible(*range(visible))
        suite.sink().commit_all(transactions)
        suite.assert_visible(*range(60))
        assert suite.left_behind() == 0


@pytest.mark.parametrize("of", [PostgresTarget, MySQLTarget], ids=lambda of: of.__name__)
def test_the_server_is_killed_while_transactions_wait(of) -> None:
    """What was pre-committed survives kill -9 of the server, what was not is gone; meanwhile all calls say unavailable."""
    with of.own_server() as server:
        suites = [fresh(kind, server) for kind in ALL if issubclass(kind, of)]
        waiting = [[suite.staged([n], checkpoint=n) for n in range(3)] for suite in suites]
        suites[0].sink().commit(waiting[0][0])
        in_no_checkpoint = [suite.staged([7], checkpoint=7) for suite in suites]
        drivers = [suite.sink() for suite in suites]
        tasks = [suite.sink() for suite in suites]
        begun = [
            task.begin_transaction(suite.context(checkpoint=9))
            for task, suite in zip(tasks, suites, strict=True)
        ]
        of.kill_server(server)
        for suite, driver, promised in zip(suites, drivers, waiting, strict=True):
            with pytest.raises(UnavailableError, match=r"owner@127\.0\.0\.1"):
                driver.commit_all(promised)
            with pytest.raises(UnavailableError):
                driver.find_transactions(JOB, SINK)
            with pytest.raises(UnavailableError):
                driver.begin_transaction(suite.context())
        of.start_server(server)
        for suite, task, transaction in zip(suites, tasks, begun, strict=True):
            with pytest.raises(UnavailableError):
                task.write(transaction, suite.batch([9]))
            task.abort(transaction)
        for suite, driver, promised, lost in zip(suites, drivers, waiting, in_no_checkpoint, strict=True):
            assert len(suite.unfinished()) == (3 if suite is suites[0] else 4)
            suite.sink().abort(lost)
            driver.commit_all(promised)
            driver.commit_all(promised)
            suite.assert_visible(0, 1, 2)
            assert suite.left_behind() == 0
            assert suite.unfinished() == []


def test_reader_never_sees_a_part_of_a_staged_commit(staged) -> None:
    """A reader sees the rows of all transactions of a commit_all or of none."""
    waiting = [[staged.staged(range(50), checkpoint=c, subtask=s) for s in (0, 1)] for c in range(8)]
    seen: list[int] = []
    done = threading.Event()

    def read() -> None:
        with staged.reader() as count:
            while not done.is_set():
                seen.append(count())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for transactions in waiting:
            staged.sink().commit_all(transactions)
    finally:
        done.set()
        reader.join()
    assert {count % 100 for count in seen} == {0}
    assert seen == sorted(seen)
