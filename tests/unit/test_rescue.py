"""Uploads that a dead worker left behind are made by the driver, where it can see the files."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.ids import SubtaskId
from penstock.snapshot.transfer import RETRY_AFTER_S, STUCK_AFTER_S, Rescue
from penstock.state.handle import FileRef, StateHandle
from penstock.state.local_files import fingerprint
from penstock.storage import LocalStorage


class HandClock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def stuck(tmp_path):
    local = tmp_path / "local"
    name = "state/views/1-0-0-0.arrow"
    (local / name).parent.mkdir(parents=True)
    (local / name).write_bytes(b"rows")
    handle = StateHandle(
        SubtaskId("views", 0), "filesystem", 0, (FileRef(1, *fingerprint(local / name), name),)
    )
    reported: list[StateHandle] = []
    clock = HandClock()
    storage = LocalStorage(tmp_path / "store")
    return Rescue(storage, local, clock, reported.append), handle, clock, reported


def test_what_does_not_move_is_stored_by_the_driver(stuck):
    """After the waiting time the file is in storage and the handle is reported durable."""
    rescue, handle, clock, reported = stuck
    rescue.look([handle])
    clock.now += STUCK_AFTER_S
    rescue.look([handle])
    assert reported == [handle]
    assert rescue.storage.get(handle.refs[0].name) == b"rows"


def test_what_moves_is_left_alone(stuck):
    """A handle that became durable and is missing anew has its whole time again."""
    rescue, handle, clock, reported = stuck
    rescue.look([handle])
    clock.now += STUCK_AFTER_S
    rescue.look([])
    rescue.look([handle])
    assert reported == []


def test_one_that_is_stuck_among_others_that_move(stuck):
    """A handle that a pending checkpoint waits for is stored although every batch brings newer ones."""
    rescue, handle, clock, reported = stuck
    for version in range(1, 4):
        newer = StateHandle(
            handle.subtask, "filesystem", version, (FileRef(1, 4, "x", f"state/views/1-{version}-0-0.arrow"),)
        )
        rescue.look([handle, newer])
        clock.now += STUCK_AFTER_S / 2
    assert reported == [handle]


def test_files_on_another_machine_are_not_reported(stuck):
    """Where the driver does not see the file it must not say that it is stored."""
    rescue, handle, clock, reported = stuck
    (rescue.local_dir / handle.refs[0].name).unlink()
    rescue.look([handle])
    clock.now += STUCK_AFTER_S
    rescue.look([handle])
    assert reported == []


def test_a_failed_upload_is_taken_up_soon(stuck):
    """When a worker has said that it failed nobody else works on it: it need not be waited for as if somebody did."""
    rescue, handle, clock, reported = stuck
    rescue.look([handle])
    rescue.failed(handle.subtask)
    clock.now += RETRY_AFTER_S / 2
    rescue.look([handle])
    assert reported == []
    clock.now += RETRY_AFTER_S / 2
    rescue.look([handle])
    assert reported == [handle]


def test_one_at_a_time(stuck):
    """While storage takes its time with one rescue no other is begun, and whoever looks does not wait."""
    rescue, handle, clock, reported = stuck
    begun: list[Any] = []
    rescue.run = begun.append
    rescue.look([handle])
    for _ in range(3):
        clock.now += STUCK_AFTER_S
        rescue.look([handle])
    assert len(begun) == 1
    begun[0]()
    clock.now += STUCK_AFTER_S
    rescue.look([handle])
    assert (len(begun), reported) == (2, [handle])


def test_what_was_stored_in_vain_is_told(stuck, tmp_path):
    """Some files of a handle may be in storage when the rest cannot be stored: whoever discards files hears of it."""
    rescue, handle, clock, reported = stuck
    lost = FileRef(1, 4, "checksum", "state/views/1-0-0-9.arrow")
    both = msgspec.structs.replace(handle, refs=(*handle.refs, lost))
    told = []
    rescue.gave_up = lambda one, cause: told.append((one, cause))
    rescue.look([both])
    clock.now += STUCK_AFTER_S
    rescue.look([both])
    assert [one for one, _ in told] == [both]
    assert reported == []
