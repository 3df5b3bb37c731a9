"""What can be seen of a job from its storage: running, dead, finished, damaged."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders.plan_settings import plan_settings
from penstock.checkpoint.metadata import mark_committed, write_metadata
from penstock.checkpoint.model import Barrier, Completed, SubtaskReport
from penstock.checkpoint.pending import PendingLive
from penstock.errors import ConfigError
from penstock.ids import CheckpointId, RunId, SubtaskId
from penstock.ownership.claim import (
    Claimant,
    claim,
    forget_old_runs,
    pid_space,
    process_start,
    record_descent,
)
from penstock.ownership.heartbeat import beat
from penstock.ownership.job_record import JobRecord, check_job_record
from penstock.ownership.runs import RunOutcome, end_of, record_end
from penstock.recovery.cleanup import forget_everything
from penstock.status.events import (
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    Event,
    FirstBatch,
    JobEnded,
    ProcessDied,
    ProcessStarted,
    RunFailed,
    RunStarted,
    SavepointMade,
)
from penstock.status.health import concerns, verdict
from penstock.status.job_history import grouped, percentiles
from penstock.status.job_watcher import COMING_UP_S, look_at
from penstock.status.jobs import find_jobs, job_id, job_of, linked_jobs
from penstock.status.journal import JournalWriter, write_live, write_plan
from penstock.status.listeners import Listeners
from penstock.status.live import Progress
from penstock.status.observer import SourceAccount
from penstock.status.plan import Plan
from penstock.status.reporter import JobReporter
from penstock.status.view import CheckpointStatus, FailureView, JobState, JobView
from penstock.storage import LocalStorage, open_job_storage

NOW = 1_000.0
SETTINGS = plan_settings()
PLAN = Plan(job="views", nodes=(), settings=SETTINGS, guarantee="exactly-once")


class Place:
    """A storage with one job, written as a driver writes it."""

    def __init__(self, root: Path, name: str = "views") -> None:
        self.root = root
        self.storage = open_job_storage(root, name)
        check_job_record(self.storage, JobRecord(name, 128))
        self.claimant = Claimant()

    def run(self, at: float, restored_from: int = -1) -> RunId:
        mine = claim(self.storage, at, self.claimant)
        record_descent(mine, CheckpointId(restored_from), completed_by=0)
        beat(self.storage, mine.run, at)
        return mine.run

    def tell(self, *events: Event) -> None:
        writer = JournalWriter(self.storage)
        for event in events:
            writer.tell(event)
        writer.close()

    def look(self, now: float = NOW) -> JobView:
        (job,) = find_jobs([self.root])
        return look_at(job, now)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def completed(number: int, run: int = 1, at: float = 900.0) -> Completed:
    report = SubtaskReport(
        SubtaskId("counts", 0), rows=5, alignment_ms=1, sync_ms=2, async_ms=3, acknowledged_at=at
    )
    return Completed(
        job="views",
        checkpoint=number,
        run=run,
        mode="exactly-once",
        max_parallelism=128,
        parallelism=1,
        barrier=Barrier(),
        operators={},
        subtasks=(report,),
        triggered_at=at - 2,
        barrier_at=at - 1,
        completed_at=at,
        duration_ms=2000.0,
    )


def told_of(one: Completed, at: float) -> CheckpointCompleted:
    return CheckpointCompleted(
        at=at,
        run=one.run,
        checkpoint=one.checkpoint,
        triggered_at=one.triggered_at,
        barrier_at=one.barrier_at,
        stored_at=one.completed_at,
        duration_ms=2100.0,
        batch_ms=1000.0,
        alignment_ms=1.0,
        sync_ms=2.0,
        async_ms=3.0,
        complete_ms=100.0,
        state_bytes=10,
        new_bytes=1,
        transactions=1,
    )


def started(run: int, at: float, restored_from: int = -1) -> RunStarted:
    return RunStarted(at=at, run=run, host="a", pid=1, restored_from=restored_from)


def test_a_running_job(place: Place) -> None:
    """It is seen with what it says of itself; a run that has only just claimed the job is starting."""
    run = place.run(995.0)
    assert place.look().state is JobState.STARTING
    write_plan(place.storage, run, PLAN)
    pending = PendingLive(checkpoint=7, triggered_at=995.0, subtasks=2, acknowledged=1, missing=("counts-1",))
    write_live(place.storage, Progress(run=run, at=999.0, status="running", pending=(pending,)))
    beat(place.storage, run, 999.0)
    view = place.look()
    assert (view.state, view.run, view.guarantee) == (JobState.RUNNING, run, "exactly-once")
    (one,) = view.checkpoints
    assert (one.status, one.checkpoint, one.missing) == (CheckpointStatus.IN_PROGRESS, 7, ("counts-1",))


@pytest.mark.parametrize(
    ("how", "state"),
    [
        (RunOutcome.FINISHED, JobState.FINISHED),
        (RunOutcome.STOPPED, JobState.STOPPED),
        (RunOutcome.CANCELLED, JobState.CANCELLED),
        (RunOutcome.FAILED, JobState.FAILED),
    ],
)
def test_how_a_job_ended(place: Place, how: RunOutcome, state: JobState) -> None:
    """It is seen as it said, and what was under way then is not under way any more."""
    run = place.run(900.0)
    live = Progress(
        run=run, at=905.0, status=how.value, pending=(PendingLive(checkpoint=1, triggered_at=904.0),)
    )
    write_live(place.storage, live)
    beat(place.storage, run, 906.0, ended=True)
    record_end(place.storage, end_of(run, how, 906.0))
    view = place.look()
    assert (view.state, view.since, view.checkpoints) == (state, 906.0, ())


def test_a_job_that_was_killed(place: Place) -> None:
    """It has died, and its last words tell how many rows are processed again; what a supervisor saw is said."""
    run = place.run(900.0)
    write_live(
        place.storage, Progress(run=run, at=910.0, status="running", rows_since_checkpoint=42, batch_at=909.0)
    )
    view = place.look()
    assert view.state is JobState.DIED
    (failure,) = view.failures
    assert (failure.error, failure.rows_again, failure.restored_from, failure.down_s) == (
        "died",
        42,
        None,
        None,
    )
    pid = view.pid
    place.tell(ProcessDied(at=911.0, run=0, how="signal SIGKILL", restarts=True, decision="again", pid=pid))
    assert "signal SIGKILL" in place.look().failures[0].why


def test_at_most_once_a_killed_run_makes_nothing_be_done_again(place: Place) -> None:
    """Where nothing is read again, nothing is said to be."""
    settings = msgspec.structs.replace(SETTINGS, mode="at-most-once")
    run = place.run(at=800.0)
    write_plan(place.storage, run, msgspec.structs.replace(PLAN, settings=settings))
    write_live(place.storage, Progress(run=run, at=910.0, status="running", rows_since_checkpoint=42))
    (failure,) = place.look(now=5000.0).failures
    assert failure.rows_again == 0


@pytest.mark.parametrize("status", ["failed", "stopped", "cancelled", "finished"])
def test_a_job_that_is_about_to_end_does_not_run(place: Place, status: str) -> None:
    """Its process is alive until its last helper is done."""
    run = place.run(at=NOW)
    write_live(place.storage, Progress(run=run, at=NOW, status=status))
    assert place.look().state is JobState.STOPPING


def test_a_job_that_was_cancelled_and_forgot_everything(place: Place) -> None:
    """It is cancelled, although the run that deleted what there was came last, and the next start does not continue from what is gone."""
    run = place.run(900.0)
    place.tell(told_of(completed(1, run), 905.0))
    record_end(place.storage, end_of(run, RunOutcome.CANCELLED, 906.0))
    forget_everything(place.storage, 907.0, place.claimant)
    view = place.look()
    assert view.state is JobState.CANCELLED
    assert (
        verdict(view).detail == "Nothing is wrong. Started again, the job has no checkpoint and begins anew."
    )


def test_what_a_failure_cost(place: Place) -> None:
    """Down from the last batch before it until the first one after it, in whatever run that came; and to which checkpoint it went back."""
    for at in (900.0, 911.0, 913.0):
        run = place.run(at)
    beat(place.storage, run, 999.0)
    failed = RunFailed(
        at=910.0,
        run=1,
        error="UserCodeError",
        why="no",
        strategy="fixed",
        restarts=True,
        batch_at=908.0,
        rows_again=17,
    )
    place.tell(
        started(1, 900.0),
        failed,
        started(2, 911.5, restored_from=4),
        msgspec.structs.replace(failed, at=912.0, run=2, batch_at=0.0, rows_again=0),
        started(3, 913.5, restored_from=4),
        FirstBatch(at=915.0, run=3, batch=5, took_s=1.5),
    )
    second, first = place.look().failures
    assert (first.down_s, first.rows_again, first.restored_from, first.next_run) == (7.0, 17, 4, 2)
    assert (second.down_s, second.restored_from, second.back_at) == (3.0, 4, 915.0)


def test_a_final_failure_is_told_once(place: Place) -> None:
    """The end of the job that follows it is no second failure; an end that nothing was said about before is one."""
    run = place.run(900.0)
    failed = RunFailed(at=910.0, run=run, error="E", why="no", strategy="s", restarts=False)
    ended = JobEnded(at=911.0, run=run, how="failed", error="E", why="no")
    place.tell(failed, ended)
    assert len(place.look().failures) == 1


def test_a_start_that_failed_is_a_failure(place: Place) -> None:
    """Also where no run had begun."""
    place.run(900.0)
    place.tell(JobEnded(at=911.0, run=1, how="failed", error="E", why="no"))
    (failure,) = place.look().failures
    assert failure.error == "E"


def test_the_history_of_checkpoints(place: Place) -> None:
    """The journal has what was subsumed, storage what is retained; each is shown once, newest first, with its commit."""
    place.run(800.0)
    old, kept, lonely = completed(3, at=850.0), completed(4, at=900.0), completed(5, at=950.0)
    for one in (kept, lonely):
        write_metadata(place.storage, one)
    mark_committed(place.storage, lonely)
    place.tell(
        told_of(old, 850.1),
        told_of(kept, 900.1),
        CheckpointCommitted(at=900.5, run=1, checkpoint=4, commit_ms=400.0),
        CheckpointFailed(
            at=920.0,
            run=1,
            checkpoint=9,
            reason="expired",
            text="was late",
            detail="x",
            counts=True,
            triggered_at=910.0,
        ),
    )
    view = place.look()
    seen = [(one.checkpoint, one.status.value, one.retained) for one in view.checkpoints]
    assert seen == [
        (5, "completed", True),
        (9, "failed", False),
        (4, "completed", True),
        (3, "completed", False),
    ]
    five, nine, four, three = view.checkpoints
    assert (five.committed_at, five.async_ms, five.batch_ms) == (950.0, 3.0, 1000.0)
    assert (four.commit_ms, four.committed_at, three.committed_at) == (400.0, 900.5, 0.0)
    assert nine.duration_ms == 10_000.0
    assert (view.summary.completed, view.summary.failed) == (3, 1)
    assert view.last_completed == five
    assert view.checkpoint_age_s == 50.0


def test_late_checkpoints(place: Place) -> None:
    """A job is late when something waits to be completed for more than three intervals, and not when nothing does."""
    run = place.run(900.0)
    write_plan(place.storage, run, PLAN)
    live = Progress(
        run=run, at=999.0, status="running", started_at=900.0, checkpoint_at=960.0, rows_since_checkpoint=1
    )
    for rows, at, late in ((1, 960.0, True), (0, 960.0, False), (1, 980.0, False)):
        write_live(place.storage, msgspec.structs.replace(live, rows_since_checkpoint=rows, checkpoint_at=at))
        beat(place.storage, run, 999.0)
        assert place.look().is_late is late


def test_a_job_is_not_late_for_what_it_has_not_written_down_yet(place: Place) -> None:
    """With a short interval the last words of a job are several intervals old: it is late when that lasts."""
    run = place.run(900.0)
    often = msgspec.structs.replace(PLAN.settings, interval_s=0.1, min_pause_s=0.0)
    write_plan(place.storage, run, msgspec.structs.replace(PLAN, settings=often))
    live = Progress(run=run, at=999.0, status="running", started_at=900.0, rows_since_checkpoint=1)
    beat(place.storage, run, 999.0)
    for completed_at, late in ((998.5, False), (997.0, False), (996.0, True)):
        write_live(place.storage, msgspec.structs.replace(live, checkpoint_at=completed_at))
        assert place.look().is_late is late


def test_a_job_that_rested_is_not_late(place: Place) -> None:
    """Its last checkpoint is hours old, and its first rows have only just come; or somebody has just asked for a checkpoint."""
    run = place.run(at=100.0)
    beat(place.storage, run, 999.0)
    write_plan(place.storage, run, PLAN)
    rested = Progress(run=run, at=999.0, status="running", started_at=100.0, checkpoint_at=110.0)
    asked = (PendingLive(checkpoint=7, triggered_at=998.0),)
    for changes, late in (
        ({"rows_since_checkpoint": 5, "unsafe_since": 998.0}, False),
        ({"rows_since_checkpoint": 5, "unsafe_since": 960.0}, True),
        ({"rows_since_checkpoint": 5, "unsafe_since": 960.0, "pending": asked}, True),
        ({"pending": asked}, False),
        ({"pending": (PendingLive(checkpoint=7, triggered_at=960.0),)}, True),
    ):
        write_live(place.storage, msgspec.structs.replace(rested, **changes))
        assert place.look().is_late is late


def test_damage_is_said_and_in_nobodys_way(place: Place) -> None:
    """Damaged records, metadata and lines of the journal are named; the rest is shown."""
    place.run(900.0)
    place.tell(SavepointMade(at=910.0, run=1, checkpoint=1, folder="s", took_s=1.0))
    place.storage.put("runs/1.ended", b"?")
    place.storage.put("runs/1.live", b"?")
    place.storage.put("chk-1-r1/_metadata", b"?")
    place.storage.put(f"events/0000000000001-{'a' * 16}-000000.jsonl", b"?\n")
    view = place.look()
    assert view.savepoints == ("s",)
    assert len(view.unreadable) == 3
    assert all(
        word in " ".join(view.unreadable) for word in ("runs/1.ended", "chk-1-r1/_metadata", "journal")
    )


def test_what_is_not_complete_is_no_damage(place: Place) -> None:
    """A folder without metadata is that of a checkpoint in the making, or one that is being forgotten."""
    place.run(at=800.0)
    place.storage.put("chk-4-r1/_committed", b"1")
    assert place.look().unreadable == ()


def test_files_that_nobody_writes_are_not_read(place: Place) -> None:
    """Whoever reaches the folder can make them so large that looking would fill the memory; they take no space on disk."""
    place.run(at=800.0)
    place.storage.put("chk-4-r1/_metadata", b"{}")
    assert isinstance(place.storage, LocalStorage)
    os.truncate(place.storage.root / "chk-4-r1/_metadata", 1 << 40)
    (told,) = place.look().unreadable
    assert told.startswith("chk-4-r1/_metadata has 1")


def test_a_storage_that_does_not_answer(place: Place) -> None:
    """The job is shown as unreadable, with what is wrong."""
    place.run(900.0)
    (job,) = find_jobs([place.root])
    runs = LocalStorage(place.root / "views").root / "runs"
    for file in runs.iterdir():
        file.unlink()
    runs.rmdir()
    runs.symlink_to(runs)
    view = look_at(job, NOW)
    assert view.state is JobState.UNREADABLE
    assert "runs" in view.unreadable[0]


def test_jobs_are_found(tmp_path: Path) -> None:
    """In storages, and by the folder of one; two of one name in two storages have ids of their own, and are asked for by them."""
    one, other = tmp_path / "one", tmp_path / "other"
    for root, name in ((one, "views"), (one, "sales"), (other, "views")):
        Place(root, name)
    (tmp_path / "one" / "no job").mkdir()
    jobs = find_jobs([one])
    assert [job.name for job in jobs] == ["sales", "views"]
    assert job_of(jobs, "views").id == job_id("views") == job_of(jobs, job_id("views")).id
    assert [job.name for job in find_jobs([one / "views", one])] == ["sales", "views"]
    both = find_jobs([one, other])
    assert len({job.id for job in both}) == 3
    for ambiguous in ("views", job_id("views")):
        with pytest.raises(ConfigError, match=f"there are 2 jobs '{ambiguous}': [0-9a-f]{{32}} in"):
            job_of(both, ambiguous)
    for shown in both:  # by the id that it has beside others, also where it is alone
        assert job_of(find_jobs([shown.place]), shown.id).storage.uri == shown.storage.uri
    with pytest.raises(ConfigError, match="did you mean 'views'"):
        job_of(both, "view")
    assert find_jobs([tmp_path / "nothing"]) == []
    assert not (tmp_path / "nothing").exists()


def test_a_link_to_the_folder_of_a_job_is_no_job(tmp_path: Path) -> None:
    """It would show a job under another name, or one outside of the storage; that is said. A storage that is a link itself is none of those."""
    for root, name in ((tmp_path / "one", "views"), (tmp_path / "elsewhere", "sales")):
        Place(root, name)
    (tmp_path / "one" / "twice").symlink_to("views")
    (tmp_path / "one" / "foreign").symlink_to(tmp_path / "elsewhere" / "sales")
    (tmp_path / "one" / "notes").symlink_to(tmp_path)
    assert [job.name for job in find_jobs([tmp_path / "one"])] == ["views"]
    foreign, twice = linked_jobs([tmp_path / "one"]).values()
    assert (
        f"foreign in {tmp_path / 'one'} is not shown: it is a link to {tmp_path / 'elsewhere' / 'sales'}"
        in foreign
    )
    assert "twice" in twice
    (tmp_path / "link").symlink_to("one")
    assert [job.name for job in find_jobs([tmp_path / "link"])] == ["views"]
    Place(tmp_path / "one", "hollow")
    (tmp_path / "one" / "hollow" / "requests").symlink_to(tmp_path / "elsewhere" / "sales" / "requests")
    assert [job.name for job in find_jobs([tmp_path / "one"])] == ["views"]
    assert any("requests in it is a link" in why for why in linked_jobs([tmp_path / "one"]).values())
    assert find_jobs([tmp_path / "one" / "hollow"]) == []
    assert "requests in it is a link" in str(linked_jobs([tmp_path / "one" / "hollow"]))
    assert [job.name for job in find_jobs([tmp_path / "one" / "foreign"])] == ["foreign"]  # named by a person


def supervised_by(at: float, started: str, host: str = "") -> ProcessStarted:
    return ProcessStarted(
        at=at,
        run=0,
        pid=1,
        attempt=1,
        host=host or platform.node(),
        supervisor=os.getpid(),
        supervisor_started=started,
        pid_space="" if host else pid_space(),
    )


def test_supervised_jobs(place: Place) -> None:
    """A dead job is supervised as long as its supervisor lives and goes on, also while the program that it has started comes up."""
    place.run(900.0)
    assert not place.look().supervised
    mine = process_start(os.getpid())
    died = ProcessDied(at=951.0, run=0, how="signal SIGKILL", restarts=True)
    for told, is_supervised in (
        (supervised_by(940.0, "of another process"), False),
        (supervised_by(950.0, mine), True),
        (died, True),
        (msgspec.structs.replace(died, at=952.0, restarts=False), False),
        (supervised_by(953.0, mine), True),
        (supervised_by(954.0, "", "elsewhere"), True),
    ):
        place.tell(told)
        assert place.look().state is JobState.DIED
        assert place.look().supervised is is_supervised
    assert not place.look(NOW + COMING_UP_S).supervised


def test_a_supervisor_that_is_gone_is_told(place: Place) -> None:
    """A run whose program one has started, and which lives on alone: somebody should know before it dies."""
    place.claimant = Claimant(supervisor="its id")
    place.run(NOW)
    mine = process_start(os.getpid())
    place.tell(supervised_by(940.0, mine))
    assert not place.look().supervisor_gone
    assert concerns(place.look()) == ()
    place.tell(supervised_by(950.0, "of another process"))
    assert place.look().supervisor_gone
    (need,) = concerns(place.look())
    assert (need.text, need.urgent) == (
        "Its supervisor is gone: nothing starts the job again if it dies.",
        False,
    )


def test_restarts_are_those_of_all_starts(place: Place) -> None:
    """A job that was killed and started again has restarted, and its rows were processed again, as after a failure in a living driver."""
    first = place.run(900.0)
    write_live(place.storage, Progress(run=first, at=905.0, status="running", rows_since_checkpoint=200))
    second = place.run(990.0)
    beat(place.storage, second, 999.0)
    place.tell(started(first, 900.0), started(second, 990.5, restored_from=3))
    view = place.look()
    assert (view.restarts, view.rows_again) == (1, 200)


def test_runs_that_cannot_come_up_are_restarts(place: Place) -> None:
    """Each run that was begun after a failure counts, also while none has come up; one that has said nothing yet is restarting."""
    first = place.run(900.0)
    failed = RunFailed(at=950.0, run=first, error="E", why="away", strategy="s", restarts=True)
    place.tell(started(first, 900.0), failed)
    for at in (960.0, 970.0, 980.0):
        run = place.run(at)
        place.tell(msgspec.structs.replace(failed, at=at + 1, run=run))
    beat(place.storage, run, 999.0)
    assert place.look().restarts == 3
    write_live(
        place.storage, Progress(run=run, at=990.0, status="restarting", failure="away", failed_in_a_row=4)
    )
    newest = place.run(991.0)
    beat(place.storage, newest, 999.0)
    view = place.look()
    assert (view.state, view.run, view.restarts) == (JobState.RESTARTING, newest, 4)
    assert concerns(view)[0].urgent


def test_percentiles_are_measured_values() -> None:
    """Nothing in between is made up, and nothing comes of nothing."""
    assert percentiles([]) is None
    found = percentiles([float(number) for number in range(101)])
    assert found is not None
    assert (found.minimum, found.p50, found.p90, found.p99, found.maximum) == (0.0, 50.0, 90.0, 99.0, 100.0)
    assert percentiles([3.0]) == type(found)(*[3.0] * 8)


# ── failures of one cause ──────────────────────────────────────────────────────────────────────


def failure(at: float, root: str, **facts: Any) -> FailureView:
    return FailureView(at=at, run=int(at), error="UserCodeError", why="a task failed", root=root, **facts)


def test_neighbours_with_the_same_cause_are_one_group() -> None:
    """Numbers, addresses and ids do not make another cause; another failure in between does."""
    roots = [
        "ValueError: '12,50' in batch 9 at 0x7f10ab",
        "ValueError: '7,1' in batch 12 at 0x55fe",
        "KeyError: 'user'",
        "ValueError: '1,1' in batch 2 at 0x1",
        "query 5f0e12ab-94cd-4bd1-9d0e-0a1b2c3d4e5f is gone",
        "query 77aa01ff-03bd-41aa-bb12-aaaabbbbcccc is gone",
        "topic2 is gone",
    ]
    found = grouped([failure(900.0 - n, root) for n, root in enumerate(roots)])
    assert [(one.begins, one.count) for one in found] == [(0, 2), (2, 1), (3, 1), (4, 2), (6, 1)]
    assert (found[0].first_at, found[0].last_at) == (899.0, 900.0)
    assert grouped(()) == ()


def test_a_group_costs_what_its_failures_cost() -> None:
    """Failures with no batch between them were one silence, which counts once; what nobody knows is left out."""
    of_one_silence = [
        failure(900.0, "x", back_at=905.0, down_s=45.0, rows_again=0),
        failure(880.0, "x", back_at=905.0, down_s=45.0, rows_again=100),
    ]
    before = [
        failure(700.0, "x", back_at=710.0, down_s=12.0, rows_again=20),
        failure(600.0, "x", back_at=0.0, down_s=None, rows_again=None),
    ]
    (group,) = grouped([*of_one_silence, *before])
    assert (group.count, group.down_s, group.rows_again) == (4, 57.0, 120)
    (unknown,) = grouped(before[1:])
    assert (unknown.down_s, unknown.rows_again) == (None, None)


def test_counters_do_not_go_down_when_records_and_journal_forget(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restarts and rows done again are counted on from start to start, though only the newest runs and events are kept."""
    monkeypatch.setattr("penstock.status.journal.KEEP_BYTES", 400)
    monkeypatch.setattr("penstock.status.journal.KEEP_FILES", 3)
    storage, seen = place.storage, []
    for start in range(12):
        claimant = Claimant()
        run = claim(storage, NOW + start, claimant).run
        forget_old_runs(storage, run, keep=4)
        seen.append(place.look(NOW + 1000))
        reporter = JobReporter(
            storage,
            claimant,
            PLAN,
            status=lambda: "running",
            coordinator=lambda: None,
            listeners=Listeners(),
        )
        reporter.observer.rows_read(0, {"clicks": SourceAccount(7 if start == 5 else 10)})
        if start == 5:  # this one fails once, and is tried again by itself; then it is stopped
            reporter.observer.run_failed(OSError("down"), strategy="s", delay_s=1.0, decision="again")
            reporter.observer.restarting()
        reporter.run_claimed(run)
        reporter.tell(RunStarted(at=NOW + start, run=run, host="away", pid=1))
        reporter.close()
        if start == 5:
            record_end(storage, end_of(run, RunOutcome.STOPPED, NOW + start))
        seen.append(place.look(NOW + 1000))
        in_the_log = reporter.observer.progress.restarts_total
        assert seen[-1].restarts - in_the_log in (
            0,
            1,
        )  # its process has died by now, which the log cannot say
    counted = [(view.restarts, view.rows_again) for view in seen]
    assert counted == sorted(counted)
    assert counted[-1] == (11, 107)
