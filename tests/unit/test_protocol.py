"""The checkpoint protocol: events in, actions out, under a virtual clock."""

from __future__ import annotations

import pytest

from builders.protocol_story import (
    RUN,
    SUBTASKS,
    Story,
    completed,
    discarded,
    file_of,
    forgotten,
    given_up,
    handle,
    handles_at,
    only,
    transaction,
)
from penstock.checkpoint.events import (
    AnswerTaken,
    BatchFinished,
    CheckpointWanted,
    Commit,
    Committed,
    Drain,
    FailJob,
    JobEnded,
    MarkCommitted,
    MetadataFailed,
    SnapshotDeclined,
    SnapshotDurable,
    SweepTransactions,
    WriteMetadata,
)
from penstock.checkpoint.model import Barrier
from penstock.checkpoint.pending import PAUSE_AFTER_FAILURE_S
from penstock.config import Mode
from penstock.errors import InternalError
from penstock.ids import CheckpointId

FIRST, SECOND = SUBTASKS


def declined(version: int, subtask=FIRST) -> SnapshotDeclined:
    return SnapshotDeclined(subtask, version, "disk full", frozenset({file_of(subtask, version)}))


def promised(actions: list) -> list[int]:
    """The batches whose transactions the metadata names."""
    (write,) = only(actions, WriteMetadata)
    return [one.checkpoint for one in write.completed.transactions]


def committed_batches(actions: list) -> list[int]:
    return [one.checkpoint for commit in only(actions, Commit) for one in commit.transactions]


# ── when a checkpoint is triggered ─────────────────────────────────────────────────────────────


def test_interval() -> None:
    """A batch ends in a checkpoint only when the interval has passed since the last trigger."""
    story = Story(interval="10s", max_concurrent=9)
    assert not story.begin(0)
    assert not story.begin(1, seconds=9.9)
    assert story.begin(2, seconds=0.2)
    assert not story.begin(3, seconds=9)
    assert story.begin(4, seconds=1)


def test_min_pause() -> None:
    """The pause counts from the end of the last checkpoint, whatever the interval says."""
    story = Story(interval="10s", min_pause="5s")
    story.begin(0, seconds=10)
    story.finish(0)
    story.after(9)
    story.store(0)
    story.written(0)
    assert not story.begin(1, seconds=4.9)
    assert story.begin(2, seconds=0.2)


def test_min_pause_after_a_failure() -> None:
    """A checkpoint that was given up ends too."""
    story = Story(min_pause="30s", tolerable_failures=1)
    story.begin(0, seconds=10)
    story.finish(0)
    story.after(15)
    story.tell(declined(0))
    assert not story.begin(1, seconds=29)
    assert story.begin(2, seconds=1)


def test_max_concurrent() -> None:
    """No more checkpoints are under way at once than allowed, and one that ends makes room."""
    story = Story(max_concurrent=2)
    assert story.begin(0, seconds=10)
    assert story.begin(1, seconds=10)
    assert not story.begin(2, seconds=10)
    story.finish(0)
    story.store(0)
    story.written(0)
    assert story.begin(3)


# ── completing ─────────────────────────────────────────────────────────────────────────────────


def test_completes_when_all_acknowledged() -> None:
    """The metadata is written only when the batch is finished and every subtask's files are in storage."""
    story = Story()
    story.begin(0, seconds=10)
    assert not only(story.finish(0), WriteMetadata)
    assert not only(story.store(0, FIRST), WriteMetadata)
    assert only(story.store(0, SECOND), WriteMetadata)


def test_uploads_may_end_before_the_batch() -> None:
    """A subtask whose upload ended first has acknowledged when the barrier has passed the whole job, not before."""
    story = Story()
    story.begin(0, seconds=10)
    assert not story.store(0)
    assert only(story.finish(0), WriteMetadata)


def test_content_of_the_metadata() -> None:
    """It names the barrier, one handle a subtask, the transactions, who measured what, and how long it took."""
    story = Story(restored=(completed(4),))
    story.begin(5, seconds=10)
    story.finish(5, transaction(5))
    story.after(2)
    (write,) = only(story.store(5), WriteMetadata)
    content = write.completed
    assert (content.checkpoint, content.run, content.mode) == (5, RUN, "exactly-once")
    assert content.barrier.progress_log == "entry 5"
    assert content.operators["views"].handles == tuple(handles_at(5).values())
    assert [one.checkpoint for one in content.transactions] == [5]
    assert {report.async_ms for report in content.subtasks} == {7.0}
    assert content.duration_ms == 2000.0
    assert content.completed_at - content.triggered_at == pytest.approx(2.0)


def test_a_subtask_without_rows_acknowledges_with_what_it_had() -> None:
    """A handle whose files are in storage from before needs no upload."""
    story = Story()
    story.batch(0)
    story.begin(1, seconds=10)
    carried = {FIRST: handle(FIRST, 1, file_of(FIRST, 0)), SECOND: handle(SECOND, 1, file_of(SECOND, 1))}
    story.finish(1, handles=carried)
    (write,) = only(story.store(1, SECOND), WriteMetadata)
    assert write.completed.files == {file_of(FIRST, 0), file_of(SECOND, 1)}


def test_metadata_for_a_checkpoint_that_is_not_being_written() -> None:
    """An answer that nobody asked for is a bug, and is said to be one."""
    story = Story()
    story.begin(0, seconds=10)
    with pytest.raises(InternalError, match="0 is not being written"):
        story.written(0)


def test_idle_trigger() -> None:
    """When no new batch comes, the newest finished one is completed once the interval is over and its files are in storage."""
    story = Story()
    story.begin(0)
    story.finish(0)
    assert not story.tick(11)
    story.store(0)
    assert [one.completed.checkpoint for one in only(story.tick(), WriteMetadata)] == [0]
    story.written(0)
    assert not story.tick(11)


def test_the_duration_of_a_checkpoint_that_its_batch_carries() -> None:
    """It lasts from the trigger, at the beginning of its batch, to the last upload."""
    story = Story()
    story.begin(0, seconds=10)
    story.after(2).finish(0)
    (write,) = only(story.after(0.5).store(0), WriteMetadata)
    assert write.completed.duration_ms == pytest.approx(2500)


def test_the_duration_of_a_checkpoint_that_is_triggered_while_idle() -> None:
    """What was stored before the trigger counts with the time that took; waiting for the interval does not."""
    story = Story()
    story.begin(0)
    story.finish(0)
    story.after(0.5).store(0, SUBTASKS[0])
    story.after(0.1).store(0, SUBTASKS[1])
    (write,) = only(story.tick(11), WriteMetadata)
    took_ms = {report.subtask: report.async_ms for report in write.completed.subtasks}
    assert took_ms == dict.fromkeys(SUBTASKS, 7.0)
    assert write.completed.duration_ms == pytest.approx(
        107
    )  # from 7 ms before the first upload was done to the end of the last


def test_the_duration_of_the_last_checkpoint() -> None:
    """A drain triggers while uploads are under way: none of that time counts twice."""
    story = Story(interval="1h")
    story.begin(0)
    story.finish(0)
    story.tell(Drain())
    (write,) = only(story.after(0.005).store(0), WriteMetadata)
    assert write.completed.duration_ms == pytest.approx(7)


def test_drain() -> None:
    """With no more batches to come the newest is completed at once, and nothing is settled before it is committed."""
    story = Story(interval="1h")
    story.batch(0)
    story.begin(1)
    story.finish(1, transaction(1))
    assert not story.protocol.settled
    assert not story.tell(Drain())
    (write,) = only(story.store(1), WriteMetadata)
    assert write.completed.checkpoint == 1
    (commit,) = only(story.written(1), Commit)
    assert not story.protocol.settled
    story.tell(Committed(commit.transactions))
    assert story.protocol.settled


def test_nothing_is_settled_before_the_drain_was_taken() -> None:
    """A batch may be finished whose event still waits in front of `Drain`, so that an early look must not say 'settled'."""
    story = Story()
    story.checkpoint(0)
    assert not story.protocol.settled
    story.tell(Drain())
    assert story.protocol.settled


def test_drain_keeps_to_max_concurrent() -> None:
    """The last checkpoint takes the place of one under way, whose data it has, too; the two are never under way together."""
    story = Story()
    story.begin(0, seconds=10)
    story.finish(0)
    story.begin(1)
    story.finish(1)
    assert given_up(story.tell(Drain())) == [(0, "SUBSUMED")]
    assert list(story.protocol.pending) == [1]
    (write,) = only(story.store(1), WriteMetadata)
    assert write.completed.checkpoint == 1


def test_drain_waits_for_metadata_that_is_being_written() -> None:
    """What is being written can no longer be given up: the last checkpoint is triggered when it is there."""
    story = Story()
    story.batch(0, seconds=10)
    story.begin(1)
    story.finish(1)
    assert not story.tell(Drain())
    assert list(story.protocol.pending) == [0]
    story.written(0)
    assert list(story.protocol.pending) == [1]


def test_drain_tries_again_after_a_failure() -> None:
    """The last checkpoint is triggered again when it was given up and failures are tolerated."""
    story = Story(tolerable_failures=1)
    story.begin(0)
    story.finish(0)
    story.tell(Drain())
    assert given_up(story.tell(declined(0))) == [(0, "DECLINED")]
    story.tick()
    assert only(story.store(0), WriteMetadata)


# ── modes ──────────────────────────────────────────────────────────────────────────────────────


def later(subtask=FIRST, version: int = 1) -> SnapshotDurable:
    return SnapshotDurable(handles_at(version)[subtask])


def test_exactly_once_refuses_a_later_version() -> None:
    """A handle from after the barrier is no acknowledgement: the checkpoint waits for the state at the barrier."""
    story = Story(mode=Mode.EXACTLY_ONCE)
    story.begin(0, seconds=10)
    story.finish(0)
    story.begin(1)
    story.finish(1)
    assert not story.tell(later(FIRST)) + story.tell(later(SECOND))
    (write,) = only(story.store(0), WriteMetadata)
    assert {one.version for one in write.completed.operators["views"].handles} == {0}


def test_at_least_once_takes_a_later_version() -> None:
    """A version at or after the barrier will do; the positions stay those that are in every subtask."""
    story = Story(mode=Mode.AT_LEAST_ONCE)
    story.begin(0, seconds=10)
    story.finish(0)
    story.begin(1)
    story.finish(1)
    story.tell(later(FIRST))
    (write,) = only(story.store(0, SECOND), WriteMetadata)
    assert [one.version for one in write.completed.operators["views"].handles] == [1, 0]
    assert (write.completed.checkpoint, write.completed.barrier.progress_log) == (0, "entry 0")


def test_at_least_once_promises_what_a_later_version_has_put_out() -> None:
    """State that has seen batch 1 will not emit its rows again, so the checkpoint that takes it promises them, whatever its cut."""
    story = Story(mode=Mode.AT_LEAST_ONCE)
    story.begin(0, seconds=10)
    story.finish(0, transaction(0))
    story.begin(1)
    assert not only(story.tell(later(FIRST)), WriteMetadata)
    story.finish(1, transaction(1))
    actions = story.store(0, SECOND)
    assert promised(actions) == [0, 1]
    assert only(actions, WriteMetadata)[0].completed.checkpoint == 0


def test_at_least_once_takes_no_version_before_its_batch_is_finished() -> None:
    """What a version has put out is known when its batch is finished, so no checkpoint takes it before."""
    story = Story(mode=Mode.AT_LEAST_ONCE)
    story.begin(0, seconds=10)
    story.finish(0, transaction(0))
    story.begin(1)
    story.tell(later(FIRST))
    assert not only(story.store(0, SECOND), WriteMetadata)
    assert promised(story.finish(1, transaction(1))) == [0, 1]


def test_at_least_once_names_no_file_that_was_discarded() -> None:
    """A later version may be merged away before its upload is reported: its files stay as long as a checkpoint may come to name them."""
    story = Story(mode=Mode.AT_LEAST_ONCE)
    story.begin(0, seconds=10)
    for batch in range(3):
        story.begin(batch)
        story.finish(batch)  # every subtask names one new file, and the one before no more
    (write,) = only(story.store(1), WriteMetadata)
    assert not write.completed.files & discarded(story.actions)
    story.written(1)
    assert discarded(story.actions) >= {file_of(subtask, 0) for subtask in SUBTASKS}


def test_at_least_once_does_not_take_what_is_gone() -> None:
    """A version that Spark did not keep was discarded when its batch finished; a late word that it is stored counts for nothing."""
    story = Story(mode=Mode.AT_LEAST_ONCE)
    story.begin(0, seconds=10)
    story.finish(0)
    story.begin(1)
    stray = handle(FIRST, 1, "state/stray")
    story.finish(1)
    assert not only(story.tell(SnapshotDurable(stray)), WriteMetadata)
    assert "state/stray" in discarded(story.actions)
    (write,) = only(story.store(1), WriteMetadata)
    assert "state/stray" not in write.completed.files


def test_what_a_failed_upload_had_stored_is_discarded() -> None:
    """Of several files some may be in storage when the upload fails: those that nothing names are deleted, the others stay."""
    story = Story(tolerable_failures=9)
    story.begin(0, seconds=10)
    story.finish(0)
    story.begin(1)
    story.finish(1)  # the files of 0 are now those of a pending checkpoint only
    files = (file_of(FIRST, 0), "state/attempt-not-kept")
    actions = story.tell(SnapshotDeclined(FIRST, 0, "disk full", frozenset({file_of(FIRST, 0)}), files))
    assert given_up(actions) == [(0, "DECLINED")]
    assert discarded(actions) >= set(files)
    asked = frozenset({file_of(FIRST, 0)})
    late = story.tell(SnapshotDeclined(FIRST, 0, "disk full", asked, (file_of(FIRST, 0), file_of(FIRST, 1))))
    assert discarded(late) == {file_of(FIRST, 0)}
    asked = frozenset({file_of(FIRST, 2)})
    early = SnapshotDeclined(FIRST, 2, "disk full", asked, (file_of(FIRST, 2), "state/stray"))
    assert not story.tell(early)
    assert "state/stray" in discarded(story.finish(2))


@pytest.mark.parametrize("stored_first", [True, False])
def test_files_of_a_newer_version_that_was_tried_are_not_discarded(stored_first: bool) -> None:
    """At least once an upload may try a version whose batch is not finished: what it leaves in storage is that version's, and stays."""
    story = Story(mode=Mode.AT_LEAST_ONCE, tolerable_failures=9)
    story.begin(0)
    story.finish(0)
    story.begin(1, seconds=10)
    newer = handle(FIRST, 1, file_of(FIRST, 1))
    failed = SnapshotDeclined(
        FIRST, 0, "refused", frozenset({file_of(FIRST, 0)}), (file_of(FIRST, 0), file_of(FIRST, 1)), tried=1
    )
    for event in (SnapshotDurable(newer), failed) if stored_first else (failed, SnapshotDurable(newer)):
        assert file_of(FIRST, 1) not in discarded(story.tell(event))
    assert file_of(FIRST, 1) not in discarded(story.finish(1))


@pytest.mark.parametrize("early", [True, False])
def test_a_snapshot_that_nobody_kept_declines_nothing(early: bool) -> None:
    """Of an attempt that Spark did not keep, a failed upload says nothing about the checkpoint, whenever the word of it comes."""
    story = Story()
    dropped = SnapshotDeclined(FIRST, 0, "gone", frozenset({"state/attempt-not-kept"}))
    story.begin(0, seconds=10)
    if early:
        story.tell(dropped)
    story.finish(0)
    if not early:
        story.tell(dropped)
    assert only(story.store(0), WriteMetadata)


def test_a_snapshot_that_is_declined_before_its_batch_is_finished() -> None:
    """Whether it was kept is known when the batch is finished, and then the checkpoint is given up."""
    story = Story(tolerable_failures=9)
    story.begin(0, seconds=10)
    assert not given_up(story.tell(declined(0)))
    assert given_up(story.finish(0)) == [(0, "DECLINED")]


def test_at_least_once_moves_the_cut_along() -> None:
    """When every subtask handed in a later version, the checkpoint stands for the earliest of those."""
    story = Story(mode=Mode.AT_LEAST_ONCE)
    story.begin(0, seconds=10)
    for batch in (0, 1):
        story.finish(batch)
    story.tell(later(FIRST))
    (write,) = only(story.tell(later(SECOND)), WriteMetadata)
    assert (write.completed.checkpoint, write.completed.barrier.progress_log) == (1, "entry 1")
    story.written(1)
    assert story.protocol.last_completed == 1


def test_two_checkpoints_never_stand_for_the_same_cut() -> None:
    """At least once, with two under way, the one whose cut is already being written is held back and then subsumed."""
    story = Story(mode=Mode.AT_LEAST_ONCE, max_concurrent=2)
    story.begin(0, seconds=10)
    story.begin(1, seconds=10)
    for batch in (0, 1):
        story.finish(batch)
    story.tell(later(FIRST))
    assert len(only(story.tell(later(SECOND)), WriteMetadata)) == 1
    assert given_up(story.written(1)) == [(1, "SUBSUMED")]
    assert not story.protocol.pending


def test_metadata_are_written_one_at_a_time() -> None:
    """Each says which older ones it leaves, so it waits until it is known whether the one before it exists."""
    story = Story(max_concurrent=2, retained=2, tolerable_failures=9)
    story.checkpoint(0)
    story.begin(1, seconds=10)
    story.begin(2, seconds=10)
    story.finish(1)
    story.finish(2)
    assert [one.completed.checkpoint for one in only(story.store(1) + story.store(2), WriteMetadata)] == [1]
    (write,) = only(story.tell(MetadataFailed(CheckpointId(1), "disk full")), WriteMetadata)
    assert (write.completed.checkpoint, write.completed.oldest_retained) == (2, 0)


def test_exactly_once_commits_after_the_metadata() -> None:
    """No transaction is committed before the metadata that names it is written."""
    story = Story()
    actions = story.batch(0, transaction(0), seconds=10)
    assert not only(actions, Commit)
    assert promised(actions) == [0]
    assert committed_batches(story.written(0)) == [0]


@pytest.mark.parametrize("mode", [Mode.AT_LEAST_ONCE, Mode.AT_MOST_ONCE])
def test_the_other_modes_write_through(mode: Mode) -> None:
    """Transactions are committed as soon as their batch is finished, once."""
    story = Story(mode=mode)
    story.begin(0, seconds=10)
    assert committed_batches(story.finish(0, transaction(0))) == [0]
    story.store(0)
    assert not only(story.written(0), Commit)


def test_at_most_once_promises_nothing() -> None:
    """A commit in doubt is not made again, so the metadata names no transaction."""
    story = Story(mode=Mode.AT_MOST_ONCE)
    assert promised(story.batch(0, transaction(0), seconds=10)) == []


def test_at_least_once_promises_what_is_not_known_to_be_committed() -> None:
    """A crash between metadata and commit must not lose rows, so they are named."""
    story = Story(mode=Mode.AT_LEAST_ONCE)
    assert promised(story.batch(0, transaction(0), seconds=10)) == [0]


# ── transactions ───────────────────────────────────────────────────────────────────────────────


def test_batches_without_a_checkpoint_are_committed_with_the_next_one() -> None:
    """A checkpoint names and commits the transactions of all batches since the last one, in order."""
    story = Story()
    story.batch(0, transaction(0))
    story.batch(1, transaction(1))
    assert promised(story.batch(2, transaction(2), seconds=10)) == [0, 1, 2]
    assert committed_batches(story.written(2)) == [0, 1, 2]


def test_transactions_of_an_aborted_checkpoint_are_carried_over() -> None:
    """What a checkpoint that was given up would have committed is named and committed by the next."""
    story = Story(tolerable_failures=1)
    story.begin(0, seconds=10)
    story.finish(0, transaction(0))
    story.tell(declined(0))
    assert promised(story.batch(1, transaction(1), seconds=10)) == [0, 1]
    assert committed_batches(story.written(1)) == [0, 1]


def test_uncommitted_transactions_of_earlier_checkpoints_are_named_again() -> None:
    """Until a commit is reported every new metadata names it, and it is not asked for twice."""
    story = Story()
    story.batch(0, transaction(0), seconds=10)
    (commit,) = only(story.written(0), Commit)
    assert promised(story.batch(1, transaction(1), seconds=10)) == [0, 1]
    assert committed_batches(story.written(1)) == [1]
    story.tell(Committed(commit.transactions))
    assert promised(story.batch(2, transaction(2), seconds=10)) == [1, 2]


def test_strays_are_swept_up_to_the_checkpoint() -> None:
    """After a checkpoint completes, what no attempt that counts left in the sinks is aborted; the promised is kept."""
    story = Story()
    story.batch(0, transaction(0), seconds=10)
    (sweep,) = only(story.written(0), SweepTransactions)
    assert sweep == SweepTransactions(CheckpointId(0), frozenset({transaction(0).name}))


def test_a_checkpoint_is_marked_when_all_it_promised_is_committed() -> None:
    """The mark comes with the last commit of the newest checkpoint, not before."""
    story = Story()
    story.batch(0, transaction(0), seconds=10)
    (first,) = only(story.written(0), Commit)
    story.batch(1, transaction(1), seconds=10)
    (second,) = only(story.written(1), Commit)
    assert not only(story.tell(Committed(first.transactions)), MarkCommitted)
    (mark,) = only(story.tell(Committed(second.transactions)), MarkCommitted)
    assert mark.completed.checkpoint == 1


def test_every_sink_commits_by_itself() -> None:
    """One action a sink; what one of them has not committed is promised again, and the mark waits for it."""
    story = Story()
    story.batch(0, transaction(0, "a"), transaction(0, "b"), transaction(0, "a", subtask=1), seconds=10)
    of_a, of_b = only(story.written(0), Commit)
    assert [(one.sink, one.subtask) for one in of_a.transactions] == [("a", 0), ("a", 1)]
    assert (of_a.sink, of_b.sink, story.protocol.commits.committing) == ("a", "b", 3)
    assert not only(story.tell(Committed(of_b.transactions)), MarkCommitted)
    assert story.protocol.commits.committing == 2
    (write,) = only(story.batch(1, transaction(1, "b"), seconds=10), WriteMetadata)
    assert [(one.sink, one.checkpoint) for one in write.completed.transactions] == [
        ("a", 0),
        ("a", 0),
        ("b", 1),
    ]
    (next_of_b,) = only(story.written(1), Commit)
    story.tell(Committed(next_of_b.transactions))
    (mark,) = only(story.tell(Committed(of_a.transactions)), MarkCommitted)
    assert mark.completed.checkpoint == 1
    assert story.protocol.commits.committing == 0


# ── failures ───────────────────────────────────────────────────────────────────────────────────


def test_timeout_names_who_is_late() -> None:
    """A checkpoint that is late is given up, and the message says who did not acknowledge and what to do."""
    story = Story(timeout="60s", tolerable_failures=1)
    story.begin(0, seconds=10)
    story.finish(0)
    story.store(0, FIRST)
    assert not story.tick(59)
    (announce,) = [one for one in story.tick(1) if hasattr(one, "detail")]
    assert "after 1 min: 1 of 2 subtasks did not acknowledge (views-1)" in announce.detail
    assert "raise checkpoint.timeout" in announce.detail
    assert not only(story.store(0, SECOND), WriteMetadata)


def test_timeout_while_the_batch_runs() -> None:
    """The message says so when the batch itself takes longer than a checkpoint may."""
    story = Story(timeout="60s")
    story.begin(0, seconds=10)
    actions = story.tick(60)
    assert given_up(actions) == [(0, "EXPIRED")]
    assert "its batch is still being processed" in only(actions, FailJob)[0].detail


def test_no_timeout_while_the_metadata_is_written() -> None:
    """What is being written is no longer given up: nobody could say whether it exists."""
    story = Story(timeout="60s")
    story.batch(0, seconds=10)
    assert not story.tick(61)
    assert not story.tell(declined(0))
    story.written(0)
    assert story.protocol.last_completed == 0


def test_decline() -> None:
    """A subtask that cannot store its state ends the checkpoint at once; one that has acknowledged, or is not waited for, does not."""
    story = Story(tolerable_failures=9)
    story.begin(0, seconds=10)
    story.finish(0)
    story.store(0, FIRST)
    assert not story.tell(declined(0, FIRST))
    assert not story.tell(declined(7, SECOND))
    assert given_up(story.tell(declined(0, SECOND))) == [(0, "DECLINED")]
    assert not story.protocol.pending


def test_too_many_failures_in_a_row_fail_the_job() -> None:
    """One more than tolerated fails the job, with the reason and the checkpoint it goes back to."""
    story = Story(tolerable_failures=1, restored=(completed(4),))
    for batch in (5, 6):
        story.begin(batch, seconds=10)
        story.finish(batch)
        failed = only(story.tell(declined(batch)), FailJob)
    assert len(only(story.actions, FailJob)) == 1
    assert "failure 2 in a row" in failed[0].detail
    assert "goes back to checkpoint 4" in failed[0].detail


def test_a_success_resets_the_count_of_failures() -> None:
    """Only failures in a row count."""
    story = Story(tolerable_failures=1)
    for batch in (0, 2, 4):
        story.begin(batch, seconds=10)
        story.tell(declined(batch))
        story.finish(batch)
        story.checkpoint(batch + 1)
    assert not only(story.actions, FailJob)


def test_metadata_that_could_not_be_written() -> None:
    """It counts as a failure, and the transactions go to the next checkpoint."""
    story = Story(tolerable_failures=1)
    story.batch(0, transaction(0), seconds=10)
    actions = story.tell(MetadataFailed(CheckpointId(0), "no space"))
    assert given_up(actions) == [(0, "METADATA_FAILED")]
    assert promised(story.batch(1, seconds=10)) == [0]


def test_subsumption() -> None:
    """With two under way the newer may complete first; the older is then given up, which is no failure."""
    story = Story(max_concurrent=2, tolerable_failures=0)
    for batch in (0, 1):
        story.begin(batch, seconds=10)
        story.finish(batch, transaction(batch))
    assert promised(story.store(1)) == [0, 1]
    actions = story.written(1)
    assert given_up(actions) == [(0, "SUBSUMED")]
    assert committed_batches(actions) == [0, 1]
    assert not only(story.actions, FailJob)
    assert discarded(actions) == {file_of(FIRST, 0), file_of(SECOND, 0)}


def test_an_older_checkpoint_is_not_written_behind_a_newer_one() -> None:
    """While the newer is being written the older waits, and is subsumed when the newer exists."""
    story = Story(max_concurrent=2)
    for batch in (0, 1):
        story.begin(batch, seconds=10)
        story.finish(batch)
    story.store(1)
    assert not only(story.store(0), WriteMetadata)
    assert given_up(story.written(1)) == [(0, "SUBSUMED")]
    assert [one.checkpoint for one in story.protocol.completed] == [1]


def test_an_older_checkpoint_is_written_when_the_newer_failed() -> None:
    """The one that waited behind a newer one is not lost when that could not be written."""
    story = Story(max_concurrent=2, tolerable_failures=1)
    for batch in (0, 1):
        story.begin(batch, seconds=10)
        story.finish(batch)
    story.store(1)
    story.store(0)
    actions = story.tell(MetadataFailed(CheckpointId(1), "no space"))
    assert [one.completed.checkpoint for one in only(actions, WriteMetadata)] == [0]


# ── retention and files ────────────────────────────────────────────────────────────────────────


def test_retention() -> None:
    """As many completed checkpoints as asked for are kept; the metadata and the files of older ones go."""
    story = Story(retained=2)
    story.checkpoint(0)
    assert not forgotten(story.checkpoint(1))
    actions = story.checkpoint(2)
    assert forgotten(actions) == [0]
    assert discarded(actions) == {file_of(FIRST, 0), file_of(SECOND, 0)}


def test_a_restored_checkpoint_is_subsumed_like_any_other() -> None:
    """What an earlier run completed is forgotten when this one has completed enough."""
    story = Story(restored=(completed(4, "state/old"),))
    actions = story.checkpoint(5)
    assert (forgotten(actions), discarded(actions)) == ([4], {"state/old"})


def test_a_shared_file_outlives_the_checkpoint_that_wrote_it() -> None:
    """A file that a later checkpoint names too is not discarded with the earlier one."""
    story = Story(restored=(completed(4, "state/old"),))
    story.begin(5, seconds=10)
    shared = {FIRST: handle(FIRST, 5, "state/old"), SECOND: handle(SECOND, 5)}
    story.finish(5, handles=shared)
    actions = story.written(5)
    assert (forgotten(actions), discarded(actions)) == ([4], set())


def test_files_of_pending_and_working_versions_stay() -> None:
    """A file goes when neither a completed nor a pending checkpoint nor the newest version names it, and not before."""
    story = Story(max_concurrent=1)
    story.batch(0)
    story.begin(1, seconds=10)
    assert not discarded(story.actions)
    assert discarded(story.finish(1)) == {file_of(FIRST, 0), file_of(SECOND, 0)}
    story.begin(2)
    assert not discarded(story.finish(2))
    story.store(2)
    assert not discarded(story.store(1))
    assert not discarded(story.written(1))
    story.begin(3)
    assert discarded(story.finish(3)) == {file_of(FIRST, 2), file_of(SECOND, 2)}


def test_a_checkpoint_that_was_given_up_leaves_no_file() -> None:
    """What only it named is discarded, also when it is uploaded afterwards."""
    story = Story(tolerable_failures=1)
    story.begin(0, seconds=10)
    story.finish(0)
    story.begin(1)
    story.finish(1)
    assert file_of(FIRST, 0) in discarded(story.tell(declined(0)))
    assert discarded(story.store(0, SECOND)) == {file_of(SECOND, 0)}


def test_files_of_attempts_that_spark_did_not_keep() -> None:
    """They are left alone until the batch is finished, because only then it is known which attempt counts; then they go."""
    story = Story()
    story.begin(0)
    stray = SnapshotDurable(handle(FIRST, 0, "state/stray"))
    assert not story.tell(stray)
    assert discarded(story.finish(0)) == {"state/stray"}
    assert discarded(story.tell(stray)) == {"state/stray"}


def test_undurable_files() -> None:
    """Whoever begins a batch can ask which files of the handles it hands out are not in storage, whatever was told so far."""
    story = Story()
    story.begin(0)
    files = {file_of(FIRST, 0), file_of(SECOND, 0)}
    assert story.protocol.files.undurable(files) == files
    story.store(0, FIRST)
    assert story.protocol.files.undurable(files) == {file_of(SECOND, 0)}
    assert story.protocol.files.undurable_working == set()
    story.finish(0)
    assert story.protocol.files.undurable_working == {file_of(SECOND, 0)}


# ── the end ────────────────────────────────────────────────────────────────────────────────────


def test_job_end() -> None:
    """What is pending is given up without counting as a failure, and its files go; completed checkpoints stay."""
    story = Story()
    story.checkpoint(0)
    story.begin(1, seconds=10)
    story.finish(1)
    actions = story.tell(JobEnded())
    assert given_up(actions) == [(1, "JOB_ENDED")]
    assert discarded(actions) == {file_of(FIRST, 1), file_of(SECOND, 1)}
    assert not forgotten(actions)
    assert not only(actions, FailJob)


def test_job_end_while_the_metadata_is_written() -> None:
    """A checkpoint whose metadata may exist already keeps its files: the next run may go on from it."""
    story = Story()
    story.batch(0, seconds=10)
    actions = story.tell(JobEnded())
    assert not given_up(actions)
    assert not discarded(actions)


def test_the_time_of_later_state_does_not_come_again() -> None:
    """At least once, a checkpoint with state of a later batch has the time of that batch: what had expired in it must not be seen again."""
    story = Story(mode=Mode.AT_LEAST_ONCE)
    first, second = SUBTASKS
    for batch, now_us in ((0, 100), (1, 200)):
        story.begin(batch, seconds=10)
        finished = BatchFinished(CheckpointId(batch), Barrier(), handles_at(batch), (), {}, {}, now_us)
        story.tell(finished)
    story.tell(SnapshotDurable(handle(first, 1, file_of(first, 1))))
    actions = story.tell(SnapshotDurable(handle(second, 0, file_of(second, 0))))
    (write,) = only(actions, WriteMetadata)
    assert write.completed.now_us == 200


# ── a checkpoint that somebody waits for ───────────────────────────────────────────────────────


def answer(story: Story, *, committed: bool = False) -> int | None:
    found = story.protocol.answer_to("me", committed=committed)
    return None if found is None else found.checkpoint


def test_a_wanted_checkpoint_is_taken_of_the_newest_batch_at_once() -> None:
    """When no batch comes, the newest finished one is completed, whatever interval and pause say; its commits are waited for on request."""
    story = Story(interval="1h", min_pause="1h")
    story.batch(0, transaction(0))
    story.tick(5)
    assert not only(story.actions, WriteMetadata)
    (write,) = only(story.tell(CheckpointWanted("me")), WriteMetadata)
    assert (write.completed.checkpoint, answer(story)) == (0, None)
    (commit,) = only(story.written(0), Commit)
    assert (answer(story), answer(story, committed=True)) == (0, None)
    story.tell(Committed(commit.transactions))
    assert answer(story, committed=True) == 0
    story.tell(AnswerTaken("me"))
    assert answer(story) is None


def test_a_wanted_checkpoint_waits_until_state_is_in_storage() -> None:
    """What is not stored yet cannot be completed; the next batch carries the barrier, if it comes first."""
    story = Story(interval="1h")
    story.begin(0)
    story.finish(0)
    assert not story.tell(CheckpointWanted("me"))
    assert story.begin(1)
    assert not story.begin(2)
    story.finish(1)
    assert [one.completed.checkpoint for one in only(story.store(1), WriteMetadata)] == [1]
    story.written(1)
    assert answer(story) == 1
    assert not story.begin(3)


def test_a_checkpoint_that_exists_is_the_answer() -> None:
    """When the newest batch is in a completed checkpoint, no other is made, also right after a start."""
    story = Story(restored=(completed(7, "state/a"),), interval="1h")
    assert story.tell(CheckpointWanted("me")) == []
    assert answer(story, committed=True) == 7
    assert not story.begin(8)


def test_before_the_first_checkpoint_any_will_do() -> None:
    """A job that has finished nothing yet answers with the checkpoint of its first batch."""
    story = Story(interval="1h")
    assert story.tell(CheckpointWanted("me")) == []
    assert answer(story) is None
    assert story.begin(0)


def test_a_wanted_checkpoint_keeps_to_the_number_under_way() -> None:
    """One that is under way and lacks what is wanted ends first; one that has it is waited for."""
    story = Story(interval="10s", max_concurrent=1)
    story.begin(0, seconds=10)
    story.finish(0)
    story.begin(1)
    story.finish(1)
    story.tell(CheckpointWanted("me"))
    assert not story.begin(2)
    story.finish(2)
    story.store(0)
    story.written(0)
    assert answer(story) is None
    story.store(2)
    assert [one.completed.checkpoint for one in only(story.tick(), WriteMetadata)] == [2]
    story.written(2)
    assert answer(story) == 2


def test_a_wanted_checkpoint_that_fails_is_tried_again() -> None:
    """Whoever waits is answered by the next one."""
    story = Story(interval="1h", tolerable_failures=9)
    story.tell(CheckpointWanted("me"))
    assert story.begin(0)
    story.finish(0)
    story.tell(declined(0))
    assert answer(story) is None
    assert not story.begin(1)
    assert story.begin(1, seconds=PAUSE_AFTER_FAILURE_S)


def test_asking_uses_up_no_tolerance() -> None:
    """What fails while somebody waits is tried again after a pause, and the job does not go back sooner than by its interval."""
    story = Story(interval="1h", min_pause="1min", tolerable_failures=1)
    story.batch(0)
    story.tell(CheckpointWanted("me"))
    tried: list[float] = []
    for _ in range(30):
        for write in only(story.actions, WriteMetadata)[len(tried) :]:
            tried.append(story.now.monotonic)
            story.tell(MetadataFailed(write.completed.id, "storage is away"))
        story.tick(10)
    assert tried == [0.0, 60.0, 120.0, 180.0, 240.0]
    assert not only(story.actions, FailJob)


def test_asking_does_not_put_off_the_count() -> None:
    """Checkpoints of the interval come in their time beside those that fail for whoever waits, and count."""
    story = Story(interval="10s", tolerable_failures=1)
    story.batch(0)
    story.tell(CheckpointWanted("me"))
    writes = 0
    while not only(story.actions, FailJob):
        assert story.now.monotonic < 60
        for write in only(story.actions, WriteMetadata)[writes:]:
            writes += 1
            story.tell(MetadataFailed(write.completed.id, "storage is away"))
        story.tick(1)
    assert story.now.monotonic - 1 == 20


def test_the_interval_counts_from_a_wanted_checkpoint_that_is_complete() -> None:
    """No other comes right behind it."""
    story = Story(interval="10s")
    story.batch(0, seconds=9)
    story.tell(CheckpointWanted("me"))
    story.written(0)
    assert not story.begin(1, seconds=2)
    assert story.begin(1, seconds=8)
