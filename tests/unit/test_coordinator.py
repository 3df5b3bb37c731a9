"""The coordinator performs what the protocol decides, over a storage and a sink that fail on plan."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest

from builders.checkpoints import checkpoint_ids
from builders.protocol_story import JOB, LAYOUT, SUBTASKS, handle
from builders.sink_double import TroubledSink, staged, visible
from penstock.checkpoint.commits import Post, SinkCall
from penstock.checkpoint.content import Identity
from penstock.checkpoint.coordinator import Coordinator, Opening
from penstock.checkpoint.events import (
    BatchFinished,
    Event,
    JobEnded,
    SnapshotDurable,
    SweepTransactions,
    TimePassed,
)
from penstock.checkpoint.metadata import CheckpointName, is_committed, read_metadata
from penstock.checkpoint.model import Barrier, Completed, PreCommitted
from penstock.checkpoint.pending import EventTimestamp
from penstock.checkpoint.protocol import Protocol
from penstock.config import Checkpointing
from penstock.errors import (
    BadRecordError,
    CheckpointFailedError,
    CommitLostError,
    FencedError,
    UnavailableError,
)
from penstock.ids import CheckpointId, RunId
from penstock.ownership.claim import claim
from penstock.ownership.holds import BELIEVED_S, HOLD_S, put_hold, release_hold
from penstock.recovery.history import retained_checkpoint
from penstock.storage import LocalStorage
from penstock.testing.faulty_storage import FaultPlan, FaultyStorage, PlannedFailure
from penstock.testing.simulation.external import External
from penstock.testing.virtual import VirtualClock

UID = "out"


@dataclass
class Scene:
    """One run of a job with one sink; every batch ends in a checkpoint."""

    root: Path
    plan: FaultPlan = field(default_factory=FaultPlan)
    tolerable_failures: int = 9
    refusals: int = 0
    commits_wait: bool = False
    """Commits have a thread of their own: what calls a sink is put into `calls`."""
    post: Post | None = None
    left_over: tuple[str, ...] = ()
    retained: tuple[Completed, ...] = ()

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.plain = LocalStorage(self.root)
        self.storage = FaultyStorage(self.plain, self.plan, clock=self.clock)
        self.claim = replace(claim(self.plain, 0.0), storage=self.storage)
        self.run = self.claim.run
        self.external = External()
        self.sink = TroubledSink(self.external, self.refusals)
        settings = Checkpointing(interval="1s", tolerable_failures=self.tolerable_failures)
        identity = Identity(JOB, self.run, 1, 8, {"views": LAYOUT}, {"views": ()})
        protocol = Protocol(settings, identity, self.retained, EventTimestamp(0.0, 0.0))
        self.protocol = protocol
        self.calls: list[SinkCall] = []
        self.coordinator = Coordinator(
            protocol,
            storage=self.storage,
            sinks={UID: self.sink},
            claim=self.claim,
            owner=JOB,
            clock=self.clock,
            post=self.post,
            run_commit=self.run_commit,
            left_over=self.left_over,
        )

    def run_commit(self, call: SinkCall) -> None:
        if self.commits_wait:
            self.calls.append(call)
        else:
            call()

    def stage(self, number: int, attempt: int = 0, run: int | None = None) -> PreCommitted:
        return self.sink.stage(JOB, UID, run=self.run if run is None else run, batch=number, attempt=attempt)

    def batch(self, number: int) -> None:
        """A batch with a row and a file, that ends in a checkpoint."""
        self.clock.advance(1)
        self.coordinator.begin_batch(CheckpointId(number))
        state = handle(SUBTASKS[0], number, f"state/views/{number}")
        self.plain.put(f"state/views/{number}", b"rows")
        transactions = (self.stage(number),)
        self.coordinator.handle(SnapshotDurable(state))
        finished = BatchFinished(CheckpointId(number), Barrier(), {SUBTASKS[0]: state}, transactions)
        self.coordinator.handle(finished)

    @property
    def checkpoints(self) -> list[int]:
        return list(checkpoint_ids(self.plain))


def metadata_fails(times: int, *, performed: bool) -> FaultPlan:
    return FaultPlan(
        failures=(PlannedFailure(pattern="chk-*", operation="create", times=times, performed=performed),)
    )


def test_complete_commit_forget(tmp_path: Path) -> None:
    """A checkpoint is written, then its transaction committed and noted, then the one before it deleted with its files."""
    scene = Scene(tmp_path)
    scene.batch(0)
    scene.batch(1)
    assert scene.checkpoints == [1]
    assert visible(scene.external) == [(1, 0, 0), (1, 1, 0)]
    assert scene.plain.names("state") == ["state/views/1"]
    assert is_committed(scene.plain, scene.protocol.completed[-1])


def test_metadata_is_written_again_after_a_refusal(tmp_path: Path) -> None:
    """A storage that recovers within the tries costs nothing."""
    scene = Scene(tmp_path, metadata_fails(2, performed=False), tolerable_failures=0)
    scene.batch(0)
    assert scene.checkpoints == [0]
    assert visible(scene.external) == [(1, 0, 0)]


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_lost_answer_is_no_failure(tmp_path: Path, times: int) -> None:
    """A write that went through although it reported an error, however often, completes the checkpoint, once."""
    scene = Scene(tmp_path, metadata_fails(times, performed=True), tolerable_failures=0)
    scene.batch(0)
    assert scene.checkpoints == [0]
    assert visible(scene.external) == [(1, 0, 0)]


def test_a_completed_checkpoint_is_told_with_its_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A program may run several jobs, and all of them tell in one log."""
    scene = Scene(tmp_path)
    with caplog.at_level(logging.INFO, "penstock"):
        scene.batch(0)
    assert "checkpoint 0 of job story completed in " in caplog.text


def test_metadata_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The checkpoint is given up with a warning, its row waits, and the next checkpoint commits both."""
    scene = Scene(tmp_path, metadata_fails(3, performed=False))
    scene.batch(0)
    assert "checkpoint 0 could not be completed: its metadata could not be written" in caplog.text
    assert (scene.checkpoints, visible(scene.external)) == ([], [])
    scene.batch(1)
    assert scene.checkpoints == [1]
    assert visible(scene.external) == [(1, 0, 0), (1, 1, 0)]


def test_a_fence_that_cannot_be_looked_at_is_a_failed_checkpoint(tmp_path: Path) -> None:
    """A storage that does not list `runs/` for a moment costs one checkpoint, not the run."""
    scene = Scene(tmp_path, FaultPlan(failures=(PlannedFailure(pattern="runs", operation="names", times=3),)))
    scene.batch(0)
    assert scene.checkpoints == []
    scene.batch(1)
    assert visible(scene.external) == [(1, 0, 0), (1, 1, 0)]


def test_too_many_failures_end_the_run(tmp_path: Path) -> None:
    """What the protocol does not tolerate is raised."""
    scene = Scene(tmp_path, metadata_fails(3, performed=False), tolerable_failures=0)
    with pytest.raises(CheckpointFailedError, match="checkpoint 0 could not be completed"):
        scene.batch(0)


def test_commit_is_retried_until_it_succeeds(tmp_path: Path) -> None:
    """After a pre-commit the commit must succeed: it is tried again with a pause that grows to half a minute."""
    scene = Scene(tmp_path, refusals=12)
    scene.batch(0)
    assert scene.clock.slept == pytest.approx([0.1 * 2**n for n in range(9)] + [30.0] * 3)
    assert visible(scene.external) == [(1, 0, 0)]
    assert not scene.protocol.commits


def test_what_is_said_of_a_sink_that_is_down(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Thirteen tries in two and a half minutes are three lines, without a stack."""
    scene = Scene(tmp_path, refusals=12)
    scene.batch(0)
    said = [record for record in caplog.records if record.levelno > logging.DEBUG]
    lines = [record.getMessage() for record in said if "sink out" in record.getMessage()]
    assert [line.partition(",")[0] for line in lines] == [
        "sink out: commit failed",
        "sink out: 1 transaction waits to be committed",
        "sink out: the commit succeeded after 2 min 21 s and 13 tries",
    ]
    assert not any(record.exc_info or "\n" in record.getMessage() for record in caplog.records)


def test_commit_is_left_to_the_next_run_when_the_job_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A stop does not wait for a sink that is down: the checkpoint keeps the promise."""
    scene = Scene(tmp_path, refusals=1)
    scene.coordinator.stop()
    scene.batch(0)
    assert scene.checkpoints == [0]
    assert staged(scene.external) == [(1, 0, 0)]
    assert "1 transaction is left to be committed by the next run" in caplog.text


def test_a_lost_commit_is_not_retried(tmp_path: Path) -> None:
    """What can never be committed is for a person to look at."""
    scene = Scene(tmp_path)
    scene.commits_wait = True
    scene.batch(0)
    scene.external.staged.clear()
    with pytest.raises(CommitLostError, match="neither there nor committed"):
        scene.calls[0]()
    assert scene.clock.slept == []


def test_a_row_that_is_refused_at_commit_is_not_tried_again(tmp_path: Path) -> None:
    """A sink that writes on commit may find a row that its target never takes: the job ends and says so, it does not try for ever."""
    scene = Scene(tmp_path)

    def refuse(transaction):
        raise BadRecordError("the table refuses the row {'n': 1}")

    scene.sink.commit = refuse  # type: ignore[method-assign]
    with pytest.raises(BadRecordError, match="refuses the row"):
        scene.batch(0)
    assert (scene.checkpoints, scene.clock.slept) == ([0], [])
    assert staged(scene.external) == [(1, 0, 0)]


def test_a_fenced_run_completes_nothing(tmp_path: Path) -> None:
    """Once another run has claimed the job no metadata is written."""
    scene = Scene(tmp_path)
    claim(scene.plain, 0.0)
    with pytest.raises(FencedError):
        scene.batch(0)
    assert (scene.checkpoints, visible(scene.external)) == ([], [])


def test_a_run_of_another_life_of_the_job_completes_nothing(tmp_path: Path) -> None:
    """The storage was deleted and the job began anew, with the same run number: the old run does not write among its files."""
    scene = Scene(tmp_path)
    scene.plain.delete(scene.plain.names())
    assert claim(scene.plain, 0.0).run == scene.run
    with pytest.raises(FencedError, match="the job has begun anew there"):
        scene.batch(0)
    assert (scene.checkpoints, visible(scene.external)) == ([], [])


def chk(number: int) -> str:
    """The metadata of a checkpoint of the first run."""
    return CheckpointName(CheckpointId(number), RunId(1)).metadata


def take_over_after(scene: Scene, operation: str, pattern: str) -> None:
    """Let another run claim the job right after a certain call."""
    perform = scene.storage._perform

    def watched(name_of_operation, name, work):
        result = perform(name_of_operation, name, work)
        if name_of_operation == operation and name == pattern:
            claim(scene.plain, 0.0)
        return result

    scene.storage._perform = watched  # type: ignore[method-assign]


def test_a_run_fenced_in_the_middle_commits_nothing(tmp_path: Path) -> None:
    """A run that is fenced between its metadata and its commit leaves the commit to its successor."""
    scene = Scene(tmp_path)
    take_over_after(scene, "create", chk(0))
    with pytest.raises(FencedError):
        scene.batch(0)
    assert scene.checkpoints == [0]
    assert staged(scene.external) == [(1, 0, 0)]


def test_a_run_fenced_in_the_middle_deletes_nothing(tmp_path: Path) -> None:
    """Its successor may have gone on from the checkpoint that would be subsumed, so that one stays with its files."""
    scene = Scene(tmp_path)
    scene.batch(0)
    scene.commits_wait = True
    take_over_after(scene, "create", chk(1))
    with pytest.raises(FencedError):
        scene.batch(1)
    assert scene.checkpoints == [0, 1]
    assert scene.plain.names("state") == ["state/views/0", "state/views/1"]


def test_what_could_not_be_deleted_goes_first_the_next_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint never outlives a file that it names, even when storage refuses to delete for a while."""
    scene = Scene(tmp_path, FaultPlan(failures=(PlannedFailure(pattern=chk(0), operation="delete"),)))
    scene.batch(0)
    scene.batch(1)
    assert "left to be deleted later" in caplog.text
    assert scene.checkpoints == [0, 1]
    assert "state/views/0" in scene.plain.names("state")
    scene.batch(2)
    assert scene.checkpoints == [2]
    assert scene.plain.names("state") == ["state/views/2"]
    deletions = [call.name for call in scene.storage.calls if call.operation == "delete"]
    assert deletions.index("state/views/0") > len(deletions) - 1 - deletions[::-1].index(chk(0))


def test_strays(tmp_path: Path) -> None:
    """The sweep aborts what attempts of this batch or of earlier runs left, and touches neither what is kept nor what is newer."""
    scene = Scene(tmp_path)
    claim(scene.plain, 0.0)
    scene = Scene(tmp_path)
    assert scene.run == 3
    scene.stage(0, attempt=1)
    scene.stage(9, run=1)
    scene.stage(1, attempt=1)
    scene.stage(0, run=4)
    scene.sink.refusals = 1
    scene.coordinator.stop()
    scene.batch(0)
    assert (1, 9, 0) in staged(scene.external)  # a sink that was given up is not asked again in this run
    scene.coordinator._committer._left_to_next_run.clear()
    keep = frozenset(one.name for one in scene.protocol.commits.promised(CheckpointId(9)))
    scene.coordinator._committer.sweep(SweepTransactions(CheckpointId(0), keep=keep))
    assert sorted(staged(scene.external)) == [(3, 0, 0), (3, 1, 1), (4, 0, 0)]


def test_a_sink_that_cannot_be_listed_is_swept_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A sweep that fails is no reason to stop."""
    scene = Scene(tmp_path)
    scene.stage(0, attempt=1)
    abort = scene.sink.abort
    failures = iter([True])

    def once(transaction):
        if next(failures, False):
            raise UnavailableError("the database is restarting")
        abort(transaction)

    scene.sink.abort = once  # type: ignore[method-assign]
    scene.batch(0)
    assert (
        f"sink {UID} does not answer, so transactions that will not be committed are aborted after the next checkpoint"
        in caplog.text
    )
    assert staged(scene.external) == [(1, 0, 1)]
    scene.batch(1)
    assert staged(scene.external) == []


def test_a_failed_checkpoint_is_told_to_people(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint that is given up is a warning with its number and the reason."""
    scene = Scene(tmp_path)
    scene.clock.advance(1)
    scene.coordinator.begin_batch(CheckpointId(0))
    scene.clock.advance(601)
    with caplog.at_level(logging.WARNING):
        scene.coordinator.handle(TimePassed())
    assert "checkpoint 0 was not complete in time: after 10 min" in caplog.text


def test_files_of_a_batch_are_needed_before_its_event_is_taken(tmp_path: Path) -> None:
    """While storage holds the coordinator up, the next batch must not lose the files of one that is only handed in."""
    waiting: list[Event] = []
    scene = Scene(tmp_path, post=waiting.append)
    first, second = (handle(SUBTASKS[0], number, f"state/views/{number}") for number in (0, 1))
    scene.coordinator.batch_finished(BatchFinished(CheckpointId(0), Barrier(), {SUBTASKS[0]: first}))
    opening = scene.coordinator.begin_batch(CheckpointId(2), [second], merged=["state/views/merged"])
    assert opening.needed == {"state/views/0", "state/views/1"}
    assert opening.undurable == {"state/views/1"}
    scene.coordinator.handle(waiting.pop())
    finished = BatchFinished(CheckpointId(1), Barrier(), {SUBTASKS[0]: second})
    scene.coordinator.batch_finished(finished)
    scene.coordinator.handle(waiting.pop())
    assert scene.coordinator.begin_batch(CheckpointId(2)).needed == {"state/views/1"}


def test_what_a_batch_is_told_when_it_begins(tmp_path: Path) -> None:
    """A batch that carries a checkpoint finds it among those under way, and merged files are not to be uploaded again."""
    scene = Scene(tmp_path)
    scene.batch(0)
    scene.clock.advance(1)
    state = handle(SUBTASKS[0], 0, "state/views/0", "state/views/merged", "state/views/new")
    opening = scene.coordinator.begin_batch(CheckpointId(1), [state], ["state/views/merged"])
    assert opening == Opening(
        awaited=frozenset({1}),
        undurable=frozenset({"state/views/new"}),
        needed=state.files,
        completed=CheckpointId(0),
    )
    assert scene.coordinator.begin_batch(CheckpointId(2)).awaited == {1}


def test_what_can_be_seen_of_it(tmp_path: Path) -> None:
    """Which files checkpoints name, what is not stored, and what it waits for, without a look behind the door."""
    scene = Scene(tmp_path)
    scene.batch(0)
    assert scene.coordinator.names("state/views/0")
    assert not scene.coordinator.names("state/views/1")
    scene.clock.advance(1)
    scene.coordinator.begin_batch(CheckpointId(1))
    state = handle(SUBTASKS[0], 1, "state/views/1")
    finished = BatchFinished(CheckpointId(1), Barrier(), {SUBTASKS[0]: state}, (scene.stage(1),))
    scene.coordinator.batch_finished(finished)
    assert scene.coordinator.undurable_handles == [state]
    assert f"{{1: ['{SUBTASKS[0]}']}}, uncommitted transactions: 1" in scene.coordinator.story()


def test_what_is_given_back_is_deleted_in_the_end(tmp_path: Path) -> None:
    """A merged file that no batch took is gone when the run is over."""
    scene = Scene(tmp_path)
    scene.batch(0)
    scene.plain.put("state/views/merged", b"rows")
    scene.coordinator.give_back(["state/views/merged"], CheckpointId(1))
    scene.coordinator.handle(JobEnded())
    assert scene.plain.names("state") == ["state/views/0"]


def test_nothing_is_deleted_while_somebody_holds(tmp_path: Path) -> None:
    """Nobody goes back to them, and they stay as long as a hold that names none is good; behind it all go at once."""
    scene = Scene(tmp_path)
    scene.batch(0)
    put_hold(scene.plain, "ab", scene.clock.wall(), "a test")
    for number in (1, 2):
        scene.batch(number)
        newest = read_metadata(scene.plain, CheckpointName(CheckpointId(number), scene.run))
        assert newest.oldest_retained == number
    assert scene.checkpoints == [0, 1, 2]
    assert scene.plain.names("state") == [f"state/views/{number}" for number in (0, 1, 2)]
    scene.clock.advance(HOLD_S)
    scene.batch(3)
    assert scene.checkpoints == [3]
    assert scene.plain.names("state") == ["state/views/3"]


def test_readers_one_after_the_other_keep_what_they_read_and_no_more(tmp_path: Path) -> None:
    """Each comes before the one before it has gone, so that there is always a hold: what nobody reads any more goes all the same."""
    scene = Scene(tmp_path)
    for number in range(20):
        scene.batch(number)
        put_hold(scene.plain, f"{number:02x}", scene.clock.wall(), "a look-up")
        if number:
            release_hold(scene.plain, f"{number - 1:02x}")
    assert len(scene.checkpoints) <= 3
    assert len(scene.plain.names("state")) <= 3


def test_a_hold_keeps_the_checkpoint_that_it_names(tmp_path: Path) -> None:
    """Those before and after it go, however long it is read, and it goes when nobody reads it any more."""
    scene = Scene(tmp_path)
    scene.batch(0)
    scene.batch(1)
    put_hold(scene.plain, "ab", scene.clock.wall(), "a savepoint", checkpoint=1, run=scene.run)
    for number in (2, 3, 4):
        scene.batch(number)
    assert scene.checkpoints == [1, 4]
    assert scene.plain.names("state") == ["state/views/1", "state/views/4"]
    assert retained_checkpoint(scene.plain).checkpoint == 4
    release_hold(scene.plain, "ab")
    scene.batch(5)
    assert scene.checkpoints == [5]
    assert scene.plain.names("state") == ["state/views/5"]


def test_who_cannot_see_the_holds_deletes_nothing(tmp_path: Path) -> None:
    """As long as the listing fails, checkpoints complete and none is subsumed."""
    plan = FaultPlan(failures=(PlannedFailure(pattern="holds", operation="names", times=1),))
    scene = Scene(tmp_path, plan)
    for number in (0, 1):
        scene.batch(number)
    assert scene.checkpoints == [0, 1]
    scene.batch(2)
    assert scene.checkpoints == [2]


def test_a_dead_hold_that_cannot_be_deleted_holds_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is another user's file: checkpoints are subsumed all the same, and the log says so once."""
    plan = FaultPlan(failures=(PlannedFailure(pattern="holds/*", operation="delete", times=99),))
    scene = Scene(tmp_path, plan)
    put_hold(scene.plain, "ab", scene.clock.wall() - HOLD_S - 2 * BELIEVED_S, "a reader of another user")
    for number in range(4):
        scene.batch(number)
    assert scene.checkpoints == [3]
    warned = [one.getMessage() for one in caplog.records if "hold" in one.getMessage()]
    assert len(warned) == 1
    assert "holds/ab.json" in warned[0]


def test_holds_that_can_never_be_seen_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is deleted then, for as long as that lasts: a warning says why storage fills, and not at every checkpoint."""
    plan = FaultPlan(failures=(PlannedFailure(pattern="holds", operation="names", times=3),))
    scene = Scene(tmp_path, plan)
    for number in range(4):
        scene.batch(number)
    assert scene.checkpoints == [0, 1, 2, 3]
    warned = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warned) == 1
    assert "checkpoints are not deleted, because the holds of readers cannot be read" in warned[0]
    scene.batch(4)
    assert scene.checkpoints == [4]


def test_a_held_checkpoint_of_an_earlier_run_keeps_the_files_it_shares(tmp_path: Path) -> None:
    """The run went on with a file of a checkpoint that a reader holds since before it: the file stays as long as the hold does."""
    scene = Scene(tmp_path)
    scene.batch(0)
    of_earlier_run = CheckpointName(CheckpointId(0), scene.run)
    put_hold(scene.plain, "ab", scene.clock.wall(), "a look-up", checkpoint=0, run=scene.run)
    retained = read_metadata(scene.plain, of_earlier_run)
    later = Scene(tmp_path, left_over=(of_earlier_run.metadata,), retained=(replaced(retained, 1),))
    later.batch(2)
    assert "state/views/0" in later.plain.names("state")
    assert 0 in later.checkpoints
    release_hold(later.plain, "ab")
    later.batch(3)
    assert later.plain.names("state") == ["state/views/3"]
    assert later.checkpoints == [3]


def replaced(completed: Completed, number: int) -> Completed:
    """A checkpoint that names the same files."""
    return msgspec.structs.replace(completed, checkpoint=number, oldest_retained=number)


def test_what_a_start_left_because_of_a_hold_goes_later(tmp_path: Path) -> None:
    """It is deleted with the first checkpoint that completes when nobody holds any more."""
    scene = Scene(tmp_path, left_over=("state/views/of-nobody",))
    scene.plain.put("state/views/of-nobody", b"rows")
    put_hold(scene.plain, "ab", scene.clock.wall(), "a test")
    scene.batch(0)
    assert "state/views/of-nobody" in scene.plain.names("state")
    release_hold(scene.plain, "ab")
    scene.batch(1)
    assert scene.plain.names("state") == ["state/views/1"]
