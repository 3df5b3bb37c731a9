"""Looking at jobs for many who ask: from memory, and whatever lies in storage."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from builders.dashboard_site import StoredJob
from penstock.dashboard import status_poller
from penstock.dashboard.flink.job_details import jobs_overview
from penstock.dashboard.json_models import overview as overview_twin
from penstock.dashboard.metrics import exposition
from penstock.dashboard.pages import overview as overview_page
from penstock.dashboard.pages.render import PageFrame
from penstock.dashboard.status_poller import ASLEEP_EVERY_S, FIND_EVERY_S, STALE_S, StatusPoller
from penstock.errors import ConfigError
from penstock.status.health import needs_attention, verdict
from penstock.status.jobs import FoundJob
from penstock.status.view import FailureView, JobState, JobView
from penstock.testing.virtual import VirtualClock
from services.patience import PATIENCE_S, tries


def test_answers_come_from_memory(tmp_path: Path) -> None:
    """However often one asks: storage is not touched before the next look."""
    StoredJob(tmp_path)
    clock = VirtualClock()
    poller = StatusPoller([str(tmp_path)], clock=clock)
    poller.look()
    shutil.rmtree(tmp_path / "views")
    for _ in range(1000):
        assert [view.name for view in poller.views()] == ["views"]
        assert poller.view("views") is not None
    clock.sleep(FIND_EVERY_S)
    poller.look()
    assert poller.views() == []
    assert poller.view("views") is None


def test_a_job_is_found_by_name_and_id(tmp_path: Path) -> None:
    """Two of one name are told apart by their ids; the name alone is refused then."""
    for place in ("a", "b"):
        StoredJob(tmp_path / place)
    poller = StatusPoller([str(tmp_path / "a"), str(tmp_path / "b")])
    poller.look()
    one, other = poller.views()
    assert one.id != other.id
    assert poller.view(one.id) == one
    assert poller.view("views") is None
    assert poller.found(other.id).place == str(tmp_path / "b")
    with pytest.raises(ConfigError, match=r"there are 2 jobs 'views'.*ask by the id"):
        poller.found("views")


@pytest.mark.parametrize(
    "name",
    ["_job.json", "runs/1.json", "runs/1.live", "runs/1.plan", "runs/1.alive", "runs/1.ended", "runs/1.restored",
     "chk-3-r1/_metadata", "events/1700000000000-0000000000000000-000001.jsonl", "runs/99999999999999999999.json"],
)  # fmt: skip
@pytest.mark.parametrize("damage", [b"", b"\x00\xff", b"null", b"[" * 100_000, b'{"run": 1e999, "at": -1}'])
def test_a_damaged_job_is_in_nobodys_way(tmp_path: Path, name: str, damage: bytes) -> None:
    """It is shown as far as it can be read, and so is the other."""
    StoredJob(tmp_path, "sound")
    damaged = StoredJob(tmp_path, "damaged")
    damaged.complete(1)
    damaged.storage.put(name, damage)
    poller = StatusPoller([str(tmp_path)])
    poller.look()
    assert [view.name for view in poller.views()] == ["damaged", "sound"]
    sound = poller.view("sound")
    assert sound is not None
    assert sound.unreadable == ()


def test_what_nobody_has_thought_of_is_shown_as_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of ours about one job does not hide the others. It is logged once: a job is looked at twice a second."""
    StoredJob(tmp_path)

    def broken(job: FoundJob) -> object:
        class Watcher:
            def look(self, now: float) -> object:
                raise KeyError(job.name)

        return Watcher()

    monkeypatch.setattr(status_poller, "JobWatcher", broken)
    poller = StatusPoller([str(tmp_path)])
    poller.look()
    (view,) = poller.views()
    assert view.state is JobState.UNREADABLE
    assert view.unreadable == ("KeyError: 'views'",)
    poller.look()
    assert len(caplog.records) == 1


def test_a_storage_that_hangs_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is left behind."""
    began, going_on = threading.Event(), threading.Event()

    def hanging(places: object) -> list[FoundJob]:
        began.set()
        going_on.wait()
        return []

    monkeypatch.setattr(status_poller, "find_jobs", hanging)
    monkeypatch.setattr(status_poller, "CLOSE_S", 0.01)
    poller = StatusPoller([str(tmp_path)])
    poller.start()
    poller.views()
    assert began.wait(PATIENCE_S)
    closing = threading.Thread(target=poller.close, daemon=True)
    closing.start()
    closing.join(PATIENCE_S)
    is_closed = not closing.is_alive()
    going_on.set()
    assert is_closed


def test_a_job_that_becomes_a_link_is_shown_no_more(tmp_path: Path) -> None:
    """Nobody steers through it a job that lies elsewhere, also while another storage does not answer; that is said."""
    store, elsewhere, away = tmp_path / "store", tmp_path / "elsewhere", tmp_path / "away"
    StoredJob(store)
    StoredJob(elsewhere, "sales")
    away.mkdir()
    clock = VirtualClock()
    poller = StatusPoller([str(store), str(away)], clock=clock)
    poller.look()
    (store / "views").rename(tmp_path / "aside")
    (store / "views").symlink_to(elsewhere / "sales")
    away.rmdir()
    away.write_bytes(b"no folder")
    clock.sleep(FIND_EVERY_S)
    poller.look()
    assert poller.views() == []
    assert any("views in" in text and "is a link to" in text for text in poller.problems)


@pytest.mark.parametrize("odd", ["folder", "file"])
def test_a_folder_that_cannot_be_looked_at_hides_no_job(tmp_path: Path, odd: str) -> None:
    """Whoever shares the storage may leave anything there."""
    StoredJob(tmp_path)
    circle = tmp_path / "circle" if odd == "folder" else tmp_path / "other" / "job.json"
    circle.parent.mkdir(exist_ok=True)
    circle.symlink_to(circle)
    poller = StatusPoller([str(tmp_path)])
    poller.look()
    assert [view.name for view in poller.views()] == ["views"]
    assert poller.problems == ()


def test_a_storage_that_does_not_answer_hides_no_other(tmp_path: Path) -> None:
    """What is wrong with it is told; jobs that were known stay."""
    clock = VirtualClock()
    StoredJob(tmp_path / "a")
    StoredJob(tmp_path / "b", "orders")
    poller = StatusPoller([str(tmp_path / "a"), str(tmp_path / "b")], clock=clock)
    poller.look()
    (tmp_path / "b").rename(tmp_path / "away")
    (tmp_path / "b").write_text("a file")
    clock.sleep(FIND_EVERY_S)
    poller.look()
    assert [view.name for view in poller.views()] == ["orders", "views"]
    assert len(poller.problems) == 1
    assert str(tmp_path / "b") in poller.problems[0]
    (tmp_path / "b").unlink()
    (tmp_path / "away").rename(tmp_path / "b")
    clock.sleep(FIND_EVERY_S)
    poller.look()
    assert not poller.problems


def test_only_one_job_may_be_wanted(tmp_path: Path) -> None:
    """Beside a driver no other job is shown."""
    StoredJob(tmp_path)
    StoredJob(tmp_path, "orders")
    poller = StatusPoller([str(tmp_path)], only="orders")
    poller.look()
    assert [view.name for view in poller.views()] == ["orders"]


def test_a_revision_grows_when_something_looks_different(tmp_path: Path) -> None:
    """The time alone is no change."""
    job = StoredJob(tmp_path)
    clock = VirtualClock()
    poller = StatusPoller([str(tmp_path)], clock=clock)
    revisions = []
    for step in ("first", "the same", "new"):
        if step == "new":
            job.complete(1)
        clock.sleep(ASLEEP_EVERY_S)
        poller.look()
        (seen,) = poller.all_seen()
        revisions.append(seen.revision)
    assert revisions[0] == revisions[1] < revisions[2]


def test_one_that_is_over_is_looked_at_less_often(tmp_path: Path) -> None:
    """Its files change only when somebody starts it again."""
    job = StoredJob(tmp_path)
    job.end()
    clock = VirtualClock()
    poller = StatusPoller([str(tmp_path)], clock=clock)
    poller.look()
    job.complete(1)
    clock.sleep(ASLEEP_EVERY_S / 2)
    poller.look()
    assert poller.views()[0].checkpoints == ()
    clock.sleep(ASLEEP_EVERY_S)
    poller.look()
    assert len(poller.views()[0].checkpoints) == 1


def test_nobody_asks_and_nothing_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread stands still, and whoever comes later waits for one new look."""
    monkeypatch.setattr(status_poller, "WANTED_S", 0.05)
    monkeypatch.setattr(status_poller, "EVERY_S", 0.02)
    job = StoredJob(tmp_path)
    poller = StatusPoller([str(tmp_path)])
    poller.start()
    try:
        poller.wait()
        for _ in tries(0.05):
            if not poller._asked.is_set():
                break
        job.live(batch=9)
        monkeypatch.setattr(status_poller, "ASLEEP_EVERY_S", 0.0)
        monkeypatch.setattr(status_poller, "STALE_S", 0.0)  # what there is is too old
        monkeypatch.setattr(status_poller, "PATIENCE_S", 0.5)
        poller.wait()
        view = poller.view("views")
        assert view is not None
        assert view.live is not None
        assert view.live.batch == 9
    finally:
        poller.close()


def test_a_look_that_takes_long_is_not_waited_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was seen before is shown meanwhile, with its age."""
    StoredJob(tmp_path)
    clock = VirtualClock()
    poller = StatusPoller([str(tmp_path)], clock=clock)
    poller.look()
    clock.sleep(STALE_S + 1)
    assert not poller.is_fresh()
    going_on, began = threading.Event(), threading.Event()

    def hanging(places: object) -> list[FoundJob]:
        began.set()
        going_on.wait()
        return []

    monkeypatch.setattr(status_poller, "find_jobs", hanging)
    thread = threading.Thread(target=poller.look, daemon=True)
    thread.start()
    began.wait()
    assert not poller.is_fresh()
    clock.sleep(STALE_S + 1)
    assert poller.is_fresh()
    assert len(poller.views()) == 1
    going_on.set()
    thread.join()


# ── storages that hang, or are gone ────────────────────────────────────────────────────────────────


class Hanging:
    """`find_jobs`, which does not come back for one storage until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
        self.began, self.let_go = threading.Event(), threading.Event()
        find = status_poller.find_jobs

        def hanging(places: Sequence[str]) -> list[FoundJob]:
            if places == [str(place)]:
                self.began.set()
                self.let_go.wait()
            return find(places)

        monkeypatch.setattr(status_poller, "find_jobs", hanging)


def test_a_storage_that_hangs_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs elsewhere are looked at as before, and nobody waits for the one that does not answer."""
    monkeypatch.setattr(status_poller, "STALE_S", 0.2)
    monkeypatch.setattr(status_poller, "CLOSE_S", 0.01)
    StoredJob(tmp_path / "hung", "orders")
    sound = StoredJob(tmp_path / "sound")
    hanging = Hanging(monkeypatch, tmp_path / "hung")
    poller = StatusPoller([str(tmp_path / "hung"), str(tmp_path / "sound")])
    poller.start()
    try:
        poller.wait()
        assert hanging.began.is_set()
        assert poller.is_fresh()
        sound.live(batch=41)
        for _ in tries(0.05):
            view = poller.view("views")
            if view is not None and view.live is not None and view.live.batch == 41:
                break
        assert any("hung has not answered for" in text for text in poller.problems)
    finally:
        hanging.let_go.set()
        poller.close()


def test_a_job_whose_storage_hangs_is_not_shown_as_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shown as it was last seen, its ages go on, and every answer is made anew; when storage answers, all is as before."""
    job = StoredJob(tmp_path)
    clock = VirtualClock()
    poller = StatusPoller([str(tmp_path)], clock=clock)
    with job.running():
        poller.look()
        (view,) = poller.views()
        assert (view.look_age_s, verdict(view).headline, needs_attention(view)) == (0.0, "Healthy", False)
        hanging = Hanging(monkeypatch, tmp_path)
        clock.sleep(FIND_EVERY_S)
        thread = threading.Thread(target=poller.look, daemon=True)
        thread.start()
        assert hanging.began.wait(PATIENCE_S)
        ages = []
        for _ in range(2):
            clock.sleep(30.0)
            (aged,) = poller.views()
            ages.append(aged.look_age_s)
            assert verdict(aged).headline == "Not seen"
            assert needs_attention(aged)
            assert (
                f'penstock_last_look_age_seconds{{job_id="{aged.id}",job_name="views"}} {aged.look_age_s}'.encode()
                in exposition([aged])
            )
        assert ages == [FIND_EVERY_S + 30.0, FIND_EVERY_S + 60.0]
        assert "has not answered for 1 min" in poller.problems[0]
        hanging.let_go.set()
        thread.join()
        (view,) = poller.views()
        assert (view.look_age_s, poller.problems) == (0.0, ())


@pytest.mark.parametrize("how", ["gone", "not mounted"])
def test_jobs_of_a_storage_that_disappears_stay(tmp_path: Path, how: str) -> None:
    """With what was last seen, how long ago, and a word about it; when it is back, so are they."""
    store, away = tmp_path / "store", tmp_path / "away"
    StoredJob(store)
    clock = VirtualClock()
    poller = StatusPoller([str(store)], clock=clock)
    poller.look()
    store.rename(away)
    if how == "not mounted":
        store.mkdir()
    for _ in range(2):
        clock.sleep(60.0)
        poller.look()
    (view,) = poller.views()
    assert (view.name, view.look_age_s) == ("views", 120.0)
    assert "is it mounted? The last known state of 1 job is shown" in poller.problems[0]
    if how == "not mounted":
        store.rmdir()
    away.rename(store)
    clock.sleep(FIND_EVERY_S)
    poller.look()
    (view,) = poller.views()
    assert (view.look_age_s, poller.problems) == (0.0, ())


# ── files that others have put there ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name", ["runs/1.json", "runs/1.alive", "runs/1.restored", "runs/1.ended", "runs/1.live"]
)
def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, name: str) -> None:
    """One of gigabytes would take the memory of the dashboard; records have some hundred bytes."""
    job = StoredJob(tmp_path)
    job.end()
    os.truncate(job.storage.root / name, 6 << 30)
    poller = StatusPoller([str(tmp_path)])
    poller.look()
    (view,) = poller.views()
    assert name.endswith(".live") or any(
        "none of ours has more" in text and name in text for text in view.unreadable
    )


@pytest.mark.parametrize("number", [1e308, -1e308, 10**30])
@pytest.mark.parametrize("name", ["runs/1.live", "runs/1.json", "runs/1.ended"])
def test_a_number_that_nobody_can_have_measured_is_in_nobodys_way(
    tmp_path: Path, name: str, number: float
) -> None:
    """It is not shown, and all answers about all jobs are given."""
    StoredJob(tmp_path, "sound")
    job = StoredJob(tmp_path, "damaged")
    job.end()
    for field in ("at", "started_at", "batch"):
        content = msgspec.json.decode(job.storage.get(name))
        job.storage.put(name, json.dumps({**content, field: number}).encode())
    poller = StatusPoller([str(tmp_path)])
    poller.look()
    views = poller.views()
    assert [view.name for view in views] == ["damaged", "sound"]
    assert exposition(views)
    for answer in (jobs_overview(views), overview_twin(views), overview_page(views, PageFrame())):
        assert msgspec.json.encode(answer)


def test_links_to_files_of_another_job_show_nothing(tmp_path: Path) -> None:
    """Whoever can write into one storage could see the journal of another job so, with the eyes of the dashboard."""
    secret, job = StoredJob(tmp_path / "theirs", "payroll"), StoredJob(tmp_path / "mine")
    secret.fail()
    (journal,) = secret.storage.names("events")
    for name in (journal, "runs/1.live"):
        (job.storage.root / name).unlink(missing_ok=True)
        (job.storage.root / name).symlink_to(secret.storage.root / name)
    for name in job.storage.names("events"):
        if name != journal:
            job.storage.delete([name])
    poller = StatusPoller([str(tmp_path / "mine")])
    poller.look()
    (view,) = poller.views()
    assert (view.events, view.live) == ((), None)


@pytest.mark.parametrize(("state", "since", "failed_at", "stuck"), [
    (JobState.STARTING, 601.0, 0.0, True),
    (JobState.STARTING, 599.0, 0.0, False),
    (JobState.RESTARTING, 9000.0, 601.0, True),
    (JobState.RESTARTING, 9000.0, 599.0, False),
    (JobState.RUNNING, 9000.0, 0.0, False),
])  # fmt: skip
def test_a_job_that_never_gets_up_is_late(
    state: JobState, since: float, failed_at: float, stuck: bool
) -> None:
    """After ten minutes of starting, or of going back to a checkpoint, somebody must look; metrics and exit code say so."""
    now = 1e9
    failed = (FailureView(run=1, at=now - failed_at, error="E", why="w", strategy="s"),) if failed_at else ()
    view = JobView(
        id="0" * 32,
        name="views",
        storage="s",
        place="p",
        state=state,
        now=now,
        since=now - since,
        failures=failed,
    )
    assert (view.is_stuck, view.is_late, needs_attention(view)) == (stuck, stuck, stuck)
    assert (
        b'penstock_checkpoint_late{job_id="%s",job_name="views"} 1.0' % (b"0" * 32) in exposition([view])
    ) == stuck
