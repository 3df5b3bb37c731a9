"""From whatever a failure left to a clean starting point."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from builders.checkpoints import checkpoint_ids
from builders.protocol_story import JOB, completed
from builders.restore_plans import job_spec, plan_of
from builders.sink_double import TroubledSink, staged, visible
from penstock.checkpoint.metadata import (
    CheckpointName,
    mark_committed,
    write_metadata,
)
from penstock.checkpoint.model import PreCommitted
from penstock.config import Mode
from penstock.errors import (
    CommitLostError,
    ConfigError,
    CorruptStateError,
    FencedError,
    IncompatibleStateError,
    InternalError,
    UnavailableError,
)
from penstock.ids import CheckpointId, RunId, checked_name
from penstock.job_spec import JobSpec
from penstock.ownership.claim import Claimant, claim, newest_run, read_descents
from penstock.ownership.heartbeat import beat, refuse_if_running
from penstock.ownership.holds import put_hold, release_hold
from penstock.ownership.job_record import (
    JobRecord,
    check_job_record,
    job_record_of,
    keep_job_record,
    read_job_record,
    record_key_groups,
)
from penstock.recovery.cleanup import forget_everything
from penstock.recovery.restore import Restored, check_restorable, restore
from penstock.recovery.restore_options import RestoreOptions
from penstock.recovery.restore_plan import RestorePlan
from penstock.storage import LocalStorage, Storage
from penstock.storage.file_system import temporary_name
from penstock.storage.forwarding import ForwardingStorage, Operation
from penstock.testing.faulty_storage import FaultPlan, FaultyStorage, PlannedFailure, SimulatedCrash
from penstock.testing.simulation.external import External

T = TypeVar("T")
UID = "out"
NOW = 1_000.0


class Scene:
    """A job that ran once, as run 1, and is to be restored."""

    def __init__(self, root: Path) -> None:
        self.storage = LocalStorage(root)
        self.external = External()
        self.sink = TroubledSink(self.external)
        assert self.restore().run == 1

    def spec(self, **given: Any) -> JobSpec:
        return job_spec(**{"storage": self.storage, "sinks": {UID: self.sink}, **given})

    def restored(self, wanted: int | None = None, **given: Any) -> Restored:
        wanted_id = None if wanted is None else CheckpointId(wanted)
        return restore(self.spec(**given), now=NOW, wanted=wanted_id)

    def restore(self, wanted: int | None = None, **given: Any) -> RestorePlan:
        return self.restored(wanted, **given).plan

    def stage(self, batch: int, run: int = 1) -> PreCommitted:
        return self.sink.stage(JOB, UID, run=run, batch=batch)

    def checkpoint(
        self, number: int, *files: str, run: int = 1, promises: tuple[PreCommitted, ...] = ()
    ) -> None:
        for name in files:
            self.storage.put(name, b"rows")
        write_metadata(self.storage, completed(number, *files, run=run, transactions=promises))


def chk(number: int, run: int = 1) -> CheckpointName:
    return CheckpointName(CheckpointId(number), RunId(run))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_the_first_run_starts_from_nothing(scene: Scene) -> None:
    """A job without a checkpoint begins at the beginning, and says so in its line of descent."""
    point = scene.restore()
    assert (point.run, point.checkpoint, point.id) == (2, None, -1)
    assert [one.restored_from for one in read_descents(scene.storage)] == [-1, -1]


def test_a_sink_that_was_renamed_keeps_its_promises(scene: Scene) -> None:
    """What was promised under the old uid is committed, and what nothing names is aborted, under both."""
    promised, stray = (scene.sink.stage(JOB, "old", run=1, batch=batch) for batch in (3, 4))
    own = scene.stage(4)
    scene.checkpoint(3, promises=(promised,))
    restore(scene.spec(), RestoreOptions(rename={"old": UID}), now=NOW)
    assert visible(scene.external) == [(1, 3, 0)]
    assert staged(scene.external) == []
    assert {stray.sink, own.sink} == {"old", UID}


def test_newest_checkpoint(scene: Scene) -> None:
    """It goes on from the newest, keeps the older ones that are retained, and deletes what nothing names."""
    scene.checkpoint(3, "state/a")
    scene.checkpoint(5, "state/a", "state/b")
    scene.storage.put("state/stray", b"")
    point = scene.restore()
    assert [one.checkpoint for one in point.retained] == [3, 5]
    assert scene.storage.names("state") == ["state/a", "state/b"]


def test_a_mark_without_its_checkpoint_is_deleted(scene: Scene) -> None:
    """A zombie may note that a checkpoint is committed when that is already deleted; recovery clears it away."""
    scene.checkpoint(5)
    for number in (3, 5):
        mark_committed(scene.storage, completed(number, run=1))
    scene.restore()
    assert [name for name in scene.storage.names() if name.startswith("chk-")] == chk(5).files


def test_promised_transactions_are_committed_and_others_aborted(scene: Scene) -> None:
    """What the checkpoint names becomes visible, what came after it is thrown away."""
    promises = (scene.stage(4), scene.stage(5))
    scene.stage(6)
    scene.checkpoint(5, promises=promises)
    scene.restore()
    assert visible(scene.external) == [(1, 4, 0), (1, 5, 0)]
    assert staged(scene.external) == []


def test_committing_again_changes_nothing(scene: Scene) -> None:
    """A promise that was kept before the crash is kept once."""
    promise = scene.stage(5)
    scene.checkpoint(5, promises=(promise,))
    scene.sink.commit(promise.transaction)
    scene.restore()
    scene.restore()
    assert visible(scene.external) == [(1, 5, 0)]


def test_a_checkpoint_noted_as_committed_needs_its_sink_no_more(scene: Scene) -> None:
    """When everything it promised is known to be committed, a sink may be removed from the job."""
    elsewhere = TroubledSink(scene.external).stage(JOB, "gone", run=1, batch=5)
    scene.checkpoint(5, promises=(elsewhere,))
    with pytest.raises(
        IncompatibleStateError, match="transactions of the sink gone, which the job no longer has"
    ):
        scene.restore()
    scene.sink.commit(elsewhere.transaction)
    mark_committed(scene.storage, completed(5, run=1))
    assert scene.restore().id == 5


@pytest.mark.parametrize("mode", list(Mode))
def test_what_was_promised_under_a_mode_is_kept_under_another(scene: Scene, mode: Mode) -> None:
    """A start in another mode commits what the checkpoint promised; one that was completed at most once promises nothing."""
    scene.checkpoint(5, promises=(scene.stage(5),))
    scene.restore(mode=mode)
    assert (visible(scene.external), staged(scene.external)) == ([(1, 5, 0)], [])


def test_transactions_of_a_newer_run_are_not_touched(scene: Scene) -> None:
    """What a run that does not exist here yet has begun is none of our business."""
    scene.stage(0, run=9)
    scene.restore()
    assert staged(scene.external) == [(9, 0, 0)]


def test_exactly_once_does_not_go_back_by_itself(scene: Scene) -> None:
    """What a broken checkpoint had committed would be written again: the job stops, says so, and leaves everything as it is."""
    scene.checkpoint(3, "state/a")
    scene.storage.put(chk(5).metadata, b"rubbish")
    scene.storage.put("state/of-5", b"")
    with pytest.raises(CorruptStateError, match=r"chk-5-r1/_metadata is corrupt.*start with restore=3"):
        scene.restore()
    assert "state/of-5" in scene.storage.names()
    assert checkpoint_ids(scene.storage) == [3, 5]
    assert scene.restore(wanted=3).id == 3


def test_going_back_by_choice_says_what_it_costs(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """Newer checkpoints are deleted, so they are named before; going on from the newest one costs nothing, and says nothing."""
    for number in (3, 5, 8):
        scene.checkpoint(number, f"state/of-{number}")
    scene.restore(wanted=8)
    assert "deleted" not in caplog.text
    scene.restore(wanted=3)
    assert (
        "goes back to checkpoint 3, and 2 newer checkpoints are deleted: 5, 8. What they made visible stays"
        in caplog.text
    )


def test_corrupt_metadata_falls_back(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """At least once, the newest whole checkpoint is used instead, and the log says what is wrong and what follows."""
    scene.checkpoint(3, "state/a")
    scene.storage.put(chk(5).metadata, b"rubbish")
    with caplog.at_level(logging.WARNING):
        point = scene.restore(mode=Mode.AT_LEAST_ONCE)
    assert point.id == 3
    assert "chk-5-r1/_metadata is corrupt" in caplog.text
    assert "goes on from checkpoint 3" in caplog.text
    assert checkpoint_ids(scene.storage) == [3]


def test_a_missing_state_file_falls_back(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint that names a file which is gone is not used."""
    scene.checkpoint(3, "state/a")
    scene.checkpoint(5, "state/b")
    scene.storage.delete(["state/b"])
    with pytest.raises(CorruptStateError, match=r"such as state/b.*start with restore=3"):
        scene.restore()
    assert scene.restore(mode=Mode.AT_LEAST_ONCE).id == 3
    assert "checkpoint 5 needs 1 state file that is gone, such as state/b" in caplog.text


def test_nothing_left_to_restore_is_an_error(scene: Scene) -> None:
    """A job that had checkpoints does not silently start from nothing; and the failed run does not seem to live on."""
    scene.checkpoint(5, "state/b")
    scene.storage.delete(["state/b"])
    with pytest.raises(
        CorruptStateError, match="no checkpoint can be restored: checkpoint 5 needs 1 state file that is gone"
    ):
        scene.restore()
    assert checkpoint_ids(scene.storage) == [5]
    refuse_if_running(scene.storage, NOW)


def test_wanted_checkpoint(scene: Scene) -> None:
    """An older one can be asked for; the newer ones are gone then, for later runs too."""
    for number in (3, 5, 7):
        scene.checkpoint(number, f"state/{number}")
    point = scene.restore(wanted=5)
    assert [one.checkpoint for one in point.retained] == [3, 5]
    assert scene.storage.names("state") == ["state/3", "state/5"]
    assert scene.restore().id == 5


def test_a_wanted_checkpoint_that_is_not_there(scene: Scene) -> None:
    """The refusal lists what there is, and nothing is deleted."""
    scene.checkpoint(3)
    with pytest.raises(ConfigError, match=r"checkpoint 4 cannot be restored: there are 3;"):
        scene.restore(wanted=4)
    assert checkpoint_ids(scene.storage) == [3]


def test_a_crash_after_a_choice_keeps_to_the_choice(scene: Scene) -> None:
    """Once a run has recorded that it goes back to 3, the newer 5 does not come back when that run dies."""
    scene.checkpoint(3)
    scene.checkpoint(5, promises=(scene.stage(5),))
    recorded = PlannedFailure(pattern="runs/2.restored", performed=True, error=SimulatedCrash)
    with pytest.raises(SimulatedCrash):
        scene.restore(wanted=3, storage=FaultyStorage(scene.storage, FaultPlan(failures=(recorded,))))
    assert scene.restore().id == 3
    assert visible(scene.external) == []


def test_a_zombie_checkpoint_is_ignored_and_deleted(scene: Scene) -> None:
    """What run 1 completes after run 2 took over counts for nothing: neither its state nor its transactions."""
    scene.checkpoint(3, "state/a")
    assert scene.restore().run == 2
    scene.checkpoint(5, "state/zombie", promises=(scene.stage(5),))
    point = scene.restore()
    assert (point.run, point.id) == (3, 3)
    assert checkpoint_ids(scene.storage) == [3]
    assert scene.storage.names("state") == ["state/a"]
    assert (visible(scene.external), staged(scene.external)) == ([], [])


def test_unfinished_files_of_dead_writers_are_deleted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed writer left goes in a recovery when it is old enough; what may still be written to stays."""
    scene.checkpoint(3, "state/a")
    unfinished = scene.storage.root / "state" / temporary_name()
    unfinished.write_bytes(b"half a ru")
    scene.restore()
    assert unfinished.exists()
    monkeypatch.setattr(
        "penstock.recovery.cleanup.ABANDONED_AFTER_S", -1.0
    )  # nobody can wait ten minutes here
    scene.restore()
    assert not unfinished.exists()
    assert scene.storage.names("state") == ["state/a"]


class Disturbed(LocalStorage):
    """Something else happens right after the first listing of a folder."""

    def __init__(self, root: Path, folder: str, happens) -> None:
        super().__init__(root)
        self._folder = folder
        self._happens = happens

    def names(self, prefix: str = "") -> list[str]:
        found = super().names(prefix)
        if prefix == self._folder and self._happens is not None:
            happens, self._happens = self._happens, None
            happens()
        return found


def test_a_checkpoint_subsumed_during_the_take_over(scene: Scene) -> None:
    """A live run that deletes an old checkpoint between listing and reading does not break the take-over."""
    scene.checkpoint(3, "state/a")
    scene.checkpoint(5, "state/b")
    storage = Disturbed(scene.storage.root, "", lambda: scene.storage.delete([chk(3).metadata]))
    assert [one.checkpoint for one in scene.restore(storage=storage).retained] == [5]


def test_a_checkpoint_completed_during_the_take_over(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """A file that appears together with its checkpoint while both are listed is not taken for missing."""
    storage = Disturbed(scene.storage.root, "state", lambda: scene.checkpoint(5, "state/new"))
    with caplog.at_level(logging.WARNING):
        point = scene.restore(storage=storage)
    assert point.id == -1
    assert not caplog.records


def test_a_run_fenced_while_it_restores_destroys_nothing(scene: Scene) -> None:
    """A run that stood still in its recovery while another took over leaves that one's files and transactions alone."""
    scene.checkpoint(3, "state/a")

    def successor() -> None:
        assert scene.restore().run == 3
        scene.checkpoint(4, "state/a", "state/b", run=3, promises=(scene.stage(4, run=3),))

    storage = Disturbed(scene.storage.root, "state", successor)
    with pytest.raises(FencedError, match="run 2 was replaced by"):
        scene.restore(storage=storage)
    assert checkpoint_ids(scene.storage) == [3, 4]
    assert scene.storage.names("state") == ["state/a", "state/b"]
    assert scene.restore().id == 4
    assert visible(scene.external) == [(3, 4, 0)]


def test_a_run_fenced_while_it_decides_leaves_no_trace(scene: Scene) -> None:
    """A checkpoint that landed between two recoveries stays the choice of the later one, whatever the earlier records afterwards."""
    scene.checkpoint(3)
    promise = scene.stage(5)

    def successor() -> None:
        scene.checkpoint(5, promises=(promise,))  # run 1 was just writing it
        scene.sink.refusals = 1
        with pytest.raises(UnavailableError):
            scene.restore()  # run 3 decides for 5, and is held up by its sink

    with pytest.raises(FencedError, match="run 2 was replaced by"):
        scene.restore(storage=Disturbed(scene.storage.root, "state", successor))
    assert staged(scene.external) == [(1, 5, 0)]
    assert scene.restore().id == 5
    assert visible(scene.external) == [(1, 5, 0)]


def test_a_run_fenced_before_it_cleans_up_deletes_nothing(scene: Scene) -> None:
    """Also later, just before leftovers are deleted, it looks again who owns the job."""
    scene.checkpoint(3, "state/a")
    find = scene.sink.find_transactions

    def take_over(job: str, sink: str):
        scene.sink.find_transactions = find  # type: ignore[method-assign]
        assert scene.restore().run == 3
        scene.checkpoint(4, "state/b", run=3)
        return find(job, sink)

    scene.sink.find_transactions = take_over  # type: ignore[method-assign]
    with pytest.raises(FencedError):
        scene.restore()
    assert checkpoint_ids(scene.storage) == [3, 4]


def test_a_sink_that_is_down_ends_the_recovery(scene: Scene) -> None:
    """The promise is kept by the next attempt."""
    scene.checkpoint(5, promises=(scene.stage(5),))
    scene.sink.refusals = 1
    with pytest.raises(UnavailableError):
        scene.restore()
    scene.restore()
    assert visible(scene.external) == [(1, 5, 0)]


def test_a_sink_that_is_down_does_not_keep_the_others_from_committing(scene: Scene) -> None:
    """Whatever their order, the healthy sinks commit what was promised; the error names the one that did not."""
    down = TroubledSink(External(), refusals=1)
    sinks = {"a-down": down, UID: scene.sink}
    promises = (down.stage(JOB, "a-down", run=1, batch=5), scene.stage(5))
    scene.checkpoint(5, promises=promises)
    with pytest.raises(
        UnavailableError, match=r"the sink a-down does not commit: .* The job resumes from checkpoint 5 when"
    ) as failed:
        scene.restore(sinks=sinks)
    assert failed.value.facts == {"sinks": ("a-down",), "denied": False}
    assert visible(scene.external) == [(1, 5, 0)]
    assert scene.restore(sinks=sinks).id == 5
    assert (visible(scene.external), visible(down._external)) == ([(1, 5, 0)], [(1, 5, 0)])


class Raises(TroubledSink):
    """A sink, or a function of the user, that raises whatever its library raises."""

    def commit(self, transaction):
        if self.refusals:
            self.refusals -= 1
            raise ConnectionResetError("by peer")
        super().commit(transaction)


def test_a_commit_that_raises_anything_may_pass(scene: Scene) -> None:
    """What is tried again while the job runs is tried again when it starts: the error names the sink and what it raised."""
    down = Raises(External(), refusals=1)
    scene.checkpoint(5, promises=(down.stage(JOB, "function", run=1, batch=5),))
    sinks = {"function": down, UID: scene.sink}
    with pytest.raises(
        UnavailableError, match="the sink function does not commit: ConnectionResetError: by peer"
    ):
        scene.restore(sinks=sinks)
    scene.restore(sinks=sinks)
    assert visible(down._external) == [(1, 5, 0)]


def test_a_lost_commit_is_said_before_a_sink_that_is_down(scene: Scene) -> None:
    """Waiting helps the one and not the other, so a person hears of what needs a person."""
    down = TroubledSink(External(), refusals=1)
    promises = (down.stage(JOB, "a-down", run=1, batch=5), scene.stage(5))
    scene.checkpoint(5, promises=promises)
    scene.external.staged.clear()
    with pytest.raises(CommitLostError):
        scene.restore(sinks={"a-down": down, UID: scene.sink})


def test_old_runs_are_forgotten(scene: Scene) -> None:
    """A job that restarts for ever does not fill its storage with records."""
    for _ in range(40):
        scene.restore()
    assert newest_run(scene.storage) == 41
    assert len(scene.storage.names("runs")) <= 3 * 20


def test_claim_comes_first(scene: Scene) -> None:
    """Even a recovery that dies at once has fenced the runs before it."""
    with pytest.raises(SimulatedCrash):
        scene.restore(storage=FaultyStorage(scene.storage, FaultPlan(crash_after=2)))
    assert newest_run(scene.storage) == 2
    assert claim(scene.storage, NOW).run == 3


def test_job_record(tmp_path: Path) -> None:
    """The maximum parallelism is fixed by the first run; a damaged record is said to be damaged."""
    storage = LocalStorage(tmp_path)
    check_job_record(storage, JobRecord(JOB, 128))
    check_job_record(storage, JobRecord(JOB, 128))
    with pytest.raises(ConfigError, match=r"max_parallelism=64 but the job in .* was started with 128"):
        check_job_record(storage, JobRecord(JOB, 64))
    storage.put("job.json", b"[")
    with pytest.raises(CorruptStateError, match=r"job\.json"):
        check_job_record(storage, JobRecord(JOB, 128))


def test_of_two_first_starts_one_has_the_identity(tmp_path: Path) -> None:
    """Later starts look for transactions under the one in the file: a run of another would leave its own behind for ever."""
    storage = LocalStorage(tmp_path)
    first, second = (job_record_of(storage, JobRecord(JOB, 128)) for _ in range(2))
    assert first.owner != second.owner
    assert storage.names() == []
    keep_job_record(storage, first)
    keep_job_record(storage, first)
    with pytest.raises(ConfigError, match="another start has just begun a job in"):
        keep_job_record(storage, second)
    assert job_record_of(storage, JobRecord(JOB, 128)) == read_job_record(storage) == first


def test_the_record_of_a_job_outlives_other_key_groups(tmp_path: Path) -> None:
    """The start that has changed them knows the job by what was written before."""
    storage = LocalStorage(tmp_path)
    known = check_job_record(storage, JobRecord(JOB, 128))
    record_key_groups(claim(storage, NOW), 1024)
    keep_job_record(storage, known)
    assert read_job_record(storage).max_parallelism == 1024


def test_a_run_that_was_replaced_records_no_key_groups(tmp_path: Path) -> None:
    """It would write what an earlier savepoint had, and no start would fit both the record and the checkpoint any more."""
    storage = LocalStorage(tmp_path)
    check_job_record(storage, JobRecord(JOB, 128))
    zombie, owner = claim(storage, NOW), claim(storage, NOW)
    record_key_groups(owner, 1024)
    with pytest.raises(FencedError):
        record_key_groups(zombie, 512)
    assert read_job_record(storage).max_parallelism == 1024


def test_a_storage_belongs_to_one_job(tmp_path: Path) -> None:
    """Another job, or another format, in the same storage is refused with the name of the job that owns it."""
    storage = LocalStorage(tmp_path)
    check_job_record(storage, JobRecord("views", 128))
    check_job_record(storage, JobRecord("views", 128))
    with pytest.raises(ConfigError, match="belongs to the job 'views'"):
        check_job_record(storage, JobRecord("visits", 128))
    with pytest.raises(ConfigError, match=r"this is 'views' \(format 3"):
        check_job_record(storage, JobRecord("views", 128, format=3))


def test_two_jobs_of_one_name_are_two_owners(tmp_path: Path) -> None:
    """Each storage draws an identity at the first start and keeps it, so that jobs of one name tell their transactions apart."""
    first, second = (
        check_job_record(LocalStorage(tmp_path / name), JobRecord("views", 128)) for name in ("a", "b")
    )
    assert first.owner != second.owner
    assert check_job_record(LocalStorage(tmp_path / "a"), JobRecord("views", 128)).owner == first.owner
    assert first.owner.startswith("views-")


def test_an_owner_is_as_short_as_a_name(tmp_path: Path) -> None:
    """The longest job name leaves room for the identity."""
    record = check_job_record(LocalStorage(tmp_path), JobRecord("x" * 100, 128))
    assert checked_name("job", record.owner).endswith(record.identity)


# ── nothing is destroyed before everything is checked, and nothing of another run ever ───────────


def test_a_refused_checkpoint_destroys_nothing(scene: Scene) -> None:
    """A checkpoint that does not fit the job is refused while the newer ones, and their transactions, are still there."""
    scene.checkpoint(3, "state/a")
    scene.checkpoint(5, "state/b", promises=(scene.stage(5),))

    with pytest.raises(IncompatibleStateError, match="checkpoint 3 holds state of the operator views"):
        scene.restore(wanted=3, layouts={})
    assert scene.restore().id == 5
    assert visible(scene.external) == [(1, 5, 0)]


def test_a_checkpoint_of_another_format_is_refused(scene: Scene) -> None:
    """Metadata that a newer version wrote is not broken: the start is refused, and nothing is deleted."""
    scene.checkpoint(3, "state/a")
    scene.storage.put(chk(5).metadata, b'{"format": 99, "checksum": "", "checkpoint": {}}')
    for wanted in (None, 3):
        with pytest.raises(IncompatibleStateError, match="chk-5-r1/_metadata has format 99"):
            scene.restore(wanted=wanted)
    assert checkpoint_ids(scene.storage) == [3, 5]


@pytest.mark.parametrize("mode", list(Mode))
def test_vanished_metadata_is_no_start_from_nothing(scene: Scene, mode: Mode) -> None:
    """A run went on from checkpoint 5; when that is gone the next one stops and says so, and the state stays."""
    scene.checkpoint(5, "state/a")
    scene.restore()
    scene.storage.delete([chk(5).metadata])
    with pytest.raises(
        CorruptStateError, match="run 2 went on from checkpoint 5, and neither chk-5-r1/_metadata nor"
    ):
        scene.restore(mode=mode)
    assert scene.storage.names("state") == ["state/a"]


def test_a_subsumed_checkpoint_is_not_missed(scene: Scene) -> None:
    """The checkpoint that a run went on from may be gone when that run has completed one of its own."""
    scene.checkpoint(5, "state/a")
    scene.restore()
    scene.checkpoint(7, "state/a", run=2)
    scene.storage.delete(chk(5).files)
    assert scene.restore().id == 7


def test_what_is_being_subsumed_cannot_be_chosen(scene: Scene) -> None:
    """A run that stands still before it deletes an old checkpoint has said so in the new one: nobody goes on from the old one."""
    scene.checkpoint(3, "state/a")
    subsuming = msgspec.structs.replace(completed(5, run=1), oldest_retained=5)
    write_metadata(scene.storage, subsuming)
    with pytest.raises(ConfigError, match=r"checkpoint 3 cannot be restored: there are 5;"):
        scene.restore(wanted=3)


class StandsStillBeforeDeleting(LocalStorage):
    """Something else happens right before the first deletion of a checkpoint."""

    def __init__(self, root: Path, happens: Callable[[], None]) -> None:
        super().__init__(root)
        self._happens = happens

    def delete(self, names: Iterable[str]) -> None:
        names = list(names)
        if any(name.startswith("chk-") for name in names):
            happens, self._happens = self._happens, lambda: None
            happens()
        super().delete(names)


def test_a_zombie_in_its_recovery_deletes_nothing_of_its_successor(scene: Scene) -> None:
    """It listed what to delete before the successor completed a checkpoint of the same number."""
    scene.checkpoint(3, "state/a")
    scene.restore()
    scene.checkpoint(5, "state/zombie")  # run 1, woken up

    def successor() -> None:
        assert scene.restore().run == 4
        scene.checkpoint(5, "state/a", "state/b", run=4)

    point = scene.restore(storage=StandsStillBeforeDeleting(scene.storage.root, successor))
    assert point.run == 3
    assert scene.restore().id == 5
    assert scene.storage.names("state") == ["state/a", "state/b"]


def test_a_cancelled_job_that_is_taken_over_deletes_nothing_of_its_successor(scene: Scene) -> None:
    """Whoever takes over while a cancelled run deletes starts from nothing, and keeps what it makes."""
    claimant = Claimant()
    claim(scene.storage, NOW, claimant)
    scene.checkpoint(3, "state/a", run=2)

    def successor() -> None:
        assert scene.restore().checkpoint is None
        scene.checkpoint(3, "state/b", run=4)

    forget_everything(StandsStillBeforeDeleting(scene.storage.root, successor), NOW, claimant)
    assert scene.restore().id == 3
    assert scene.storage.names("state") == ["state/b"]


class InBetween(ForwardingStorage):
    """Something else happens right before the call of this number, from 1."""

    def __init__(self, inner: Storage, call: int, happens: Callable[[], None]) -> None:
        super().__init__(inner)
        self._left = call
        self._happens = happens

    def _perform(self, operation: Operation, name: str, work: Callable[[], T]) -> T:
        self._left -= 1
        if not self._left:
            self._happens()
        return super()._perform(operation, name, work)


@pytest.mark.parametrize("call", range(1, 16))
def test_whenever_a_cancelled_job_is_taken_over_its_successor_keeps_what_it_relies_on(
    scene: Scene, call: int
) -> None:
    """It goes on from the checkpoint or from nothing, as the cancelled run had decided by then; neither that nor its own is deleted."""
    claimant = Claimant()
    claim(scene.storage, NOW, claimant)
    scene.checkpoint(3, "state/a")
    files: list[str] = []

    def successor() -> None:
        point = scene.restore()
        files[:] = [*(point.checkpoint.files if point.checkpoint else ()), "state/b"]
        scene.storage.put("state/b", b"rows")
        write_metadata(scene.storage, completed(5, *files, run=point.run))

    with suppress(FencedError):
        forget_everything(InBetween(scene.storage, call, successor), NOW, claimant)
    if not files:  # the cancelled run was done before
        successor()
    assert scene.restore().id == 5
    assert scene.storage.names("state") == files


def test_a_fenced_run_forgets_nothing(scene: Scene) -> None:
    """A run that is cancelled after another took the job over leaves that one's checkpoints alone."""
    claimant = Claimant()
    claim(scene.storage, NOW, claimant)
    scene.restore()
    scene.checkpoint(3, "state/a", run=3)
    with pytest.raises(FencedError):
        forget_everything(scene.storage, NOW, claimant)
    assert scene.restore().id == 3


def test_strangers_among_the_records_are_ignored(scene: Scene) -> None:
    """File managers and network file systems leave files of their own."""
    for name in ("runs/.nfs000000000001", "runs/.DS_Store", "runs/old.json", "runs/x.restored"):
        scene.storage.put(name, b"?")
    scene.checkpoint(3, "state/a")
    for _ in range(25):
        point = scene.restore()
    assert (point.run, point.id) == (26, 3)


def test_what_a_start_may_drop_is_dropped_once(tmp_path: Path) -> None:
    """The first checkpoint that the start completes holds the state as it is to be: a restart drops nothing from it."""
    spec = job_spec(LocalStorage(tmp_path))
    for first_run, completed_by, dropped in [(None, 2, True), (3, 2, True), (3, 3, False), (3, 4, False)]:
        checkpoint = completed(5, "state/a", run=completed_by)
        plan = plan_of(spec, [checkpoint], run=5, first_run=first_run, drop_state=("views",))
        assert bool(plan.state.handles) is not dropped


def test_two_jobs_of_one_name_leave_each_other_alone(tmp_path: Path) -> None:
    """With storages of their own and one target, the recovery of one neither aborts nor commits what the other has staged."""
    external = External()
    sink = TroubledSink(external)
    storages = [LocalStorage(tmp_path / name) for name in ("a", "b")]
    owners = [check_job_record(storage, JobRecord("views", 128)).owner for storage in storages]
    for storage, owner in zip(storages, owners, strict=True):
        restore(job_spec(storage, sinks={UID: sink}, owner=owner), now=NOW)
    promise = sink.stage(owners[0], UID, run=1, batch=5)
    write_metadata(storages[0], completed(5, run=1, transactions=(promise,)))
    restore(job_spec(storages[1], sinks={UID: sink}, owner=owners[1]), now=NOW)
    assert len(external.staged) == 1
    again = restore(job_spec(storages[0], sinks={UID: sink}, owner=owners[0]), now=NOW)
    assert again.plan.id == 5
    assert visible(external) == [(1, 5, 0)]


def test_a_start_that_never_had_the_job_forgets_nothing(scene: Scene) -> None:
    """Who is cancelled before coming up leaves alone what another start has."""
    scene.checkpoint(3, "state/a")
    with pytest.raises(InternalError, match="never had the job"):
        forget_everything(scene.storage, NOW, Claimant())
    assert scene.restore().id == 3


def test_what_is_refused_does_not_fence_the_run_that_is_well(scene: Scene) -> None:
    """A take-over with a checkpoint that is not there, or that does not fit, leaves the owner the owner."""
    scene.checkpoint(3, "state/a")

    with pytest.raises(ConfigError, match="checkpoint 77 cannot be restored"):
        check_restorable(scene.spec(), RestoreOptions(), now=NOW, wanted=CheckpointId(77))
    with pytest.raises(IncompatibleStateError):
        check_restorable(scene.spec(layouts={}), RestoreOptions(), now=NOW)
    assert newest_run(scene.storage) == 1


def test_a_mark_of_a_newer_checkpoint_without_its_metadata_is_noticed(scene: Scene) -> None:
    """Somebody has deleted the metadata of the newest checkpoint: the one before it is not silently the newest."""
    scene.checkpoint(3, "state/a")
    scene.checkpoint(5, "state/a")
    mark_committed(scene.storage, completed(5, run=1))
    scene.storage.delete([chk(5).metadata])
    with pytest.raises(
        CorruptStateError, match=r"checkpoint 5 was committed, and chk-5-r1/_metadata is gone.*restore=3"
    ):
        scene.restore()


def test_a_newest_checkpoint_that_was_deleted_whole_is_noticed(scene: Scene) -> None:
    """A run says with its heartbeat which checkpoint it has, so an older one is not silently the newest."""
    scene.checkpoint(3, "state/a")
    scene.checkpoint(5, "state/a")
    beat(scene.storage, RunId(1), NOW, ended=True, completed=CheckpointId(5))
    scene.storage.delete(chk(5).files)
    with pytest.raises(CorruptStateError, match=r"run 1 had checkpoint 5, and it is gone.*restore=3"):
        scene.restore()
    assert scene.restore(wanted=3).id == 3
    assert scene.restore().id == 3


@pytest.mark.parametrize("failure", [("holds", "names"), ("holds/*", "get")])
def test_holds_that_cannot_be_seen_do_not_keep_a_job_from_starting(
    scene: Scene, failure: tuple[str, Operation], caplog: pytest.LogCaptureFixture
) -> None:
    """They are another user's files: what somebody may be reading is left to the run."""
    scene.storage.put("state/left", b"rows")
    put_hold(scene.storage, "ab", NOW, "a reader of another user")
    pattern, operation = failure
    plan = FaultPlan(failures=(PlannedFailure(pattern=pattern, operation=operation, times=99),))
    restored = scene.restored(storage=FaultyStorage(scene.storage, plan))
    assert list(restored.left_over) == ["state/left"]
    assert scene.storage.names("state") == ["state/left"]
    assert "holds of readers cannot be read" in caplog.text


def test_what_somebody_holds_is_not_deleted_by_a_start(scene: Scene) -> None:
    """A checkpoint that the start leaves behind, and files that nothing names, are handed on to be deleted later."""
    scene.checkpoint(3, "state/a")
    scene.checkpoint(5, "state/b")
    put_hold(scene.storage, "ab", NOW, "a test")
    before = [name for name in scene.storage.names() if name.startswith(("chk-", "state/"))]
    plan, left_over = scene.restored(wanted=3)
    assert (plan.id, left_over) == (3, (chk(5).metadata, "state/b"))
    assert [name for name in scene.storage.names() if name.startswith(("chk-", "state/"))] == before
    release_hold(scene.storage, "ab")
    assert scene.restored().left_over == ()
    assert [name for name in scene.storage.names() if name.startswith(("chk-", "state/"))] == [
        chk(3).metadata,
        "state/a",
    ]
