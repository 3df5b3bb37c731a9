"""Files go to storage side by side, each of them once, however many workers of a machine want it, and nothing is left behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest

from penstock.errors import UnavailableError
from penstock.ids import SubtaskId
from penstock.snapshot.mailbox import Mailbox, Message, UploadDone
from penstock.snapshot.transfer import Room, store_all
from penstock.snapshot.uploader import Upload, Uploader
from penstock.state.handle import FileRef, StateHandle
from penstock.state.local_files import fingerprint
from penstock.storage import LocalStorage
from services.patience import PATIENCE_S


class Meeting(LocalStorage):
    """An upload waits until `parties` are under way together; notes how often each file was stored, and how many at most at once.

    After a failure no others come, so that nobody waits for them.
    """

    def __init__(self, root: Path, parties: int = 1, fails: str = "") -> None:
        super().__init__(root)
        self.together = threading.Barrier(parties)
        self.fails = fails
        self.stored: Counter[str] = Counter()
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()

    def upload(self, local: Path, name: str) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        with contextlib.suppress(threading.BrokenBarrierError):
            self.together.wait(PATIENCE_S)
        try:
            if name == self.fails:
                self.together.abort()
                raise UnavailableError("no")
            super().upload(local, name)
        finally:
            with self._lock:
                self._now -= 1
                self.stored[name] += 1


def local_files(folder: Path, count: int) -> dict[str, FileRef]:
    """So many files, by name."""
    files = {}
    for number in range(count):
        name = f"state/views/{number:03}"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x" * (number + 1))
        files[name] = FileRef(1, *fingerprint(folder / name), name)
    return files


def file_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-file")]


def test_several_files_are_on_their_way_at_once(tmp_path: Path) -> None:
    """As many as there is room for, and never more."""
    storage = Meeting(tmp_path / "store", parties=4)
    files = local_files(tmp_path, 12)
    store_all(storage, tmp_path, files, Room(4))
    assert (storage.names(), storage.most) == (sorted(files), 4)
    assert file_threads() == []


def test_a_room_is_shared(tmp_path: Path) -> None:
    """Two uploads with one room have no more files on their way than one would."""
    storage, room = Meeting(tmp_path / "store", parties=3), Room(3)
    threads = []
    for name in ("one", "two"):
        files = {f"{name}/{file}": ref for file, ref in local_files(tmp_path / name, 9).items()}
        threads.append(threading.Thread(target=store_all, args=(storage, tmp_path, files, room)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(storage.names()), storage.most) == (18, 3)


def test_one_failure_ends_it_and_leaves_no_thread(tmp_path: Path) -> None:
    """The first failure is raised after those under way have ended; nothing else is begun."""
    storage = Meeting(tmp_path / "store", parties=4, fails="state/views/001")
    files = local_files(tmp_path, 40)
    with pytest.raises(UnavailableError, match="no"):
        store_all(storage, tmp_path, files, Room(4))
    assert file_threads() == []
    assert 4 <= storage.stored.total() < len(files)


@pytest.mark.parametrize("most", [0, 2])
def test_with_fewer_threads_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """A process that has reached its limit of threads stores all files with those it gets, and none goes on after the end."""
    start = threading.Thread.start
    begun: list[threading.Thread] = []

    def start_some(self: threading.Thread) -> None:
        if len(begun) == most:
            raise RuntimeError("can't start new thread")
        begun.append(self)
        start(self)

    storage = Meeting(tmp_path / "store", parties=most + 1)
    files = local_files(tmp_path, 6)
    monkeypatch.setattr(threading.Thread, "start", start_some)
    store_all(storage, tmp_path, files, Room(4))
    assert (storage.names(), storage.most) == (sorted(files), most + 1)
    assert file_threads() == []


def test_what_is_in_storage_is_not_stored_again(tmp_path: Path) -> None:
    """Also when the local file is gone; one of another size is no such file."""
    storage = Meeting(tmp_path / "store")
    files = local_files(tmp_path, 3)
    store_all(storage, tmp_path, files, Room())
    (tmp_path / "state/views/000").unlink()
    storage.put("state/views/001", b"something else")
    store_all(storage, tmp_path, files, Room())
    assert storage.stored == {"state/views/000": 1, "state/views/001": 2, "state/views/002": 1}
    assert storage.size("state/views/001") == 2


class Vanishing(LocalStorage):
    """Somebody deletes the working folder while its file is on the way: before the call, or in the middle of it."""

    def __init__(self, root: Path, working: Path, *, in_the_middle: bool) -> None:
        super().__init__(root)
        self.working = working
        self.in_the_middle = in_the_middle

    def upload(self, local: Path, name: str) -> None:
        if not self.in_the_middle:
            shutil.rmtree(self.working)
        super().upload(local, name)

    def _appear(self, *arguments, **more) -> None:
        shutil.rmtree(self.working)
        super()._appear(*arguments, **more)


@pytest.mark.parametrize("when", ["before", "at the call", "in the middle"])
def test_a_working_folder_that_is_deleted_is_not_blamed_on_storage(tmp_path: Path, when: str) -> None:
    """The error names the file that is gone, and promises nothing about what happens next: that is for those who need the file."""
    working = tmp_path / "local"
    files = local_files(working, 1)
    storage = LocalStorage(tmp_path / "store")
    if when == "before":
        shutil.rmtree(working)
    else:
        storage = Vanishing(tmp_path / "store", working, in_the_middle=when == "in the middle")
    with pytest.raises(
        UnavailableError, match=rf"^the working file {working}/state/views/000 is gone"
    ) as caught:
        store_all(storage, working, files)
    assert "retried" not in str(caught.value)


def hold_for_ever(path: Path, has_it: object) -> None:
    """Another worker, which hangs with the file in its hands."""
    import fcntl

    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        has_it.set()  # type: ignore[attr-defined]
        threading.Event().wait()


def test_a_dead_worker_holds_up_nobody(tmp_path: Path) -> None:
    """What a worker was about to store when it was killed is stored by the next one."""
    context = multiprocessing.get_context("spawn")
    files = local_files(tmp_path, 1)
    has_it = context.Event()
    worker = context.Process(target=hold_for_ever, args=(tmp_path / "state/views/000", has_it))
    worker.start()
    assert has_it.wait(PATIENCE_S)
    storage = LocalStorage(tmp_path / "store")
    waits = threading.Thread(target=store_all, args=(storage, tmp_path, files, Room()))
    waits.start()
    assert storage.names() == []
    worker.kill()
    waits.join(PATIENCE_S)
    worker.join()
    assert storage.names() == ["state/views/000"]


def test_a_worker_that_hangs_is_waited_for_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience with a worker that lives and does nothing has an end."""
    import fcntl

    monkeypatch.setattr("penstock.snapshot.transfer.PATIENCE_S", 0.1)
    files = local_files(tmp_path, 1)
    storage = LocalStorage(tmp_path / "store")
    with (tmp_path / "state/views/000").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        store_all(storage, tmp_path, files, Room())
    assert storage.names() == ["state/views/000"]


class Trickle(LocalStorage):
    """Nothing goes through before the gate opens; counts what is stored."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.gate = threading.Event()
        self.stored: Counter[str] = Counter()
        self._lock = threading.Lock()

    def upload(self, local: Path, name: str) -> None:
        assert self.gate.wait(PATIENCE_S)
        super().upload(local, name)
        with self._lock:
            self.stored[name] += 1


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_much_faster_than_uploads(tmp_path: Path, workers: int) -> None:
    """Storage stands still for 300 batches: what waits stays small, every file is stored at most once, the newest version is."""
    letters: queue.Queue[Message] = queue.Queue()
    mailbox = Mailbox("127.0.0.1", letters.put)
    storage = Trickle(tmp_path / "store")
    uploaders = [Uploader() for _ in range(workers)]
    files = local_files(tmp_path, 300)
    names = sorted(files)
    most_waiting = 0
    for version in range(300):
        refs = tuple(files[name] for name in names[max(0, version - 5) : version + 1])
        uploader = uploaders[version % workers]
        required = version % 10 == 0
        uploader.submit(
            Upload(
                storage,
                tmp_path,
                mailbox.address,
                run=1,
                handle=StateHandle(SubtaskId("views", 0), "filesystem", version, refs),
                durable=frozenset(),
                required=required,
                awaited=frozenset({version - version % 10}),
            )
        )
        most_waiting = max(most_waiting, *(one.waiting for one in uploaders))
    storage.gate.set()
    done = []
    while 299 not in done:
        letter = letters.get(timeout=PATIENCE_S)
        assert isinstance(letter, UploadDone)
        done.append(letter.handle.version)
    mailbox.close()
    assert (
        most_waiting <= 2 + 1
    )  # one that is not required, one that is, and one that its thread is about to take
    assert len(done) <= workers * 4
    assert set(storage.stored.values()) == {1}
    assert set(names[294:]) <= set(storage.stored)


def test_a_damaged_file_does_not_get_into_storage(tmp_path: Path) -> None:
    """A working file that changed since it was written is refused with both checksums, and storage has nothing of it."""
    storage = LocalStorage(tmp_path / "store")
    files = local_files(tmp_path, 3)
    damaged = sorted(files)[1]
    (tmp_path / damaged).write_bytes(b"xy")
    with pytest.raises(UnavailableError, match="has changed since it was written") as refused:
        store_all(storage, tmp_path, files)
    assert files[damaged].checksum in str(refused.value)
    assert damaged not in storage.names()
