"""The shipped sinks while processes die and readers look."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.csv
import pyarrow.dataset
import pyarrow.json
import pyarrow.parquet
import pytest
from sink_targets import (
    FilesTarget,
    ParquetFiles,
    SQLiteAppend,
)

from penstock.errors import (
    CommitLostError,
)
from penstock.testing.sink_contract import JOB, SINK, through_json
from services.patience import PATIENCE_S

# Crashes: stop before file operation 1, 2, ... n of a call, then let another process go on


class CrashError(BaseException):
    """The process is gone; no handler of the sink may catch it."""


class CrashPlan:
    """Counts changes of the file system by Python's audit events; fires before the one it is armed for."""

    CHANGES: ClassVar[set[str]] = {"os.rename", "os.remove", "os.rmdir", "os.mkdir"}

    def __init__(self) -> None:
        self.left: int | None = None
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.left is None or not (
            event in self.CHANGES or (event == "open" and args[1] in {"a", "xb", "wb"})
        ):
            return
        self.left -= 1
        if self.left < 0:
            self.left = None
            raise CrashError

    def run(self, call: Callable[[], object], *, changes: int) -> bool:
        """Run `call` until it has made that many changes; True if it was stopped."""
        self.left = changes
        try:
            call()
        except CrashError:
            return True
        finally:
            self.left = None
        return False


CRASHES = CrashPlan()


class FilesWithCrashes(FilesTarget):
    """Two transactions of two partitions each: ids 0..3 and 4..7."""

    options: ClassVar[dict[str, Any]] = {"partition_by": ["name"]}

    def row(self, number: int) -> dict[str, Any]:
        return {"id": number, "name": f"name {number % 2}"}


@pytest.fixture
def crashing(tmp_path: Path) -> Callable[[int], FilesWithCrashes]:
    def fresh(number: int) -> FilesWithCrashes:
        suite = FilesWithCrashes()
        suite.path = tmp_path / str(number)
        return suite

    return fresh


def crash_everywhere(
    fresh: Callable[[int], FilesWithCrashes], stage: Callable, call: Callable, afterwards: Callable
) -> int:
    """For n = 0, 1, ...: stage, stop `call` after n changes, check `afterwards`; until the call gets through."""
    for changes in range(1000):
        suite = fresh(changes)
        staged = stage(suite)
        stopped = CRASHES.run(lambda: call(suite, staged), changes=changes)  # noqa: B023 - called at once
        afterwards(suite, staged)
        if not stopped:
            return changes
    raise AssertionError("the call never got through")


def stage_two(suite: FilesWithCrashes) -> list[Any]:
    return [suite.staged(range(4), checkpoint=1), suite.staged(range(4, 8), checkpoint=2)]


def commit_both(suite: FilesWithCrashes, staged: list[Any]) -> None:
    suite.sink().commit_all(staged)


def test_commit_goes_on_after_a_crash_anywhere(crashing) -> None:
    """Wherever commit_all of partitioned files stops, the next one makes every row visible once and leaves nothing."""

    def recover(suite: FilesWithCrashes, staged: list[Any]) -> None:
        suite.sink().commit_all(staged)
        suite.assert_visible(*range(8))
        assert suite.unfinished() == []
        hidden = suite.path / "_penstock" / JOB / SINK
        assert [path.name for path in hidden.iterdir()] == ["committed"]

    assert crash_everywhere(crashing, stage_two, commit_both, recover) > 10


def test_commit_goes_on_although_readers_took_files_away(crashing) -> None:
    """A compaction that moves files after a half commit, and after a whole one, makes no row lost, double or 'lost'."""

    def recover(suite: FilesWithCrashes, staged: list[Any]) -> None:
        taken = list(suite.visible_rows())
        for file in suite.path.glob("name=*/*"):
            file.unlink()
        suite.sink().commit_all(staged)
        seen = sorted(row["id"] for row in [*taken, *suite.visible_rows()])
        assert seen == list(range(8))
        shutil.rmtree(suite.path / "name=name 0", ignore_errors=True)
        suite.sink().commit_all(staged)
        assert not (suite.path / "name=name 0").exists()

    crash_everywhere(crashing, stage_two, commit_both, recover)


def test_abort_takes_back_a_half_commit(crashing) -> None:
    """Wherever commit_all stops, aborting what is listed leaves each transaction wholly visible or wholly gone."""
    outcomes = set()

    def recover(suite: FilesWithCrashes, staged: list[Any]) -> None:
        for transaction in [*suite.sink().find_transactions(JOB, SINK), *staged]:
            suite.sink().abort(through_json(transaction))
        seen = sorted(row["id"] for row in suite.visible_rows())
        assert seen in ([], list(range(8))), seen
        assert suite.unfinished() == []
        outcomes.add(len(seen))

    crash_everywhere(crashing, stage_two, commit_both, recover)
    assert outcomes == {0, 8}


def test_abort_goes_on_after_a_crash_anywhere(crashing) -> None:
    """Wherever abort stops, the transaction is still listed or gone, aborting again removes it, and commit is refused."""

    def stage(suite: FilesWithCrashes) -> Any:
        return suite.staged(range(4))

    def abort(suite: FilesWithCrashes, staged: Any) -> None:
        suite.sink().abort(staged)

    def recover(suite: FilesWithCrashes, staged: Any) -> None:
        for found in suite.sink().find_transactions(JOB, SINK):
            suite.sink().abort(found)
        assert suite.unfinished() == []
        suite.assert_visible()
        with pytest.raises(CommitLostError):
            suite.sink().commit(staged)

    assert crash_everywhere(crashing, stage, abort, recover) >= 4


def test_task_that_dies_anywhere_leaves_what_abort_removes(crashing) -> None:
    """Wherever a task stops before pre_commit has returned, the driver finds what is left, if anything, and removes it."""

    def task(suite: FilesWithCrashes, staged: None) -> None:
        suite.staged(range(4))

    def recover(suite: FilesWithCrashes, staged: None) -> None:
        for found in suite.sink().find_transactions(JOB, SINK):
            suite.sink().abort(found)
        suite.assert_visible()
        hidden = suite.path / "_penstock" / JOB / SINK
        assert not hidden.exists() or list(hidden.iterdir()) == []

    crash_everywhere(crashing, lambda suite: None, task, recover)


KILLED_COMMIT = """
import json, os, signal, sqlite3, sys
from penstock.sinks import SQLite

path, where, nth, transactions = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
seen = 0

def die_at(text):
    global seen
    seen += text.startswith(where)
    if seen == nth:
        os.kill(os.getpid(), signal.SIGKILL)

def connect(*args, **options):
    connection = opened(*args, **options)
    connection.set_trace_callback(die_at)
    return connection

opened, sqlite3.connect = sqlite3.connect, connect
sys.addaudithook(lambda event, args: event == "os.remove" and die_at(event))
SQLite(path, "results").commit_all(transactions)
"""


@pytest.mark.parametrize(
    ("where", "nth", "visible"),
    [
        ("BEGIN", 1, 0),
        ('INSERT INTO "results"', 1, 0),
        ('INSERT INTO "results"', 37, 0),
        ("INSERT INTO _penstock_commits", 2, 0),
        ("COMMIT", 1, 0),
        ("os.remove", 1, 60),
        ("os.remove", 2, 60),
    ],
)
def test_sqlite_killed_in_commit_all(where: str, nth: int, visible: int, tmp_path: Path) -> None:
    """After kill -9 in the middle of commit_all a reader sees all or nothing, and the next commit_all makes it all, once."""
    suite = SQLiteAppend()
    suite.path = tmp_path / "out.db"
    staged = [suite.staged(range(20 * c, 20 * c + 20), checkpoint=c) for c in range(3)]
    command = [sys.executable, "-c", KILLED_COMMIT, str(suite.path), where, str(nth), json.dumps(staged)]
    killed = subprocess.run(command, check=False, timeout=PATIENCE_S)
    assert killed.returncode == -signal.SIGKILL
    suite.assert_visible(*range(visible))
    assert len(suite.unfinished()) == (0 if visible else 3)
    suite.sink().commit_all(staged)
    suite.assert_visible(*range(60))
    assert list(suite.path.with_name("out.db.penstock").rglob("*.arrow")) == []


# Readers while commits go on


def poll_until(done: threading.Event, read: Callable[[], None], failures: list[BaseException]) -> None:
    try:
        while not done.is_set():
            read()
        read()
    except BaseException as error:  # noqa: BLE001 - handed to the test
        failures.append(error)


def with_reader(read: Callable[[], None], write: Callable[[], None]) -> None:
    done, failures = threading.Event(), []
    reader = threading.Thread(target=poll_until, args=(done, read, failures))
    reader.start()
    try:
        write()
    finally:
        done.set()
        reader.join()
    assert failures == []


def test_reader_of_files_never_meets_a_part(tmp_path: Path) -> None:
    """Every file that any listing shows, even a recursive one, can be read and holds all its rows."""
    suite = ParquetFiles()
    suite.path = tmp_path / "out"
    seen: list[int] = []

    def read() -> None:
        for folder, _, names in os.walk(suite.path):  # unlike rglob it bears folders that vanish meanwhile
            files = [Path(folder, name) for name in names if name.endswith(".parquet")]
            seen.extend(pyarrow.parquet.read_table(file).num_rows for file in files)

    def write() -> None:
        for checkpoint in range(30):
            suite.sink().commit_all(
                [suite.staged(range(500), checkpoint=checkpoint, subtask=s) for s in (0, 1)]
            )

    with_reader(read, write)
    assert set(seen) == {500}


def test_reader_of_sqlite_never_sees_a_part(tmp_path: Path) -> None:
    """A reader sees the rows of all transactions of a commit_all or of none."""
    suite = SQLiteAppend()
    suite.path = tmp_path / "out.db"
    suite.sink().commit_all([suite.staged(range(500), subtask=s) for s in (0, 1)])
    database = sqlite3.connect(suite.path, timeout=PATIENCE_S, check_same_thread=False)
    seen: list[int] = []

    def write() -> None:
        for checkpoint in range(2, 22):
            suite.sink().commit_all(
                [suite.staged(range(500), checkpoint=checkpoint, subtask=s) for s in (0, 1)]
            )

    with_reader(lambda: seen.append(database.execute("SELECT count(*) FROM results").fetchone()[0]), write)
    database.close()
    assert {count % 1000 for count in seen} == {0}
    assert seen == sorted(seen)
    assert seen[-1] == 21_000
