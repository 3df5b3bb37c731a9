"""The journal: what is told is found again, whatever the storage and its neighbours do."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import msgspec
import pytest

from penstock.errors import UnavailableError
from penstock.status import journal
from penstock.status.events import Asked, CheckpointCommitted, Event, JobEnded, Lost, RunFailed, SinkDown
from penstock.status.journal import (
    SEGMENT_BYTES,
    Budget,
    JournalReader,
    JournalWriter,
    read_live,
    read_plan,
    segments,
)
from penstock.storage import LocalStorage
from services.patience import PATIENCE_S, tries


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "job")


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "PAUSE_S", 0.001)


def told(storage: LocalStorage) -> tuple[Event, ...]:
    return JournalReader(storage).read().events


def committed(number: int) -> CheckpointCommitted:
    return CheckpointCommitted(at=float(number), run=1, checkpoint=number, commit_ms=1.0)


def long(number: int) -> JobEnded:
    return JobEnded(at=float(number), run=1, how="failed", error="E", why="x" * 3000, batches=number)


def test_what_is_told_is_found_in_order(storage: LocalStorage) -> None:
    """All events are found, in the order in which they happened, in as many files as they need."""
    writer = JournalWriter(storage)
    for number in range(100):
        writer.tell(long(number))
    writer.close()
    assert [event.batches for event in told(storage) if isinstance(event, JobEnded)] == list(range(100))
    assert len(segments(storage)) > 3
    assert all((storage.size(name) or 0) < SEGMENT_BYTES + 4000 for name in segments(storage))


def test_two_writers_do_not_overwrite_each_other(storage: LocalStorage) -> None:
    """A run that was thought dead and the one that replaced it both have their story."""
    writers = [JournalWriter(storage) for _ in range(2)]
    for number, writer in enumerate(writers * 5):
        writer.tell(committed(number))
    for writer in writers:
        writer.close()
    assert len(told(storage)) == 10


class Failing(LocalStorage):
    """Takes nothing as long as it is down."""

    down = True

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.tried = threading.Event()

    def put(self, name: str, data: bytes) -> None:
        self.tried.set()
        if self.down:
            raise UnavailableError("down")
        super().put(name, data)


def test_a_storage_that_is_down_holds_up_nobody(tmp_path: Path) -> None:
    """Telling returns at once, and what was told is written when storage is back, each event once."""
    storage = Failing(tmp_path / "job")
    writer = JournalWriter(storage)
    for number in range(10):
        writer.tell(committed(number))
    storage.down = False
    writer.close()
    assert [event.at for event in told(storage)] == list(range(10))


class Odd(LocalStorage):
    """Raises once what no storage should."""

    raised = False

    def put(self, name: str, data: bytes) -> None:
        if not self.raised:
            self.raised = True
            raise ValueError("a bug of a storage")
        super().put(name, data)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_no_error_ends_the_journal(tmp_path: Path) -> None:
    """Whatever a storage raises: it is tried again."""
    storage = Odd(tmp_path / "job")
    writer = JournalWriter(storage)
    writer.tell(committed(1))
    assert any(storage.raised for _ in tries(0.01))
    writer.tell(committed(2))
    writer.close()
    assert [event.at for event in told(storage)] == [1.0, 2.0]


def test_what_is_lost_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When more waits than is kept, the oldest make room, and the journal says how many there were."""
    monkeypatch.setattr(Lost, "MOST_WAITING", 5)
    storage = Failing(tmp_path / "job")
    writer = JournalWriter(storage)
    for number in range(12):
        writer.tell(committed(number))
    storage.down = False
    writer.close()
    events = told(storage)
    lost = sum(event.events for event in events if isinstance(event, Lost))
    kept = [event for event in events if isinstance(event, CheckpointCommitted)]
    assert (lost + len(kept), kept[-1].checkpoint) == (12, 11)


def test_what_is_lost_is_counted_however_long_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try of the writer looks at what waits. What it has seen of losses is not forgotten when more are lost behind it."""
    monkeypatch.setattr(Lost, "MOST_WAITING", 5)
    storage = Failing(tmp_path / "job")
    writer = JournalWriter(storage)
    for number in range(40):
        writer.tell(committed(number))
        storage.tried.clear()
        assert storage.tried.wait(PATIENCE_S)
    storage.down = False
    writer.close()
    events = told(storage)
    kept = [event.at for event in events if isinstance(event, CheckpointCommitted)]
    assert kept == [35.0, 36.0, 37.0, 38.0, 39.0]
    assert [event.events for event in events if isinstance(event, Lost)] == [35]


def test_no_more_is_read_than_anybody_keeps(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reaches the folder can fill it: the newest are read, and those who look have memory left."""
    monkeypatch.setattr(journal, "MOST_BYTES", 200_000)
    writer = JournalWriter(storage)
    for number in range(200):
        writer.tell(long(number))
    writer.close()
    events = told(storage)
    assert [event.at for event in events] == list(range(200 - len(events), 200))
    assert 40 < len(events) < 100
    monkeypatch.setattr(journal, "MOST_FILES", 2)
    assert 0 < len(told(storage)) < 50


def test_the_journal_is_bounded(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the newest part is kept, and only who owns the job deletes."""
    monkeypatch.setattr(journal, "KEEP_BYTES", 200_000)
    for owns in (False, True):
        writer = JournalWriter(storage, may_delete=partial(bool, owns))
        for number in range(100):
            writer.tell(long(number))
        writer.close()
        total = sum(storage.size(name) or 0 for name in segments(storage))
        assert (total <= 200_000 + SEGMENT_BYTES + 4000) is owns
    newest = told(storage)[-1]
    assert isinstance(newest, JobEnded)
    assert newest.batches == 99


@pytest.mark.parametrize(
    "flood",
    [
        CheckpointCommitted(at=5.0, run=1, checkpoint=1, commit_ms=1.0),
        Asked(at=5.0, run=1, what="savepoint", by="a script " * 400),
        SinkDown(at=5.0, run=1, sink="out", why="down " * 800, waiting=1),
        RunFailed(at=5.0, run=1, error="E", why="x" * 4000, strategy="s", restarts=True),
    ],
    ids=lambda event: type(event).__name__,
)
def test_no_flood_deletes_what_is_of_another_kind(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, flood: Event
) -> None:
    """Checkpoints, requests and troubles without end delete neither the story of a failure nor who cancelled the job."""
    monkeypatch.setattr(journal, "KEEP_BYTES", 100_000)
    failed = RunFailed(at=1.0, run=1, error="E", why="the disk is full", strategy="s", restarts=True)
    cancelled = Asked(at=2.0, run=1, what="cancel", by="ada")
    for start in range(4):
        writer = JournalWriter(storage, may_delete=lambda: True)
        if not start:
            writer.tell(failed)
            writer.tell(cancelled)
        for _ in range(1200 if isinstance(flood, CheckpointCommitted) else 60):
            writer.tell(flood)
        writer.close()
    events = told(storage)
    assert cancelled in events
    assert failed in events or isinstance(flood, RunFailed)
    assert sum(storage.size(name) or 0 for name in segments(storage)) < 400_000


def test_files_of_an_earlier_version_are_read(storage: LocalStorage) -> None:
    """Their names have no budget; they are read as long as they are there."""
    storage.put(f"events/{'1' * 13}-{'a' * 16}-000000.jsonl", msgspec.json.encode(committed(1)) + b"\n")
    assert told(storage) == (committed(1),)


def test_who_may_not_write_writes_nothing(storage: LocalStorage) -> None:
    """A folder that was deleted, or is another life of the job, is left alone."""
    writer = JournalWriter(storage, may_write=lambda: False)
    writer.tell(committed(1))
    writer.close()
    assert told(storage) == ()


def test_what_cannot_be_read_is_counted(storage: LocalStorage) -> None:
    """Damaged lines, events of a newer version and huge files are in nobody's way."""
    writer = JournalWriter(storage)
    writer.tell(committed(1))
    writer.close()
    (name,) = segments(storage)
    storage.put(
        name,
        storage.get(name) + b'{"event":"of_tomorrow","at":1,"run":1}\n{"event":"checkp\n' + b"[" * 20_000,
    )
    storage.put(journal.segment_name(1.0, "f" * 16, Budget.RUNS, 0), b" " * (2 << 20))
    storage.put("events/notes.txt", b"of a person")
    read = JournalReader(storage).read()
    assert (len(read.events), read.unreadable) == (1, 4)


def test_half_characters_are_told(storage: LocalStorage) -> None:
    """A text with what is no UTF-8, as odd names of files have it, is written all the same."""
    writer = JournalWriter(storage)
    writer.tell(JobEnded(at=1.0, run=1, how="failed", error="OSError", why="no file \udcff"))
    writer.close()
    (event,) = told(storage)
    assert isinstance(event, JobEnded)
    assert event.why == "no file \\udcff"


def test_a_reader_sees_what_is_added(storage: LocalStorage) -> None:
    """One that has read before reads what has come since, and no more than that is read anew."""
    reader, writer = JournalReader(storage), JournalWriter(storage)
    seen = threading.Event()
    writer.tell(committed(1))
    while len(reader.read().events) < 1:
        seen.wait(0.01)
    writer.tell(committed(2))
    writer.close()
    assert [event.at for event in reader.read().events] == [1.0, 2.0]


def test_plan_and_live_of_nobody(storage: LocalStorage) -> None:
    """Where nothing was said, or nobody can read it, there is none."""
    storage.put("runs/1.plan", b"{")
    storage.put("runs/1.live", b"[" * 100_000)
    assert [read_plan(storage, 1), read_live(storage, 1), read_plan(storage, 2), read_live(storage, 2)] == [
        None
    ] * 4


def test_a_signal_in_the_midst_of_telling(storage: LocalStorage) -> None:
    """Its handler may tell something itself, as a program's that stops its job does: nobody waits for himself."""
    writer, done = JournalWriter(storage), threading.Event()

    def tell() -> None:
        with writer._changed:  # where a signal may meet the thread that tells
            writer.tell(committed(1))
        done.set()

    threading.Thread(target=tell, daemon=True).start()
    assert done.wait(PATIENCE_S)
    writer.close()
    assert told(storage) == (committed(1),)
