"""How runs ended is written down, and read by nobody who starts a job."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import msgspec
import pytest

from penstock.errors import BadRecordError, FencedError, RunningAlreadyError, UnavailableError
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId
from penstock.ownership.claim import Claimant, RunRecord, claim, process_start, record_descent
from penstock.ownership.heartbeat import CLOCKS_S, STALE_AFTER_S, beat, last_completed, refuse_if_running
from penstock.ownership.runs import (
    LONGEST_WHY,
    ListedRun,
    RunEnd,
    RunEnds,
    RunOutcome,
    list_runs,
    read_end,
    record_end,
)
from penstock.storage import LocalStorage
from penstock.testing.faulty_storage import FaultPlan, FaultyStorage, PlannedFailure
from penstock.testing.virtual import VirtualClock

NOW = 1_700_000_000.0


class Scene:
    """A start that claims the job in a storage, as a driver does."""

    def __init__(self, tmp_path: Path) -> None:
        self.storage = LocalStorage(tmp_path)
        self.claimant = Claimant()
        self.newest: dict[RunId, CheckpointId] = {}
        self.clock = VirtualClock(NOW)
        self.ends = RunEnds(self.storage, self.claimant, self.newest_checkpoint, self.clock)

    def run(self, restored_from: int = -1, newest: int = -1) -> RunId:
        mine = claim(self.storage, NOW, self.claimant)
        record_descent(mine, CheckpointId(restored_from), completed_by=0)
        self.newest = {mine.run: CheckpointId(newest)}
        beat(self.storage, mine.run, NOW, completed=CheckpointId(newest))
        return mine.run

    def newest_checkpoint(self, run: RunId) -> CheckpointId:
        return self.newest.get(run, NO_CHECKPOINT)

    def listed(self, now: float = NOW) -> list[ListedRun]:
        return list_runs(self.storage, now)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_an_error_about_an_odd_name_is_recorded(scene: Scene) -> None:
    """The name of a file that is no UTF-8 has half characters in Python, which nobody can store: a job does not fail for that."""
    run = scene.run()
    scene.ends.restarted(UnavailableError("no file \udcff"))
    end = read_end(scene.storage, run)
    assert end is not None
    assert (end.how, end.why) == (RunOutcome.RESTARTED, "no file \\udcff")


def test_the_ends_of_a_start(scene: Scene) -> None:
    """Each run of a start says how it ended: those that failed and were tried again, and the last one."""
    scene.run()
    scene.ends.restarted(ValueError("no such column"))
    scene.run(restored_from=3, newest=5)
    scene.ends.ended(RunOutcome.STOPPED)
    first, second = scene.listed()
    assert (first.how, first.why) == ("restarted", "ValueError: no such column")
    assert (second.how, second.why, second.newest_checkpoint) == ("stopped", "", 5)
    assert last_completed(scene.storage, RunId(2)) == 5


def test_only_the_last_end_lets_others_start(scene: Scene) -> None:
    """While a job goes back nobody else is to start it; when it has ended anybody may."""
    scene.run()
    scene.ends.restarted(ValueError("again"))
    with pytest.raises(RunningAlreadyError, match="running already: run 1"):
        refuse_if_running(scene.storage, NOW)
    scene.ends.ended(RunOutcome.FAILED, ValueError("for good"))
    refuse_if_running(scene.storage, NOW)


def test_a_job_that_waits_for_its_next_attempt_is_running(scene: Scene) -> None:
    """However long the pause is, a second start is refused in it; a stop ends it at once."""
    scene.run(newest=4)
    scene.ends.restarted(UnavailableError("the server is away"))
    scene.ends.pause(60.5, threading.Event())
    assert scene.clock.wall() == NOW + 60.5
    with pytest.raises(RunningAlreadyError, match="running already: run 1"):
        refuse_if_running(scene.storage, scene.clock.wall())
    assert last_completed(scene.storage, RunId(1)) == 4
    stopping = threading.Event()
    stopping.set()
    scene.ends.pause(60.5, stopping)
    assert scene.clock.wall() == NOW + 60.5


def test_storage_that_is_away_does_not_end_a_pause(tmp_path: Path) -> None:
    """It may be what the job waits for."""
    scene = Scene(tmp_path)
    scene.run()
    broken = FaultyStorage(
        scene.storage, FaultPlan(failures=(PlannedFailure(pattern="runs/1.*", times=1000),))
    )
    RunEnds(broken, scene.claimant, scene.newest_checkpoint, scene.clock).pause(60.0, threading.Event())
    assert scene.clock.wall() == NOW + 60


def test_a_run_that_has_lost_the_job_says_so(scene: Scene) -> None:
    """Whatever the job's status is called, a fenced run is listed as such."""
    scene.run()
    scene.ends.ended(RunOutcome.FAILED, FencedError("run 2 owns the job"))
    assert scene.listed()[0].how == "fenced"


def test_a_long_reason_is_cut(scene: Scene) -> None:
    """A record has a limit, whatever a user's row holds."""
    scene.run()
    scene.ends.ended(RunOutcome.FAILED, BadRecordError("x" * 100_000))
    end = read_end(scene.storage, RunId(1))
    assert end is not None
    assert (end.error, len(end.why), end.why[-5:]) == ("BadRecordError", LONGEST_WHY, "x ...")


def test_a_reason_that_is_no_utf_8_keeps_no_job_from_its_restart(scene: Scene) -> None:
    """Half characters come from names of files and from servers; they are spelt out."""
    scene.run()
    scene.ends.restarted(ConnectionError("no such file: caf\udce9"))
    assert scene.listed()[0].why == r"ConnectionError: no such file: caf\udce9"


def test_nothing_is_said_in_another_life_of_the_job(tmp_path: Path) -> None:
    """A run whose storage was deleted neither brings the folder back nor speaks for the run that now has its number."""
    scene = Scene(tmp_path / "storage")
    scene.run(newest=7)
    scene.storage.delete(scene.storage.names())
    scene.ends.ended(RunOutcome.STOPPED)
    assert scene.storage.names() == []
    other = Scene(tmp_path / "storage")
    assert other.run() == 1
    scene.ends.ended(RunOutcome.STOPPED)
    assert read_end(other.storage, RunId(1)) is None
    assert last_completed(other.storage, RunId(1)) == -1


def test_a_run_that_did_not_come_up_knows_no_checkpoint(scene: Scene) -> None:
    """What an earlier run of the same start had is not said of a later one that failed before it went on from anything."""
    scene.run(newest=7)
    claim(scene.storage, NOW, scene.claimant)
    scene.ends.ended(RunOutcome.FAILED, UnavailableError("no disk"))
    assert last_completed(scene.storage, RunId(2)) == -1
    assert [run.how for run in scene.listed()] == ["did not say", "failed"]


def test_an_end_that_cannot_be_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Storage that is away at the end is a warning; a job does not fail for it."""
    scene = Scene(tmp_path)
    scene.run()
    broken = FaultyStorage(scene.storage, FaultPlan(failures=(PlannedFailure(pattern="runs/1.ended"),)))
    with caplog.at_level(logging.INFO, "penstock"):
        RunEnds(broken, scene.claimant, scene.newest_checkpoint).ended(RunOutcome.STOPPED)
    assert "the end of run 1 could not be recorded" in caplog.text
    assert scene.listed()[0].how == "ended"


@pytest.mark.parametrize("content", [b"", b"{", b'{"run": "one"}', b"\xff\xfe", b"[1]"])
def test_an_unreadable_end_is_in_nobodys_way(scene: Scene, content: bytes) -> None:
    """A start does not look at it, and the list shows the run, and what is wrong with its record."""
    scene.run(newest=4)
    scene.ends.ended(RunOutcome.STOPPED)
    scene.storage.put("runs/1.ended", content)
    refuse_if_running(scene.storage, NOW)
    (listed,) = scene.listed()
    assert (listed.how, listed.newest_checkpoint) == ("ended", 4)
    assert "runs/1.ended" in listed.unreadable[0]


def test_an_unreadable_claim_is_listed(scene: Scene) -> None:
    """The list shows what is left of a run whose other records are damaged."""
    scene.run(newest=4)
    scene.storage.put("runs/1.json", b"?")
    (listed,) = scene.listed()
    assert (listed.record, listed.alive, listed.newest_checkpoint) == (None, False, 4)
    assert "runs/1.json" in listed.unreadable[0]


def test_an_end_of_a_later_version_is_shown(scene: Scene) -> None:
    """A word that this version does not know, and a field beside it, are no reason to show nothing."""
    scene.run()
    scene.ends.ended(RunOutcome.STOPPED)
    scene.storage.put("runs/1.ended", b'{"run": 1, "how": "suspended", "at": 1.0, "until": 2}')
    assert scene.listed()[0].how == "suspended"


def test_who_was_killed_did_not_say(scene: Scene) -> None:
    """A run without a last word runs, as long as its process does and its heart beats."""
    run = scene.run()
    assert scene.listed()[0].how == "running"
    assert scene.listed(NOW + CLOCKS_S + STALE_AFTER_S)[0].how == "did not say"
    record = RunRecord(run, "elsewhere", 1, process_start(1), NOW, scene.claimant.token)
    scene.storage.put("runs/1.json", msgspec.json.encode(record))
    assert scene.listed(NOW + STALE_AFTER_S - 1)[0].how == "running"
    scene.run()
    assert [run.how for run in scene.listed()] == ["did not say", "running"]


def test_a_later_word_replaces_an_earlier_one(scene: Scene) -> None:
    """A run that was to be tried again may end for good instead."""
    record_end(scene.storage, RunEnd(1, RunOutcome.RESTARTED, NOW, "ValueError", "x"))
    record_end(scene.storage, RunEnd(1, RunOutcome.STOPPED, NOW))
    assert read_end(scene.storage, RunId(1)) == RunEnd(1, RunOutcome.STOPPED, NOW)
