"""A job that cannot come up because a sink is away, and somebody who has had enough of it."""

from __future__ import annotations

import threading

import pytest
from ledger import Ledger

import penstock as ps

pytestmark = pytest.mark.spark


class Away(ps.sinks.Files):
    """Does not answer when recovery asks what is left; from the second time on it waits for the test before it says so."""

    def __init__(self, path) -> None:
        super().__init__(path)
        self.asked, self.answer = threading.Event(), threading.Event()
        self.first = True

    def __getstate__(self):
        return {**super().__getstate__(), "asked": None, "answer": None}

    def find_transactions(self, job, sink):
        if not self.first:
            self.asked.set()
            self.answer.wait()
        self.first = False
        raise ps.UnavailableError("the server is away")


@pytest.fixture
def away(spark, tmp_path):
    ledger, sink = Ledger(tmp_path), Away(tmp_path / "out")
    job = ledger.job(restart=ps.fixed_delay(attempts=100, delay="10ms"))
    job.read(ledger.log.read(spark), uid="clicks").write_to(sink, uid="out")
    handle = job.start()
    sink.asked.wait()
    yield handle, sink
    sink.answer.set()


def end_by(call, handle, sink) -> None:
    """Call it while recovery waits for the sink; then the sink says that it is away."""
    waiting = threading.Thread(target=call)
    waiting.start()
    while not handle._life._stopping.is_set():
        waiting.join(0.01)
    sink.answer.set()
    waiting.join()


def test_cancel(away) -> None:
    """It ends cancelled, not failed for good: the strategy had attempts left, and the user wanted none of them."""
    handle, sink = away
    end_by(handle.cancel, handle, sink)
    assert handle.status.value == "cancelled"
    assert handle.failure is None


def test_stop(away, caplog) -> None:
    """It ends, and the log says that there is no last checkpoint."""
    handle, sink = away
    end_by(handle.stop, handle, sink)
    assert handle.status.value == "stopped"
    assert "there is no last checkpoint" in caplog.text
    assert "the server is away" in caplog.text
