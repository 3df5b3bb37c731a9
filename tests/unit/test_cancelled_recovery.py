"""A sink whose call never returns while a run is being restored, and a job that ends without it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.protocol_story import JOB, completed
from builders.restore_plans import job_spec
from builders.sink_double import TroubledSink, staged, visible
from penstock.checkpoint import sink_lanes
from penstock.checkpoint.metadata import write_metadata
from penstock.checkpoint.sink_lanes import RecoveryCalls
from penstock.errors import UnavailableError
from penstock.ownership.claim import claim
from penstock.recovery.restore import restore
from penstock.storage import LocalStorage
from penstock.testing.simulation.external import External

UID = "out"


class Hanging(TroubledSink):
    """The first call of one method does not return before the test lets it."""

    def __init__(self, where: str) -> None:
        super().__init__(External())
        self._where = where
        self.called, self.let_go = threading.Event(), threading.Event()
        self.calls: list[str] = []
        self.thread: threading.Thread | None = None

    def _hang(self, method: str) -> None:
        self.calls.append(method)
        if method == self._where and not self.called.is_set():
            self.thread = threading.current_thread()
            self.called.set()
            self.let_go.wait()

    def commit(self, transaction):
        self._hang("commit")
        super().commit(transaction)

    def abort(self, transaction):
        self._hang("abort")
        super().abort(transaction)

    def find_transactions(self, job, sink):
        self._hang("find_transactions")
        return super().find_transactions(job, sink)

    def newest_commit(self, job, sink):
        self._hang("newest_commit")
        return super().newest_commit(job, sink)


@pytest.fixture(params=["newest_commit", "commit", "find_transactions", "abort"])
def hanging(request: pytest.FixtureRequest) -> Iterator[Hanging]:
    sink = Hanging(request.param)
    yield sink
    sink.let_go.set()


def left(storage: LocalStorage, sink: Hanging) -> UnavailableError:
    """What a recovery raises that is cancelled while the sink hangs."""
    raised: list[UnavailableError] = []
    cancelled = threading.Event()

    def recover() -> None:
        try:
            with RecoveryCalls(cancelled.is_set) as calls:
                restore(job_spec(storage, sinks={UID: sink}), now=0.0, calls=calls)
        except UnavailableError as error:
            raised.append(error)

    recovery = threading.Thread(target=recover, daemon=True)
    recovery.start()
    sink.called.wait()
    recovery.join(0.3)
    assert recovery.is_alive()  # a job that nobody cancels waits
    cancelled.set()
    recovery.join()
    return raised[0]


def test_a_cancel_leaves_a_call_behind_that_never_returns(
    tmp_path: Path, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recovery ends and names the sink; when the call returns after the next run has claimed the job, its thread does nothing more."""
    monkeypatch.setattr("penstock.checkpoint.sink_lanes.LEAVE_AFTER_S", 0.0)
    storage = LocalStorage(tmp_path)
    claim(storage, 0.0)
    promised = [hanging.stage(JOB, UID, run=1, batch=batch) for batch in (3, 4)]
    for batch in (5, 6):
        hanging.stage(JOB, UID, run=1, batch=batch)
    write_metadata(storage, completed(4, run=1, transactions=tuple(promised)))
    storage.put("state/nobodys", b"rows")
    error = left(storage, hanging)
    assert f"the sink {UID} does not" in str(error)
    assert "a call has not returned, and the job ends without it" in str(error)
    before = list(hanging.calls)
    claim(storage, 0.0)
    hanging.let_go.set()
    assert hanging.thread is not None
    hanging.thread.join()
    assert hanging.calls == before
    assert storage.size("state/nobodys") is not None  # nothing was cleaned up after the call
    point = restore(job_spec(storage, sinks={UID: hanging}), now=0.0).plan
    assert point.id == 4
    assert visible(hanging._external) == [(1, 3, 0), (1, 4, 0)]
    assert staged(hanging._external) == []


def test_a_call_that_does_not_return_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A start that waits for a sink says for which one, once."""
    monkeypatch.setattr(sink_lanes, "WARN_AFTER_S", 0.3)
    returns = threading.Event()
    threading.Timer(1.0, returns.set).start()
    with RecoveryCalls(lambda: False) as calls, caplog.at_level(logging.WARNING):
        assert calls("to-postgres", lambda: returns.wait(60))
    (line,) = [one.getMessage() for one in caplog.records if "has not returned" in one.getMessage()]
    assert line.startswith("sink to-postgres: ")


def test_an_interrupted_recovery_leaves_a_call_behind_that_begins_nothing_more() -> None:
    """Ctrl-C ends the wait: when the call returns, its thread takes no further transaction, which may be another run's now."""
    called, let_go, taken = threading.Event(), threading.Event(), []

    def interrupted() -> bool:
        if called.is_set():
            raise KeyboardInterrupt
        return False

    with RecoveryCalls(interrupted) as calls:

        def commit() -> None:
            for number in range(3):
                if number:
                    calls.check()
                taken.append((number, threading.current_thread()))
                called.set()
                let_go.wait()

        with pytest.raises(KeyboardInterrupt):
            calls(UID, commit)
    called.clear()
    let_go.set()
    taken[0][1].join()
    assert [number for number, _ in taken] == [0]


def test_a_cancelled_recovery_begins_no_further_call(tmp_path: Path) -> None:
    """A sink that answers is not asked for the next thing once the job is cancelled."""
    sink = Hanging("")
    with (
        pytest.raises(UnavailableError, match="the job ends now, and no further call was made"),
        RecoveryCalls(lambda: bool(sink.calls)) as calls,
    ):
        restore(job_spec(LocalStorage(tmp_path), sinks={UID: sink}), now=0.0, calls=calls)
    assert len(sink.calls) == 1
