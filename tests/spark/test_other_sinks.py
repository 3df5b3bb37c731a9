"""Sinks without transactions in a job that fails once: what a reader finds afterwards, and what the job had said about it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from ledger import Ledger, fail_for_good

import penstock as ps
from services.patience import PATIENCE_S
from services.redis_process import Server

pytestmark = pytest.mark.spark

FAILS_IN = 3
ROWS_PER_BATCH = 200


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path)


def increments(marker: Path):
    class Increments(ps.KeyedProcess):
        """Emits the new count and the increment; fails once, in batch 3."""

        count = ps.ValueState("long", default=0)

        def process(self, key, rows, ctx):
            if ctx.checkpoint == FAILS_IN and not marker.exists():
                fail_for_good(marker)
            self.count.value += len(rows)
            yield key, self.count.value, len(rows)

    return Increments()


def run_with_one_failure(
    spark, ledger: Ledger, sink: ps.sinks.TwoPhaseCommitSink, interval: str = "1h"
) -> ps.types.Guarantee:
    """Five batches, a failure in batch 3. With an interval of an hour no checkpoint is complete before it."""
    ledger.fill(500)
    job = ledger.job(
        checkpoint=ps.Checkpointing(interval=interval), restart=ps.fixed_delay(attempts=1, delay="1ms")
    )
    rows = job.read(ledger.log.read(spark, rows_per_batch=ROWS_PER_BATCH), uid="clicks")
    counted = rows.key_by("app").process(
        increments(ledger.root / "failed"), schema="app string, n long, increment long", uid="count"
    )
    counted.write_to(sink, uid="out")
    handle = job.start(available_now=True)
    handle.wait()
    assert handle.progress.restarts == 1
    return job.guarantee()


def database(path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=PATIENCE_S)
    connection.execute(
        "CREATE TABLE IF NOT EXISTS increments (app TEXT, increment INTEGER, checkpoint INTEGER)"
    )
    return connection


def insert(path, rows, checkpoint: int) -> None:
    with database(path) as target:
        target.executemany(
            "INSERT INTO increments VALUES (?, ?, ?)",
            [(row["app"], row["increment"], checkpoint) for row in rows],
        )
    target.close()


def summed(path) -> Counter:
    target = database(path)
    try:
        return Counter(dict(target.execute("SELECT app, sum(increment) FROM increments GROUP BY app")))
    finally:
        target.close()


def test_a_sink_that_commits_on_its_own_clock_doubles_rows(spark, ledger):
    """What a Foreach wrote before the failure stays and is written again: three batches or more twice, and guarantee() had named it."""
    path = str(ledger.root / "own.db")

    def write(batch, context):
        insert(path, batch.to_pylist(), context.checkpoint)

    guarantee = run_with_one_failure(spark, ledger, ps.sinks.Foreach(write))
    truth = ledger.truth()
    doubled = sum(summed(path).values()) - sum(truth.values())
    assert FAILS_IN * ROWS_PER_BATCH <= doubled <= (FAILS_IN + 1) * ROWS_PER_BATCH  # with tasks of batch 3
    assert all(summed(path)[app] >= count for app, count in truth.items())
    assert (guarantee.level, guarantee.limited_by) == (ps.AT_LEAST_ONCE, "out")
    assert "(Foreach) writes on its own" in guarantee.reason


class Impatient(ps.sinks.TwoPhaseCommitSink):
    """Written by a user who shows rows three at a time, in the task, whatever the checkpoints do."""

    delivery = ps.sinks.Delivery.AT_LEAST_ONCE

    def __init__(self, path: str) -> None:
        self.path = path
        self.rows: list = []

    def begin_transaction(self, context):
        self.rows = []
        return msgspec.structs.asdict(context)

    def write(self, transaction, batch):
        self.rows += batch.to_pylist()
        while len(self.rows) >= 3:
            insert(self.path, self.rows[:3], transaction["checkpoint"])
            self.rows = self.rows[3:]

    def pre_commit(self, transaction):
        insert(self.path, self.rows, transaction["checkpoint"])
        return transaction

    def commit(self, transaction):
        pass

    abort = commit

    def find_transactions(self, job, sink):
        return []


def test_a_sink_of_a_user_that_does_not_wait_for_checkpoints(spark, ledger):
    """Asked for exactly once, the job runs and says beforehand which sink limits it; its rows of three batches really are there twice."""
    path = str(ledger.root / "impatient.db")
    guarantee = run_with_one_failure(spark, ledger, Impatient(path))
    assert (guarantee.level, guarantee.limited_by) == (ps.AT_LEAST_ONCE, "out")
    assert guarantee.reason.startswith(
        "state is exactly once, but the sink 'out' (Impatient) has no transactions"
    )
    target = database(path)
    before = dict(target.execute("SELECT checkpoint, sum(increment) FROM increments GROUP BY checkpoint"))
    target.close()
    doubled = summed(path) - Counter(ledger.truth())
    assert sum(before.values()) == sum(ledger.truth().values()) + doubled.total()
    assert [before[batch] for batch in range(FAILS_IN)] == [2 * ROWS_PER_BATCH] * FAILS_IN
    assert FAILS_IN * ROWS_PER_BATCH <= doubled.total() < (FAILS_IN + 1) * ROWS_PER_BATCH


def test_the_write_ahead_log_hands_over_what_is_complete(spark, ledger):
    """The same rows and the same failure through a WriteAheadLog: no process died in a call, so every row came once, in order."""
    path = str(ledger.root / "ahead.db")
    order = []

    def write(table, checkpoint, transaction):
        order.append((checkpoint, transaction))
        insert(path, table.to_pylist(), checkpoint)

    sink = ps.sinks.WriteAheadLog(write, staging=ledger.root / "staging")
    guarantee = run_with_one_failure(spark, ledger, sink)
    assert summed(path) == ledger.truth()
    assert [checkpoint for checkpoint, _ in order] == sorted(checkpoint for checkpoint, _ in order)
    assert len({transaction for _, transaction in order}) == len(order)
    assert (guarantee.level, guarantee.limited_by) == (ps.AT_LEAST_ONCE, "out")
    assert "between the call and its entry in the commit log" in guarantee.reason
    assert list((ledger.root / "staging").rglob("*.arrow")) == []


def stepped_back(history: list[tuple[str, int]]) -> bool:
    """Whether a reader of some key saw a smaller count after a larger one."""
    largest: Counter = Counter()
    for app, count in history:
        if count < largest[app]:
            return True
        largest[app] = count
    return False


@pytest.mark.parametrize("visible", ["at once", "with the checkpoint"])
def test_redis_ends_up_right(spark, ledger, visible):
    """After a failure the values are right either way; at once a reader saw a step back, with the checkpoint none."""
    server = Server(ledger.root / "server")
    staging = {"staging": ledger.root / "staging"} if visible == "with the checkpoint" else {}
    try:
        sink = ps.sinks.Redis(server.url, key="views:{app}", value="n", visible=visible, **staging)
        guarantee = run_with_one_failure(spark, ledger, sink)
        values = {key.removeprefix("views:"): int(count) for key, count in server.texts().items()}
        history = [(key, int(count)) for key, count, *_ in server.history("SET")]
    finally:
        server.kill()
    assert values == ledger.truth()
    assert stepped_back(history) == (visible == "at once")
    assert (guarantee.level, guarantee.limited_by) == (ps.EXACTLY_ONCE, None)


def test_a_table_ends_up_right(spark, ledger):
    """SQLUpsert at once: a trigger that writes down every change saw a step back, and the table is right in the end."""
    path = str(ledger.root / "table.db")
    with sqlite3.connect(path) as target:
        target.executescript("""
            CREATE TABLE views (app TEXT PRIMARY KEY, n INTEGER, increment INTEGER);
            CREATE TABLE history (app TEXT, n INTEGER);
            CREATE TRIGGER written AFTER UPDATE ON views BEGIN INSERT INTO history VALUES (new.app, new.n); END;
        """)

    def connect():
        return sqlite3.connect(path, timeout=PATIENCE_S)

    run_with_one_failure(spark, ledger, ps.sinks.SQLUpsert(connect, "views", ["app"]))
    assert dict(target.execute("SELECT app, n FROM views")) == ledger.truth()
    assert stepped_back(target.execute("SELECT * FROM history").fetchall())
    target.close()


def test_a_delta_table_has_every_row_once(spark, ledger):
    """After a failure between commits the table has each increment once, and a version of it for each checkpoint."""
    import deltalake

    guarantee = run_with_one_failure(spark, ledger, ps.sinks.DeltaLake(ledger.root / "delta"), interval="1ms")
    written: Counter = Counter()
    for row in deltalake.DeltaTable(ledger.root / "delta").to_pyarrow_table().to_pylist():
        written[row["app"]] += row["increment"]
    assert written == ledger.truth()
    assert (guarantee.level, guarantee.limited_by) == (ps.EXACTLY_ONCE, None)
    assert guarantee.reason.endswith("every sink commits with the checkpoint")
