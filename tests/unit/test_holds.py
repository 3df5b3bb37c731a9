"""Holds: who reads a checkpoint of a job that runs, and what the job leaves alone meanwhile."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec
import pytest

from builders.protocol_story import completed, transaction
from penstock.checkpoint.metadata import mark_committed, write_metadata
from penstock.checkpoint.model import Completed
from penstock.errors import ConfigError, CorruptStateError
from penstock.ids import CheckpointId
from penstock.ownership.claim import claim
from penstock.ownership.heartbeat import beat
from penstock.ownership.holds import (
    BELIEVED_S,
    HOLD_S,
    Hold,
    find_holds,
    holding,
    name_of,
    put_hold,
    release_hold,
)
from penstock.ownership.records import LARGEST_BYTES
from penstock.recovery.history import (
    check_committed,
    read_held,
    retained_checkpoint,
    steady_history,
)
from penstock.storage import LocalStorage
from penstock.testing.virtual import EPOCH_S, VirtualClock, VirtualStorage

NOW = EPOCH_S


class RealPause(VirtualClock):
    """Time stands still; a wait lasts until its event is set."""

    def wait(self, until: threading.Event, seconds: float) -> bool:
        self.slept.append(seconds)
        return until.wait()


def test_a_hold_ends_by_itself() -> None:
    """A reader that dies holds nothing up for longer than a hold is good, and its file goes some time later."""
    storage = VirtualStorage()
    put_hold(storage, "ab", NOW, "a test")
    assert [hold.why for hold in find_holds(storage, NOW + HOLD_S - 1).good] == ["a test"]
    assert find_holds(storage, NOW + HOLD_S) == ([], [])
    assert find_holds(storage, NOW + HOLD_S + BELIEVED_S) == ([], [name_of("ab")])


def test_holds_that_are_not_believed() -> None:
    """What cannot be read, and what says to be good for ever, holds nothing; other files are left alone."""
    storage = VirtualStorage()
    storage.put(name_of("aa"), b"{not json")
    storage.put(name_of("bb"), msgspec.json.encode(Hold("bb", NOW + 2 * BELIEVED_S)))
    storage.put("holds/.DS_Store", b"")
    assert find_holds(storage, NOW) == ([], [name_of("aa"), name_of("bb")])


def test_holds_of_enemies(tmp_path: Path) -> None:
    """What is too deep or too large holds nothing and may be deleted; a pipe is not read, for it would never end."""
    storage = LocalStorage(tmp_path)
    storage.put(name_of("aa"), b'{"token": "aa", "until": 0, "x": ' + b"[" * 200_000 + b"}")
    good = msgspec.json.encode(Hold("bb", NOW + 1))
    storage.put(name_of("bb"), good + b" " * LARGEST_BYTES)
    os.mkfifo(tmp_path / name_of("cc"))
    assert find_holds(storage, NOW) == ([], [name_of("aa"), name_of("bb"), name_of("cc")])


def test_holding_renews_and_releases() -> None:
    """The hold is there from before the block to its end, renewed meanwhile, and gone behind it."""
    storage, clock = VirtualStorage(), VirtualClock()
    renewed = threading.Event()

    class Clock(RealPause):
        def wait(self, until: threading.Event, seconds: float) -> bool:
            if clock.wall() < NOW + 3 * HOLD_S:
                clock.advance(HOLD_S / 2)
                return False
            renewed.set()
            return until.wait()

        def wall(self) -> float:
            return clock.wall()

    with holding(storage, "a test", clock=Clock()) as held:
        held.only(7, 2)
        assert renewed.wait(60)
        (hold,) = find_holds(storage, clock.wall()).good
        assert (hold.token, hold.checkpoint, hold.run) == (held.token, 7, 2)
    assert storage.names() == []


@pytest.mark.parametrize(("behind_s", "warned"), [(HOLD_S, True), (1.0, False)])
def test_a_reader_whose_clock_is_behind_is_told(
    behind_s: float, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its hold is over, by the clock of the job, before it is put there."""
    storage = VirtualStorage()
    mine = claim(storage, NOW)
    beat(storage, mine.run, NOW + behind_s)
    with holding(storage, "a test", clock=RealPause()):
        assert ("2 min behind that of run 1" in caplog.text) == warned


def test_a_reader_whose_clock_is_ahead_is_told_of_by_the_job(caplog: pytest.LogCaptureFixture) -> None:
    """Its hold says to be good for longer than is believed."""
    storage = VirtualStorage()
    put_hold(storage, "ab", NOW + 2 * BELIEVED_S, "a test")
    assert find_holds(storage, NOW).good == []
    assert "holds/ab.json in virtual://storage is not believed: it is to be good for 2 h 2 min" in caplog.text


def test_a_hold_is_released_when_reading_fails() -> None:
    """An exception in the block leaves no hold behind."""
    storage = VirtualStorage()
    with pytest.raises(ZeroDivisionError), holding(storage, "a test", clock=RealPause()):
        raise ZeroDivisionError
    assert storage.names() == []
    release_hold(storage, "never-was")


# ── reading ────────────────────────────────────────────────────────────────────────────────────


def put(storage: LocalStorage, number: int, *, oldest_retained: int = -1) -> Completed:
    file = f"state/views/{number}"
    storage.put(file, b"rows")
    one = msgspec.structs.replace(completed(number, file, run=0), oldest_retained=oldest_retained)
    write_metadata(storage, one)
    return one


def test_a_reader_whose_checkpoint_goes_reads_the_newest(tmp_path: Path) -> None:
    """By the clock of the job its hold was over; the reader begins again with the one that is the newest then, and holds that."""
    storage = LocalStorage(tmp_path)
    put(storage, 1)
    seen: list[int] = []

    def read(found: Completed) -> int:
        seen.append(found.checkpoint)
        (hold,) = find_holds(storage, NOW).good
        assert hold.checkpoint == found.checkpoint
        if found.checkpoint == 1:
            put(storage, 2, oldest_retained=2)
            raise CorruptStateError("its file is gone")
        return found.checkpoint

    assert read_held(storage, read, why="a test", clock=RealPause()) == 2
    assert seen == [1, 2]


def test_a_reader_that_fails_otherwise_fails(tmp_path: Path) -> None:
    """What is wrong with the newest checkpoint itself is said, and it is not read twice."""
    storage = LocalStorage(tmp_path)
    put(storage, 1)
    seen: list[int] = []

    def read(found: Completed) -> None:
        seen.append(found.checkpoint)
        raise CorruptStateError("a flipped bit")

    with pytest.raises(CorruptStateError, match=r"flipped"):
        read_held(storage, read, why="a test", clock=RealPause())
    assert seen == [1]


def test_which_checkpoint_is_read(tmp_path: Path) -> None:
    """The newest whole one, or the one that is asked for; one that is not there is refused with those that are."""
    storage = LocalStorage(tmp_path)
    with pytest.raises(ConfigError, match=r"no checkpoint of the job .* can be read: there is none"):
        retained_checkpoint(storage)
    put(storage, 1)
    put(storage, 2)
    assert retained_checkpoint(storage).checkpoint == 2
    assert retained_checkpoint(storage, CheckpointId(1)).checkpoint == 1
    with pytest.raises(ConfigError, match=r"checkpoint 7 of the job .* there are 1, 2"):
        retained_checkpoint(storage, CheckpointId(7))


def test_an_older_checkpoint_is_not_taken_for_a_newest_that_is_broken(tmp_path: Path) -> None:
    """What came after it may be visible: who made a savepoint of it, and began with that, would write it again. By its number it is given."""
    storage = LocalStorage(tmp_path)
    put(storage, 1)
    put(storage, 2)
    storage.delete(["state/views/2"])
    with pytest.raises(
        CorruptStateError, match=r"needs 1 state file that is gone.*Checkpoint 1 is whole, but"
    ):
        retained_checkpoint(storage)
    assert retained_checkpoint(storage, CheckpointId(1)).checkpoint == 1


def test_only_what_is_known_to_be_committed_is_handed_out(tmp_path: Path) -> None:
    """A checkpoint that promises transactions is refused until the mark says that they are visible."""
    storage = LocalStorage(tmp_path)
    check_committed(storage, completed(1))
    promising = completed(2, transactions=(transaction(2),))
    with pytest.raises(ConfigError, match=r"checkpoint 2 .* promises to commit 1 transaction"):
        check_committed(storage, promising)
    mark_committed(storage, promising)
    check_committed(storage, promising)


class GoesOn(LocalStorage):
    """The job completes and commits a checkpoint in the moment when somebody lists its files."""

    then: Completed | None = None

    def names(self, prefix: str = "") -> list[str]:
        found = super().names(prefix)
        if prefix == "state" and self.then is not None:
            done, self.then = self.then, None
            put(self, done.checkpoint)
            mark_committed(self, done)
        return found


def test_a_checkpoint_that_is_completed_meanwhile_is_not_taken_for_lost(tmp_path: Path) -> None:
    """Who looks into a running job sees its mark, and not yet its metadata: one look more, and it is the newest."""
    storage = GoesOn(tmp_path)
    put(storage, 1)
    storage.then = completed(2, run=0)
    assert (steady_history(storage).newest, steady_history(storage).broken) == (2, {})
    storage.then = completed(3, run=0)
    assert retained_checkpoint(storage).checkpoint == 3
