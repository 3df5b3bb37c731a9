"""What is recorded before a batch is done, and which batches are refused."""

from __future__ import annotations

import msgspec
import pytest

from builders.protocol_story import completed
from builders.restore_plans import job_spec, plan_of
from penstock.checkpoint.model import Barrier, TimeReached
from penstock.clock import SYSTEM_CLOCK
from penstock.config import Mode
from penstock.errors import UnavailableError
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId, SparkBatch
from penstock.recovery.progress_log import ProgressLog, fill_progress_log
from penstock.recovery.started_batches import StartedBatch, last_started
from penstock.run.reading import Reading
from penstock.state.lifetimes import FAR_AWAY_US
from penstock.storage import LocalStorage
from penstock.testing.virtual import VirtualStorage

RUN = RunId(2)
FIRST = CheckpointId(0)


@pytest.fixture
def storage(tmp_path):
    storage = LocalStorage(tmp_path)
    storage.put("spark/2/offsets/0", b'v1\n{}\n{"0":5}\n7\n8')
    storage.put("spark/2/sources/0/0", b"began at 3")
    return storage


def reading(
    storage,
    mode: Mode = Mode.EXACTLY_ONCE,
    begun: StartedBatch | None = None,
    log: ProgressLog | None = None,
) -> tuple[Reading, list[frozenset[str]]]:
    log = log or ProgressLog(storage, RUN)
    held: list[frozenset[str]] = []
    point = plan_of(job_spec(storage, streams={"clicks": 1, "two": 2}), (), begun, run=RUN)
    return Reading(
        log,
        log.source_log(),
        {"clicks": (0,), "two": (1, 2)},
        point,
        mode=mode,
        hold=lambda _, files: held.append(files),
        clock=SYSTEM_CLOCK,
    ), held


def begun_with(one: Reading, batch: CheckpointId = FIRST) -> Barrier:
    """Begin a batch that Spark has planned."""
    barrier = one.read(SparkBatch(batch))
    one.begin(batch, barrier)
    return barrier


def recorded(storage) -> list[str]:
    """Which notes the next run would bring back."""
    begun = last_started(storage)
    return sorted(file.path for file in begun.barrier.source_log) if begun else []


@pytest.mark.parametrize(("batch", "after"), [(0, 0), (0, 3), (2, 0)])
def test_a_number_that_does_not_follow_is_an_error(storage, batch, after):
    """A batch that was done already is never stepped over, nor is one left out: the job goes back."""
    with pytest.raises(UnavailableError, match=f"batch {batch} came after batch {after}"):
        reading(storage, begun=StartedBatch(RUN, Barrier(), after))[0].read(SparkBatch(batch))


def test_where_sources_begin_is_recorded_while_no_batch_comes(storage):
    """A job that has read nothing yet begins, after a crash, where its sources had decided to."""
    one, held = reading(storage)
    one.look_for_the_start()
    begun = last_started(storage)
    assert begun is not None
    assert (begun.batch, [file.path for file in begun.barrier.source_log]) == (-1, ["0/0"])
    assert list(begun.barrier.positions) == ["clicks", "two"]
    assert held == [begun.barrier.files]


def test_exactly_once_records_the_start_and_no_batch(storage):
    """What a batch has read is read again, if no checkpoint knows of it."""
    barrier = begun_with(reading(storage)[0])
    assert barrier.positions == {"clicks": {"0": 5}, "two": [7, 8]}
    begun = last_started(storage)
    assert begun is not None
    assert begun.batch == -1
    assert begun.barrier.files == barrier.files


def test_at_most_once_records_a_batch_before_it_is_done(storage):
    """From then on no run reads it again."""
    barrier = begun_with(reading(storage, Mode.AT_MOST_ONCE)[0])
    assert last_started(storage) == StartedBatch(RUN, barrier, 0)


def test_a_source_that_decides_later_than_another_is_recorded_too(storage, monkeypatch):
    """Each look and the first batch record what was noted since, so that no source decides again after a crash."""
    monkeypatch.setattr("penstock.run.reading.LOOK_EVERY_S", 0.0)
    one, held = reading(storage)
    one.look_for_the_start()
    storage.put("spark/2/sources/1/0", b"began at 500")
    one.look_for_the_start()
    assert recorded(storage) == ["0/0", "1/0"]
    storage.put("spark/2/sources/2/0", b"began at 7")
    barrier = begun_with(one)
    assert recorded(storage) == ["0/0", "1/0", "2/0"]
    assert held[-1] == barrier.files


@pytest.mark.parametrize("idle", [False, True])
def test_where_sources_began_outlives_the_drivers_machine(storage, *, idle):
    """It is in the job's storage before the first batch begins, and at the next look if there is none, wherever Spark's log lies."""
    remote = VirtualStorage("s3://bucket/views")
    log = ProgressLog(remote, RUN, storage)
    one, _ = reading(remote, log=log)
    if idle:
        one.look_for_the_start()
    else:
        one.read(SparkBatch(FIRST))
    storage.delete(storage.names())
    assert recorded(remote) == ["0/0"]
    begun = last_started(remote)
    assert begun is not None
    after = ProgressLog(remote, RunId(3), VirtualStorage("file:///another-machine"))
    fill_progress_log(after, NO_CHECKPOINT, begun.barrier)
    assert after.place.get("spark/3/sources/0/0") == b"began at 3"


def test_what_an_earlier_run_recorded_of_the_start_is_added_to(storage):
    """A run that goes on from the start of one source records that of the others."""
    files = ProgressLog(storage, RUN).source_log().keep()
    storage.put("spark/2/sources/1/0", b"began at 500")
    reading(storage, begun=StartedBatch(RUN, Barrier(source_log=files)))[0].look_for_the_start()
    assert recorded(storage) == ["0/0", "1/0"]


def test_where_a_new_source_begins_is_recorded_beside_the_checkpoint(storage):
    """The next run that goes on from the same checkpoint begins there, with all else as the checkpoint says; another does not."""
    numbers = {"clicks": (0,), "two": (1, 2)}
    entry = 'v1\n{"batchWatermarkMs":0}\n{"0":5}\n-\n-'
    at = Barrier({"clicks": {"0": 5}, "two": [None, None]}, entry, numbers=numbers)
    four = msgspec.structs.replace(completed(4, run=1), barrier=at)
    log = ProgressLog(storage, RUN)
    spec = job_spec(storage, streams={"clicks": 1, "two": 2})
    point = plan_of(spec, [four], run=RUN)
    storage.put("spark/2/sources/1/0", b"began at 500")
    one = Reading(
        log,
        log.source_log(),
        numbers,
        point,
        mode=Mode.EXACTLY_ONCE,
        hold=lambda _, files: None,
        clock=SYSTEM_CLOCK,
    )
    one.look_for_the_start()
    begun = last_started(storage)
    assert begun is not None
    assert begun.instead is not None
    assert begun.instead.is_of(four)
    assert not begun.instead.is_of(msgspec.structs.replace(four, run=2))
    again = plan_of(spec, [four], begun, run=RUN)
    assert (again.barrier.progress_log, again.last_read) == (entry, 4)
    assert [file.path for file in again.barrier.source_log] == ["0/0", "1/0"]
    assert again.started_files == again.barrier.files


@pytest.mark.parametrize("batch", [-1, 0])
def test_a_start_that_is_known_is_not_recorded_again(storage, batch):
    """The first word counts; once a batch has begun, every source has said it."""
    files = ProgressLog(storage, RUN).source_log().keep()
    one, held = reading(storage, begun=StartedBatch(RUN, Barrier(source_log=files), batch))
    if batch == 0:
        storage.put("spark/2/sources/0/1", b"more files")
    one.look_for_the_start()
    storage.put("spark/2/offsets/1", storage.get("spark/2/offsets/0"))
    begun_with(one, CheckpointId(batch + 1))
    assert last_started(storage) is None
    assert held == []


def test_after_the_first_batch_there_is_no_start_to_look_for(storage):
    """What a look would record then could hide a batch that was begun at most once."""
    one, _ = reading(storage, Mode.AT_MOST_ONCE)
    barrier = begun_with(one)
    storage.put("spark/2/sources/0/1", b"more files")
    one.look_for_the_start()
    assert last_started(storage) == StartedBatch(RUN, barrier, 0)


def test_a_log_that_was_taken_away(tmp_path) -> None:
    """A run that takes over deletes the log of the one before, which then ends as one that may come again, and is fenced when it does."""
    storage = LocalStorage(tmp_path)
    with pytest.raises(UnavailableError, match="another run has taken the job over"):
        reading(storage)[0].read(SparkBatch(0))


def test_a_batch_that_reads_nothing_ends_where_the_one_before_it_did(storage):
    """It is recorded at most once as all others are, under a number of its own, and Spark's next number is not touched by it."""
    one, _ = reading(storage, Mode.AT_MOST_ONCE)
    read = begun_with(one)
    one.begin(CheckpointId(1), one.barrier)
    assert one.barrier == read
    assert last_started(storage) == StartedBatch(RUN, read, 1)
    storage.put("spark/2/offsets/1", b'v1\n{}\n{"0":6}\n7\n8')
    assert one.read(SparkBatch(1)).positions == {"clicks": {"0": 6}, "two": [7, 8]}


@pytest.mark.parametrize("cleared_in", [-1, 7])
def test_state_from_before_the_end_of_time_is_cleared_again(storage, cleared_in: int) -> None:
    """At most once time goes on behind batch 7, which cleared away what had fired; no checkpoint has it, and it must not fire again."""
    begun = StartedBatch(1, Barrier(time=TimeReached({"op": 5}, anew_in=cleared_in)), batch=8)
    time = reading(storage, Mode.AT_MOST_ONCE, begun)[0].barrier.time
    assert time.to_go_on_from_us == ({} if cleared_in < 0 else {"op": 5})
    assert time.watermarks_us == {"op": 5 if cleared_in < 0 else FAR_AWAY_US}
    assert time.counted_from_us == {"op": 5}
