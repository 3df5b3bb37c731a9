"""What the three modes do to results, to failures, and to the time until a result is seen."""

from __future__ import annotations

import socket
import sqlite3
import threading
from collections import Counter

import pytest
from ledger import Count, Ledger, fail_for_good
from pyspark.sql import functions as F

import penstock as ps

pytestmark = pytest.mark.spark


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path)


def failing_once(marker, batch: int):
    class FailsOnce(ps.KeyedProcess):
        """Counts, emits the increment, and fails once in the given batch."""

        count = ps.ValueState("long", default=0)

        def process(self, key, rows, ctx):
            if ctx.checkpoint == batch and not marker.exists():
                fail_for_good(marker)
            self.count.value += len(rows)
            yield key, self.count.value, len(rows)

    return FailsOnce()


def failing_job(spark, ledger: Ledger, mode: ps.Mode, interval: str, batch: int) -> ps.Job:
    """Reads in batches of 200 rows, and fails in one of them the first time."""
    job = ledger.job(
        checkpoint=ps.Checkpointing(interval=interval, mode=mode),
        restart=ps.fixed_delay(attempts=1, delay="1ms"),
    )
    rows = job.read(ledger.log.read(spark, rows_per_batch=200), uid="clicks")
    counted = rows.key_by("app").process(
        failing_once(ledger.root / "failed", batch), schema="app string, n long, increment long", uid="count"
    )
    counted.write_to(ledger.files(), uid="out")
    return job


def run_with_one_failure(
    spark, ledger: Ledger, mode: ps.Mode, interval: str, batch: int = 3
) -> tuple[Counter, Counter]:
    """Five batches, a failure in one; returns the counts in the state and the sum of increments in the sink, by key."""
    ledger.fill(500)
    handle = failing_job(spark, ledger, mode, interval, batch).start(available_now=True)
    handle.wait()
    assert handle.progress.restarts == 1
    state: Counter = Counter()
    written: Counter = Counter()
    for row in ledger.rows():
        state[row["app"]] = max(state[row["app"]], row["n"])
        written[row["app"]] += row["increment"]
    return state, written


def test_exactly_once_after_a_failure(spark, ledger):
    """State and sink hold every record once."""
    state, written = run_with_one_failure(spark, ledger, ps.EXACTLY_ONCE, "1h")
    assert state == written == ledger.truth()


def test_at_least_once_after_a_failure(spark, ledger):
    """No checkpoint was complete, so everything is read again: what batches 0 to 2 had written stays, and is written twice."""
    state, written = run_with_one_failure(spark, ledger, ps.AT_LEAST_ONCE, "1h")
    truth = ledger.truth()
    assert all(state[app] >= count for app, count in truth.items())
    assert sum(written.values()) == sum(truth.values()) + 3 * 200


def test_at_most_once_after_a_failure(spark, ledger):
    """The batch that failed is not read again, nor what came before it, by no later run in whichever mode; it is lost, nothing is doubled."""
    state, written = run_with_one_failure(spark, ledger, ps.AT_MOST_ONCE, "1h", batch=4)
    truth = ledger.truth()
    assert sum(written.values()) == sum(truth.values()) - 200
    assert all(written[app] <= count for app, count in truth.items())
    assert all(state[app] <= count for app, count in truth.items())
    rows = len(ledger.rows())
    for mode in (
        ps.AT_MOST_ONCE,
        ps.EXACTLY_ONCE,
    ):  # no checkpoint was ever complete, and the run before ended cleanly
        failing_job(spark, ledger, mode, "1h", batch=4).run(available_now=True)
        assert len(ledger.rows()) == rows


@pytest.mark.parametrize("mode", [ps.EXACTLY_ONCE, ps.AT_LEAST_ONCE])
def test_when_a_result_is_seen(spark, ledger, mode):
    """At least once shows a result at the end of its batch, exactly once when the checkpoint completes."""
    ledger.fill(50)
    job = ledger.job(checkpoint=ps.Checkpointing(interval="1h", mode=mode))
    rows = job.read(ledger.log.read(spark), uid="clicks")
    rows.key_by("app").process(Count(), schema="app string, n long", uid="count").write_to(
        ledger.files(), uid="out"
    )
    handle = job.start()
    while handle.progress.batches == 0:
        assert not handle.wait(0.05)
    if mode is ps.AT_LEAST_ONCE:
        while not ledger.rows():
            assert not handle.wait(0.05)
        assert handle.progress.checkpoints_completed == 0
    else:
        assert not handle.wait(0.5)
        assert ledger.rows() == []
    handle.stop()
    assert Counter({row["app"]: row["n"] for row in ledger.rows()}) == ledger.truth()


class LineServer:
    """Serves lines on loopback to whoever connects, each line once, as a socket does."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.lines: list[str] = []
        self.changed = threading.Condition()
        threading.Thread(target=self._serve, daemon=True).start()

    def send(self, *lines: str) -> None:
        with self.changed:
            self.lines += lines
            self.changed.notify_all()

    def _serve(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self._feed, args=(connection,), daemon=True).start()

    def _feed(self, connection: socket.socket) -> None:
        sent = len(self.lines)
        while True:
            with self.changed:
                while len(self.lines) == sent:
                    self.changed.wait()
                new, sent = self.lines[sent:], len(self.lines)
            try:
                connection.sendall("".join(f"{line}\n" for line in new).encode())
            except OSError:
                return


def test_a_socket_at_most_once_goes_on_with_its_state(spark, ledger):
    """After a restart the socket starts anew at the present, the counts go on from the checkpoint, and nothing counts twice."""
    server = LineServer()

    def start() -> ps.Job:
        job = ledger.job(checkpoint=ps.Checkpointing(interval="1ms", mode=ps.AT_MOST_ONCE))
        lines = (
            spark.readStream.format("socket")
            .option("host", "127.0.0.1")
            .option("port", str(server.port))
            .load()
        )
        rows = job.read(lines, uid="lines")
        rows.key_by("value").aggregate(n=F.count("*"), uid="count").write_to(
            ledger.sqlite("views", "value"), uid="out"
        )
        return job.start()

    def feed(handle, *lines: str) -> None:
        before = handle.progress.rows_in
        while handle.progress.rows_in == before:
            assert not handle.wait(0.3)
            server.send(*lines)

    def settle(handle) -> None:
        """Wait until what was sent is processed and in a checkpoint: what is not may be lost, in this mode."""
        server.send("end")  # a connection keeps the order
        while "end" not in visible():
            assert not handle.wait(0.05)
        batch = handle.progress.batch
        while handle.progress.checkpoint < batch:
            assert not handle.wait(0.05)

    def visible() -> dict[object, int]:
        try:
            return ledger.counts()
        except sqlite3.OperationalError:  # no table yet
            return {}

    first = start()
    feed(first, "a", "a", "b")
    settle(first)
    first.cancel()
    counted = Counter(ledger.counts())
    assert counted["a"] > 0
    second = start()
    feed(second, "a", "c")
    second.stop()
    third = start()  # after a clean end the socket starts anew as well
    feed(third, "c")
    third.stop()
    after = Counter(ledger.counts())
    assert after["a"] > counted["a"]
    assert after["b"] == counted["b"]
    assert after["c"] > 0
    assert all(after[line] <= times for line, times in Counter(server.lines).items())
