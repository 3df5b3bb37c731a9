"""The asynchronous part of a snapshot: uploads in the background, one lane a subtask, and what the driver is told."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UnavailableError
from penstock.ids import SubtaskId
from penstock.snapshot.mailbox import Address, Mailbox, Message, UploadDone, UploadFailed
from penstock.snapshot.uploader import Upload, Uploader, perform, remember_newest
from penstock.state.handle import FileRef, StateHandle
from penstock.state.local_files import fingerprint
from penstock.storage import LocalStorage
from penstock.testing.faulty_storage import FaultPlan, FaultyStorage, PlannedFailure
from services.patience import PATIENCE_S

FIRST, SECOND = SubtaskId("views", 0), SubtaskId("views", 1)
NOWHERE = Address("127.0.0.1", 1, "")


@pytest.fixture
def letters() -> queue.Queue[Message]:
    """What the driver receives."""
    return queue.Queue()


@pytest.fixture
def mailbox(letters: queue.Queue[Message]) -> Iterator[Mailbox]:
    box = Mailbox("127.0.0.1", letters.put)
    yield box
    box.close()


class Place:
    """A local folder and a storage."""

    def __init__(self, root: Path) -> None:
        self.local = root / "local"
        self.storage = LocalStorage(root / "storage")

    def handle(self, version: int, *names: str, subtask: SubtaskId = FIRST) -> StateHandle:
        """A version with these files, which lie on this machine."""
        for name in names:
            path = self.local / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(name.encode())
        refs = (FileRef(1, *fingerprint(self.local / name), name) for name in names)
        return StateHandle(subtask, "filesystem", version, tuple(refs))

    def upload(self, handle: StateHandle, **more) -> Upload:
        settings: dict[str, Any] = {
            "storage": self.storage,
            "mailbox": NOWHERE,
            "durable": frozenset(),
            "required": True,
        } | more
        return Upload(local_dir=self.local, run=1, handle=handle, **settings)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_where_no_thread_can_start_the_task_uploads(
    place: Place, mailbox: Mailbox, letters: queue.Queue[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has reached its limit of threads stores the files all the same, and the lane is free for those that follow."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    uploader = Uploader()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        uploader.submit(place.upload(place.handle(1, "state/views/a"), mailbox=mailbox.address))
    assert place.storage.names("state") == ["state/views/a"]
    uploader.submit(place.upload(place.handle(2, "state/views/b"), mailbox=mailbox.address))
    told = [letters.get(timeout=PATIENCE_S) for _ in range(2)]
    assert [one.handle.version for one in told if isinstance(one, UploadDone)] == [1, 2]
    assert place.storage.names("state") == ["state/views/a", "state/views/b"]


def test_uploads_what_is_missing(place: Place) -> None:
    """Every file that is not known to be in storage is stored, whoever wrote it; the rest is left alone."""
    handle = place.handle(3, "state/views/old", "state/views/lost", "state/views/new")
    answer = perform(place.upload(handle, durable=frozenset({"state/views/old"})))
    assert isinstance(answer, UploadDone)
    assert answer.handle == handle
    assert place.storage.names("state") == ["state/views/lost", "state/views/new"]


def test_a_failure_is_an_answer(place: Place) -> None:
    """A storage that refuses makes a message that says for which version, and why."""
    plan = FaultPlan(failures=(PlannedFailure(operation="upload"),))
    handle = place.handle(3, "state/views/a")
    answer = perform(place.upload(handle, storage=FaultyStorage(place.storage, plan)))
    assert isinstance(answer, UploadFailed)
    assert (answer.subtask, answer.version) == (FIRST, 3)
    assert "UnavailableError: planned failure" in answer.cause


def test_a_lost_local_file_is_an_answer(place: Place) -> None:
    """Local files may be gone at any time; then the version cannot be stored, and the driver hears it."""
    handle = place.handle(3, "state/views/a")
    (place.local / "state/views/a").unlink()
    answer = perform(place.upload(handle))
    assert isinstance(answer, UploadFailed)
    assert "state/views/a" in answer.cause


def test_newest_will_do(place: Place) -> None:
    """At least once: what is newest when the upload begins is handed in, for an older version too."""
    old, new = place.handle(3, "state/views/3"), place.handle(5, "state/views/5")
    for handle in (old, new):
        remember_newest(place.local, handle)
    answer = perform(place.upload(old, newest_will_do=True))
    assert isinstance(answer, UploadDone)
    assert answer.handle == new
    assert place.storage.names("state") == ["state/views/5"]


def test_an_older_version_does_not_replace_a_newer(place: Place) -> None:
    """A late attempt of an earlier batch may be noted last; the upload still hands in its own version."""
    new, old = place.handle(5, "state/views/5"), place.handle(3, "state/views/3")
    for handle in (new, old):
        remember_newest(place.local, handle)
    answer = perform(place.upload(new, newest_will_do=True))
    assert isinstance(answer, UploadDone)
    assert answer.handle == new


def test_a_failure_names_the_version_that_is_waited_for(place: Place) -> None:
    """Also when a newer one was tried instead: the checkpoint waits for the one that was asked for."""
    old, new = place.handle(3, "state/views/3"), place.handle(5, "state/views/5")
    remember_newest(place.local, new)
    (place.local / "state/views/5").unlink()
    answer = perform(place.upload(old, newest_will_do=True))
    assert isinstance(answer, UploadFailed)
    assert answer.version == 3


def test_a_damaged_note_is_an_answer(place: Place) -> None:
    """Whatever goes wrong, the driver is told, and later uploads of the subtask go on."""
    handle = place.handle(3, "state/views/3")
    remember_newest(place.local, handle)
    (place.local / "newest" / "views-0.json").write_bytes(b"{")
    assert isinstance(perform(place.upload(handle, newest_will_do=True)), UploadFailed)


def test_notes_of_several_workers_do_not_collide(place: Place) -> None:
    """Attempts of the same version, in workers whose threads have the same ids, may note it in the same moment."""
    handle = place.handle(3, "state/views/3")
    failures: list[BaseException] = []
    together = threading.Barrier(8)

    def note() -> None:
        together.wait()
        try:
            for _ in range(50):
                remember_newest(place.local, handle)
        except OSError as error:
            failures.append(error)

    original = threading.get_ident
    threads = [threading.Thread(target=note) for _ in range(8)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("threading.get_ident", lambda: 1)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert threading.get_ident is original
    assert failures == []
    assert [path.name for path in (place.local / "newest").iterdir()] == ["views-0.json"]


# ── in the background ──────────────────────────────────────────────────────────────────────────


class Gated(LocalStorage):
    """Uploads of a subtask wait until its gate is open."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.gates = {FIRST: threading.Event(), SECOND: threading.Event()}
        self.arrived: queue.Queue[SubtaskId] = queue.Queue()

    def wait_for_turn(self, subtask: SubtaskId) -> None:
        self.arrived.put(subtask)
        assert self.gates[subtask].wait(PATIENCE_S)


def versions(letters: queue.Queue[Message], count: int) -> list[tuple[SubtaskId, int]]:
    received = [letters.get(timeout=PATIENCE_S) for _ in range(count)]
    return [(one.handle.subtask, one.handle.version) for one in received if isinstance(one, UploadDone)]


def test_the_driver_is_told(place: Place, mailbox: Mailbox, letters: queue.Queue[Message]) -> None:
    """An upload in the background ends in a message."""
    uploader = Uploader()
    uploader.submit(place.upload(place.handle(3, "state/views/3"), mailbox=mailbox.address))
    assert versions(letters, 1) == [(FIRST, 3)]
    uploader.submit(place.upload(place.handle(4, "state/views/4"), mailbox=mailbox.address))
    assert versions(letters, 1) == [(FIRST, 4)]


def test_order_and_lanes(
    place: Place, tmp_path: Path, mailbox: Mailbox, letters: queue.Queue[Message]
) -> None:
    """Uploads of one subtask happen in order, and none waits for another subtask's."""
    storage, uploader = Gated(tmp_path / "gated"), Uploader()
    for version in (3, 4):
        for subtask in (FIRST, SECOND):
            handle = place.handle(version, f"state/{subtask}-{version}", subtask=subtask)
            uploader.submit(place.upload(handle, storage=storage, mailbox=mailbox.address))
    storage.gates[SECOND].set()
    assert versions(letters, 2) == [(SECOND, 3), (SECOND, 4)]
    storage.gates[FIRST].set()
    assert versions(letters, 2) == [(FIRST, 3), (FIRST, 4)]


def test_superseded_uploads_are_left_out(
    place: Place, tmp_path: Path, mailbox: Mailbox, letters: queue.Queue[Message]
) -> None:
    """A version that no checkpoint waits for gives way to a newer one in the queue; one that is required does not."""
    storage, uploader = Gated(tmp_path / "gated"), Uploader()
    for version, required in ((3, False), (4, True), (5, False), (6, False)):
        handle = place.handle(version, f"state/{version}")
        uploader.submit(
            place.upload(
                handle,
                storage=storage,
                mailbox=mailbox.address,
                required=required,
                awaited=frozenset({4}) if version >= 4 else frozenset(),
            )
        )
        if version in (3, 4):
            storage.arrived.get(timeout=PATIENCE_S)  # it has begun
    storage.gates[FIRST].set()
    assert sorted(versions(letters, 3)) == [(FIRST, 3), (FIRST, 4), (FIRST, 6)]
    assert storage.names("state") == ["state/3", "state/4", "state/6"]


def test_what_is_awaited_no_more_is_left_out(
    place: Place, tmp_path: Path, mailbox: Mailbox, letters: queue.Queue[Message]
) -> None:
    """A required version whose checkpoint was given up does not hold up the one that is waited for now."""
    storage, uploader = Gated(tmp_path / "gated"), Uploader()
    for version in (3, 4, 5, 6):
        uploader.submit(
            place.upload(
                place.handle(version, f"state/{version}"),
                storage=storage,
                mailbox=mailbox.address,
                awaited=frozenset({version, version - 1}),
            )
        )
        if version == 3:
            storage.arrived.get(timeout=PATIENCE_S)
    storage.gates[FIRST].set()
    assert versions(letters, 3) == [(FIRST, 3), (FIRST, 5), (FIRST, 6)]


class Withheld(LocalStorage):
    """Uploads of the named files wait for the gate."""

    def __init__(self, root: Path, *names: str) -> None:
        super().__init__(root)
        self.withheld = names
        self.gate = threading.Event()
        self.begun: queue.Queue[str] = queue.Queue()
        self.stored: Counter[str] = Counter()

    def upload(self, local: Path, name: str) -> None:
        self.begun.put(name)
        if name in self.withheld:
            assert self.gate.wait(PATIENCE_S)
        super().upload(local, name)
        self.stored[name] += 1


def test_a_required_upload_does_not_wait_for_another(
    place: Place, tmp_path: Path, mailbox: Mailbox, letters: queue.Queue[Message]
) -> None:
    """A version that nobody waits for may be on its way for long: one that a checkpoint waits for overtakes it."""
    storage, uploader = Withheld(tmp_path / "store", "state/3"), Uploader()
    more = {"storage": storage, "mailbox": mailbox.address}
    uploader.submit(place.upload(place.handle(3, "state/3"), required=False, **more))
    assert storage.begun.get(timeout=PATIENCE_S) == "state/3"
    uploader.submit(place.upload(place.handle(4, "state/4"), awaited=frozenset({4}), **more))
    assert versions(letters, 1) == [(FIRST, 4)]
    storage.gate.set()
    assert versions(letters, 1) == [(FIRST, 3)]


def test_jobs_that_share_a_worker_do_not_supersede_each_other(
    tmp_path: Path, mailbox: Mailbox, letters: queue.Queue[Message]
) -> None:
    """Operators of two jobs may have the same uid: what waits of one is not replaced by the other's."""
    places, uploader = [Place(tmp_path / name) for name in ("one", "two")], Uploader()
    storage = Gated(tmp_path / "gated")
    for version in (3, 4):
        for number, place in enumerate(places):
            uploader.submit(
                place.upload(
                    place.handle(version, f"state/{number}-{version}"),
                    storage=storage,
                    mailbox=mailbox.address,
                    required=False,
                )
            )
            if version == 3:
                storage.arrived.get(timeout=PATIENCE_S)
    storage.gates[FIRST].set()
    assert sorted(versions(letters, 4)) == [(FIRST, 3), (FIRST, 3), (FIRST, 4), (FIRST, 4)]
    assert storage.names("state") == ["state/0-3", "state/0-4", "state/1-3", "state/1-4"]


def test_a_driver_that_does_not_answer_stops_nothing(
    place: Place, mailbox: Mailbox, letters: queue.Queue[Message]
) -> None:
    """The upload is done all the same, and the next one is reported."""
    uploader = Uploader()
    uploader.submit(place.upload(place.handle(3, "state/views/3")))
    uploader.submit(place.upload(place.handle(4, "state/views/4"), mailbox=mailbox.address))
    assert versions(letters, 1) == [(FIRST, 4)]
    assert place.storage.names("state") == ["state/views/3", "state/views/4"]


def test_a_cause_that_is_no_utf_8_reaches_the_driver(
    place: Place, mailbox: Mailbox, letters: queue.Queue[Message]
) -> None:
    """What a server says may have half characters: the driver hears it, and the lane goes on to the next upload."""
    refused = PlannedFailure(
        operation="upload", error=lambda _: UnavailableError("no such folder: caf\udce9")
    )
    storage = FaultyStorage(place.storage, FaultPlan(failures=(refused,)))
    uploader = Uploader()
    uploader.submit(place.upload(place.handle(1, "state/views/a"), storage=storage, mailbox=mailbox.address))
    first = letters.get(timeout=PATIENCE_S)
    assert isinstance(first, UploadFailed)
    assert first.cause == r"UnavailableError: no such folder: caf\udce9"
    uploader.submit(place.upload(place.handle(2, "state/views/b"), mailbox=mailbox.address))
    assert versions(letters, 1) == [(FIRST, 2)]


def test_whatever_the_driver_cannot_be_told_the_lane_goes_on(
    place: Place, mailbox: Mailbox, letters: queue.Queue[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that cannot be sent, for whichever reason, is logged; what waits behind it is uploaded."""

    def refuse(address: Address, message: Message) -> None:
        raise MemoryError

    uploader = Uploader()
    with monkeypatch.context() as patch:
        patch.setattr("penstock.snapshot.mailbox.send", refuse)
        uploader.submit(place.upload(place.handle(1, "state/views/a"), mailbox=mailbox.address))
        for thread in threading.enumerate():
            if thread.name.startswith("penstock-upload"):
                thread.join(PATIENCE_S)
    uploader.submit(place.upload(place.handle(2, "state/views/b"), mailbox=mailbox.address))
    assert versions(letters, 1) == [(FIRST, 2)]
