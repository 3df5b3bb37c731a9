"""Spark's progress log is made anew for every run, from what a checkpoint says, with what the sources have noted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from penstock.checkpoint.model import Barrier
from penstock.errors import CorruptStateError
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId, SparkBatch
from penstock.ownership.claim import Descent
from penstock.recovery.progress_log import (
    ProgressLog,
    fill_progress_log,
    place_of_log,
    positions,
    without_positions,
)
from penstock.storage import LocalStorage
from penstock.testing.virtual import VirtualStorage

LAST = CheckpointId(4)


def entry(*offsets: str) -> str:
    return "\n".join(["v1", '{"batchWatermarkMs":7,"batchTimestampMs":1}', *offsets])


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(tmp_path / "with space")


def log(storage, run: int) -> ProgressLog:
    return ProgressLog(storage, RunId(run))


UNDECIDED = {"a": [0], "b": [1, 2]}


def undecided(storage, *runs: int) -> None:
    """These runs began with sources that had no position."""
    for run in runs:
        log(storage, run).say_who_decides(UNDECIDED)


def noted(storage, run: int) -> dict[str, bytes]:
    """What the sources of a run have noted, by path."""
    folder = f"spark/{run}/sources"
    return {name.removeprefix(f"{folder}/"): storage.get(name) for name in storage.names(folder)}


def test_positions_are_read_per_source():
    """Every source has its own position; one that has none yet, or cannot go back to it, is None."""
    assert positions(entry('{"0":3}', "plain text", "-")) == [{"0": 3}, "plain text", None]
    assert positions(without_positions(entry('{"0":3}', "3"), [True, False])) == [{"0": 3}, None]
    with pytest.raises(CorruptStateError, match="unknown format"):
        positions("v9\n{}")


def test_a_run_begins_after_the_batch_of_its_checkpoint(storage):
    """The log of a run knows that batch as done, and the entry before it, without which Spark refuses to start."""
    fill_progress_log(log(storage, 3), LAST, Barrier({}, entry("4")))
    assert log(storage, 3).entry(SparkBatch(LAST)) == log(storage, 3).entry(SparkBatch(3)) == entry("4")
    assert storage.get("spark/3/commits/4") == b'v1\n{"nextBatchWatermarkMs":7}'
    assert b'"id"' in storage.get("spark/3/metadata")


def test_no_run_finds_anything_of_another(storage):
    """Batches that an earlier run has noted, or notes from now on, are not in the log of a later one; theirs is deleted."""
    storage.put("spark/2/offsets/9", b"of a zombie")
    fill_progress_log(log(storage, 3), LAST, Barrier({}, entry("4")))
    assert [name for name in storage.names("spark") if "/9" in name] == []
    storage.put("spark/2/offsets/10", b"of a zombie that woke up")
    assert storage.names("spark/3/offsets") == ["spark/3/offsets/3", "spark/3/offsets/4"]
    fill_progress_log(
        log(storage, 2), LAST, Barrier({}, entry("4"))
    )  # even its recovery leaves later ones alone
    assert storage.names("spark/3/offsets") == ["spark/3/offsets/3", "spark/3/offsets/4"]


def test_what_sources_have_noted_comes_back(storage):
    """A new log holds what the checkpoint needs of it, from copies of our own, though Spark's are lost."""
    for path in ("0/8", "0/9.compact", "0/10", "1/0"):
        storage.put(f"spark/1/sources/{path}", path.encode())
    storage.put("spark/1/sources/0/.10.crc", b"crc")
    files = log(storage, 1).source_log().keep()
    storage.delete(storage.names("spark"))
    sources = fill_progress_log(log(storage, 2), LAST, Barrier({}, entry("4"), files))
    assert noted(storage, 2) == {path: path.encode() for path in ("0/9.compact", "0/10", "1/0")}
    storage.put("spark/2/sources/0/11", b"new")
    names = {file.path: file.name for file in sources.keep()}
    assert names["0/11"] == "state/_sources/2-0-11"
    assert names["0/10"] == "state/_sources/1-0-10"  # copied once


@pytest.mark.parametrize("harm", ["flipped", "gone"])
def test_a_damaged_copy_is_found(storage, harm):
    """A source is not sent on with a wrong list of what it has read."""
    storage.put("spark/1/sources/0/0", b"file a")
    [file] = log(storage, 1).source_log().keep()
    storage.delete([file.name])
    if harm == "flipped":
        storage.put(file.name, b"file b")
    with pytest.raises(CorruptStateError, match=file.name):
        fill_progress_log(log(storage, 2), LAST, Barrier({}, entry("4"), (file,)))


def test_without_a_checkpoint_the_sources_begin_where_they_first_did(storage):
    """Runs that ended before they had begun anything leave where their sources wanted to begin; the newest took up what was before it."""
    storage.put("spark/1/sources/0/0", b"at 100")
    storage.put("spark/1/sources/2/0", b"at 9, of a zombie that decided later")
    storage.put("spark/2/sources/2/0", b"at 7")
    storage.put("spark/2/sources/1/0", bytes(6))  # what a crash of the machine may leave
    undecided(storage, 1, 2)
    fill_progress_log(log(storage, 3), NO_CHECKPOINT, Barrier(), UNDECIDED)
    assert noted(storage, 3) == {"0/0": b"at 100", "2/0": b"at 7"}
    assert storage.names("spark/3/offsets") == []


def test_a_source_whose_start_was_not_recorded_begins_where_it_first_did(storage):
    """The record may name one source and not yet another; of those that it names nothing is added."""
    storage.put("spark/1/sources/0/0", b"at 100")
    files = log(storage, 1).source_log().keep()
    storage.put("spark/1/sources/0/1", b"of a batch that is read again")
    storage.put("spark/1/sources/1/0", b"at 500")
    undecided(storage, 1)
    sources = fill_progress_log(log(storage, 2), NO_CHECKPOINT, Barrier({}, "", files), UNDECIDED)
    assert noted(storage, 2) == {"0/0": b"at 100", "1/0": b"at 500"}
    assert {file.path: file.name for file in sources.keep()} == {
        "0/0": "state/_sources/1-0-0",
        "1/0": "state/_sources/2-1-0",
    }


def test_notes_are_taken_up_by_the_source_that_made_them(storage):
    """Whatever its number is now; one that had a position then, and has none by choice, has not begun there."""
    log(storage, 1).say_who_decides({"new": [1]})
    storage.put("spark/1/sources/0/0", b"of a source that had a position")
    storage.put("spark/1/sources/1/0", b"new began at 500")
    fill_progress_log(log(storage, 2), LAST, Barrier({}, entry("-", "3", "-")), {"new": [0], "anew": [2]})
    assert noted(storage, 2) == {"0/0": b"new began at 500"}


def went_on(storage, run: int, checkpoint: int, completed_by: int) -> None:
    """From there, as its record says."""
    storage.put(
        f"runs/{run}.restored",
        msgspec.json.encode(Descent(run, restored_from=checkpoint, completed_by=completed_by)),
    )


def test_a_source_that_begins_anew_by_choice_does_not_begin_where_it_first_did(storage):
    """The first run of the job has noted where it began. Somebody lets the source begin anew, where its options say now."""
    undecided(storage, 1)
    storage.put("spark/1/sources/0/0", b"where the job began")
    went_on(storage, 1, NO_CHECKPOINT, 0)
    went_on(storage, 2, LAST, 1)
    fill_progress_log(log(storage, 2), LAST, Barrier({}, entry("-", "3", "4")), {"a": [0]}, {"a"})
    assert noted(storage, 2) == {}
    storage.put("spark/2/sources/0/0", b"where it began anew")
    went_on(storage, 3, LAST, 1)
    fill_progress_log(log(storage, 3), LAST, Barrier({}, entry("-", "3", "4")), {"a": [0]}, {"a"})
    assert noted(storage, 3) == {"0/0": b"where it began anew"}


def test_a_source_without_a_position_at_the_checkpoint_begins_where_it_first_did(storage):
    """A run may complete checkpoints before a new source has brought anything."""
    undecided(storage, 4)
    storage.put("spark/4/sources/0/0", b"at 100")
    went_on(storage, 4, 3, 1)
    went_on(storage, 5, LAST, 4)
    fill_progress_log(log(storage, 5), LAST, Barrier({}, entry("-", "3", "4")), {"a": [0]})
    assert noted(storage, 5) == {"0/0": b"at 100"}


def test_who_begins_with_a_savepoint_does_not_begin_where_an_earlier_history_did(storage):
    """The run of the adoption begins a line of its own, to which no run before it belongs."""
    undecided(storage, 1)
    storage.put("spark/1/sources/0/0", b"where another history began")
    went_on(storage, 1, NO_CHECKPOINT, 0)
    went_on(storage, 2, NO_CHECKPOINT, 0)
    went_on(storage, 3, LAST, 2)
    fill_progress_log(log(storage, 3), LAST, Barrier({}, entry("-", "3", "4")), {"a": [0]})
    assert noted(storage, 3) == {}


def test_the_notes_of_two_runs_are_not_mixed(storage):
    """A file that one run has listed as its first and a zombie as its second would be read twice."""
    storage.put("spark/1/sources/0/0", b"file a")
    storage.put("spark/1/sources/0/1", b"file b")
    storage.put("spark/2/sources/0/0", b"file b")
    storage.put("spark/1/sources/1/0", b"file c")
    storage.put("spark/2/sources/1/0", b"file d")
    storage.put("spark/2/sources/1/1", bytes(6))  # what a crash of the machine may leave
    undecided(storage, 1, 2)
    fill_progress_log(log(storage, 3), NO_CHECKPOINT, Barrier(), UNDECIDED)
    assert noted(storage, 3) == {"0/0": b"file b", "1/0": b"file c"}


def test_spark_finds_the_log_whatever_the_folder_is_called(tmp_path):
    """The location has a scheme, or Spark would look for it where `fs.defaultFS` says, and no escapes, which Hadoop takes literally."""
    assert log(LocalStorage("/data/a b%20#c"), 3).location == "file:///data/a b%20#c/spark/3"


class Moving(LocalStorage):
    """At a listing of one folder somebody moves what lies in another: a run that was replaced, and does not know it yet."""

    then: Callable[[], None] | None = None

    def names(self, prefix: str = "") -> list[str]:
        found = super().names(prefix)
        if prefix == "spark/5/sources" and self.then is not None:
            move, self.then = self.then, None
            move()
        return found


def test_notes_that_are_being_moved_are_found(tmp_path: Path) -> None:
    """A run that takes over while another one copies the notes of a third, and deletes them there, finds them in one of the two."""
    storage = Moving(tmp_path)
    storage.put("spark/1/undecided.json", b'{"a":[0]}')
    storage.put("spark/1/sources/0/0", b"from here")
    storage.put("spark/5/undecided.json", b'{"a":[0]}')

    def move() -> None:
        storage.put("spark/5/sources/0/0", b"from here")
        storage.delete(["spark/1/sources/0/0"])

    storage.then = move
    fill_progress_log(log(storage, 6), CheckpointId(-1), Barrier(), {"a": [0]})
    assert storage.get("spark/6/sources/0/0") == b"from here"


def test_only_the_log_of_a_folder_lies_in_the_storage(tmp_path):
    """Spark writes to a folder without being told how. For any other storage it writes to the driver's disk, under the job's identity."""
    assert place_of_log(LocalStorage(tmp_path), tmp_path / "work", "views-1f") is None
    place = place_of_log(VirtualStorage("s3://bucket/views"), tmp_path / "work", "views-1f")
    assert isinstance(place, LocalStorage)
    assert place.root == tmp_path / "work" / "progress" / "views-1f"


def test_a_log_on_the_drivers_disk_is_made_of_the_checkpoint_alone(storage):
    """What lies there, also under the number of this run, is deleted and asked for nothing; nothing of the log is in the job's storage."""
    disk = VirtualStorage("file:///disk")
    for run in (1, 3):
        disk.put(f"spark/{run}/offsets/9", b"of a job that was deleted")
        disk.put(f"spark/{run}/undecided.json", b'{"a":[0],"b":[1,2]}')
        disk.put(f"spark/{run}/sources/0/0", b"where that job began")
    disk.put("spark/7/offsets/1", b"of a run that has taken over")
    own = ProgressLog(storage, RunId(3), disk)
    fill_progress_log(own, LAST, Barrier({}, entry("4")), UNDECIDED)
    assert disk.names() == [
        "spark/3/commits/4",
        "spark/3/metadata",
        "spark/3/offsets/3",
        "spark/3/offsets/4",
        "spark/7/offsets/1",
    ]
    assert storage.names() == []
    assert own.location == "file:///disk/spark/3"
    disk.put("spark/3/sources/0/0", b"file a")
    kept = own.source_log().keep()
    assert storage.names() == [kept[0].name]
    fill_progress_log(ProgressLog(storage, RunId(4), disk), LAST, Barrier({}, entry("4"), kept))
    assert disk.get("spark/4/sources/0/0") == b"file a"
