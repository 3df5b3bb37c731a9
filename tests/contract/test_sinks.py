"""The shipped sinks under the contract of all sinks, and what all of them promise beyond it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sink_targets import (
    CsvFiles,
    JsonFiles,
    ParquetFiles,
    PartitionedFiles,
    SQLiteAppend,
    SQLiteUpsert,
    both,
    rows_in_folder,
    rows_in_table,
)

from penstock.errors import (
    CommitLostError,
    ConfigError,
    CorruptStateError,
    InternalError,
    UnavailableError,
)
from penstock.sinks import Files, SQLite, TwoPhaseCommitSink
from penstock.testing.simulation import Violation
from penstock.testing.sink_contract import JOB, SINK, SinkContract


class TestParquetFiles(ParquetFiles):
    pass


class TestJsonFiles(JsonFiles):
    pass


class TestCsvFiles(CsvFiles):
    pass


class TestPartitionedFiles(PartitionedFiles):
    pass


class TestSQLiteAppend(SQLiteAppend):
    pass


class TestSQLiteUpsert(SQLiteUpsert):
    pass


# The contract itself can fail


class ForgetfulFiles(Files):
    """Makes the classic mistake: not found is taken for committed."""

    def commit(self, transaction):
        try:
            super().commit(transaction)
        except CommitLostError:
            return


class ListsEverybody(Files):
    """Finds the transactions of every job that writes to the same folder."""

    def find_transactions(self, job, sink):
        owners = sorted(path for path in (self.path / "_penstock").glob("*/*") if path.is_dir())
        return [
            found
            for owner in owners
            for found in super(ListsEverybody, self).find_transactions(*owner.parts[-2:])
        ]


class InsertsAgain(SQLite):
    """Has no record of what it has committed."""

    def commit_all(self, transactions):
        if self.path.exists():
            database = sqlite3.connect(self.path)
            database.execute("DELETE FROM _penstock_commits")
            database.commit()
            database.close()
        kept = Path(f"{self.path}.kept")
        staging = Path(f"{self.path}.penstock")
        shutil.copytree(staging, kept, dirs_exist_ok=True)
        super().commit_all(transactions)
        shutil.copytree(kept, staging, dirs_exist_ok=True)


class WritesThrough(Files):
    """Shows rows before the checkpoint completes."""

    def pre_commit(self, transaction):
        prepared = super().pre_commit(transaction)
        self.commit(prepared)
        return prepared


class NeverCommits(Files):
    """Has a mistake in its commit that no waiting repairs."""

    def commit_all(self, transactions):
        raise TypeError("commit_all() got an unexpected argument")


class FindsNothing(Files):
    """Never lists what it left, so that nobody clears it away."""

    def find_transactions(self, job, sink):
        return []


@pytest.mark.parametrize(
    ("make", "test"),
    [
        (ForgetfulFiles, "test_commit_after_abort_is_an_error"),
        (ListsEverybody, "test_find_ignores_other_jobs_and_sinks"),
        (lambda path: InsertsAgain(path / "db", "results"), "test_commit_twice_is_harmless"),
        (WritesThrough, "test_rows_are_invisible_until_commit"),
        (WritesThrough, "test_a_job_dies_after_pre_commit"),
        (lambda path: InsertsAgain(path / "db", "results"), "test_a_job_dies_after_half_of_the_commits"),
        (lambda path: InsertsAgain(path / "db", "results"), "test_a_job_dies_after_commit"),
        (NeverCommits, "test_a_job_dies_after_commit"),
        (FindsNothing, "test_a_job_dies_in_its_recovery"),
    ],
)
def test_contract_catches_a_broken_sink(
    make: Callable[[Path], TwoPhaseCommitSink], test: str, tmp_path: Path
) -> None:
    """A sink with a well-known mistake fails the test of the contract that is about it."""

    class Broken(SinkContract):
        def make_sink(self):
            return make(tmp_path)

        def visible_rows(self):
            return rows_in_table(tmp_path / "db", "results") or rows_in_folder(tmp_path, "parquet")

    with pytest.raises((AssertionError, Violation)):
        getattr(Broken(), test)()


# What both do beyond the contract


def test_a_second_life_of_the_job(tmp_path: Path) -> None:
    """When the job's storage was deleted and its numbers start again, new rows are neither dropped nor written over old ones."""
    for suite in both(tmp_path):
        suite.sink().commit(suite.staged([1]))
        suite.sink().commit(suite.staged([2]))
        suite.assert_visible(1, 2)


def test_junk_in_staging_is_ignored(tmp_path: Path) -> None:
    """Files and folders that no sink made are neither listed nor touched."""
    for suite in both(tmp_path):
        suite.staged([1])
        staging = next(
            p for p in (tmp_path / "out/_penstock", tmp_path / "out.db.penstock") if (p / JOB).exists()
        )
        junk = staging / JOB / SINK / "contract.out.1.x.0.0.0badf00d.arrow"
        other = staging / JOB / SINK / "other.out.1.1.0.0.0badf00d.arrow"
        for path in (junk, other):
            path.write_text("junk")
        (staging / JOB / SINK / "folder").mkdir()
        assert suite.unfinished() == [(1, 1, 0, 0)]
        for found in suite.sink().find_transactions(JOB, SINK):
            suite.sink().abort(found)
        assert junk.exists()
        assert other.exists()
        shutil.rmtree(staging)


def test_staged_rows_that_somebody_deleted(tmp_path: Path) -> None:
    """Commit without staged rows and without a proof is an error that names the transaction and the rows missing."""
    for suite in both(tmp_path):
        prepared = suite.staged([1, 2, 3])
        for staged in [*tmp_path.rglob("*.staged"), *tmp_path.rglob("*.arrow")]:
            staged.unlink()
        for _ in range(2):
            with pytest.raises(CommitLostError, match=r"contract\.out\.1\.1\.0\.0.* 3 rows"):
                suite.sink().commit(prepared)


def test_staged_rows_that_were_damaged(tmp_path: Path) -> None:
    """Half of a staged file is not committed as if it were all of it."""
    for suite in both(tmp_path):
        prepared = suite.staged(range(1000))
        for staged in [*tmp_path.rglob("*.staged"), *tmp_path.rglob("*.arrow")]:
            staged.write_bytes(staged.read_bytes()[:-100])
        with pytest.raises(CommitLostError):
            suite.sink().commit(prepared)
        suite.assert_visible()
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()


@pytest.mark.parametrize(
    "change",
    [{"token": "../../../x"}, {"job": "../other"}, {"run": "one"}, {"subtask": None}, {"checkpoint": -5}],
)
def test_nonsense_from_a_checkpoint(change: dict[str, Any], tmp_path: Path) -> None:
    """A transaction that was changed in storage becomes no path: it is refused as corrupt."""
    for suite in both(tmp_path):
        nonsense = {**suite.staged([1]), **change}
        for call in (suite.sink().commit, suite.sink().abort):
            with pytest.raises(CorruptStateError):
                call(nonsense)


def test_write_to_a_transaction_of_somebody_else(tmp_path: Path) -> None:
    """An instance writes only to what it has begun."""
    for suite in both(tmp_path):
        begun = suite.begun([1])
        with pytest.raises(InternalError, match="did not begin"):
            suite.sink().write(begun, suite.batch([2]))


def test_zombie_cannot_pre_commit_what_was_aborted(tmp_path: Path) -> None:
    """An attempt that goes on after the driver has aborted it fails at pre_commit and leaves nothing."""
    for suite in both(tmp_path):
        zombie = suite.sink()
        transaction = zombie.begin_transaction(suite.context())
        zombie.write(transaction, suite.batch([1]))
        suite.sink().abort(transaction)
        with pytest.raises(UnavailableError):
            zombie.pre_commit(transaction)
        assert suite.unfinished() == []
        suite.assert_visible()


@pytest.mark.parametrize("path", ["s3://bucket/x", "hdfs:/x", "gs://b", "", "a\0b"])
def test_only_local_paths(path: str) -> None:
    """A path elsewhere is refused when the sink is made."""
    for make in (Files, lambda path: SQLite(path, "t")):
        with pytest.raises(ConfigError):
            make(path)


def test_file_uri_and_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file: URI and a relative path mean the same folder, whatever the working directory of a task."""
    monkeypatch.chdir(tmp_path)
    assert Files("out").path == Files(f"file://{tmp_path}/out").path == tmp_path / "out"
