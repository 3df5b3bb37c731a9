"""Jobs that begin with a savepoint: another parallelism, another backend, another place, a fork; and what is refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from ledger import Ledger
from pyspark.sql import functions as F

import penstock as ps
from penstock.errors import ConfigError, CorruptStateError, IncompatibleStateError
from penstock.savepoint.create import create_savepoint
from penstock.savepoint.manifest import MANIFEST, Manifest
from penstock.storage import LocalStorage

pytestmark = pytest.mark.spark


class Visits(ps.KeyedProcess):
    """Every kind of state of a key, each of which alone knows how many rows there were."""

    count = ps.ValueState("long", default=0)
    by_user = ps.MapState("long", "long")
    users = ps.ListState("long")

    def process(self, key, rows, ctx):
        for row in rows:
            self.count.value += 1
            self.by_user[row.user] = self.by_user.get(row.user, 0) + 1
            self.users.append(row.user)
        yield key, self.count.value, sum(self.by_user.values()), len(self.users)


class Place:
    """Where a job is kept, over a log that it may share with others."""

    def __init__(self, root: Path, ledger: Ledger) -> None:
        self.root, self.ledger = root, ledger

    def job(
        self,
        spark: Any,
        *,
        operator: str = "visits",
        name: str = "pv",
        mode: ps.Mode = ps.EXACTLY_ONCE,
        **settings: Any,
    ) -> ps.Job:
        settings.setdefault("restart", ps.no_restart())
        job = ps.Job(
            name,
            storage=self.root / "store",
            local_dir=self.root / "local",
            checkpoint=ps.Checkpointing(interval="1ms", mode=mode),
            **settings,
        )
        keyed = job.read(self.ledger.log.read(spark), uid="clicks").key_by("app")
        columns = "app string, count long, by_user long, users long"
        table = ps.sinks.SQLite(self.root / "out.db", table="visits", mode="upsert", key=["app"])
        keyed.process(Visits(), schema=columns, uid=operator).write_to(table, uid="visits-out")
        counted = keyed.aggregate(n=F.count("*"), uid="views")
        counted.write_to(ps.sinks.Files(self.root / "files"), uid="views-out")
        return job

    def saved(self, to: Path, job: str = "pv") -> Manifest:
        """A savepoint of the newest checkpoint."""
        storage = LocalStorage(self.root / "store" / job)
        newest = newest_of(storage)
        return create_savepoint(storage, newest, LocalStorage(to), token=to.name)

    def counts(self) -> dict[str, tuple[int, ...]]:
        with sqlite3.connect(self.root / "out.db") as database:
            return {app: tuple(counts) for app, *counts in database.execute("select * from visits")}

    def counted(self) -> dict[str, tuple[int, ...]]:
        """The same, where perhaps nothing was ever written."""
        return self.counts() if (self.root / "out.db").exists() else {}

    def check(self) -> None:
        """Each kind of state has seen every row of the log, once."""
        assert self.counts() == {app: (n, n, n) for app, n in self.ledger.truth().items()}


def newest_of(storage: LocalStorage) -> Any:
    from penstock.ownership.claim import read_descents
    from penstock.recovery.history import read_history

    return read_history(storage, read_descents(storage)).whole[-1]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path)
    made.fill(100)
    return made


def test_moved_rescaled_and_on_every_backend(spark, tmp_path, ledger) -> None:
    """A savepoint is moved to another folder and started with 2, 8, 3, 1 subtasks on all backends in turn: every count is right."""
    place, saved = Place(tmp_path / "0", ledger), tmp_path / "saved 0"
    place.job(spark, parallelism=2).run(available_now=True)
    place.saved(saved)
    for step, (parallelism, backend) in enumerate([(8, "rocksdb"), (3, "memory"), (1, "filesystem")], 1):
        saved = saved.rename(tmp_path / f"moved {step}")
        place = Place(tmp_path / str(step), ledger)
        ledger.fill(30 + step)
        job = place.job(spark, parallelism=parallelism, backend=backend)
        job.run(available_now=True, savepoint=saved)
        place.check()
        saved = tmp_path / f"saved {step}"
        place.saved(saved)


def test_a_start_that_is_repeated_goes_on(spark, tmp_path, ledger) -> None:
    """A supervisor that repeats the start with its savepoint does not go back to it, and the results of a fork are apart."""
    Place(tmp_path / "a", ledger).job(spark).run(available_now=True)
    Place(tmp_path / "a", ledger).saved(tmp_path / "saved")
    for rows in (20, 30):
        ledger.fill(rows)
        for fork in ("b", "c"):
            place = Place(tmp_path / fork, ledger)
            place.job(spark).run(available_now=True, savepoint=tmp_path / "saved")
            place.check()
    checkpoints = [
        one.checkpoint
        for one in Place(tmp_path / "b", ledger).job(spark).start(available_now=True).checkpoints()
    ]
    assert checkpoints[0] > 1


def test_in_the_storage_of_the_job_itself(spark, tmp_path, ledger) -> None:
    """Stopped, saved, and started from it in the same storage; once the job went on without it, it is refused there."""
    place = Place(tmp_path / "a", ledger)
    place.job(spark).run(available_now=True)
    place.saved(tmp_path / "saved")
    ledger.fill(20)
    place.job(spark, parallelism=3).run(available_now=True, savepoint=tmp_path / "saved")
    place.check()
    place.saved(tmp_path / "later")
    ledger.fill(10)
    place.job(spark).run(available_now=True)
    with pytest.raises(ConfigError, match="has a history of its own, up to checkpoint"):
        place.job(spark).start(available_now=True, savepoint=tmp_path / "later")
    place.job(spark).run(available_now=True)
    place.check()


def test_claimed(spark, tmp_path, ledger) -> None:
    """With claim=True the folder is the job's, and is gone when it was adopted; without, it stays as it was."""
    Place(tmp_path / "a", ledger).job(spark).run(available_now=True)
    Place(tmp_path / "a", ledger).saved(tmp_path / "saved")
    before = sorted(tmp_path.joinpath("saved").rglob("*"))
    ledger.fill(10)
    Place(tmp_path / "b", ledger).job(spark).run(available_now=True, savepoint=tmp_path / "saved")
    assert sorted(tmp_path.joinpath("saved").rglob("*")) == before
    Place(tmp_path / "c", ledger).job(spark).run(available_now=True, savepoint=tmp_path / "saved", claim=True)
    assert not [path for path in tmp_path.joinpath("saved").rglob("*") if path.is_file()]
    Place(tmp_path / "c", ledger).check()
    ledger.fill(10)
    place = Place(tmp_path / "c", ledger)
    place.job(spark).run(available_now=True, savepoint=tmp_path / "saved", claim=True)  # as a supervisor does
    place.check()
    with pytest.raises(ConfigError, match="is no savepoint"):
        Place(tmp_path / "d", ledger).job(spark).start(savepoint=tmp_path / "saved", claim=True)


def test_what_is_dropped_is_dropped_once(spark, tmp_path, ledger) -> None:
    """A supervisor that repeats a start with drop_state keeps what the first one has counted since."""
    Place(tmp_path / "a", ledger).job(spark).run(available_now=True)
    Place(tmp_path / "a", ledger).saved(tmp_path / "saved")
    before = ledger.truth()
    place = Place(tmp_path / "b", ledger)
    for rows in (20, 30):
        ledger.fill(rows)
        place.job(spark).run(available_now=True, savepoint=tmp_path / "saved", drop_state=("visits",))
    since = {app: n - before[app] for app, n in ledger.truth().items()}
    assert place.counts() == {app: (n, n, n) for app, n in since.items()}


def test_another_mode(spark, tmp_path, ledger) -> None:
    """A job goes on from a savepoint of another mode."""
    Place(tmp_path / "a", ledger).job(spark).run(available_now=True)
    Place(tmp_path / "a", ledger).saved(tmp_path / "saved")
    ledger.fill(20)
    place = Place(tmp_path / "b", ledger)
    place.job(spark, mode=ps.AT_LEAST_ONCE).run(available_now=True, savepoint=tmp_path / "saved")
    place.check()


def test_of_a_running_job_at_most_once(spark, tmp_path, ledger) -> None:
    """Batches that the job begins later are not in it, and are read again elsewhere; one that ends the job has them all."""
    place = Place(tmp_path / "a", ledger)
    handle = place.job(spark, mode=ps.AT_MOST_ONCE).start()
    handle.savepoint(tmp_path / "saved")
    before = ledger.truth()
    ledger.fill(20)
    while place.counts() != {app: (n, n, n) for app, n in ledger.truth().items()}:
        assert not handle.wait(0.05)
    handle.stop(savepoint=tmp_path / "last")
    for fork, saved, since in (("b", "saved", before), ("c", "last", ledger.truth())):
        elsewhere = Place(tmp_path / fork, ledger)
        elsewhere.job(spark, mode=ps.AT_MOST_ONCE).run(available_now=True, savepoint=tmp_path / saved)
        again = {app: n for app, n in ledger.truth().items() if n > since[app]}
        assert elsewhere.counted() == {app: (n, n, n) for app, n in again.items()}


def test_what_is_refused_changes_nothing(spark, tmp_path, ledger) -> None:
    """No savepoint, a damaged one, one that does not fit: the job is as it was, and so is the savepoint."""
    Place(tmp_path / "a", ledger).job(spark).run(available_now=True)
    Place(tmp_path / "a", ledger).saved(tmp_path / "saved")
    place = Place(tmp_path / "b", ledger)
    with pytest.raises(ConfigError, match="is no savepoint"):
        place.job(spark).start(available_now=True, savepoint=tmp_path / "nothing")
    with pytest.raises(ConfigError, match="exclude each other"):
        place.job(spark).start(available_now=True, savepoint=tmp_path / "saved", restore=1)
    with pytest.raises(ConfigError, match="nothing to claim"):
        place.job(spark).start(available_now=True, claim=True)
    with pytest.raises(IncompatibleStateError, match="holds state of the operator visits"):
        place.job(spark, operator="renamed").start(available_now=True, savepoint=tmp_path / "saved")
    assert not (tmp_path / "b/store/pv").exists()
    part = next(tmp_path.joinpath("saved/state/visits/table-users").glob("*.parquet"))
    data = part.read_bytes()
    part.unlink()
    part.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(Exception, match="is corrupt") as met:
        place.job(spark).run(available_now=True, savepoint=tmp_path / "saved")
    assert isinstance(met.value, CorruptStateError) or "CorruptStateError" in str(met.value)
    assert not LocalStorage(tmp_path / "b/store/pv").names("chk")
    part.write_bytes(data)
    place.job(spark, operator="renamed").run(
        available_now=True, savepoint=tmp_path / "saved", drop_state=("visits",)
    )
    assert (tmp_path / "saved" / MANIFEST).exists()
