"""Start a job from a savepoint: its state becomes a completed checkpoint of the job, from which the first run resumes. Driver.

The order makes it safe:
1. check whether the job may start from it, and whether it fits: whatever is refused is refused before anything is changed;
2. claim the job, so that no earlier run can commit any more, and check again;
3. load the state into files that nothing names yet;
4. write the metadata of a checkpoint, which is not in the line of descent of any run yet;
5. record that this run starts a line of its own. From this moment on the job has adopted the savepoint.
A crash before the last step leaves the job as it was; its next start deletes what was written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.checkpoint.metadata import write_metadata
from penstock.checkpoint.model import Barrier, Completed, OperatorState, SourceFile
from penstock.clock import Clock
from penstock.errors import ConfigError, IncompatibleStateError, UnavailableError
from penstock.ids import NO_CHECKPOINT, SYSTEM_RANDOMNESS, Randomness, RunId, SubtaskId
from penstock.job_spec import JobSpec
from penstock.log_fields import about, of_job
from penstock.long_work import working
from penstock.ownership.claim import (
    JOB_FILE,
    Claim,
    Claimant,
    claim,
    newest_run,
    read_descents,
    record_descent,
)
from penstock.ownership.heartbeat import Alive, beat
from penstock.ownership.job_record import read_job_record, record_key_groups
from penstock.recovery.history import History, StoredJob, read_history
from penstock.recovery.progress_log import COPIES
from penstock.recovery.restore_options import Latest, RestoreOptions
from penstock.recovery.restore_plan import plan_restore, unknown_end
from penstock.recovery.started_batches import last_started
from penstock.recovery.state_migration import RunRestoreTasks
from penstock.savepoint.manifest import MAKING, MANIFEST, Manifest, SavedFile, read_manifest
from penstock.savepoint.table_files import Load, checked_bytes
from penstock.state.handle import StateHandle
from penstock.state.local_files import make_job_dir, run_dir
from penstock.storage import Storage, open_storage
from penstock.storage.forwarding import Subfolder

_log = logging.getLogger(__name__)

REKEYED = "state/_rekeyed"
"""Where tables are rewritten for another number of key groups. No checkpoint names them: they are deleted with other leftovers."""


@dataclass(frozen=True)
class GivenSavepoint:
    """A savepoint that a start was given."""

    folder: Storage
    manifest: Manifest
    claim: bool = False
    """Whether the job takes ownership: then the folder is deleted after the job has adopted it."""


Rekey = Callable[[GivenSavepoint, Storage, int], Manifest]
"""Writes the tables of a savepoint into a folder, for another max_parallelism. Only Spark can compute the sort keys."""


def restore_savepoint(
    spec: JobSpec,
    savepoint: GivenSavepoint,
    options: RestoreOptions = RestoreOptions(),  # noqa: B008 - it is frozen
    *,
    clock: Clock,
    run_tasks: RunRestoreTasks,
    latest: Latest = unknown_end,
    rekey: Rekey | None = None,
    randomness: Randomness = SYSTEM_RANDOMNESS,
    token: str = "",
    alive: Alive = lambda _: nullcontext(),
    before_claim: Callable[[], None] = lambda: None,
) -> bool:
    """Make the savepoint the job's newest checkpoint; false if an earlier start has done so.

    `token`: that of the start's claimant, to which the run of the restore belongs. `alive`: keeps the heartbeat going while tasks load.
    `latest`, `before_claim`: see `start_run`.
    """
    of_job(spec.name)
    if not _may_adopt(spec.storage, savepoint.manifest):
        if savepoint.claim:  # an earlier start may have crashed before it deleted the folder
            delete_claimed(savepoint.folder)
        return False
    _check_key_groups(spec, savepoint.manifest, may_rekey=rekey is not None)
    _check_plan(spec, savepoint.manifest, options, now=clock.wall(), latest=latest)
    before_claim()
    mine = claim(spec.storage, clock.wall(), Claimant(token) if token else Claimant())
    try:
        if not _may_adopt(spec.storage, savepoint.manifest):
            return False
        make_job_dir(spec.working_folder)
        local_dir = run_dir(spec.working_folder, mine.run, randomness.token(8))
        with alive(mine):
            rekeyed = _with_key_groups(spec, savepoint, mine, rekey)
            load = Load(
                rekeyed.folder,
                rekeyed.manifest,
                spec.storage,
                spec.backend,
                local_dir,
                mine.run,
                spec.parallelism,
                spec.max_parallelism,
                left_out=frozenset(options.drop_state),
            )
            _adopt(spec, savepoint, mine, load, run_tasks)
    finally:
        _record_end(mine, clock)
    _log.info("job %s starts from the savepoint %s", spec.name, savepoint.folder.uri)
    if savepoint.claim:
        delete_claimed(savepoint.folder)
    return True


def _record_end(mine: Claim, clock: Clock) -> None:
    """The start continues with a run of its own. A storage that is away must not hide why the restore failed."""
    try:
        beat(mine.storage, mine.run, clock.wall(), ended=True)
    except UnavailableError as error:
        _log.warning("the end of run %d could not be recorded: %s", mine.run, error)


def _with_key_groups(
    spec: JobSpec, savepoint: GivenSavepoint, mine: Claim, rekey: Rekey | None
) -> GivenSavepoint:
    """The savepoint with the job's number of key groups: itself, or a copy in the job's storage."""
    if rekey is None or savepoint.manifest.max_parallelism == spec.max_parallelism:
        return savepoint
    _log.info(
        "the savepoint has max_parallelism=%d, the job %d: its keys are hashed again",
        *(savepoint.manifest.max_parallelism, spec.max_parallelism),
    )
    to = Subfolder(spec.storage, f"{REKEYED}/{mine.run}")
    with working("hashing the keys of the savepoint again", unit="operator", job=spec.name):
        return GivenSavepoint(to, rekey(savepoint, to, spec.max_parallelism))


def _adopt(
    spec: JobSpec, savepoint: GivenSavepoint, mine: Claim, load: Load, run_tasks: RunRestoreTasks
) -> None:
    manifest = savepoint.manifest
    empty = _empty_handles(spec, manifest)
    with working("loading the savepoint", unit="subtask", job=spec.name):
        loaded = run_tasks(load, [handle for handles in empty.values() for handle in handles])
    by_uid: dict[str, list[StateHandle]] = {uid: [] for uid in manifest.operators}
    for one in loaded:
        by_uid[one.handle.subtask.uid].append(one.handle)
    barrier = _copied_barrier(spec.storage, savepoint, mine.run)
    mine.check()
    adopted = _as_checkpoint(spec, manifest, mine.run, by_uid, barrier)
    claimed = savepoint.folder.uri if savepoint.claim else ""
    write_metadata(spec.storage, msgspec.structs.replace(adopted, claimed=claimed))
    record_descent(mine, NO_CHECKPOINT, 0)
    record_key_groups(mine, spec.max_parallelism)


def _may_adopt(storage: Storage, manifest: Manifest) -> bool:
    """False if the job has adopted it; raises if the job has another history, which would be lost or written again."""
    history = read_history(storage, read_descents(storage))
    newest = history.whole[-1] if history.whole else None
    if newest is not None and newest.savepoint == manifest.id:
        _log.info(
            "the job has started from this savepoint before: it resumes from checkpoint %d",
            newest.id,
            extra=about(checkpoint=newest.id),
        )
        return False
    if history.broken:
        raise IncompatibleStateError(
            f"the job in {storage.uri} has checkpoints that cannot be used: {'; '.join(history.broken.values())}. Nothing was changed. "
            "Give the job a storage of its own to start it from a savepoint",
        )
    if newest is not None and not _is_origin(storage, newest, manifest):
        raise ConfigError(
            f"the job in {storage.uri} has a history of its own, up to checkpoint {newest.id}, and the savepoint was not made of that: "
            "what came after it would be written again. Nothing was changed. Give the job a storage of its own, or start it without the "
            "savepoint",
            checkpoint=newest.id,
        )
    _refuse_started_batches(storage, history, manifest)
    return True


def _is_origin(storage: Storage, newest: Completed, manifest: Manifest) -> bool:
    made_of = manifest.origin
    same = (made_of.checkpoint, made_of.run) == (newest.checkpoint, newest.run)
    return (
        same and storage.size(JOB_FILE) is not None and made_of.identity == read_job_record(storage).identity
    )


def _refuse_started_batches(storage: Storage, history: History, manifest: Manifest) -> None:
    """At most once, a batch counts as read as soon as it starts: it must not be read again."""
    started = last_started(storage)
    if started is not None and started.id > history.newest:
        raise ConfigError(
            f"the job in {storage.uri} has started batch {started.id}, which the savepoint of batch {manifest.number} would read again. "
            "Nothing was changed. Give the job a storage of its own",
            batch=started.id,
        )


def _check_key_groups(spec: JobSpec, manifest: Manifest, *, may_rekey: bool) -> None:
    if manifest.max_parallelism != spec.max_parallelism and not may_rekey:
        raise ConfigError(
            f"the savepoint has max_parallelism={manifest.max_parallelism}, the job {spec.max_parallelism}: key groups would no longer "
            "match",
            setting="max_parallelism",
        )


def _check_plan(
    spec: JobSpec, manifest: Manifest, options: RestoreOptions, *, now: float, latest: Latest
) -> None:
    """Refuse the savepoint for the reasons for which the same checkpoint would be refused, before it becomes one."""
    unclaimed = Claim(spec.storage, newest_run(spec.storage), token="")
    empty = _as_checkpoint(spec, manifest, unclaimed.run, _empty_handles(spec, manifest), manifest.barrier)
    plan_restore(unclaimed, StoredJob((empty,)), spec, options, now=now, latest=latest)


def _empty_handles(spec: JobSpec, manifest: Manifest) -> dict[str, list[StateHandle]]:
    return {
        uid: [
            StateHandle(SubtaskId(uid, index), spec.backend.name, manifest.checkpoint)
            for index in range(spec.parallelism)
        ]
        for uid in manifest.operators
    }


def _as_checkpoint(
    spec: JobSpec,
    manifest: Manifest,
    run: RunId,
    handles: dict[str, list[StateHandle]],
    barrier: Barrier,
) -> Completed:
    operators = {
        uid: OperatorState(
            saved.columns.key,
            saved.columns.value,
            tuple(sorted(handles[uid], key=lambda handle: handle.subtask.index)),
            saved.columns.tables,
            saved.columns.lifetimes,
            saved.columns.schema,
        )
        for uid, saved in manifest.operators.items()
    }
    return Completed(
        job=spec.name,
        checkpoint=manifest.checkpoint,
        run=run,
        mode=manifest.mode,
        max_parallelism=spec.max_parallelism,
        parallelism=spec.parallelism,
        barrier=barrier,
        operators=operators,
        bad_records=manifest.bad_records,
        late_rows=manifest.late_rows,
        completed_at=manifest.made_at,
        now_us=manifest.now_us,
        savepoint=manifest.id,
    )


def _copied_barrier(storage: Storage, savepoint: GivenSavepoint, run: RunId) -> Barrier:
    """The barrier; files that its sources need are copied into the job's storage."""
    barrier = savepoint.manifest.barrier
    notes: list[SourceFile] = []
    for note in barrier.source_log:
        data = checked_bytes(savepoint.folder, SavedFile(note.name, note.size, note.checksum))
        name = f"{COPIES}/{run}-{note.path.replace('/', '-')}"
        storage.put(name, data)
        notes.append(msgspec.structs.replace(note, name=name))
    return msgspec.structs.replace(barrier, source_log=tuple(notes))


def delete_claimed(folder: Storage) -> None:
    """Delete a savepoint that the job owns. The manifest goes first: the rest is no savepoint then."""
    folder.delete([MANIFEST])
    folder.delete(_parts(folder))


def delete_rest_of_claimed(folder: Storage) -> None:
    """The same if the manifest is gone already, because a crash may have left the rest. A savepoint being made there stays."""
    rest = _parts(folder)
    # Checked after the listing: a savepoint that is being made writes its marker first.
    if all(folder.size(name) is None for name in (MAKING, MANIFEST)):
        folder.delete(rest)


def _parts(folder: Storage) -> list[str]:
    return [name for name in folder.names() if name.startswith(("state/", "sources/"))]


def has_claimed(storage: Storage, folder: Storage) -> bool:
    """Whether the job started from the savepoint in this folder, took ownership of it and deleted it."""
    whole = read_history(storage, read_descents(storage)).whole
    return bool(whole) and whole[-1].claimed == folder.uri


def given_savepoint(storage: Storage, savepoint: str | Path | None, *, claim: bool) -> GivenSavepoint | None:
    """The savepoint of a start of the job in this storage, read and checked; None if there is nothing to start from."""
    if savepoint is None:
        return None
    folder = open_storage(savepoint)
    if claim and folder.size(MANIFEST) is None and has_claimed(storage, folder):
        delete_rest_of_claimed(folder)  # what a crash may have left of it
        return None
    return GivenSavepoint(folder, read_manifest(folder), claim)
