"""A storage that is an older copy than what its targets have."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from builders.plan_settings import plan_settings
from builders.restore_plans import job_spec
from penstock.checkpoint.metadata import mark_committed, write_metadata
from penstock.checkpoint.model import Barrier, Completed, PreCommitted
from penstock.config import Mode
from penstock.errors import IncompatibleStateError, UnavailableError
from penstock.ids import CheckpointId
from penstock.ownership.claim import Claim
from penstock.recovery.restore import check_restorable, restore
from penstock.recovery.restore_options import RestoreOptions
from penstock.recovery.restore_plan import RestorePlan
from penstock.sinks import Files, SQLite
from penstock.sinks.two_phase_commit import TransactionContext, TwoPhaseCommitSink
from penstock.status.journal import write_plan
from penstock.status.plan import Plan
from penstock.storage import LocalStorage

JOB, UID = "views-1a2b3c4d", "out"
SETTINGS = plan_settings()
SCHEMA = pa.schema([("number", pa.int64())])


class Driver:
    """Runs of a job with one sink, as far as restoring sees them."""

    def __init__(self, root: Path, sink: TwoPhaseCommitSink) -> None:
        self.root, self.sink = root, sink
        self.storage = LocalStorage(root)

    def start(
        self, wanted: int | None = None, mode: Mode = Mode.EXACTLY_ONCE, renamed: str = ""
    ) -> RestorePlan:
        """`renamed`: the sink's uid from now on."""
        uid, chosen = renamed or UID, None if wanted is None else CheckpointId(wanted)
        options = RestoreOptions(rename={UID: renamed}) if renamed else RestoreOptions()
        spec = job_spec(
            self.storage, layouts={}, sinks={uid: self.sink}, mode=mode, owner=JOB, max_parallelism=128
        )
        check_restorable(spec, options, now=1.0, wanted=chosen)
        return restore(spec, options, now=1.0, wanted=chosen).plan

    def checkpoint(self, number: int, run: int) -> None:
        """Complete and commit one."""
        transaction = self.sink.begin_transaction(TransactionContext(JOB, UID, run, number, 0, 0))
        self.sink.write(transaction, pa.RecordBatch.from_pydict({"number": [number]}, SCHEMA))
        staged = self.sink.pre_commit(transaction)
        done = Completed(
            job="views",
            checkpoint=number,
            run=run,
            mode="exactly-once",
            max_parallelism=128,
            parallelism=1,
            barrier=Barrier(),
            operators={},
            transactions=(PreCommitted(UID, number, 0, dict(staged)),),
        )
        write_metadata(self.storage, done)
        self.sink.commit(staged)
        mark_committed(self.storage, done)


@pytest.fixture(params=["SQLite", "Files"])
def driver(request: Any, tmp_path: Path) -> Driver:
    kind: TwoPhaseCommitSink = (
        SQLite(tmp_path / "out.db", "rows") if request.param == "SQLite" else Files(tmp_path / "out")
    )
    kind.validate(SCHEMA)
    made = Driver(tmp_path / "storage", kind)
    made.checkpoint(5, run=made.start().run)
    shutil.copytree(made.root, tmp_path / "backup")
    return made


def bring_back(driver: Driver) -> None:
    shutil.rmtree(driver.root)
    shutil.copytree(driver.root.with_name("backup"), driver.root)


@pytest.mark.parametrize("runs", [1, 2])
def test_a_restored_backup_is_refused(driver: Driver, runs: int) -> None:
    """A start from a backup that is older than the target is refused, again and again, with nothing changed; with `restore=` it is accepted."""
    for number in range(1, runs):
        driver.checkpoint(5 + number, driver.start().run)
    driver.checkpoint(9, run=runs)
    bring_back(driver)
    before = sorted(driver.root.rglob("*"))
    for _ in range(2):
        with pytest.raises(
            IncompatibleStateError,
            match=f"the sink out has committed checkpoint 9 of run {runs}, .*checkpoint 5",
        ):
            driver.start()
    assert sorted(driver.root.rglob("*")) == before
    assert driver.start(wanted=5).id == 5
    assert driver.start().id == 5


def test_a_restored_backup_is_refused_also_with_a_renamed_sink(driver: Driver) -> None:
    """The target knows the commits under the former uid; with `restore=` it is accepted, and the same start once more goes on."""
    driver.checkpoint(9, run=driver.start().run)
    bring_back(driver)
    with pytest.raises(
        IncompatibleStateError, match=r"the sink sales has committed checkpoint 9 of run 2, .*checkpoint 5"
    ):
        driver.start(renamed="sales")
    assert driver.start(wanted=5, renamed="sales").id == 5
    assert driver.start(renamed="sales").id == 5


def test_a_sink_that_is_renamed_is_no_old_copy(driver: Driver) -> None:
    """What the target knows under the former uid is of this storage."""
    driver.checkpoint(6, run=driver.start().run)
    assert driver.start(renamed="sales").id == 6
    assert driver.start(renamed="sales").id == 6


def test_a_storage_that_knows_its_commits_is_not_old(driver: Driver) -> None:
    """After crashes, starts without a commit, and a person who has gone back, the job starts as ever."""
    driver.checkpoint(6, run=1)
    assert driver.start().id == 6
    assert driver.start().id == 6
    driver.checkpoint(7, run=3)
    assert driver.start(wanted=7).id == 7


@pytest.mark.parametrize("now", [Mode.EXACTLY_ONCE, Mode.AT_LEAST_ONCE])
def test_a_commit_before_its_checkpoint_is_not_of_another_copy(driver: Driver, now: Mode) -> None:
    """In a run at least once batches are visible before their checkpoint: the job goes on from it, in whichever mode."""
    settings = msgspec.structs.replace(SETTINGS, mode=Mode.AT_LEAST_ONCE.value)
    run = driver.start(mode=Mode.AT_LEAST_ONCE).run
    write_plan(driver.storage, run, Plan(job="views", nodes=(), settings=settings, guarantee=""))
    transaction = driver.sink.begin_transaction(TransactionContext(JOB, UID, run, 6, 0, 0))
    driver.sink.commit(driver.sink.pre_commit(transaction))
    assert driver.start(mode=now).id == 5


def test_a_backup_without_a_checkpoint_is_warned_of(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    """Where there is no checkpoint with which somebody could accept it, the log says that rows are written again."""
    for path in driver.root.glob("chk-*"):
        shutil.rmtree(path)
    assert driver.start().checkpoint is None
    assert "has committed checkpoint 5 of run 1" in caplog.text
    assert "has no checkpoint" in caplog.text


class Away(Files):
    """Does not say what it has committed, and notes whether the run was seen to be alive meanwhile."""

    is_alive = False
    seen: list[bool]

    def newest_commit(self, job: str, sink: str) -> tuple[int, int] | None:
        self.seen.append(self.is_alive)
        raise UnavailableError("connection refused")


@pytest.mark.parametrize(("wanted", "seen"), [(None, [True]), (CheckpointId(5), [False])])
def test_a_target_that_is_away_is_named(
    tmp_path: Path, wanted: CheckpointId | None, seen: list[bool]
) -> None:
    """It may take long to say so: the heartbeat of a run that has the job goes on meanwhile, and the error says which sink it is."""
    sink = Away(tmp_path / "out")
    sink.seen = []

    @contextmanager
    def alive(_: Claim) -> Iterator[None]:
        sink.is_alive = True
        yield

    spec = job_spec(LocalStorage(tmp_path / "storage"), sinks={UID: sink}, owner=JOB)
    with pytest.raises(UnavailableError, match=r"the sink out does not answer: connection refused") as caught:
        restore(spec, now=1.0, wanted=wanted, alive=alive)
    assert caught.value.facts["sinks"] == (UID,)
    assert sink.seen == seen
