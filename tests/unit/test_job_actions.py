"""What a job does for whoever asks: checkpoints and savepoints over several runs, and the last wish of a stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from builders.protocol_story import Story, completed
from penstock.checkpoint.loop import CoordinatorLoop
from penstock.checkpoint.model import Completed, OperatorColumns
from penstock.cli import request_commands
from penstock.errors import ConfigError, FencedError, UnavailableError
from penstock.ids import NO_CHECKPOINT
from penstock.ownership.claim import Claimant, claim
from penstock.ownership.holds import find_holds
from penstock.requests.job_actions import JobActions
from penstock.requests.request_files import Kind, Request
from penstock.savepoint import request
from penstock.savepoint.create import ReportProgress, claim_folder
from penstock.savepoint.manifest import MANIFEST, Manifest, SavedFile, SavedOperator, read_manifest
from penstock.storage import LocalStorage, Storage
from penstock.storage.forwarding import ForwardingStorage
from penstock.testing.virtual import VirtualClock

TOKEN = "0123456789abcdef"


class Run:
    """A run whose protocol is told everything at once, in place of a loop with threads."""

    def __init__(self, *restored: Completed) -> None:
        self._told = Story(restored=restored, interval="1h")
        self.coordinator = self

    def post(self, event: Any) -> None:
        self._told.tell(event)

    def answer_to(self, token: str, *, committed: bool = False) -> Completed | None:
        return self._told.protocol.answer_to(token, committed=committed)

    def story(self) -> str:
        return "nothing was told"

    @property
    def last_completed(self) -> int:
        return self._told.protocol.last_completed


class Clock(VirtualClock):
    """While somebody waits for a checkpoint, other things happen; a hold is not renewed."""

    def __init__(self) -> None:
        super().__init__()
        self.happens: Callable[[], None] = lambda: None

    def wait(self, until: threading.Event, seconds: float) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return until.wait()
        self.happens()
        return super().wait(until, seconds)


class Scene:
    """A job in a folder, and whatever run of it there is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.storage = LocalStorage(root / "store" / "story")
        self.clock = Clock()
        self.run: Run | None = None
        self.stopped: list[str] = []
        self.claimant = Claimant()
        self.actions = JobActions(
            self.storage,
            self.claimant,
            present=lambda: cast("CoordinatorLoop | None", self.run),
            stop=lambda: self.stopped.append("stop"),
            cancel=lambda: self.stopped.append("cancel"),
            clock=self.clock,
        )

    def restored(self, number: int) -> Run:
        """A run that has this checkpoint."""
        name = f"state/views/{number}"
        self.storage.put(name, b"rows")
        return Run(completed(number, name))

    def wish(self, kind: Kind = Kind.SAVEPOINT, **options: Any) -> Request:
        now = self.clock.wall()
        return Request(kind=kind, asked_at=now, until=now + 60, **options)


def create(
    job_storage: Storage,
    made_of: Completed,
    to: Storage,
    *,
    token: str,
    committed: bool,
    report: ReportProgress,
    given_up: Callable[[], bool],
) -> Manifest:
    """Without reading any state."""
    assert committed
    assert not given_up()
    del job_storage, report
    attempt = claim_folder(to, token)
    made = Manifest(
        id=token, checkpoint=made_of.checkpoint, mode="exactly-once", parallelism=1, max_parallelism=1
    )
    return attempt.finish(made)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(request, "create_in_child_process", create)
    return Scene(tmp_path)


def test_a_savepoint_beside_the_job(scene: Scene) -> None:
    """Without a folder of choice it lies beside the job's, under checkpoint and token; nothing is held behind it."""
    scene.run = scene.restored(7)
    made = scene.actions.savepoint(TOKEN, scene.wish())
    folder = Path(made["savepoint"])
    assert folder.parent == scene.root / "store" / "story-savepoints"
    assert folder.name.startswith("7-01234567-")
    assert made["checkpoint"] == read_manifest(LocalStorage(folder)).checkpoint == 7
    assert scene.storage.names("holds") == []


def test_the_same_request_again_finds_what_it_has_made(scene: Scene) -> None:
    """A run that died before it could answer has made it; the next one, with a newer checkpoint, makes no other."""
    scene.run = scene.restored(7)
    first = scene.actions.savepoint(TOKEN, scene.wish())
    scene.run = scene.restored(9)
    assert scene.actions.savepoint(TOKEN, scene.wish())["savepoint"] == first["savepoint"]
    assert scene.actions.savepoint("fedcba9876543210", scene.wish())["checkpoint"] == 9


def test_a_folder_of_choice_is_used_once(scene: Scene) -> None:
    """Another savepoint in it is left as it is; the same request may ask again."""
    scene.run = scene.restored(7)
    wish = scene.wish(to=str(scene.root / "here"))
    for _ in range(2):
        assert scene.actions.savepoint(TOKEN, wish)["savepoint"] == str(scene.root / "here")
    with pytest.raises(ConfigError, match="holds a savepoint; choose an empty folder"):
        scene.actions.savepoint("fedcba9876543210", wish)


def test_the_checkpoint_is_held_while_the_savepoint_is_made(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From before the checkpoint is chosen until the folder is whole."""
    seen = []

    def watched(*given: Any, **options: Any) -> Manifest:
        seen.append(len(find_holds(scene.storage, scene.clock.wall()).good))
        return create(*given, **options)

    monkeypatch.setattr(request, "create_in_child_process", watched)
    scene.run = scene.restored(7)
    scene.actions.savepoint(TOKEN, scene.wish())
    assert seen == [1]


def test_a_start_that_has_lost_the_job_makes_none(scene: Scene) -> None:
    """Also when the program that runs it asks: what it would save is another run's by now."""
    claim(scene.storage, 0.0, scene.claimant)
    scene.run = scene.restored(7)
    wish = scene.wish(to=str(scene.root / "here"))
    claim(scene.storage, 0.0)
    with pytest.raises(FencedError, match="was replaced by run 2"):
        scene.actions.savepoint(TOKEN, wish)
    with pytest.raises(FencedError, match="was replaced by run 2"):
        scene.actions.checkpoint(TOKEN, scene.wish(Kind.CHECKPOINT))
    scene.actions.stop(TOKEN, scene.wish(Kind.STOP, savepoint=True, to=str(scene.root / "here")))
    scene.actions.settled()
    assert isinstance(scene.actions.why_the_stop_failed(), FencedError)
    assert not (scene.root / "here").exists()


def test_a_start_that_loses_the_job_meanwhile_does_not_say_that_it_has_made_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint may have been of a time when it had lost the job already."""

    def replaced(*given: Any, **options: Any) -> Manifest:
        claim(scene.storage, 0.0)
        return create(*given, **options)

    monkeypatch.setattr(request, "create_in_child_process", replaced)
    claim(scene.storage, 0.0, scene.claimant)
    scene.run = scene.restored(7)
    with pytest.raises(FencedError, match="was replaced by run 2"):
        scene.actions.savepoint(TOKEN, scene.wish())


def test_a_run_that_fails_meanwhile_is_followed_by_the_next(scene: Scene) -> None:
    """The checkpoint is wanted from the next run, when there is one."""
    first = scene.run = Run()
    following = scene.restored(3)
    runs: list[Run | None] = [first, None, following]

    def happens() -> None:
        scene.run = runs.pop(0) if runs else following

    scene.clock.happens = happens
    assert scene.actions.checkpoint(TOKEN, scene.wish(Kind.CHECKPOINT)) == {"checkpoint": 3}


def test_no_checkpoint_in_time(scene: Scene) -> None:
    """A job that reads nothing has nothing to complete, and says so."""
    with pytest.raises(UnavailableError, match="no run of it was up"):
        scene.actions.checkpoint(TOKEN, scene.wish(Kind.CHECKPOINT))


def test_nobody_waits_behind_the_last_run(scene: Scene) -> None:
    """The end of the job ends every waiting."""
    scene.clock.happens = scene.actions.no_further_run
    with pytest.raises(UnavailableError, match="the job ended before a checkpoint was there"):
        scene.actions.savepoint(TOKEN, scene.wish())


def test_a_stop_with_a_savepoint(scene: Scene) -> None:
    """It is made when the last checkpoint is committed, once, where the first who asked for one wants it."""
    scene.run = scene.restored(7)
    first, second = str(scene.root / "first"), str(scene.root / "second")
    scene.actions.stop(TOKEN, scene.wish(Kind.STOP))
    scene.actions.stop(TOKEN, scene.wish(Kind.STOP, savepoint=True, to=first))
    scene.actions.stop("fedcba9876543210", scene.wish(Kind.STOP, savepoint=True, to=second, drain=True))
    assert scene.stopped == ["stop"] * 3
    assert scene.actions.how_to_stop.drain
    assert "before event time came to its end" in str(scene.actions.why_the_stop_failed())
    scene.actions.how_to_stop.drained = True
    assert "no savepoint was made" in str(scene.actions.why_the_stop_failed())
    for _ in range(2):
        scene.actions.settled()
    assert (scene.root / "first" / MANIFEST).exists()
    assert not (scene.root / "second").exists()
    assert scene.actions.why_the_stop_failed() is None


def test_a_plain_stop_makes_none(scene: Scene) -> None:
    """Nor is it a failure that there is none."""
    scene.run = scene.restored(7)
    scene.actions.stop(TOKEN, scene.wish(Kind.STOP))
    scene.actions.settled()
    assert scene.actions.how_to_stop.made is None
    assert scene.actions.why_the_stop_failed() is None


def test_a_savepoint_that_fails_does_not_keep_the_job_from_ending(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is kept for whoever stopped it, and says what to do."""

    def create(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(request, "create_in_child_process", create)
    scene.run = scene.restored(7)
    scene.actions.stop(TOKEN, scene.wish(Kind.STOP, savepoint=True))
    scene.actions.settled()
    failure = str(scene.actions.why_the_stop_failed())
    assert "no savepoint was made: OSError: no space left. Nothing is lost. `penstock savepoint" in failure


def test_a_stop_with_a_savepoint_waits_for_the_first_checkpoint(scene: Scene) -> None:
    """A job that has read nothing yet is not stopped: there would be nothing to save."""
    scene.run = Run()
    following = scene.restored(3)
    stopped_before: list[list[str]] = []

    def happens() -> None:
        stopped_before.append(list(scene.stopped))
        scene.run = following

    scene.clock.happens = happens
    scene.actions.stop(TOKEN, scene.wish(Kind.STOP, savepoint=True, to=str(scene.root / "here")))
    assert stopped_before == [[]]
    assert scene.stopped == ["stop"]
    scene.actions.settled()
    assert (scene.root / "here" / MANIFEST).exists()


def test_a_stop_with_a_savepoint_of_a_job_that_reads_nothing_stops_nothing(scene: Scene) -> None:
    """When its time is over the job goes on, and the asker is told why."""
    scene.run = Run()
    assert scene.run.last_completed == NO_CHECKPOINT
    with pytest.raises(UnavailableError, match=r"the job goes on.*has read nothing yet"):
        scene.actions.stop(TOKEN, scene.wish(Kind.STOP, savepoint=True))
    assert scene.stopped == []
    assert not scene.actions.how_to_stop.savepoint


def test_a_job_that_is_between_two_runs_is_stopped_at_once(scene: Scene) -> None:
    """It may never come up: there is no savepoint then, which is said."""
    scene.actions.stop(TOKEN, scene.wish(Kind.STOP, savepoint=True))
    assert scene.stopped == ["stop"]
    scene.actions.settled()
    assert "before it read anything" in str(scene.actions.why_the_stop_failed())


@pytest.mark.parametrize("savepoint", [True, False])
def test_a_stop_of_a_job_that_is_cancelled_meanwhile_has_failed(scene: Scene, savepoint: bool) -> None:
    """Who goes on with the savepoint, or with the last checkpoint, would go on without."""
    scene.run = scene.restored(7)
    wish = scene.wish(Kind.STOP, savepoint=savepoint)
    scene.actions.stop(TOKEN, wish)
    assert "the job was cancelled before" in str(scene.actions.why_the_stop_failed(wish, cancelled=True))


def test_each_stop_is_told_what_became_of_its_own_wish(scene: Scene) -> None:
    """A plain stop has not failed for want of a savepoint, and one with another folder has none there."""
    scene.run = scene.restored(7)
    plain, first, second = (
        scene.wish(Kind.STOP),
        scene.wish(Kind.STOP, savepoint=True, to=str(scene.root / "first")),
        scene.wish(Kind.STOP, savepoint=True, to=str(scene.root / "second")),
    )
    for wish in (plain, first, second):
        scene.actions.stop(TOKEN, wish)
    assert scene.actions.why_the_stop_failed(plain) is None
    assert "no savepoint was made" in str(scene.actions.why_the_stop_failed(first))
    scene.actions.settled()
    assert scene.actions.why_the_stop_failed(first) is None
    assert scene.actions.why_the_stop_failed(first, cancelled=True) is None
    elsewhere = str(scene.actions.why_the_stop_failed(second))
    assert f"its savepoint is in {scene.root / 'first'}" in elsewhere
    assert f"there is none in {scene.root / 'second'}" in elsewhere


class AwayAfterwards(ForwardingStorage):
    """Does not answer as soon as `away` is set."""

    away = False

    def names(self, prefix: str = "") -> list[str]:
        """See `Storage.names`."""
        if self.away:
            raise UnavailableError("storage is away for a moment")
        return super().names(prefix)


@pytest.mark.parametrize("fails", [True, False])
def test_a_savepoint_that_is_whole_is_said_to_be_made(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Whatever fails after its manifest was written: the process that made it, or a look at who owns the job."""
    storage = AwayAfterwards(scene.storage)

    def made_and_gone(job_storage: Storage, *given: Any, **options: Any) -> Manifest:
        made = create(job_storage, *given, **options)
        storage.away = not fails
        if fails:
            raise UnavailableError("the process that makes the savepoint ended with -9")
        return made

    monkeypatch.setattr(request, "create_in_child_process", made_and_gone)
    claim(scene.storage, 0.0, scene.claimant)
    run = scene.restored(7)
    actions = JobActions(
        storage,
        scene.claimant,
        present=lambda: cast("CoordinatorLoop | None", run),
        stop=lambda: None,
        cancel=lambda: None,
        clock=scene.clock,
    )
    made = actions.savepoint(TOKEN, scene.wish(to=str(scene.root / "here")))
    assert made["savepoint"] == str(scene.root / "here")
    assert read_manifest(LocalStorage(scene.root / "here")).checkpoint == 7


def test_a_manifest_without_its_files_is_no_savepoint(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has deleted a part of it while it was made."""

    def a_part_is_gone(job_storage: Storage, made_of: Completed, to: Storage, **options: Any) -> Manifest:
        attempt = claim_folder(to, options["token"])
        saved = SavedFile("state/views/rows/0-01234567.parquet", size=1, checksum="")
        attempt.to.put(saved.path, b"x")
        made = Manifest(
            id=options["token"],
            checkpoint=7,
            mode="exactly-once",
            parallelism=1,
            max_parallelism=1,
            operators={"views": SavedOperator(OperatorColumns({}, {}), {"rows": (saved,)})},
        )
        attempt.finish(made)
        to.delete([saved.path])
        raise UnavailableError("a part of the savepoint has been deleted while it was made")

    monkeypatch.setattr(request, "create_in_child_process", a_part_is_gone)
    scene.run = scene.restored(7)
    with pytest.raises(UnavailableError, match="has been deleted while it was made"):
        scene.actions.savepoint(TOKEN, scene.wish(to=str(scene.root / "here")))


def test_a_cancel_gives_up_the_savepoint_of_a_stop(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may go into a folder that hangs; whoever has stopped the job is told that there is none."""
    begun = threading.Event()

    def until_given_up(*_: Any, given_up: Callable[[], bool], **__: Any) -> Manifest:
        begun.set()
        while not given_up():
            time.sleep(0.01)
        raise UnavailableError("the job was cancelled while its savepoint was made: it is given up")

    monkeypatch.setattr(request, "create_in_child_process", until_given_up)
    scene.run = scene.restored(7)
    wish = scene.wish(Kind.STOP, savepoint=True, to=str(scene.root / "here"))
    scene.actions.stop(TOKEN, wish)
    settling = threading.Thread(target=scene.actions.settled, daemon=True)
    settling.start()
    assert begun.wait(60)
    scene.actions.end_now()
    settling.join(60)
    assert not settling.is_alive()
    assert "given up" in str(scene.actions.why_the_stop_failed(wish, cancelled=True))


def test_savepoints_are_made_one_after_the_other(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many threads of a program that ask at once start no process each."""
    at_work: list[str] = []
    two_at_once = threading.Event()

    def counted(*given: Any, token: str, **options: Any) -> Manifest:
        at_work.append(token)
        if len(at_work) > 1:
            two_at_once.set()
        two_at_once.wait(0.02)
        made = create(*given, token=token, **options)
        at_work.remove(token)
        return made

    monkeypatch.setattr(request, "create_in_child_process", counted)
    scene.run = scene.restored(7)
    made: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda number=number: made.append(scene.actions.savepoint(f"{number:016x}", scene.wish()))
        )
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one["savepoint"] for one in made}) == 8
    assert not two_at_once.is_set()


def test_a_cancel_is_handed_on(scene: Scene) -> None:
    """It is the handle that cancels."""
    scene.actions.cancel()
    assert scene.stopped == ["cancel"]


@pytest.mark.parametrize("below", ["", "state/mine", "chk-99-r1", "mine", "..", "../../here/../store"])
def test_a_folder_that_the_job_may_delete(scene: Scene, below: str) -> None:
    """A savepoint inside of the job's storage would be deleted by the job: it is refused, and so is a folder around that storage."""
    scene.run = scene.restored(7)
    before = scene.storage.names()
    with pytest.raises(ConfigError, match=r"choose a folder beside it, or leave it out") as refused:
        scene.actions.savepoint(TOKEN, scene.wish(to=f"{scene.storage.root}/{below}"))
    assert str(scene.storage.root) in str(refused.value)
    assert scene.storage.names() == before


def test_a_folder_that_is_a_link_into_the_job(scene: Scene) -> None:
    """It is the place that counts, not how it is called; a name that only begins like that of the job is no folder of it."""
    scene.run = scene.restored(7)
    (scene.root / "link").symlink_to(scene.storage.root / "state")
    with pytest.raises(ConfigError, match="choose a folder beside it"):
        scene.actions.savepoint(TOKEN, scene.wish(to=str(scene.root / "link" / "mine")))
    other = f"{scene.storage.root}-monday"
    assert scene.actions.savepoint(TOKEN, scene.wish(to=other))["savepoint"] == other


def test_nobody_is_asked_for_what_would_be_refused(scene: Scene) -> None:
    """A stop with such a savepoint does not reach the job: it would end without one."""
    scene.storage.put("job.json", b"{}")
    with pytest.raises(ConfigError, match="choose a folder beside it"):
        request_commands.ask(
            scene.storage, Kind.STOP, "1min", savepoint=True, to=str(scene.storage.root / "mine")
        )
    assert scene.storage.names() == ["job.json"]


def wants_to_stop_into(folder: Path) -> Request:
    return Request(kind=Kind.STOP, asked_at=0.0, until=60.0, savepoint=True, drain=True, to=str(folder))


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("notes.txt", "holds other files, such as notes.txt"),
        (MANIFEST, "holds a savepoint"),
        ("making.json", "holds an unfinished savepoint of another request"),
    ],
)
def test_a_stop_into_a_folder_that_is_taken_stops_nothing(tmp_path: Path, file: str, said: str) -> None:
    """The job goes on, also without the drain that was asked for with it, and the folder is as it was."""
    scene, folder = Scene(tmp_path), tmp_path / "taken"
    folder.mkdir()
    (folder / file).write_text("{}")
    with pytest.raises(ConfigError, match=f"{said}.*the job was not stopped, and goes on"):
        scene.actions.stop(TOKEN, wants_to_stop_into(folder))
    assert not scene.stopped
    assert not scene.actions.how_to_stop.savepoint
    assert not scene.actions.how_to_stop.drain
    assert [path.name for path in folder.iterdir()] == [file]


def test_a_stop_goes_on_in_the_folder_that_an_earlier_attempt_of_it_has_begun(tmp_path: Path) -> None:
    """A run that died over it is no reason to refuse the same request; looking makes no folder."""
    scene = Scene(tmp_path)
    claim_folder(LocalStorage(tmp_path / "begun"), f"{TOKEN}-1")
    scene.actions.stop(TOKEN, wants_to_stop_into(tmp_path / "begun"))
    assert scene.stopped == ["stop"]
    other = Scene(tmp_path)
    other.actions.stop(TOKEN, wants_to_stop_into(tmp_path / "new"))
    assert other.stopped == ["stop"]
    assert not (tmp_path / "new").exists()
