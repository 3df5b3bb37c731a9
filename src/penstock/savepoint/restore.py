"""Begin with a savepoint: its state becomes a completed checkpoint of the job, and from there on the start is an ordinary one. Driver.

The order is what makes it safe:
1. look whether the job may begin with it, and whether it fits: whatever is refused is refused before anything is changed;
2. claim the job, so that no earlier run can commit any more, and look again;
3. load the state into files that nothing names yet;
4. write the metadata of a checkpoint, which is in nobody's line of descent yet;
5. record that this run begins a line of its own. In this moment the job has adopted the savepoint.
A crash before the last step leaves the job as it was, and what was written is deleted at its next start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.checkpoint.completed import Barrier, Completed, OperatorState, SourceFile
from penstock.checkpoint.metadata import write_metadata
from penstock.clock import Clock
from penstock.errors import ConfigError, IncompatibleStateError, UnavailableError
from penstock.ids import NO_CHECKPOINT, RunId, SubtaskId
from penstock.job_spec import JobSpec
from penstock.log_fields import about, of_job
from penstock.ownership.claim import JOB_FILE, Claim, Claimant, claim, newest_run
from penstock.ownership.descent import read_descents, record_descent
from penstock.ownership.heartbeat import Alive, beat
from penstock.progress import working
from penstock.randomness import SYSTEM_RANDOMNESS, Randomness
from penstock.recovery.history import History, read_history
from penstock.recovery.progress_log import COPIES
from penstock.recovery.restore import RestorePoint, read_job_record, record_key_groups
from penstock.recovery.started_batches import last_started
from penstock.recovery.state_migration import RunRestoreTasks
from penstock.savepoint.load import Load
from penstock.savepoint.manifest import MAKING, MANIFEST, Manifest, SavedFile
from penstock.savepoint.tables import checked_bytes
from penstock.state.handle import StateHandle
from penstock.state.local_files import make_job_dir, run_dir
from penstock.storage import Storage
from penstock.storage.forwarding import Subfolder

_log = logging.getLogger(__name__)

Check = Callable[[RestorePoint], None]
"""Refuses, by raising, a checkpoint that the job cannot go on from."""


REKEYED = "state/_rekeyed"
"""Where tables lie meanwhile whose key groups are others. No checkpoint names them: they are deleted with other leftovers."""


@dataclass(frozen=True)
class GivenSavepoint:
    """A savepoint that a start was given."""

    folder: Storage
    manifest: Manifest
    claim: bool = False
    """Whether it becomes the job's own: then its folder is deleted when it was adopted."""


Rekey = Callable[[GivenSavepoint, Storage, int], Manifest]
"""Writes the tables of a savepoint into a folder, for another max_parallelism. Sort keys are Spark's, of which the engine knows nothing."""


def restore_savepoint(
    spec: JobSpec,
    savepoint: GivenSavepoint,
    *,
    clock: Clock,
    perform_all: RunRestoreTasks,
    check: Check,
    rekey: Rekey | None = None,
    drop_state: tuple[str, ...] = (),
    randomness: Randomness = SYSTEM_RANDOMNESS,
    token: str = "",
    alive: Alive = lambda _: nullcontext(),
    before_claim: Callable[[], None] = lambda: None,
) -> bool:
    """Make the savepoint the job's newest checkpoint, unless it has adopted it before; true if it was done now.

    `token`: that of the start's claimant, to which the run of the adoption belongs. `alive`: says that it is, while it loads.
    `before_claim`: see `start_run`.
    """
    of_job(spec.name)
    if not _may_adopt(spec.storage, savepoint.manifest):
        if savepoint.claim:  # a crash may have come before it was done
            delete_claimed(savepoint.folder)
        return False
    _check_fits(spec, savepoint.manifest, check, may_rekey=rekey is not None)
    before_claim()
    mine = claim(spec.storage, clock.wall(), Claimant(token) if token else Claimant())
    try:
        if not _may_adopt(spec.storage, savepoint.manifest):
            return False
        make_job_dir(spec.working_folder)
        local_dir = run_dir(spec.working_folder, mine.run, randomness.token(8))
        with alive(mine):
            fitting = _with_key_groups(spec, savepoint, mine, rekey)
            loading = _loading(spec, fitting, mine, frozenset(drop_state), local_dir)
            _adopt(spec, savepoint, mine, loading, perform_all)
    finally:
        _say_that_it_ended(mine, clock)
    _log.info("job %s begins with the savepoint %s", spec.name, savepoint.folder.uri)
    if savepoint.claim:
        delete_claimed(savepoint.folder)
    return True


def _say_that_it_ended(mine: Claim, clock: Clock) -> None:
    """The start itself is a run of its own. Storage may be away, which must not hide why the adoption failed."""
    try:
        beat(mine.storage, mine.run, clock.wall(), ended=True)
    except UnavailableError as error:
        _log.warning("run %d has ended, and could not say so: %s", mine.run, error)


def _with_key_groups(
    spec: JobSpec, savepoint: GivenSavepoint, mine: Claim, rekey: Rekey | None
) -> GivenSavepoint:
    """The savepoint with the key groups of the job: itself, or a copy that is the job's."""
    if rekey is None or savepoint.manifest.max_parallelism == spec.max_parallelism:
        return savepoint
    _log.info(
        "the savepoint has max_parallelism=%d, the job %d: its keys are hashed anew",
        *(savepoint.manifest.max_parallelism, spec.max_parallelism),
    )
    to = Subfolder(spec.storage, f"{REKEYED}/{mine.run}")
    with working("hashing the keys of the savepoint anew", unit="operator", job=spec.name):
        return GivenSavepoint(to, rekey(savepoint, to, spec.max_parallelism))


def _loading(
    spec: JobSpec, savepoint: GivenSavepoint, mine: Claim, left_out: frozenset[str], local_dir: Path
) -> Load:
    return Load(
        savepoint.folder,
        savepoint.manifest,
        spec.storage,
        spec.backend,
        local_dir,
        mine.run,
        spec.parallelism,
        spec.max_parallelism,
        left_out=left_out,
    )


def _adopt(
    spec: JobSpec, savepoint: GivenSavepoint, mine: Claim, load: Load, perform_all: RunRestoreTasks
) -> None:
    manifest = savepoint.manifest
    empty = _empty_handles(spec, manifest)
    with working("loading the savepoint", unit="subtask", job=spec.name):
        loaded = perform_all(load, [handle for handles in empty.values() for handle in handles])
    by_uid: dict[str, list[StateHandle]] = {uid: [] for uid in manifest.operators}
    for one in loaded:
        by_uid[one.handle.subtask.uid].append(one.handle)
    barrier = _brought_in(spec.storage, savepoint, mine.run)
    mine.check()
    adopted = _as_checkpoint(spec, manifest, mine.run, by_uid, barrier)
    claimed = savepoint.folder.uri if savepoint.claim else ""
    write_metadata(spec.storage, msgspec.structs.replace(adopted, claimed=claimed))
    record_descent(mine, NO_CHECKPOINT, 0)
    record_key_groups(mine, spec.max_parallelism)


def _may_adopt(storage: Storage, manifest: Manifest) -> bool:
    """False if it has been done; raises where the job has another history, which would be lost or written again."""
    history = read_history(storage, read_descents(storage))
    newest = history.whole[-1] if history.whole else None
    if newest is not None and newest.savepoint == manifest.id:
        _log.info(
            "the job has begun with this savepoint before: it goes on from checkpoint %d",
            newest.id,
            extra=about(checkpoint=newest.id),
        )
        return False
    if history.broken:
        raise IncompatibleStateError(
            f"the job in {storage.uri} has checkpoints that cannot be used: {'; '.join(history.broken.values())}. Nothing was changed. "
            "Give the job a storage of its own to begin with a savepoint",
        )
    if newest is not None and not _is_origin(storage, newest, manifest):
        raise ConfigError(
            f"the job in {storage.uri} has a history of its own, up to checkpoint {newest.id}, and the savepoint was not made of that: "
            "what came after it would be written again. Nothing was changed. Give the job a storage of its own, or start it without the "
            "savepoint",
            checkpoint=newest.id,
        )
    _refuse_what_was_begun(storage, history, manifest)
    return True


def _is_origin(storage: Storage, newest: Completed, manifest: Manifest) -> bool:
    made_of = manifest.origin
    same = (made_of.checkpoint, made_of.run) == (newest.checkpoint, newest.run)
    return (
        same and storage.size(JOB_FILE) is not None and made_of.identity == read_job_record(storage).identity
    )


def _refuse_what_was_begun(storage: Storage, history: History, manifest: Manifest) -> None:
    """At most once, batches count as read from their beginning: none may be read again."""
    begun = last_started(storage)
    if begun is not None and begun.id > history.newest:
        raise ConfigError(
            f"the job in {storage.uri} has begun batch {begun.id}, which the savepoint of batch {manifest.number} would read again. "
            "Nothing was changed. Give the job a storage of its own",
            batch=begun.id,
        )


def _check_fits(spec: JobSpec, manifest: Manifest, check: Check, *, may_rekey: bool) -> None:
    """As a checkpoint of the job it would be refused for the same reasons: before it is one."""
    if manifest.max_parallelism != spec.max_parallelism and not may_rekey:
        raise ConfigError(
            f"the savepoint has max_parallelism={manifest.max_parallelism}, the job {spec.max_parallelism}: key groups would no longer "
            "match",
            setting="max_parallelism",
        )
    nobodys = Claim(spec.storage, newest_run(spec.storage), token="")
    empty = _as_checkpoint(spec, manifest, nobodys.run, _empty_handles(spec, manifest), manifest.barrier)
    check(RestorePoint(nobodys, (empty,)))


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


def _brought_in(storage: Storage, savepoint: GivenSavepoint, run: RunId) -> Barrier:
    """The barrier, with what sources have noted in the job's own storage."""
    barrier = savepoint.manifest.barrier
    notes: list[SourceFile] = []
    for note in barrier.source_log:
        data = checked_bytes(savepoint.folder, SavedFile(note.name, note.size, note.checksum))
        name = f"{COPIES}/{run}-{note.path.replace('/', '-')}"
        storage.put(name, data)
        notes.append(msgspec.structs.replace(note, name=name))
    return msgspec.structs.replace(barrier, source_log=tuple(notes))


def delete_claimed(folder: Storage) -> None:
    """Delete a savepoint that is the job's own. The manifest first: what is left of it then is no savepoint."""
    folder.delete([MANIFEST])
    folder.delete(_parts(folder))


def delete_rest_of_claimed(folder: Storage) -> None:
    """The same where the manifest is gone already: a crash may have left the rest. A savepoint that somebody makes there now stays."""
    rest = _parts(folder)
    if all(
        folder.size(name) is None for name in (MAKING, MANIFEST)
    ):  # looked at behind the listing: who makes one says so first
        folder.delete(rest)


def _parts(folder: Storage) -> list[str]:
    return [name for name in folder.names() if name.startswith(("state/", "sources/"))]


def has_claimed(storage: Storage, folder: Storage) -> bool:
    """Whether the job's history began with the savepoint in this folder, which became its own and is gone."""
    whole = read_history(storage, read_descents(storage)).whole
    return bool(whole) and whole[-1].claimed == folder.uri
