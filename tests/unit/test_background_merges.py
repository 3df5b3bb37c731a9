"""Which sorted files are merged in the background, and how the result takes their place."""

from __future__ import annotations

import logging
import queue
import resource
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from builders.protocol_story import Story, only
from penstock.checkpoint.events import Discard, JobEnded, SnapshotDurable
from penstock.errors import UnavailableError
from penstock.ids import CheckpointId, SubtaskId
from penstock.snapshot.mailbox import Address, Mailbox, MergeDone, MergeFailed, Message
from penstock.snapshot.merger import Merge, Merger, perform
from penstock.snapshot.uploader import Upload, Uploader
from penstock.state.backends import FilesystemBackend
from penstock.state.backends.base import StateLayout, Workplace
from penstock.state.ddl import arrow_schema
from penstock.state.handle import FileRef, StateHandle
from penstock.state.keys import KeyBatch
from penstock.state.lifetimes import Moment
from penstock.state.merge_orders import (
    LOST_AFTER_S,
    RETRY_AFTER_S,
    Merged,
    MergeOrder,
    MergeOrders,
    replaced,
)
from penstock.storage import LocalStorage
from penstock.testing.faulty_storage import FaultPlan, FaultyStorage, PlannedFailure
from services.patience import PATIENCE_S

VIEWS = SubtaskId("views", 0)
LAYOUT = StateLayout(arrow_schema("k long"), arrow_schema("n long"))


def at_no_time(_: str) -> Moment:
    return Moment()


def ref(name: str) -> FileRef:
    return FileRef(1, 1, "", name)


def handle(*names: str, subtask: SubtaskId = VIEWS) -> StateHandle:
    return StateHandle(subtask, "filesystem", 0, tuple(map(ref, names)))


def all_but_the_oldest(refs: Sequence[FileRef], _now_us: int) -> range | None:
    return range(len(refs) - 1) if len(refs) > 2 else None


def test_an_order_goes_out_once_and_its_result_takes_the_place_of_its_runs() -> None:
    """While an order is under way no other is given; its result replaces its files, behind those that came meanwhile."""
    merge_orders = MergeOrders(all_but_the_oldest)
    orders = merge_orders.order([handle("c", "b", "a")], 0.0, at_no_time)
    assert orders == {VIEWS: MergeOrder(VIEWS, (ref("c"), ref("b")), oldest=False)}
    assert merge_orders.order([handle("d", "c", "b", "a")], 1.0, at_no_time) == {}
    assert merge_orders.merging == {"b", "c"}
    merge_orders.done(Merged(VIEWS, ("c", "b"), ref("cb")))
    assert merge_orders.merging == {"b", "c"}, (
        "the batch that is running must leave them alone until they are replaced"
    )
    handles, files = merge_orders.adopt({VIEWS: handle("d", "c", "b", "a")})
    assert handles == {VIEWS: handle("d", "cb", "a")}
    assert files == {"cb"}
    assert merge_orders.merging == frozenset()
    assert merge_orders.adopt(handles) == (handles, frozenset())


def test_a_result_without_rows_takes_its_runs_away() -> None:
    """Where nothing was left after a merge, the handle has no run instead."""
    assert replaced(handle("c", "b", "a"), Merged(VIEWS, ("b", "a"), None)) == handle("c")


@pytest.mark.parametrize("names", [("d", "cb", "a"), ("c", "x", "b", "a"), ("b", "c", "a"), ()])
def test_a_result_whose_runs_are_gone_is_not_taken(names: tuple[str, ...]) -> None:
    """The second result of an order given twice changes nothing, and its file is named so that it can be discarded."""
    merge_orders = MergeOrders(all_but_the_oldest)
    merge_orders.done(Merged(VIEWS, ("c", "b"), ref("late")))
    handles, files = merge_orders.adopt({VIEWS: handle(*names)})
    assert handles == {VIEWS: handle(*names)}
    assert files == {"late"}


def test_orders_are_given_again() -> None:
    """After a failure not at once, after a lost worker when it must be dead, and at once when no task had taken it."""
    merge_orders = MergeOrders(all_but_the_oldest)
    handles = [handle("c", "b", "a")]
    assert merge_orders.order(handles, 0.0, at_no_time)
    merge_orders.failed(VIEWS, 0.0)
    assert not merge_orders.order(handles, RETRY_AFTER_S - 1, at_no_time)
    assert merge_orders.order(handles, RETRY_AFTER_S, at_no_time)
    assert not merge_orders.order(handles, RETRY_AFTER_S + LOST_AFTER_S - 1, at_no_time)
    assert merge_orders.order(handles, RETRY_AFTER_S + LOST_AFTER_S, at_no_time)
    merge_orders.not_taken([VIEWS])
    assert merge_orders.order(handles, RETRY_AFTER_S + LOST_AFTER_S, at_no_time)


def test_who_still_expects_a_result() -> None:
    """From the order until its result is in a handle, or nobody will bring it any more."""
    merge_orders = MergeOrders(all_but_the_oldest)
    handles = [handle("c", "b", "a")]
    assert merge_orders.expecting == frozenset()
    merge_orders.order(handles, 0.0, at_no_time)
    assert merge_orders.expecting == {VIEWS}
    merge_orders.done(Merged(VIEWS, ("c", "b"), ref("cb")))
    assert merge_orders.expecting == {VIEWS}
    merge_orders.adopt({VIEWS: handles[0]})
    assert merge_orders.expecting == frozenset()
    merge_orders.order(handles, 0.0, at_no_time)
    merge_orders.failed(VIEWS, 0.0)
    assert merge_orders.expecting == frozenset()


def test_the_end_of_a_run_names_what_nobody_took() -> None:
    """A result that came too late for a batch is known to whoever deletes files at the end."""
    merge_orders = MergeOrders(all_but_the_oldest)
    merge_orders.done(Merged(VIEWS, ("c", "b"), ref("cb")))
    merge_orders.done(Merged(VIEWS, ("x", "y"), None))
    assert merge_orders.unused() == {"cb"}
    assert merge_orders.unused() == frozenset()


# ── the protocol ───────────────────────────────────────────────────────────────────────────────


def at(*names: str) -> dict[SubtaskId, StateHandle]:
    return {VIEWS: handle(*names)}


def test_a_merged_file_is_kept_for_the_batch_that_takes_it() -> None:
    """Nothing names it before its batch is finished, and it is not discarded for that; nor does an upload wait for it."""
    story = Story()
    assert not only(story.finish(0, handles=at("b", "a")), Discard)
    story.protocol.files.take_durable({"ba"}, CheckpointId(1))
    assert not only(story.tell(SnapshotDurable(handle("b", "a"))), Discard)
    assert story.protocol.files.undurable({"c", "ba"}) == {"c"}
    (discard,) = only(story.finish(1, handles=at("c", "ba")), Discard)
    assert set(discard.files) == {"a", "b"}


def test_a_merged_file_that_its_batch_did_not_take_is_discarded() -> None:
    """When the batch is finished without it, or when the run ends, it is nobody's."""
    story = Story()
    story.protocol.files.take_durable({"refused"}, CheckpointId(0))
    (discard,) = only(story.finish(0, handles=at("a")), Discard)
    assert discard.files == ("refused",)
    story.protocol.files.take_durable({"late"}, CheckpointId(1))
    (discard,) = only(story.tell(JobEnded()), Discard)
    assert "late" in discard.files


# ── the worker ─────────────────────────────────────────────────────────────────────────────────


class Site:
    """A subtask with three files in storage, and a driver that listens."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.storage = LocalStorage(root / "storage")
        self.backend = FilesystemBackend()
        self.letters: queue.Queue[Message] = queue.Queue()
        self.mailbox = Mailbox("127.0.0.1", self.letters.put)
        self.handle: StateHandle | None = None
        for batch in range(3):
            keys = np.arange(batch * 10, batch * 10 + 20, dtype=np.int64)
            state = self.backend.open(self.workplace(batch), LAYOUT, self.handle)
            rows = pa.record_batch([keys], schema=LAYOUT.key)
            state.write(KeyBatch(keys, rows), pa.record_batch([keys + batch], schema=LAYOUT.value))
            self.handle = state.freeze()
            for name in self.handle.files:
                self.storage.upload(self.workplace(batch).local_path(name), name)

    def workplace(self, batch: int, storage: object = None) -> Workplace:
        return Workplace(
            storage=storage or self.storage,
            local_dir=self.root / "run-1",
            subtask=VIEWS,
            parallelism=1,
            max_parallelism=128,
            version=batch,
            stem=f"1-{batch}-0-{batch}",
        )

    def merge(self, storage: object = None) -> Merge:
        assert self.handle is not None
        order = MergeOrder(VIEWS, self.handle.refs, oldest=True)
        return Merge(self.backend, self.workplace(3, storage), LAYOUT, order, self.mailbox.address, 1)


@pytest.fixture
def site(tmp_path: Path):
    site = Site(tmp_path)
    yield site
    site.mailbox.close()


def test_the_driver_hears_of_a_merge_when_it_is_in_storage(site: Site) -> None:
    """The result is in storage when the message comes, waits on the machine, and reads like the files it replaces."""
    Merger().submit(site.merge())
    answer = site.letters.get(timeout=PATIENCE_S)
    assert isinstance(answer, MergeDone)
    assert answer.merged is not None
    assert answer.merged.rows == 40
    assert answer.merged.name in site.storage.names()
    workplace = site.workplace(4)
    assert workplace.merged_path(answer.merged.name).is_file()
    merged = replaced(site.handle, Merged(VIEWS, answer.replaced, answer.merged))
    assert len(merged.refs) == 1
    state = site.backend.open(workplace, LAYOUT, merged)
    rows = pa.Table.from_batches(state.scan()).to_pydict()
    assert rows["n"] == [*range(10), *range(11, 21), *range(22, 42)]
    assert (workplace.origins.reused_files, workplace.origins.fetched_files) == (0, 0)
    assert workplace.local_path(answer.merged.name).is_file()


def test_a_merge_that_cannot_be_stored_leaves_nothing(site: Site) -> None:
    """The driver hears why; no file of it stays, neither on the machine nor in storage."""
    before = site.storage.names()
    full = PlannedFailure(operation="upload", error=lambda _: UnavailableError("no space left on device"))
    Merger().submit(site.merge(FaultyStorage(site.storage, FaultPlan(failures=(full,)))))
    answer = site.letters.get(timeout=PATIENCE_S)
    assert isinstance(answer, MergeFailed)
    assert "no space left on device" in answer.cause
    assert site.storage.names() == before
    assert not list((site.root / "run-1" / "merged").rglob("*.*"))


def test_a_merge_whose_storing_was_not_confirmed_names_its_file(site: Site) -> None:
    """Storage may hold the file although it said no: the driver hears its name, so that it can be discarded."""
    before = set(site.storage.names())
    lost = PlannedFailure(
        operation="upload", error=lambda _: UnavailableError("the connection broke"), performed=True
    )
    answer = perform(site.merge(FaultyStorage(site.storage, FaultPlan(failures=(lost,)))))
    assert isinstance(answer, MergeFailed)
    assert {answer.file} == set(site.storage.names()) - before


def test_a_full_disk_stops_a_merge_and_nothing_else(site: Site) -> None:
    """When the machine has no space the driver hears which file could not be written, nothing is left, and the files are whole."""
    assert site.handle is not None
    before = site.storage.names()
    with no_file_larger_than(1000):
        answer = perform(site.merge())
    assert isinstance(answer, MergeFailed)
    assert "cannot write the working file" in answer.cause
    assert "-merged.arrow" in answer.cause
    assert not list((site.root / "run-1" / "merged").rglob("*.*"))
    assert site.storage.names() == before
    state = site.backend.open(site.workplace(4), LAYOUT, site.handle)
    assert sum(batch.num_rows for batch in state.scan()) == 40


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """The system refuses to write more, as it does when the disk is full."""
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_merger_takes_one_order_after_the_other(site: Site) -> None:
    """Orders of one worker are carried out one by one, and a new one starts it again after a rest."""
    merger = Merger()
    for _ in range(3):
        merger.submit(site.merge())
    assert [type(site.letters.get(timeout=PATIENCE_S)) for _ in range(3)] == [MergeDone] * 3
    merger.submit(site.merge())
    assert isinstance(site.letters.get(timeout=PATIENCE_S), MergeDone)


def test_where_no_thread_can_start_a_merge_is_put_off(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver hears of it, so that it orders the merge again; the batch goes on, and the next order is carried out."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    merger = Merger()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        merger.submit(site.merge())
    answer = site.letters.get(timeout=PATIENCE_S)
    assert isinstance(answer, MergeFailed)
    assert "can't start new thread" in answer.cause
    merger.submit(site.merge())
    assert isinstance(site.letters.get(timeout=PATIENCE_S), MergeDone)


def told_about(site: Site, address: Address, caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """What workers log about a merge and an upload that they cannot tell the driver about, with its level."""
    merger, uploader = Merger(), Uploader()
    assert site.handle is not None
    upload = Upload(site.storage, site.root / "run-1", address, 1, site.handle, frozenset(), required=True)
    with caplog.at_level(logging.DEBUG):
        merger.submit(replace(site.merge(), mailbox=address))
        uploader.submit(upload)
        for thread in threading.enumerate():
            if thread.name.startswith(("penstock-merge", "penstock-upload")):
                thread.join()
    about = [record for record in caplog.records if " about " in record.getMessage()]
    return sorted((record.levelname, record.getMessage().partition(": ")[0]) for record in about)


def test_after_the_run_a_worker_frightens_nobody(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """When nobody listens any more the run is over, and what comes too late is for the debug log only."""
    over = Mailbox("127.0.0.1", site.letters.put)
    over.close()
    assert told_about(site, over.address, caplog) == [
        ("DEBUG", "the run is over, and the message about a merge of views-0 is dropped"),
        ("DEBUG", "the run is over, and the message about an upload of views-0 is dropped"),
    ]


def test_a_driver_that_does_not_listen_is_told_to_people(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Any other failure to reach the driver is a warning."""
    wrong = msgspec.structs.replace(site.mailbox.address, secret="of another run")
    assert told_about(site, wrong, caplog) == [
        ("WARNING", "the driver could not be informed about a merge of views-0"),
        ("WARNING", "the driver could not be informed about an upload of views-0"),
    ]
