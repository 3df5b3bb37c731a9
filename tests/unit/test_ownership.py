"""Every run takes a number, the highest owns the job, and what a zombie does beyond the take-over counts for nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from penstock.errors import ConfigError, CorruptStateError, FencedError, RunningAlreadyError
from penstock.ids import CheckpointId, RunId
from penstock.ownership.claim import (
    AWAY_S,
    Absence,
    Claimant,
    Descent,
    RunRecord,
    StorageAwayError,
    claim,
    forget_old_runs,
    in_line_of_descent,
    newest_run,
    pid_space,
    process_start,
    read_descents,
    record_descent,
)
from penstock.ownership.heartbeat import SILENT_S, STALE_AFTER_S, Pulse, beat, refuse_if_running
from penstock.ownership.runs import RunOutcome, end_of, list_runs, record_end
from penstock.storage import LocalStorage
from penstock.testing.virtual import VirtualClock

NOW = 1_000.0


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


def test_runs_are_numbered(storage: LocalStorage) -> None:
    """Each claim takes the next number and fences all before it."""
    assert newest_run(storage) == 0
    claims = [claim(storage, NOW) for _ in range(11)]
    assert [one.run for one in claims] == list(range(1, 12))
    assert newest_run(storage) == 11
    claims[-1].check()
    with pytest.raises(FencedError, match=r"^nothing is lost: run 10 was replaced by run 11") as fenced:
        claims[-2].check()
    assert fenced.value.facts == {"run": 10, "owner": 11}


def test_a_claim_has_one_winner(storage: LocalStorage) -> None:
    """Runs that start in the same moment get different numbers, and one of them is the highest."""
    claimed: list[int] = []
    together = threading.Barrier(8)

    def start() -> None:
        together.wait()
        claimed.append(claim(storage, NOW).run)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == list(range(1, 9))


def test_other_files_do_not_count_as_runs(storage: LocalStorage) -> None:
    """Only a record makes a run."""
    claim(storage, NOW)
    beat(storage, RunId(7), NOW)
    storage.put("runs/99.json.bak", b"")
    assert newest_run(storage) == 1


def line(*descents: tuple[int, int, int]) -> list[Descent]:
    """Run, the checkpoint it went on from, and the run that completed that."""
    return [Descent(*one) for one in descents]


HISTORY = line((1, -1, 0), (2, 5, 1), (3, 8, 2))
BACK_AGAIN = line((1, -1, 0), (2, 5, 1), (3, 4, 1))
FENCED_WHILE_IT_DECIDED = line((1, -1, 0), (2, 3, 1), (3, 5, 1))
FROM_NOTHING = line((1, -1, 0), (2, -1, 0))


@pytest.mark.parametrize(
    ("checkpoint", "run", "descents", "belongs"),
    [
        (5, 1, [], True),
        (5, 1, line((1, -1, 0)), True),
        (5, 1, HISTORY, True),
        (6, 1, HISTORY, False),
        (8, 2, HISTORY, True),
        (9, 2, HISTORY, False),
        (9, 3, HISTORY, True),
        (4, 1, BACK_AGAIN, True),
        (5, 1, BACK_AGAIN, False),
        (6, 2, BACK_AGAIN, False),
        (3, 2, BACK_AGAIN, False),
        (5, 1, FENCED_WHILE_IT_DECIDED, True),
        (6, 1, FENCED_WHILE_IT_DECIDED, False),
        (0, 1, FROM_NOTHING, False),
        (2, 1, line((30, 5, 22)), True),
        (2, 1, line((3, 5, 3)), True),
        (2, 1, line((3, 5, 2), (2, 5, 3)), True),
    ],
)
def test_line_of_descent(checkpoint: int, run: int, descents: list[Descent], belongs: bool) -> None:
    """A checkpoint counts if the newest run descends from it; what a run decided that nobody descends from does not matter."""
    assert in_line_of_descent(CheckpointId(checkpoint), RunId(run), descents) is belongs


def test_descents_are_recorded_once(storage: LocalStorage) -> None:
    """What a run says first about its origin stays."""
    mine = claim(storage, NOW)
    record_descent(mine, CheckpointId(5))
    record_descent(mine, CheckpointId(9))
    assert read_descents(storage) == [Descent(mine.run, 5)]


def test_a_fenced_run_leaves_no_word_about_its_origin(storage: LocalStorage) -> None:
    """Whoever took the job over may have decided without it, or be dead before it decides: then the word would count."""
    zombie = claim(storage, NOW)
    claim(storage, NOW)
    with pytest.raises(FencedError):
        record_descent(zombie, CheckpointId(5))
    assert read_descents(storage) == []


def test_a_run_whose_claim_is_gone_owns_nothing(storage: LocalStorage) -> None:
    """A folder that was deleted, replaced by a copy or is not mounted any more says nothing about who owns the job."""
    third = [claim(storage, NOW) for _ in range(3)][-1]
    storage.delete(storage.names("runs"))
    with pytest.raises(StorageAwayError, match=r"the claims of all runs are gone .* not mounted; run 3"):
        third.check()
    assert claim(storage, NOW).run == 1
    with pytest.raises(
        FencedError, match=r"the claim of run 3, runs/3\.json, is gone .*the newest there is 1"
    ):
        third.check()


def test_storage_that_is_away_for_a_moment_costs_the_run_and_not_the_job(storage: LocalStorage) -> None:
    """A run that sees no claim owns nothing again, though the storage is back; the next run of the same start does."""
    mine = Claimant()
    run = claim(storage, NOW, mine)
    away = taken_away(storage)
    with pytest.raises(StorageAwayError):
        run.check()
    with pytest.raises(StorageAwayError, match="within 2 min"):
        claim(storage, NOW, mine)
    away.rename(storage.root)
    with pytest.raises(StorageAwayError, match=r"were gone .* for a while"):
        run.check()
    again = claim(storage, NOW, mine)
    again.check()
    assert again.run == 2
    with pytest.raises(FencedError, match="replaced by run 2"):
        run.check()


def test_storage_that_stays_away_ends_the_job(storage: LocalStorage) -> None:
    """The time counts from the first look that finds nothing, over all runs of a start, and begins anew when the storage was there."""
    clock = VirtualClock()
    mine = Claimant(absence=Absence(clock))
    claim(storage, NOW, mine)
    for _ in range(2):
        away = taken_away(storage)
        with pytest.raises(StorageAwayError):
            claim(storage, NOW, mine)
        clock.sleep(AWAY_S - 1)
        with pytest.raises(StorageAwayError):
            claim(storage, NOW, mine)
        away.rename(storage.root)
        last = claim(storage, NOW, mine)
    taken_away(storage)
    with pytest.raises(StorageAwayError):
        last.check()
    clock.sleep(AWAY_S)
    with pytest.raises(FencedError, match="for more than 2 min"):
        claim(storage, NOW, mine)
    with pytest.raises(FencedError, match="for more than 2 min"):
        last.check()


def test_another_start_that_is_visible_fences_whatever_was_away(storage: LocalStorage) -> None:
    """Once another start owns the job, a run whose storage was away is fenced at once."""
    mine = Claimant()
    run = claim(storage, NOW, mine)
    away = taken_away(storage)
    with pytest.raises(StorageAwayError):
        run.check()
    away.rename(storage.root)
    claim(storage, NOW)
    with pytest.raises(FencedError, match="replaced by run 2"):
        run.check()
    with pytest.raises(FencedError, match="replaced by another one"):
        claim(storage, NOW, mine)


def taken_away(storage: LocalStorage) -> Path:
    """As a folder whose mount is gone: it is there, and empty."""
    away = storage.root.with_name(f"{storage.root.name}-away")
    storage.root.rename(away)
    storage.root.mkdir()
    return away


def test_a_run_of_another_life_of_the_job_owns_nothing(storage: LocalStorage) -> None:
    """A job that was deleted and began anew comes to the same run number: the claim there is not the zombie's."""
    zombie = claim(storage, NOW)
    storage.delete(storage.names("runs"))
    owner = claim(storage, NOW)
    assert owner.run == zombie.run
    owner.check()
    with pytest.raises(
        FencedError, match=rf"runs/1\.json .* another start, of pid {os.getpid()} on"
    ) as fenced:
        zombie.check()
    assert fenced.value.facts == {"run": 1, "owner": 1}
    with pytest.raises(FencedError):
        record_descent(zombie, CheckpointId(5))


def test_a_claim_that_vanishes_while_it_is_looked_at_is_gone(tmp_path: Path) -> None:
    """Between the list and the record the folder may be deleted: that is no error of its own."""

    class Vanishing(LocalStorage):
        def get(self, name: str) -> bytes:
            self.delete([name])
            return super().get(name)

    with pytest.raises(StorageAwayError, match="are gone from"):
        claim(Vanishing(tmp_path), NOW).check()


def test_a_checkpoint_of_another_life_does_not_count() -> None:
    """A run that is above all that have decided here has decided elsewhere."""
    assert not in_line_of_descent(CheckpointId(5), RunId(3), [Descent(1, -1, 0)])


@pytest.mark.parametrize(
    "record",
    [
        b"{}",
        b'{"run": 2, "restored_from": 5}',
        b'{"run": 1, "restored_from": -7}',
        b'{"run": 1, "restored_from": 5, "completed_by": -1}',
    ],
)
def test_a_damaged_record_is_said_to_be_damaged(storage: LocalStorage, record: bytes) -> None:
    """The line of descent is not guessed."""
    storage.put("runs/1.restored", record)
    with pytest.raises(CorruptStateError, match=r"runs/1\.restored .*Bring it back from a copy"):
        read_descents(storage)


def test_a_damaged_claim_says_what_to_do(storage: LocalStorage) -> None:
    """A start is told the way that works without the file, and takes it; it is not told to delete a claim."""
    claim(storage, 0.0)
    storage.put("runs/1.json", b"")
    with pytest.raises(
        CorruptStateError, match=r"runs/1\.json .*start it with takeover=True \(--takeover\)"
    ) as raised:
        refuse_if_running(storage, 0.0)
    assert "delete" not in str(raised.value).lower()
    assert claim(storage, 0.0).run == 2


def test_old_runs_are_forgotten(storage: LocalStorage) -> None:
    """Of many runs the newest stay, with all that belongs to them."""
    for _ in range(5):
        mine = claim(storage, NOW)
        record_descent(mine, CheckpointId(mine.run))
        beat(storage, mine.run, NOW)
        record_end(storage, end_of(mine.run, RunOutcome.STOPPED, NOW))
    forget_old_runs(storage, RunId(5), keep=2)
    assert newest_run(storage) == 5
    assert {name.split(".")[0] for name in storage.names("runs")} == {"runs/4", "runs/5"}
    assert claim(storage, NOW).run == 6


# ── starts and restarts ────────────────────────────────────────────────────────────────────────


def test_a_start_restarts_as_often_as_it_must(storage: LocalStorage) -> None:
    """A start of a job claims it again for every restart, as long as nobody else came between."""
    mine = Claimant()
    assert [claim(storage, NOW, mine).run for _ in range(3)] == [1, 2, 3]


def test_a_start_takes_the_job_from_another(storage: LocalStorage) -> None:
    """The first claim of a start succeeds, whoever had the job."""
    assert claim(storage, NOW, Claimant()).run == 1
    assert claim(storage, NOW, Claimant()).run == 2


def test_a_start_that_lost_the_job_does_not_take_it_back(storage: LocalStorage) -> None:
    """A zombie that fails for whatever reason and wants to restart is told that it is fenced."""
    zombie, owner = Claimant(), Claimant()
    claim(storage, NOW, zombie)
    claim(storage, NOW, owner)
    with pytest.raises(FencedError, match="run 2"):
        claim(storage, NOW, zombie)
    assert claim(storage, NOW, owner).run == 3


# ── whether a job is running already ───────────────────────────────────────────────────────────


def pretend(
    storage: LocalStorage, *, pid: int, host: str = os.uname().nodename, started: str = "1", space: str = ""
) -> None:
    """A run of some other process."""
    record = RunRecord(1, host, pid, started, NOW, pid_space=space)
    storage.put("runs/1.json", msgspec.json.encode(record))


def test_a_job_that_never_ran_may_start(storage: LocalStorage) -> None:
    """Nothing there, nothing refused."""
    refuse_if_running(storage, NOW)


def test_a_living_run_is_not_joined(storage: LocalStorage) -> None:
    """The refusal names the run, its process and what to do."""
    claim(storage, NOW)
    with pytest.raises(ConfigError, match=rf"run 1, pid {os.getpid()} on .*takeover=True"):
        refuse_if_running(storage, NOW + 1)


def test_a_dead_process_is_noticed_at_once(storage: LocalStorage) -> None:
    """On the same machine nobody waits for the heartbeat of a process that is gone."""
    child = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    pretend(storage, pid=int(child.stdout), space=pid_space())
    refuse_if_running(storage, NOW + 1)


def test_another_process_with_the_same_pid_is_not_the_run(storage: LocalStorage) -> None:
    """A pid that was given out again does not keep a dead run alive."""
    pretend(storage, pid=os.getpid(), started="long ago", space=pid_space())
    refuse_if_running(storage, NOW + 1)


@pytest.mark.parametrize("space", ["", "another-boot pid:[4026531836]"])
def test_a_pid_of_another_space_says_nothing(storage: LocalStorage, space: str) -> None:
    """Containers may have the host's name, and pids of their own: a missing one is no sign of death."""
    pretend(storage, pid=2**22 + 1, space=space)
    with pytest.raises(RunningAlreadyError):
        refuse_if_running(storage, NOW + 1)
    assert list_runs(storage, NOW + 1)[0].how == "running"


_LOOK = """
import sys, time
from penstock.ownership.heartbeat import refuse_if_running
from penstock.ownership.runs import list_runs
from penstock.storage import LocalStorage
storage = LocalStorage(sys.argv[1])
print(list_runs(storage, time.time())[0].how)
refuse_if_running(storage, time.time())
"""


def test_a_healthy_job_is_seen_from_another_pid_namespace(storage: LocalStorage) -> None:
    """There its pid is nobody's. It is running, and a second start is refused."""
    inside = ["unshare", "--pid", "--fork", "--mount-proc"]
    tried = (
        subprocess.run([*inside, "true"], capture_output=True, text=True, check=False)
        if shutil.which("unshare")
        else None
    )
    if tried is None or tried.returncode != 0:
        pytest.skip(f"no pid namespace can be made here: {tried.stderr if tried else 'there is no unshare'}")
    run = claim(storage, time.time()).run
    beat(storage, run, time.time())
    looked = subprocess.run(
        [*inside, sys.executable, "-c", _LOOK, str(storage.root)], capture_output=True, text=True, check=False
    )
    assert looked.stdout == "running\n"
    assert "RunningAlreadyError" in looked.stderr


class BeatsOn(VirtualClock):
    """While somebody waits, the heart of a run goes on to beat, by a clock that is wrong."""

    def __init__(self, storage: LocalStorage, ahead_s: float) -> None:
        super().__init__(NOW)
        self._storage, self._ahead_s = storage, ahead_s

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        beat(self._storage, RunId(1), self.wall() + self._ahead_s)


@pytest.mark.parametrize("ahead_s", [-600.0, -45.0, 45.0, 600.0])
def test_a_heart_that_beats_is_seen_to_whatever_its_clock_says(storage: LocalStorage, ahead_s: float) -> None:
    """A start looks twice: what changes is alive, and what does not is dead."""
    pretend(storage, host="elsewhere", pid=1)
    beat(storage, RunId(1), NOW + ahead_s)
    refuse_if_running(storage, NOW, clock=VirtualClock(NOW))
    with pytest.raises(RunningAlreadyError):
        refuse_if_running(storage, NOW, clock=BeatsOn(storage, ahead_s))


@pytest.mark.parametrize("ahead_s", [-45.0, 0.0, 45.0])
def test_who_looks_again_and_again_goes_by_changes(storage: LocalStorage, ahead_s: float) -> None:
    """The first look allows for a minute between the clocks; later ones count by the clock of who looks."""
    pretend(storage, host="elsewhere", pid=1)
    pulse, now = Pulse(), NOW
    for _ in range(3):
        beat(storage, RunId(1), now + ahead_s)
        assert list_runs(storage, now, pulse)[0].alive
        now += STALE_AFTER_S - 1
    assert list_runs(storage, now, pulse)[0].alive
    now += STALE_AFTER_S
    assert not list_runs(storage, now, pulse)[0].alive
    beat(storage, RunId(1), now + ahead_s)
    assert list_runs(storage, now, pulse)[0].alive


def test_a_living_driver_whose_storage_was_away_for_seconds_has_not_died(storage: LocalStorage) -> None:
    """Its heart could not beat, and its process is there: it is shown as running, and a second start is refused. Both take it for dead after the same time."""
    claim(storage, NOW)
    assert list_runs(storage, NOW + STALE_AFTER_S + 5)[0].how == "running"
    with pytest.raises(RunningAlreadyError):
        refuse_if_running(storage, NOW + STALE_AFTER_S + 5)
    assert list_runs(storage, NOW + SILENT_S)[0].how == "did not say"
    refuse_if_running(storage, NOW + SILENT_S)


def test_a_run_elsewhere_lives_as_long_as_its_heart_beats(storage: LocalStorage) -> None:
    """On another machine only a heartbeat that has grown old tells that a run is dead."""
    pretend(storage, host="elsewhere", pid=1)
    with pytest.raises(ConfigError, match="pid 1 on elsewhere"):
        refuse_if_running(storage, NOW + STALE_AFTER_S - 0.1)
    beat(storage, RunId(1), NOW + 100)
    with pytest.raises(ConfigError):
        refuse_if_running(storage, NOW + 100 + STALE_AFTER_S - 0.1)
    refuse_if_running(storage, NOW + 100 + STALE_AFTER_S, clock=VirtualClock())


def test_a_run_that_ended_is_over(storage: LocalStorage) -> None:
    """Its last word is believed at once."""
    beat(storage, claim(storage, NOW).run, NOW, ended=True)
    refuse_if_running(storage, NOW)


def test_only_the_newest_run_matters(storage: LocalStorage) -> None:
    """An older run whose heart still beats has been fenced off already."""
    pretend(storage, host="elsewhere", pid=1)
    beat(storage, claim(storage, NOW).run, NOW, ended=True)
    refuse_if_running(storage, NOW)


def test_process_start_of_a_process_that_is_not_there() -> None:
    """There is no start of what does not run."""
    assert process_start(2**22 + 1) == ""
    assert process_start(os.getpid()) == process_start(os.getpid()) != ""
