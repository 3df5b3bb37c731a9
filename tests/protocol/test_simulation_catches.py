"""The simulation is worth something only if it finds what is broken: each mutation breaks one rule, and must be found."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import msgspec
import pytest
from simulations import (
    SEED,
    calls_of_a_start_from_a_savepoint,
    calls_without_a_crash,
    come_back,
    dies_behind_a_commit,
    workload,
    world,
)

from penstock.checkpoint.commits import Committer, commit_in_order
from penstock.checkpoint.content import LaterVersions
from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.events import BatchFinished, SweepTransactions, WriteMetadata
from penstock.checkpoint.model import Completed, TimeReached
from penstock.checkpoint.needed_files import NeededFiles
from penstock.checkpoint.pending import Pending
from penstock.checkpoint.protocol import DueCommits, Protocol
from penstock.config import Checkpointing, Mode
from penstock.errors import PenstockError
from penstock.ids import NO_CHECKPOINT, RunId
from penstock.operators.outputs import SideRows
from penstock.operators.process import keyed
from penstock.operators.process.task import ProcessTask
from penstock.ownership import claim
from penstock.ownership.claim import Claim, read_run
from penstock.ownership.holds import Hold
from penstock.recovery import cleanup, history, progress_log, restore, restore_plan, started_batches
from penstock.recovery.history import retained_checkpoint
from penstock.recovery.progress_log import ProgressLog, SourceLog, lines_of
from penstock.recovery.started_batches import BarrierOverride
from penstock.run import acknowledgements, reading, run, sink_writer
from penstock.run.acknowledgements import BadRecordCounts
from penstock.run.reading import Reading
from penstock.run.run import Run
from penstock.run.watermarks import Watermarks
from penstock.savepoint import restore as savepoint_restore
from penstock.savepoint import table_files
from penstock.snapshot.uploader import Upload
from penstock.state import merge_orders
from penstock.state.backends import fetch
from penstock.state.backends.sorted_state import SortedState
from penstock.state.handle import Due
from penstock.state.local_files import HashedFiles
from penstock.storage import Storage, exclusive_create
from penstock.testing.simulation import Fate, Intervention, Violation, Workload, random_workload
from penstock.testing.simulation import world as simulated_world
from penstock.testing.simulation.workload import SinkKind

Patch = pytest.MonkeyPatch
Mutation = Callable[[Patch], None]

MOST_SEEDS = 60


class Search(NamedTuple):
    """Where a mutation is looked for: seeds from `first_seed` on, in jobs that may meet what it breaks."""

    apply: Mutation
    first_seed: int
    jobs: dict[str, Any]


MUTATIONS: dict[str, Search] = {}


def mutation(first_seed: int = 0, **jobs: Any) -> Callable[[Mutation], Mutation]:
    """Add a mutation to the list.

    `first_seed`: one that finds it, so that the search is short; where the simulation changes, the search goes on from there.
    `jobs`: what all workloads of the search have in common, `mode` among it.
    """

    def add(apply: Mutation) -> Mutation:
        MUTATIONS[apply.__name__] = Search(apply, first_seed, jobs)
        return apply

    return add


LATE: dict[str, Any] = {
    "mode": Mode.AT_LEAST_ONCE,
    "emits_once": True,
    "machines": 1,
    "upload_pace": 0.5,
    "commit_pace": 0.2,
    "troubled_runs": 5,
    "records": 40,
    "keys": 40,
    "restarts": 0.0,
    "interventions": (),
}
"""At least once: uploads and commits come late, so that checkpoints take later versions, and runs die before all is committed."""


IN_A_CHAIN: dict[str, Any] = {
    **LATE,
    "mode": None,
    "checkpoint": Checkpointing(interval="1s", mode=Mode.AT_LEAST_ONCE, timeout="10min"),
    "modes": (),
    "backend": "filesystem",
    "troubled_runs": 10,
    "mischief": 0.0,
    "flakiness": 0.0,
    "operators": 3,
    "in_sequence": True,
    "parallelisms": (2,),
}
"""The same where each operator counts what the one before it emits, and has files of its own to upload."""

ENDS_UNHEARD: dict[str, Any] = {
    "checkpoint": Checkpointing(interval="1s"),
    "backend": "filesystem",
    "modes": (),
    "interventions": (),
    "troubled_runs": 6,
    "mischief": 0.3,
    "upload_pace": 12.0,
    "message_pace": 0.3,
}
"""Somebody stops runs early, when uploads are done of which the driver hears only then."""


COMMITS_LATE: dict[str, Any] = {
    "mode": Mode.EXACTLY_ONCE,
    "commit_pace": 0.2,
    "troubled_runs": 8,
    "interventions": (),
    "restarts": 0.0,
}
"""Runs die when a checkpoint exists, and before all that it promised is committed."""


MANY_DEATHS: dict[str, Any] = {
    "mode": Mode.EXACTLY_ONCE,
    "troubled_runs": 30,
    "records": 30,
    "operators": 1,
    "restarts": 0.0,
    "interventions": (),
    "retained": (),
    "savepoints": False,
    "readers": 0.0,
    "mischief": 0.0,
    "flakiness": 0.0,
}
"""Small jobs whose runs die and stand still again and again, most of the time while they restore."""


class Unchecked(Claim):
    """A claim that nobody looks at again."""

    @classmethod
    def of(cls, claim: Claim) -> Unchecked:
        return cls(claim.storage, claim.run, claim.token)

    def check(self) -> None:
        pass


@mutation(1)
def commit_before_the_metadata_is_written(patch: Patch) -> None:
    complete = Coordinator._complete

    def hasty(self: Coordinator, action: WriteMetadata) -> None:
        commit_in_order(self._committer._sinks, action.completed.transactions)
        complete(self, action)

    patch.setattr(Coordinator, "_complete", hasty)


@mutation(18)
def never_look_whether_another_run_owns_the_job(patch: Patch) -> None:
    made = Coordinator.__init__

    def blind(self: Coordinator, *given, claim: Claim, **named) -> None:
        made(self, *given, claim=Unchecked.of(claim), **named)

    patch.setattr(Coordinator, "__init__", blind)


@mutation(1)
def forget_the_transactions_of_batches_without_a_checkpoint(patch: Patch) -> None:
    patch.setattr(
        DueCommits,
        "promised",
        lambda self, up_to: tuple(one for one in self._uncommitted.values() if one.checkpoint == up_to),
    )


@mutation()
def discard_files_of_the_working_version(patch: Patch) -> None:
    needed = NeededFiles.needed

    def forgetful(self: NeededFiles, wanted) -> set[str]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "_working", frozenset())
            return needed(self, wanted)

    patch.setattr(NeededFiles, "needed", forgetful)


@mutation()
def discard_files_of_completed_checkpoints(patch: Patch) -> None:
    patch.setattr(NeededFiles, "needed", lambda self, wanted: set(self._working).union(*wanted))


@mutation(1)
def never_discard_a_file(patch: Patch) -> None:
    patch.setattr(NeededFiles, "discard", lambda self, wanted: ())


@mutation(5)
def never_forget_a_checkpoint(patch: Patch) -> None:
    patch.setattr(Protocol, "_subsume", lambda self: [])


@mutation()
def restore_without_aborting(patch: Patch) -> None:
    patch.setattr(restore, "_abort_others", lambda plan, spec, calls: None)


@mutation(**COMMITS_LATE)
def restore_without_committing(patch: Patch) -> None:
    patch.setattr(restore, "commit_in_order", lambda sinks, transactions, check: None)


@mutation(7, **MANY_DEATHS)
def restore_without_looking_again_whether_it_still_owns_the_job(patch: Patch) -> None:
    delete = restore.delete_leftovers
    patch.setattr(
        restore,
        "delete_leftovers",
        lambda plan, now: delete(replace(plan, claim=Unchecked.of(plan.claim)), now),
    )


@mutation()
def restore_without_deleting_leftovers(patch: Patch) -> None:
    patch.setattr(restore, "delete_leftovers", lambda plan, now: [])


@mutation(1)
def complete_before_the_files_are_in_storage(patch: Patch) -> None:
    def acknowledge(self: Pending, durable: object) -> None:
        if self.batch is not None:
            self.acknowledged.update(self.batch.handles)

    patch.setattr(Pending, "acknowledge_durable", acknowledge)


@mutation(12)
def acknowledge_exactly_once_with_a_later_version(patch: Patch) -> None:
    batch_finished = Protocol._batch_finished

    def remember(self: Protocol, event: BatchFinished, now):
        vars(self).setdefault("seen", []).append(event)
        return batch_finished(self, event, now)

    def late(self: Protocol, pending: Pending) -> None:
        batches = [one for one in vars(self).get("seen", ()) if one.batch >= pending.checkpoint]
        pending.take(
            {
                handle.subtask: handle
                for batch in batches
                for handle in batch.handles.values()
                if handle.files <= self.files.durable
            }
        )

    patch.setattr(Protocol, "_batch_finished", remember)
    patch.setattr(Protocol, "_acknowledge", late)
    patch.setattr(LaterVersions, "cut", lambda self, pending: pending.batch)


@mutation(56, **LATE)
def promise_at_least_once_only_what_lies_before_the_cut(patch: Patch) -> None:
    patch.setattr(Pending, "last_version", property(lambda self: self.checkpoint))


@mutation(16, **IN_A_CHAIN)
def take_an_earlier_version_behind_a_later_one(patch: Patch) -> None:
    made = LaterVersions.__init__
    patch.setattr(LaterVersions, "__init__", lambda self, upstream: made(self, dict.fromkeys(upstream, ())))


@mutation(29)
def write_an_older_checkpoint_behind_a_newer_one(patch: Patch) -> None:
    def eager(self: Protocol, now):
        actions = []
        for pending in sorted(self.pending.values(), key=lambda one: -one.checkpoint):
            self._acknowledge(pending)
            if pending.ready:
                pending.writing = self._content_of(pending, now)
                actions.append(WriteMetadata(pending.writing))
        return actions

    patch.setattr(Protocol, "_completions", eager)


@mutation(10)
def take_files_for_durable_that_nobody_has_uploaded(patch: Patch) -> None:
    patch.setattr(NeededFiles, "undurable", lambda self, files: self._working - self._durable)


@mutation(2)
def leave_out_files_that_an_earlier_snapshot_did_not_upload(patch: Patch) -> None:
    missing = Upload.missing.fget
    patch.setattr(
        Upload,
        "missing",
        property(
            lambda self: [name for name in missing(self) if f"/{self.run}-{self.handle.version}-" in name]
        ),
    )


@mutation(3)
def end_a_drain_before_the_last_batch_is_known(patch: Patch) -> None:
    def settled(self: Protocol) -> bool:
        newest = self._newest.batch if self._newest else NO_CHECKPOINT
        return not self.pending and not self.commits and self.last_completed >= newest

    patch.setattr(Protocol, "settled", property(settled))


@mutation(8, **ENDS_UNHEARD)
def give_up_at_the_end_of_the_job_what_is_being_written(patch: Patch) -> None:
    ended = Protocol._job_ended

    def ruthless(self: Protocol, now):
        for pending in self.pending.values():
            pending.writing = None
        return ended(self, now)

    patch.setattr(Protocol, "_job_ended", ruthless)


@mutation(7)
def sweep_what_is_still_to_be_committed(patch: Patch) -> None:
    sweep = Committer.sweep
    patch.setattr(
        Committer, "sweep", lambda self, action: sweep(self, SweepTransactions(action.up_to, frozenset()))
    )


@mutation(4)
def never_sweep(patch: Patch) -> None:
    patch.setattr(Committer, "sweep", lambda self, action: None)


@mutation(1)
def commit_every_batch_at_once(patch: Patch) -> None:
    finished = Protocol._batch_finished

    def hasty(self: Protocol, event, now):
        actions = finished(self, event, now)
        return self.commits._commit_up_to(event.batch) + actions

    patch.setattr(Protocol, "_batch_finished", hasty)


@mutation(1)
def read_again_although_it_is_at_most_once(patch: Patch) -> None:
    patch.setattr(reading, "record_started", lambda storage, started: None)


@mutation(13)
def forget_what_was_begun_when_a_run_begins_nothing(patch: Patch) -> None:
    take_over = started_batches.inherit_started
    patch.setattr(
        started_batches, "inherit_started", lambda storage, run, record: take_over(storage, run, None)
    )


@mutation(251)
def go_back_to_the_checkpoint_after_a_change_of_mode(patch: Patch) -> None:
    """As if what was begun concerned runs at most once only."""
    read = restore.read_stored

    def as_of_now(storage, mode, wanted):
        stored = read(storage, mode, wanted)
        return stored if mode is Mode.AT_MOST_ONCE else replace(stored, started=None)

    patch.setattr(restore, "read_stored", as_of_now)


@mutation()
def share_one_progress_log(patch: Patch) -> None:
    """And take whatever number a batch has."""
    patch.setattr(ProgressLog, "folder", property(lambda self: "spark/1"))
    patch.setattr(Reading, "_check_follows", lambda self, batch, after: None)


@mutation()
def decide_again_where_to_begin(patch: Patch) -> None:
    patch.setattr(Reading, "_keep_start", lambda self: None)
    patch.setattr(SourceLog, "take_up", lambda self, folder, numbers: None)


LOSES_ANSWERS: dict[str, Any] = {"object_store": True, "lost_answers": 0.6, "troubled_runs": 4}
"""The answers to conditional puts get lost."""


@mutation(**LOSES_ANSWERS)
def believe_a_store_that_says_the_name_exists(patch: Patch) -> None:
    """No read-back: an object that is there is taken for that of another creator."""
    own = exclusive_create._is_mine
    patch.setattr(exclusive_create, "_is_mine", lambda *call: None if own(*call) is None else False)


@mutation(first_seed=15, **LOSES_ANSWERS)
def believe_that_an_object_is_ones_own(patch: Patch) -> None:
    own = exclusive_create._is_mine
    patch.setattr(exclusive_create, "_is_mine", lambda *call: None if own(*call) is None else True)


@mutation(object_store=True, troubled_runs=4)
def begin_a_batch_before_its_start_is_recorded(patch: Patch) -> None:
    """Spark's log is lost with the machine, and with it where the sources began."""
    patch.setattr(Reading, "_keep_start", lambda self: None)


OTHER_SOURCES: dict[str, Any] = {
    "partitions": 3,
    "joins": (1, 2),
    "reorders": 1,
    "troubled_runs": 4,
    "interventions": (),
}


@mutation(1, **OTHER_SOURCES)
def go_by_the_order_of_the_sources(patch: Patch) -> None:
    matched = restore_plan.for_sources

    def by_order(barrier, sources, **options):
        right = matched(barrier, sources, **options)
        return msgspec.structs.replace(
            right,
            progress_log=progress_log.entry_of(right.progress_log, sorted(lines_of(right.progress_log))),
        )

    patch.setattr(restore_plan, "for_sources", by_order)


@mutation(8, **OTHER_SOURCES)
def leave_the_notes_of_sources_where_they_are(patch: Patch) -> None:
    matched = restore_plan.for_sources

    def unmoved(barrier, sources, **options):
        return msgspec.structs.replace(matched(barrier, sources, **options), source_log=barrier.source_log)

    patch.setattr(restore_plan, "for_sources", unmoved)


@mutation(1, **OTHER_SOURCES)
def decide_again_where_a_new_source_begins(patch: Patch) -> None:
    """What is recorded beside a checkpoint counts for nothing, and what was noted is not looked for."""
    patch.setattr(BarrierOverride, "is_of", lambda self, completed: False)
    patch.setattr(SourceLog, "take_up", lambda self, folder, numbers: None)


@mutation()
def leave_what_sources_have_noted_out_of_the_checkpoint(patch: Patch) -> None:
    patch.setattr(SourceLog, "keep", lambda self: ())


@mutation(16)
def let_go_of_what_the_next_run_begins_with(patch: Patch) -> None:
    patch.setattr(NeededFiles, "hold", lambda self, batch, barrier: None)


@mutation(2)
def discard_a_merged_file_before_its_batch_is_finished(patch: Patch) -> None:
    def take(self: NeededFiles, files, batch) -> None:
        self._durable.update(files)
        self._known.update(files)

    patch.setattr(NeededFiles, "take_durable", take)


@mutation(1)
def forget_what_was_merged_in_vain(patch: Patch) -> None:
    patch.setattr(NeededFiles, "take_durable", lambda self, files, batch: self._durable.update(files))


@mutation(2)
def wait_for_no_file_of_another_machine(patch: Patch) -> None:
    patch.setattr(fetch, "_await_arrival", lambda workplace, ref: None)


@mutation(25, troubled_runs=5, mischief=0.5)
def take_what_ran_twice(patch: Patch) -> None:
    """Operators and sinks: a task of the simulation is both, so that either check stands in for the other."""
    patch.setattr(acknowledgements, "_check_once", lambda given, operators, plan: None)
    patch.setattr(acknowledgements, "_check_written_once", lambda given, batch: None)


@mutation(15)
def put_a_merged_file_in_front(patch: Patch) -> None:
    def in_front(handle, merged):
        rest = tuple(ref for ref in handle.refs if ref.name not in merged.replaced)
        if len(rest) == len(handle.refs) or merged.ref is None:
            return handle
        return msgspec.structs.replace(handle, refs=(merged.ref, *rest))

    patch.setattr(merge_orders, "replaced", in_front)


@mutation(1)
def take_over_local_files_without_looking_at_them(patch: Patch) -> None:
    for look in ("hash", "known"):
        patch.setattr(HashedFiles, look, lambda self, path: _Anything())


class _Anything(tuple[int, str]):
    """Equals every size and checksum."""

    __slots__ = ()
    __hash__ = None

    def __new__(cls):
        return super().__new__(cls, (0, ""))

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


@mutation(troubled_runs=5, flakiness=0.05)
def let_a_driver_that_lost_the_job_take_it_back_by_a_restart(patch: Patch) -> None:
    patch.setattr(claim, "_is_of", lambda storage, run, claimant: True)


@mutation(troubled_runs=5, flakiness=0.05, restarts=1.0)
def take_a_restart_for_another_start(patch: Patch) -> None:
    patch.setattr(claim, "_is_of", lambda storage, run, claimant: False)


MEDDLED: dict[str, Any] = {
    "mode": Mode.EXACTLY_ONCE,
    "troubled_runs": 5,
    "flakiness": 0.004,
    "records": 60,
    "batch_size": 3,
    "upload_pace": 12.0,
    "message_pace": 12.0,
    "retained": (3,) * 5,
    "intervals_s": (1,) * 5,
    "interventions": (None, *Intervention, *Intervention),
}
"""Runs live long enough to retain checkpoints; somebody starts the job from the oldest, and cancels it with all it has kept."""


@mutation(60, **MEDDLED)
def go_on_from_the_newest_checkpoint_whichever_is_wanted(patch: Patch) -> None:
    patch.setattr(history, "_up_to", lambda whole, wanted: whole)


@mutation(**MEDDLED)
def forget_without_recording_that_the_job_goes_back_to_nothing(patch: Patch) -> None:
    patch.setattr(cleanup, "record_descent", lambda claim, restored_from, completed_by: None)


@mutation(336)
def forget_what_belongs_to_another_start(patch: Patch) -> None:
    """A zombie has taken the job before the driver that had it is cancelled: as if that were a first claim."""
    patch.setattr(cleanup, "claim", lambda storage, now, claimant: claim.claim(storage, now))


BAD: dict[str, Any] = {
    "mode": Mode.EXACTLY_ONCE,
    "bad_records": 0.2,
    "in_sequence": False,
    "emits_once": False,
    "sinks": (SinkKind.TRANSACTIONS,),
}


@mutation(**BAD)
def keep_the_state_of_a_call_that_raised(patch: Patch) -> None:
    patch.setattr(keyed.Cells, "undo", lambda self, index: None)


@mutation(**BAD)
def keep_results_and_drop_letters_of_a_sink(patch: Patch) -> None:
    patch.setattr(sink_writer.BadRows, "letters", lambda self: [])


@mutation(5, **BAD)
def count_from_nothing_after_a_recovery(patch: Patch) -> None:
    patch.setattr(run, "BadRecordCounts", lambda restored, **named: BadRecordCounts({}, **named))


@mutation(**BAD)
def leave_what_a_call_emitted_to_the_next_one(patch: Patch) -> None:
    def withdrawn(self: SideRows) -> dict[str, list[Any]]:
        return {name: list(rows) for name, rows in self._given.items()}

    patch.setattr(SideRows, "withdrawn", withdrawn)


TIMED: dict[str, Any] = {"mode": Mode.EXACTLY_ONCE, "timers": True, "interventions": (), "emits_once": False}


@mutation(5, **TIMED)
def wait_for_a_moment_that_is_too_late(patch: Patch) -> None:
    patch.setattr(ProcessTask, "due", lambda self: Due(10**15, 10**16))


@mutation(**TIMED)
def wait_for_nothing_while_there_are_no_rows(patch: Patch) -> None:
    carried = acknowledgements._carried_over
    patch.setattr(
        acknowledgements,
        "_carried_over",
        lambda plan, subtask: msgspec.structs.replace(carried(plan, subtask), due=Due()),
    )


@mutation(56, **TIMED, parallelisms=(1, 3, 2), troubled_runs=4)
def wait_for_nothing_after_a_change_of_parallelism(patch: Patch) -> None:
    patch.setattr(Due, "first", staticmethod(lambda of: Due()))


@mutation(7, **TIMED)
def leave_it_to_rows_to_bring_time_on(patch: Patch) -> None:
    patch.setattr(Run, "is_due", lambda self, by_us=None, **looked: False)


@mutation(5, **TIMED, troubled_runs=4)
def forget_with_a_run_how_far_time_had_come(patch: Patch) -> None:
    patch.setattr(
        run,
        "Watermarks",
        lambda sources, timed_by, reached, *rest, **named: Watermarks(
            sources, timed_by, TimeReached(), *rest, **named
        ),
    )


@mutation(15, **{**TIMED, "mode": Mode.AT_MOST_ONCE}, troubled_runs=4)
def begin_a_batch_at_most_once_without_its_time(patch: Patch) -> None:
    begin = Reading.begin

    def timeless(self: Reading, batch, barrier) -> None:
        begin(self, batch, msgspec.structs.replace(barrier, time=self.plan.barrier.time))

    patch.setattr(Reading, "begin", timeless)


@mutation(5, **TIMED, troubled_runs=4)
def end_a_batch_that_reads_nothing_where_the_run_began(patch: Patch) -> None:
    patch.setattr(
        Reading,
        "barrier",
        property(
            lambda self: self.plan.barrier if self.plan.barrier.positions.get("source-0") else self._barrier
        ),
    )


@mutation(3, **TIMED, troubled_runs=4)
def record_time_that_has_not_come(patch: Patch) -> None:
    reached = Watermarks.reached

    def hasty(self: Watermarks) -> TimeReached:
        time = reached(self)
        ahead = {uid: us + 5_000_000 for uid, us in time.watermarks_us.items()}
        return msgspec.structs.replace(time, watermarks_us=ahead)

    patch.setattr(Watermarks, "reached", hasty)


@mutation(**TIMED, drains=True, wakes_every=1)
def keep_what_the_end_of_time_has_done(patch: Patch) -> None:
    patch.setattr(
        run, "expiring_by_event_time", lambda layouts: frozenset({"first"}) if layouts else frozenset()
    )
    patch.setattr(SortedState, "purge", lambda self: None)


@mutation(
    182,
    **{**TIMED, "mode": Mode.AT_MOST_ONCE},
    drains=True,
    records=12,
    batch_size=3,
    operators=1,
    upload_pace=1.0,
    troubled_runs=8,
    restarts=0.0,
)
def record_time_as_going_on_before_its_end_is_cleared_away(patch: Patch) -> None:
    begin = Watermarks.begin_anew

    def hasty(self: Watermarks, batch) -> object:
        clocks = begin(self, batch)
        self.finish({})
        self._anew_in = NO_CHECKPOINT
        return clocks

    patch.setattr(Watermarks, "begin_anew", hasty)


HELD: dict[str, Any] = {
    "checkpoint": Checkpointing(interval="1s"),
    "readers": 0.1,
    "backend": "filesystem",
    "records": 60,
    "batch_size": 3,
    "modes": (),
    "retained": (),
    "interventions": (),
    "troubled_runs": 1,
}
"""Many checkpoints, of which one is retained, and somebody who reads them."""


@mutation(27, **HELD)
def subsume_what_somebody_holds(patch: Patch) -> None:
    patch.setattr(Coordinator, "_holds", lambda self: [])


@mutation(wants=1.0)
def answer_with_an_older_checkpoint(patch: Patch) -> None:
    patch.setattr(
        Protocol,
        "answer_to",
        lambda self, token, *, committed: (
            self.completed[-1] if token in self._waited_for and self.completed else None
        ),
    )


@mutation(wants=1.0, commit_pace=0.2)
def answer_before_all_is_committed(patch: Patch) -> None:
    patch.setattr(DueCommits, "are_committed", lambda self, completed: True)


SAVED = {
    "checkpoint": Checkpointing(interval="1s"),
    "savepoints": True,
    "backend": "filesystem",
    "modes": (),
    "interventions": (),
    "troubled_runs": 4,
}
"""Every run begins with a savepoint of the newest checkpoint."""


@mutation(9, **SAVED)
def load_only_one_part(patch: Patch) -> None:
    """Of the files that may hold rows of a subtask the first alone is read."""
    files = table_files._Loading._files
    patch.setattr(table_files._Loading, "_files", lambda self, name: files(self, name)[:1])


def job(seed: int, common: dict[str, Any]) -> Workload:
    """A random job with what the search wants. RocksDB has threads of its own, so that a seed does not tell all there."""
    fields = dict(common)
    drawn = random_workload(seed)
    if drawn.backend == "rocksdb":
        fields.setdefault("backend", "filesystem")
    mode = fields.pop("mode", None)
    if mode is not None:
        fields |= {"checkpoint": replace(drawn.checkpoint, mode=mode, timeout="10min"), "modes": ()}
    return msgspec.structs.replace(drawn, **fields)


def breaks(seed: int, common: dict[str, Any]) -> bool:
    """Whether the simulation of this seed finds anything."""
    try:
        with world(job(seed, common), seed) as simulated:
            simulated.live()
    except (Violation, PenstockError):
        return True
    return False


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What the mutated code logs interests nobody."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_rule_is_found(name: str) -> None:
    """Some seed fails when this rule is broken, and for no other reason."""
    search = MUTATIONS[name]
    seeds = range(search.first_seed, search.first_seed + MOST_SEEDS)
    with pytest.MonkeyPatch.context() as patch:
        search.apply(patch)
        found = next((seed for seed in seeds if breaks(seed, search.jobs)), None)
    assert found is not None, "no seed finds it"
    assert not breaks(found, search.jobs), f"seed {found} fails also without it"


def wake_before_every_metadata(seed: int) -> None:
    """A run stands still before it writes a metadata, and wakes up at some moment of the run that took over."""
    calls = calls_without_a_crash(Mode.EXACTLY_ONCE, seed=seed)
    writes = [number for number, call in enumerate(calls, start=1) if call.startswith("create chk-")]
    for call, wakes_at in product(writes, (15, 25, 40)):
        zombie = Fate(pauses_before=call, wakes_at=wakes_at)
        come_back(Mode.EXACTLY_ONCE, zombie, Fate(dies_before=wakes_at + 2), seed=seed)


def wake_with_many_seeds() -> None:
    """What a zombie does first when it wakes up, only chance decides."""
    for seed in range(MOST_SEEDS):
        wake_before_every_metadata(seed)


def test_restoring_outside_the_line_of_descent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A zombie that writes its metadata after the take-over is found when the next recovery goes on from it."""
    monkeypatch.setattr(history, "in_line_of_descent", lambda checkpoint, run, descents: True)
    with pytest.raises((Violation, PenstockError)):
        wake_with_many_seeds()


def test_discarding_without_looking_whether_another_run_owns_the_job_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A zombie that completes its checkpoint after the take-over deletes the one before, from which the new run went on."""
    discard = Coordinator._discard

    def careless(self: Coordinator, action: object) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "_claim", Unchecked.of(self._claim))
            discard(self, action)

    monkeypatch.setattr(Coordinator, "_discard", careless)
    with pytest.raises((Violation, PenstockError)):
        wake_with_many_seeds()


ENDS_AT_ONCE = Workload(
    checkpoint=Checkpointing(interval="1h", mode=Mode.AT_LEAST_ONCE),
    backend="memory",
    records=9,
    keys=2,
    batch_size=3,
    commit_pace=100.0,
)
"""One checkpoint, at the end, behind which nothing is to be committed or deleted: nothing more looks at the claim."""


def first_call(calls: Sequence[str], kind: str, what: str) -> int:
    return next(at for at, call in enumerate(calls, 1) if call.startswith(kind) and call.endswith(what))


def lives(seed: int, *fates: Fate) -> list[list[str]]:
    """The I/O calls of the runs of a job that ends at once, the first of which have these fates."""
    with world(ENDS_AT_ONCE, seed, fates) as here:
        here.live()
        return here.calls


def takes_the_job_while_the_metadata_is_written(seed: int) -> Fate:
    """Of a run that comes late: it claims between the look at the claim and the metadata, and dies when it has restored."""
    _, owner, *_ = lives(seed, Fate(pauses_before=1, wakes_at=sys.maxsize))
    late = Fate(pauses_before=1, wakes_at=first_call(owner, "create chk-", "/_metadata"))
    taker, *_ = lives(seed, late)
    return msgspec.structs.replace(late, dies_after=first_call(taker, "create runs/", ".restored"))


def live_all(fates: dict[int, Fate]) -> None:
    """Several seeds: where a commit comes behind the metadata, it looks at the claim."""
    for seed, fate in fates.items():
        lives(seed, fate)


def test_saying_that_the_input_is_done_without_owning_the_job_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that lost the job while it wrote its last checkpoint would end as if all input were in it."""
    fates = {seed: takes_the_job_while_the_metadata_is_written(seed) for seed in range(3)}
    live_all(fates)
    monkeypatch.setattr(Run, "check_claim", lambda self: None)
    with pytest.raises(Violation, match="the job is finished, but its checkpoints are at"):
        live_all(fates)


def read_while_every_metadata_is_written() -> None:
    """Somebody puts a hold and chooses the checkpoint that the metadata, which is written in this moment, subsumes."""
    calls = calls_without_a_crash(Mode.EXACTLY_ONCE)
    for metadata in (at for at, call in enumerate(calls, 1) if call.startswith("create chk-")):
        with world(workload(), SEED) as here:
            here.reads_before = metadata
            here.live()
            assert here.readings == 1


def test_looking_for_holds_before_the_metadata_is_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader whose hold comes between the two has chosen what is deleted: it would have to begin again, and here does not."""
    monkeypatch.setattr(
        simulated_world, "read_newest", lambda storage, read, only: read(retained_checkpoint(storage))
    )
    read_while_every_metadata_is_written()
    look, write = Coordinator._holds, Coordinator._write
    seen: dict[int, Any] = {}

    def look_and_write(self: Coordinator, completed: Completed) -> None:
        seen[id(self)] = look(self)
        write(self, completed)

    monkeypatch.setattr(Coordinator, "_write", look_and_write)
    monkeypatch.setattr(Coordinator, "_holds", lambda self: seen[id(self)])
    with pytest.raises(Violation, match="a reader with a hold has begun with"):
        read_while_every_metadata_is_written()


def test_a_hold_that_names_another_checkpoint_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reader reads is kept because its hold names it."""
    monkeypatch.setattr(simulated_world, "read_newest", chosen_and_read)
    read_while_every_metadata_is_written()
    monkeypatch.setattr(Hold, "keeps", lambda self, checkpoint, run: self.checkpoint == checkpoint + 1)
    with pytest.raises(Violation, match="a reader with a hold has begun with"):
        read_while_every_metadata_is_written()


def chosen_and_read(
    storage: Storage, read: Callable[[Completed], None], only: Callable[[int, int], None]
) -> None:
    """As a reader does, without beginning again."""
    completed = retained_checkpoint(storage)
    only(completed.checkpoint, completed.run)
    read(completed)


def die_at_every_call_of_a_start_from_a_savepoint() -> None:
    calls = calls_of_a_start_from_a_savepoint()
    first = next(at for at, call in enumerate(calls, 1) if call.startswith("create chk-"))
    for call in range(first, first + 8):
        come_back(Mode.EXACTLY_ONCE, dies_behind_a_commit(), Fate(dies_before=call), savepoints=True)


def test_a_line_that_begins_before_its_checkpoint_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that adopts a savepoint, and dies between the record of its line and the checkpoint, would leave a job without a history."""
    write, record = savepoint_restore.write_metadata, savepoint_restore.record_descent

    def recorded_first(storage: Storage, completed: Completed) -> None:
        run = RunId(completed.run)
        record(Claim(storage, run, read_run(storage, run).claimant), NO_CHECKPOINT, 0)
        write(storage, completed)

    monkeypatch.setattr(savepoint_restore, "write_metadata", recorded_first)
    monkeypatch.setattr(savepoint_restore, "record_descent", lambda *_: None)
    with pytest.raises((Violation, PenstockError)):
        die_at_every_call_of_a_start_from_a_savepoint()
