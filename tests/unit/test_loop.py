"""The coordinator's threads: what was posted before a drain is part of it, and a failure reaches whoever waits."""

from __future__ import annotations

import logging
import re
import shutil
import threading
import time

import pytest

from builders.sink_double import TroubledSink, staged, visible
from penstock.checkpoint.content import Identity
from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.events import BatchFinished, CheckpointListener
from penstock.checkpoint.loop import CoordinatorLoop
from penstock.checkpoint.metadata import is_committed
from penstock.checkpoint.model import Barrier, Completed
from penstock.checkpoint.pending import EventTimestamp
from penstock.checkpoint.protocol import Protocol
from penstock.clock import SYSTEM_CLOCK
from penstock.config import Checkpointing
from penstock.errors import CheckpointFailedError, FencedError, UnavailableError
from penstock.ids import CheckpointId
from penstock.ownership.claim import StorageAwayError, claim
from penstock.storage import LocalStorage
from penstock.testing.simulation.external import External


def make_loop(claim, failures):
    storage, run = claim.storage, claim.run

    def make(post, run_commit):
        identity = Identity("job", run, 1, 128, {}, {})
        protocol = Protocol(
            Checkpointing(interval="1h"), identity, [], EventTimestamp(SYSTEM_CLOCK.monotonic(), 0.0)
        )
        return Coordinator(
            protocol,
            storage=storage,
            sinks={},
            claim=claim,
            owner="job",
            clock=SYSTEM_CLOCK,
            post=post,
            run_commit=run_commit,
        )

    return CoordinatorLoop(make, claim=claim, on_failure=failures.append)


def test_drain_completes_every_batch_posted_before_it(tmp_path):
    """A drain right behind a batch waits for that batch's checkpoint, although its event was still in the queue."""
    storage = LocalStorage(tmp_path)
    for number in range(20):
        loop = make_loop(claim(storage, 0.0), [])
        loop.start()
        loop.post(BatchFinished(CheckpointId(number), Barrier(), {}))
        loop.drain()
        assert loop.coordinator.last_completed == number
        loop.stop()


def test_a_failure_in_the_loop_is_raised_by_drain_and_reported_once(tmp_path):
    """A fenced run learns it when it completes a checkpoint, and whoever waits for the drain gets the error."""
    storage = LocalStorage(tmp_path)
    zombie = claim(storage, 0.0)
    claim(storage, 0.0)
    failures: list[BaseException] = []
    loop = make_loop(zombie, failures)
    loop.start()
    loop.post(BatchFinished(CheckpointId(0), Barrier(), {}))
    with pytest.raises(FencedError):
        loop.drain()
    loop.stop()
    assert len(failures) == 1
    assert not (tmp_path / "chk-0-r1").exists()


class Stubborn(TroubledSink):
    """Commits nothing until it is allowed to, and remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__(External())
        self.allowed = threading.Event()
        self.asked: list[int] = []

    def commit(self, transaction):
        self.asked.append(transaction["checkpoint"])
        if not self.allowed.is_set():
            raise UnavailableError("the database is restarting")
        super().commit(transaction)


def until(true) -> None:
    """Wait for what another thread does; a test that waits in vain is ended by pytest."""
    while not true():
        time.sleep(0.005)


class Noting(CheckpointListener):
    """Keeps the checkpoints that exist."""

    def __init__(self, completed):
        self._completed = completed

    def completed(self, completed, complete_s, *, wanted):
        """See `CheckpointListener.completed`."""
        self._completed.append(completed)


def loop_with(claim, sinks, completed=None, on_failure=pytest.fail) -> CoordinatorLoop:
    """`completed`: a list of the checkpoints that exist."""
    storage, run = claim.storage, claim.run
    completed = [] if completed is None else completed

    def make(post, run_commit):
        protocol = Protocol(
            Checkpointing(interval="1ms"), Identity("job", run, 1, 128, {}, {}), [], EventTimestamp(0.0, 0.0)
        )
        return Coordinator(
            protocol,
            storage=storage,
            sinks=sinks,
            claim=claim,
            owner="job",
            clock=SYSTEM_CLOCK,
            post=post,
            run_commit=run_commit,
            listener=Noting(completed),
        )

    return CoordinatorLoop(make, claim=claim, on_failure=on_failure)


def finish_batch(loop, run, sinks, number) -> None:
    transactions = tuple(sink.stage("job", uid, run=run, batch=number) for uid, sink in sinks.items())
    loop.coordinator.begin_batch(CheckpointId(number))
    loop.post(BatchFinished(CheckpointId(number), Barrier(), {}, transactions))
    until(lambda: loop.coordinator.last_completed == number)


def test_a_sink_that_is_down_holds_up_nobody_else(tmp_path, caplog):
    """The other sink commits checkpoint by checkpoint; what waits is promised by each metadata, and is committed in order in the end."""
    caplog.set_level(logging.DEBUG, logger="penstock.checkpoint")
    storage = LocalStorage(tmp_path)
    mine = claim(storage, 0.0)
    run = mine.run
    sinks = {"down": Stubborn(), "well": TroubledSink(External())}
    completed: list[Completed] = []
    loop = loop_with(mine, sinks, completed)
    loop.start()
    for number in range(4):
        finish_batch(loop, run, sinks, number)
        until(lambda number=number: len(visible(sinks["well"]._external)) == number + 1)
    until(lambda: loop.coordinator.waiting_commits == 4)
    newest = completed[-1]
    assert [one.checkpoint for one in newest.transactions if one.sink == "down"] == [0, 1, 2, 3]
    until(lambda: caplog.text.count("sink down: next try") >= 3)
    assert visible(sinks["down"]._external) == []
    assert not is_committed(storage, newest)
    sinks["down"].allowed.set()
    loop.drain()
    assert visible(sinks["down"]._external) == visible(sinks["well"]._external)
    assert [number for _, number, _ in visible(sinks["down"]._external)] == [0, 1, 2, 3]
    loop.stop()
    assert is_committed(storage, newest)
    pauses = [float(text) for text in re.findall(r"sink down: next try in ([0-9.]+) s", caplog.text)]
    assert pauses[:3] == [0.1, 0.2, 0.4]


def test_whoever_drains_can_give_up(tmp_path):
    """A drain that waits for a sink that is down ends when it is told to; the transaction stays for the next run."""
    storage = LocalStorage(tmp_path)
    mine = claim(storage, 0.0)
    run = mine.run
    sinks = {"down": Stubborn()}
    loop = loop_with(mine, sinks)
    loop.start()
    finish_batch(loop, run, sinks, 0)
    loop.drain(given_up=lambda: len(sinks["down"].asked) >= 2)
    loop.stop()
    assert staged(sinks["down"]._external) == [(run, 0, 0)]


class Hanging(TroubledSink):
    """Commits when it is allowed to, and does not return before."""

    def __init__(self) -> None:
        super().__init__(External())
        self.asked, self.allowed = threading.Event(), threading.Event()

    def commit(self, transaction):
        self.asked.set()
        self.allowed.wait()
        super().commit(transaction)


def test_a_cancelled_job_leaves_a_call_behind_that_never_returns(tmp_path, monkeypatch, caplog):
    """Who ends the job now is not kept for ever by a sink that does not return: the log names it, and nothing is done after that call. Others wait until it has."""
    monkeypatch.setattr("penstock.checkpoint.sink_lanes.LEAVE_AFTER_S", 0.0)
    mine = claim(LocalStorage(tmp_path), 0.0)
    sinks = {"hanging": Hanging(), "well": TroubledSink(External())}
    loop = loop_with(mine, sinks)
    loop.start()
    for number in range(2):
        finish_batch(loop, mine.run, sinks, number)
    sinks["hanging"].asked.wait()
    cancelled = threading.Event()
    stopping = threading.Thread(target=loop.stop, args=[cancelled.is_set], daemon=True)
    stopping.start()
    stopping.join(0.3)
    assert stopping.is_alive()  # who has not given up waits
    cancelled.set()
    stopping.join()
    assert "sink hanging: a call has not returned, and the job ends without it" in caplog.text
    assert "sink well" not in caplog.text
    assert visible(sinks["well"]._external) == [(mine.run, 0, 0), (mine.run, 1, 0)]
    sinks["hanging"].allowed.set()
    loop._lanes._threads["hanging"].join()
    assert visible(sinks["hanging"]._external) == [(mine.run, 0, 0)]  # what waited behind is the next run's


def test_a_stop_does_not_sit_out_the_pause_between_two_tries(tmp_path, monkeypatch):
    """A sink that has been down for long is tried every half minute; who stops the job is not kept waiting for that."""
    monkeypatch.setattr("penstock.checkpoint.commits.FIRST_PAUSE_S", 3600.0)
    storage = LocalStorage(tmp_path)
    mine = claim(storage, 0.0)
    run = mine.run
    sinks = {"down": Stubborn()}
    loop = loop_with(mine, sinks)
    loop.start()
    finish_batch(loop, run, sinks, 0)
    until(lambda: sinks["down"].asked == [0])
    loop.stop()
    assert sinks["down"].asked == [0, 0]
    assert staged(sinks["down"]._external) == [(run, 0, 0)]


def test_a_run_whose_storage_vanished_fails_and_makes_nothing_of_it_anew(tmp_path, monkeypatch):
    """Without a batch or a checkpoint the heartbeat finds out: the run fails, says so, and the folder stays away."""
    monkeypatch.setattr("penstock.checkpoint.loop.HEARTBEAT_S", 0.01)
    storage = LocalStorage(tmp_path / "views")
    failures: list[BaseException] = []
    loop = make_loop(claim(storage, 0.0), failures)
    shutil.rmtree(storage.root)
    loop.start()
    until(lambda: failures)
    loop.stop()
    assert isinstance(failures[0], StorageAwayError)
    assert "the folder was deleted, replaced by a copy, or is not mounted" in str(failures[0])
    assert not storage.root.exists()


def test_a_run_whose_storage_was_away_completes_and_commits_nothing_any_more(tmp_path):
    """Its files may have gone into the empty folder below the mount: what it has pre-committed is the next run's to decide."""
    storage = LocalStorage(tmp_path / "views")
    mine = claim(storage, 0.0)
    storage.root.rename(tmp_path / "away")
    with pytest.raises(StorageAwayError):
        mine.check()
    (tmp_path / "away").rename(storage.root)
    sinks = {"up": TroubledSink(External())}
    completed: list[Completed] = []
    loop = loop_with(mine, sinks, completed, on_failure=lambda _: None)
    loop.start()
    loop.coordinator.begin_batch(CheckpointId(0))
    promised = tuple(sink.stage("job", uid, run=mine.run, batch=0) for uid, sink in sinks.items())
    loop.post(BatchFinished(CheckpointId(0), Barrier(), {}, promised))
    until(lambda: loop.failure is not None)
    loop.stop()
    assert isinstance(loop.failure, StorageAwayError | CheckpointFailedError)
    assert completed == []
    assert visible(sinks["up"]._external) == []
    assert not [name for name in storage.names() if name.startswith("chk-")]


class BackAgain(Stubborn):
    """Comes back right after its second try, which is the last: it is made while the job stops."""

    def commit(self, transaction):
        try:
            super().commit(transaction)
        finally:
            if len(self.asked) == 2:
                self.allowed.set()


def test_a_stop_never_commits_behind_what_it_gave_up(tmp_path, monkeypatch):
    """A sink that comes back in the middle of a stop commits nothing out of order: the next run begins with the oldest."""
    monkeypatch.setattr("penstock.checkpoint.commits.FIRST_PAUSE_S", 3600.0)
    storage = LocalStorage(tmp_path)
    mine = claim(storage, 0.0)
    run = mine.run
    sinks = {"down": BackAgain()}
    completed: list[Completed] = []
    loop = loop_with(mine, sinks, completed)
    loop.start()
    for number in range(3):
        finish_batch(loop, run, sinks, number)
    until(lambda: loop.coordinator.waiting_commits == 3)
    loop.stop()
    assert sinks["down"].asked == [0, 0]
    assert visible(sinks["down"]._external) == []
    newest = completed[-1]
    assert [one.checkpoint for one in newest.transactions] == [0, 1, 2]
