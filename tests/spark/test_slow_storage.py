"""The asynchronous part of checkpoints over storage that is slow, refuses, or is full: batches go on, and no count is off."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest
from ledger import Count, Ledger
from pyspark import TaskContext

import penstock as ps
from penstock.errors import UnavailableError
from penstock.spark.job_handle import JobHandle
from penstock.status.live import Status
from penstock.storage import LocalStorage, Storage
from penstock.storage.forwarding import ForwardingStorage, Operation
from penstock.testing.faulty_storage import SlowStorage
from services.patience import tries

pytestmark = pytest.mark.spark
T = TypeVar("T")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


@pytest.fixture
def start() -> Iterator[Callable[..., JobHandle]]:
    """Starts jobs, and leaves none running behind a test that failed."""
    handles: list[JobHandle] = []

    def begin(job: ps.Job, **arguments) -> JobHandle:
        handles.append(job.start(**arguments))
        return handles[-1]

    yield begin
    for handle in handles:
        if handle.status in (Status.RUNNING, Status.RESTARTING):
            handle.cancel()


def counting_job(
    spark,
    ledger: Ledger,
    storage: Storage,
    *,
    rows_per_batch: int = 20,
    operator: Count | None = None,
    **settings,
) -> ps.Job:
    job = ps.Job(
        "slow", storage=storage, local_dir=ledger.root / "local", **({"restart": ps.no_restart()} | settings)
    )
    clicks = job.read(ledger.log.read(spark, rows_per_batch=rows_per_batch), uid="clicks")
    clicks.key_by("user").process(operator or Count(), schema="user long, n long", uid="count").write_to(
        ledger.sqlite("views", "user"), uid="out"
    )
    return job


def plain(ledger: Ledger) -> LocalStorage:
    return LocalStorage(ledger.root / "store")


def wait_until(handle: JobHandle, reached: Callable[[], bool]) -> None:
    while not reached():
        assert not handle.wait(0.02), "the job ended early"


def processed(handle: JobHandle, ledger: Ledger) -> Callable[[], bool]:
    """Whether everything in the log has passed the operators."""
    return lambda: (
        handle.progress.batch >= 0 and handle.progress.rows_in >= sum(ledger.log.end_offsets().values())
    )


def only_named_files(handle: JobHandle, ledger: Ledger) -> Callable[[], bool]:
    """Whether storage holds exactly what the checkpoints name."""
    return lambda: (
        set(plain(ledger).names("state")) == {name for one in handle.checkpoints() for name in one.files}
    )


# ── slow ───────────────────────────────────────────────────────────────────────────────────────


class Watch:
    """What is under way, seen again and again while a job runs: by pending checkpoint, the newest batch at its side."""

    def __init__(self) -> None:
        self.most_at_once = 0
        self.newest_batch_beside: dict[int, int] = {}

    def look(self, handle: JobHandle) -> bool:
        run = handle._runner.run
        loop = getattr(run, "_loop", None)
        if loop is not None:
            pending = list(loop.coordinator._protocol.pending)
            self.most_at_once = max(self.most_at_once, len(pending))
            self.newest_batch_beside.update(dict.fromkeys(pending, handle.progress.batch))
        return handle.wait(0.01)


def test_batches_do_not_wait_for_a_checkpoint(spark, ledger, start):
    """While the files of a checkpoint are on their way five more batches finish; it completes when they have arrived."""
    ledger.fill(10)
    gate = ledger.root / "gate"
    storage = SlowStorage(plain(ledger), seconds=3600, pattern="state/*", until=gate)
    settings = ps.Checkpointing(interval="1ms", retained=100)
    handle, watch = start(counting_job(spark, ledger, storage, checkpoint=settings)), Watch()
    while handle.progress.batch < 5:
        assert not watch.look(handle)
        if processed(handle, ledger)():
            ledger.fill(10)
    assert list(watch.newest_batch_beside) == [0], "one checkpoint is under way, since batch 0"
    assert watch.newest_batch_beside[0] >= 4
    assert handle.checkpoints() == []
    gate.touch()
    wait_until(handle, processed(handle, ledger))
    wait_until(handle, lambda: handle.progress.checkpoints_completed > 0)
    handle.stop()
    assert handle.checkpoints()[0].checkpoint == 0
    assert ledger.counts() == ledger.truth("user")


def test_storage_that_takes_its_time_with_each_file(spark, ledger, start):
    """Checkpoints complete all the same, later, one at a time, with the pause between them."""
    ledger.fill(10)
    settings = ps.Checkpointing(interval="1ms", min_pause="200ms", max_concurrent=1, retained=100)
    storage = SlowStorage(
        plain(ledger), seconds=0.5, pattern="[cs]*"
    )  # chk-*, state/*: a start alone writes five more
    handle, watch = start(counting_job(spark, ledger, storage, checkpoint=settings)), Watch()
    while handle.progress.checkpoints_completed < 3:
        assert not watch.look(handle)
        if processed(handle, ledger)():
            ledger.fill(10)
    wait_until(handle, processed(handle, ledger))
    kept = handle.checkpoints()
    handle.stop()
    assert ledger.counts() == ledger.truth("user")
    assert watch.most_at_once == 1
    assert any(one.duration_ms >= 500 for one in kept), "no checkpoint waited for its files"
    for earlier, later in pairwise(kept):
        assert later.triggered_at - earlier.completed_at >= settings.min_pause_s


def test_local_files_stay_while_the_coordinator_is_held_up(spark, ledger, start):
    """Storage may hold up the coordinator for many batches: what a checkpoint triggered meanwhile has to store is not deleted here."""
    ledger.fill(10)
    held, slow = ledger.root / "held", ledger.root / "slow"
    storage = SlowStorage(plain(ledger), seconds=3600, pattern="chk-*/_committed", until=held)
    storage = SlowStorage(storage, seconds=3600, pattern="state/count/1-[1-9]-*", until=slow)
    handle = start(counting_job(spark, ledger, storage, checkpoint=ps.Checkpointing(interval="1ms")))
    wait_until(handle, lambda: handle.progress.checkpoints_completed == 1)
    pending = handle._runner.run._loop.coordinator._protocol.pending
    wait_until(
        handle, lambda: not pending
    )  # and now the coordinator notes that checkpoint 0 is committed, until `held`
    while handle.progress.batch < 6:  # files are merged on the way
        ledger.fill(10)
        wait_until(handle, processed(handle, ledger))
    assert list(pending) == [1]
    for gate in (slow, held):
        gate.touch()
    wait_until(handle, lambda: handle.progress.checkpoints_completed > 1)
    handle.stop()
    assert ledger.counts() == ledger.truth("user")


def test_several_checkpoints_under_way(spark, ledger, start):
    """With max_concurrent=2 a second checkpoint is triggered while the first is on its way, and never a third."""
    ledger.fill(10)
    settings = ps.Checkpointing(interval="1ms", max_concurrent=2, retained=100)
    storage = SlowStorage(plain(ledger), seconds=1.0, pattern="state/*")
    handle, watch = start(counting_job(spark, ledger, storage, checkpoint=settings)), Watch()
    while handle.progress.checkpoints_completed < 2:
        assert not watch.look(handle)
        if processed(handle, ledger)():
            ledger.fill(10)
    wait_until(handle, processed(handle, ledger))
    handle.stop()
    assert watch.most_at_once == 2
    assert ledger.counts() == ledger.truth("user")


def test_a_checkpoint_that_cannot_finish_in_time_is_given_up_and_cleaned_away(spark, ledger, start, caplog):
    """It expires, the job goes on without it, and nothing that only it named stays; when storage is fast again one completes."""
    ledger.fill(60)
    gate = ledger.root / "gate"
    storage = SlowStorage(plain(ledger), seconds=3600, pattern="state/*", until=gate)
    settings = ps.Checkpointing(interval="1ms", timeout="3s", tolerable_failures=1000)
    with caplog.at_level(logging.WARNING, "penstock"):
        handle = start(counting_job(spark, ledger, storage, checkpoint=settings))
        while caplog.text.count("did not acknowledge (count-") < 2:
            wait_until(handle, processed(handle, ledger))
            ledger.fill(10)
        wait_until(handle, processed(handle, ledger))
    assert handle.progress.checkpoints_completed == 0
    assert plain(ledger).names("state") == []
    assert "was not complete in time" in caplog.text
    gate.touch()
    ledger.fill(20)
    wait_until(handle, lambda: handle.progress.checkpoints_completed > 0)
    wait_until(handle, processed(handle, ledger))
    wait_until(handle, only_named_files(handle, ledger))
    handle.stop()
    assert ledger.counts() == ledger.truth("user")
    assert handle.progress.restarts == 0


def test_too_many_late_checkpoints_send_the_job_back(spark, ledger, start):
    """One more failure than is tolerated: the job goes back to its last checkpoint, as often as it takes, and is exact in the end."""
    ledger.fill(30)
    counting_job(spark, ledger, plain(ledger)).run(available_now=True)
    ledger.fill(40)
    gate = ledger.root / "gate"
    job = counting_job(
        spark,
        ledger,
        SlowStorage(plain(ledger), seconds=3600, pattern="state/*", until=gate),
        checkpoint=ps.Checkpointing(interval="1ms", timeout="500ms", tolerable_failures=1),
        restart=ps.fixed_delay(attempts=1000, delay="10ms"),
    )
    handle = start(job, available_now=True)
    first = handle.progress.restored_from
    assert first >= 0
    wait_until(handle, lambda: handle.progress.restarts >= 1 and handle.progress.run >= 3)
    assert handle.progress.restored_from == first
    gate.touch()
    handle.wait()
    assert ledger.counts() == ledger.truth("user")


# ── refusing, full ─────────────────────────────────────────────────────────────────────────────


class EveryThird(ForwardingStorage):
    """Refuses every third upload, counted over all processes."""

    def __init__(self, inner: Storage, tally: Path) -> None:
        super().__init__(inner)
        self.tally = tally

    def _perform(self, operation: Operation, name: str, work: Callable[[], T]) -> T:
        if operation == "upload":
            with self.tally.open("ab") as file:
                file.write(b".")
                number = file.tell()
            if number % 3 == 0:
                raise UnavailableError(f"planned: upload {number}, {name!r}, is refused")
        return work()


def test_uploads_that_fail_now_and_then(spark, ledger, start, caplog):
    """A declined checkpoint is given up and cleaned away, the next one takes its files along, and no count is off."""
    ledger.fill(100)
    storage = EveryThird(plain(ledger), ledger.root / "tally")
    settings = ps.Checkpointing(interval="1ms", tolerable_failures=1000)
    with caplog.at_level(logging.WARNING, "penstock"):
        handle = start(counting_job(spark, ledger, storage, checkpoint=settings))
        wait_until(handle, processed(handle, ledger))
        wait_until(handle, lambda: handle.checkpoints()[-1:] and handle.progress.checkpoints_completed > 1)
        wait_until(handle, only_named_files(handle, ledger))
        handle.stop()
    assert "was declined by a subtask" in caplog.text
    assert "is refused" in caplog.text
    assert handle.progress.restarts == 0
    assert ledger.counts() == ledger.truth("user")


class FullDisk(LocalStorage):
    """While the file `full` exists there is room for half of a state file only."""

    def __init__(self, root: Path, full: Path) -> None:
        super().__init__(root)
        self.full = full

    def _appear(
        self, target: Path, fill: Callable[[Path], None], publish: Callable[[Path, Path], None]
    ) -> None:
        def half(temporary: Path) -> None:
            temporary.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(temporary))

        no_room = self.full.exists() and target.relative_to(self.root).parts[0] == "state"
        super()._appear(target, half if no_room else fill, publish)


def test_storage_runs_full_while_a_snapshot_is_stored(spark, ledger, start, caplog):
    """The checkpoint is declined with what to do, no half file stays, and the job is exact when there is space again."""
    ledger.fill(40)
    full = ledger.root / "full"
    full.touch()
    storage = FullDisk(ledger.root / "store", full)
    settings = ps.Checkpointing(interval="1ms", tolerable_failures=1000)
    with caplog.at_level(logging.WARNING, "penstock"):
        handle = start(counting_job(spark, ledger, storage, checkpoint=settings), available_now=True)
        wait_until(handle, lambda: "disk full; free space there or move the storage" in caplog.text)
        wait_until(handle, processed(handle, ledger))
    assert handle.progress.checkpoints_completed == 0
    full.unlink()
    handle.wait()
    assert ledger.counts() == ledger.truth("user")
    assert only_named_files(handle, ledger)()
    assert [path for path in (ledger.root / "store").rglob("*") if ".tmp" in path.name] == []


class NoRoomOnce(Count):
    """In batch 2 the file that the state is about to be frozen into lies on a full device, for every attempt that Spark makes."""

    def __init__(self, local: Path, marker: Path) -> None:
        self.local = local
        self.marker = marker

    def process(self, key, rows, ctx):
        if ctx.checkpoint == 2 and not self.marker.exists():
            self.fill_the_disk(ctx)
        yield from super().process(key, rows, ctx)

    def fill_the_disk(self, ctx) -> None:
        task = TaskContext.get()
        assert task is not None
        (run,) = self.local.glob("*/run-*")
        folder = run / "state" / "count"
        number = run.name.split("-")[1]
        mine = f"{number}-{ctx.checkpoint}-{ctx.subtask}-{task.taskAttemptId()}.arrow.tmp"
        left = [
            one.name
            for one in folder.glob(f"{number}-{ctx.checkpoint}-{ctx.subtask}-*.tmp")
            if one.name != mine
        ]
        assert left == [], "an attempt before this one left its half-written file"
        if not (folder / mine).is_symlink():
            (folder / mine).symlink_to("/dev/full")
        if task.attemptNumber() == 3:
            self.marker.touch()


def test_the_local_disk_runs_full_while_state_is_frozen(spark, ledger, start, caplog):
    """The batch fails with the path and what to do, the job goes back to its checkpoint, and is exact when there is space again."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    ledger.fill(40)
    marker = ledger.root / "marker"
    operator = NoRoomOnce(ledger.root / "local", marker)
    job = counting_job(
        spark,
        ledger,
        plain(ledger),
        operator=operator,
        checkpoint=ps.Checkpointing(interval="1ms"),
        restart=ps.fixed_delay(attempts=1, delay="10ms"),
    )
    with caplog.at_level(logging.WARNING, "penstock"):
        handle = start(job, available_now=True)
        handle.wait()
    assert marker.exists()
    assert handle.progress.restarts == 1
    (said,) = (
        one.getMessage() for one in caplog.records if "cannot write the working file" in one.getMessage()
    )
    assert f"{ledger.root}/local" in said
    assert "No space left on device" in said
    assert "free space" in said
    assert ledger.counts() == ledger.truth("user")


def _mount(storage: Path, place: Path) -> None:
    """Put a storage back; a run that looks for it meanwhile may make the place anew."""
    for number, _ in enumerate(tries(0.01)):
        place.rename(place.with_name(f"below-{number}"))
        with suppress(OSError):
            storage.rename(place)
            return
    pytest.fail("somebody makes the place anew all the time")


def test_storage_that_is_away_for_a_while_costs_a_restart(spark, ledger: Ledger, start) -> None:
    """A mount that is gone leaves an empty folder: the run ends, later ones wait for the storage, and every row counts once."""
    store, away = ledger.root / "store", ledger.root / "away"
    ledger.fill(100)
    restart = ps.fixed_delay(attempts=1000, delay="50ms")
    handle = start(counting_job(spark, ledger, plain(ledger), restart=restart))
    wait_until(handle, lambda: handle.progress.checkpoint >= 0)
    store.rename(away)
    store.mkdir(exist_ok=True)  # Spark may be quicker
    wait_until(handle, lambda: handle.progress.restarts >= 3)
    assert not [*store.glob("runs/*.json"), *store.glob("chk-*/_metadata")]
    _mount(away, store)
    ledger.append(0, "app0", 50)
    wait_until(handle, lambda: bool(handle.progress.up_since))
    wait_until(handle, lambda: ledger.counts() == ledger.truth("user"))
    handle.stop()
