"""One job into files, a real PostgreSQL and a real Kafka: the same rows everywhere, whoever fails, and whichever sink is down."""

from __future__ import annotations

import json
import logging
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import several_sinks_job
from ledger import Ledger, fail_for_good
from pyspark import cloudpickle
from several_sinks_job import DIES_IN, Number, Places, build

import penstock as ps
from builders.checkpoints import checkpoint_ids
from penstock.errors import UnavailableError
from penstock.run import run as engine_run
from penstock.spark.job_handle import JobHandle
from penstock.storage import LocalStorage
from penstock.storage.forwarding import ForwardingStorage
from services import postgres_process
from services.kafka_broker import KafkaBroker
from services.patience import PATIENCE_S

pytestmark = pytest.mark.spark

Rows = Counter[tuple[str, int]]


@pytest.fixture(autouse=True, scope="module")
def job_by_value() -> Iterator[None]:
    cloudpickle.register_pickle_by_value(several_sinks_job)
    yield
    cloudpickle.unregister_pickle_by_value(several_sinks_job)


class Site:
    """A log of known truth, and what readers of the three targets see."""

    def __init__(self, root: Path, dsn: str, kafka: KafkaBroker, table: str) -> None:
        self.ledger = Ledger(root)
        self.kafka = kafka
        self.places = Places(root, dsn, table, kafka.address, kafka.new_topic(2))

    def truth(self, *apps: str) -> Rows:
        counts = self.ledger.truth()
        return Counter((app, n) for app in apps or counts for n in range(1, counts[app] + 1))

    def in_files(self) -> Rows:
        return Counter((row["app"], row["n"]) for row in self.ledger.rows())

    def in_postgres(self) -> Rows:
        with psycopg.connect(self.places.dsn) as connection:
            return Counter(connection.execute(f"SELECT app, n FROM {self.places.table}").fetchall())

    def in_kafka(self) -> Rows:
        values = [json.loads(message.value()) for message in self.kafka.read(self.places.topic)]
        return Counter((value["app"], value["n"]) for value in values)

    def prepared(self) -> list[str]:
        """Of this database: the suites of the sinks leave theirs in databases of their own, on the same server."""
        asked = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        with psycopg.connect(self.places.dsn) as connection:
            return [gid for (gid,) in connection.execute(asked)]


def wait_for(what: str, handle: JobHandle, condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert not handle.wait(0.05), f"the job ended before {what}"
        assert time.monotonic() < end, f"waited in vain for {what}"


def test_the_same_rows_in_all_of_them_over_a_failure(spark, tmp_path, postgres_server, kafka):
    """A batch fails in the middle, the job goes back: files, table and topic have each row once, and the same ones."""
    site = Site(tmp_path, postgres_server.dsn(), kafka, "several_failure")
    marker = tmp_path / "failed"

    class FailsOnce(Number):
        def process(self, key, rows, ctx):
            if ctx.checkpoint == 2 and not marker.exists():
                fail_for_good(marker)
            yield from super().process(key, rows, ctx)

    site.ledger.fill(150)
    job = build(spark, site.places, code=FailsOnce(), restart=ps.fixed_delay(attempts=1, delay="10ms"))
    handle = job.start(available_now=True)
    handle.wait()
    assert handle.progress.restarts == 1
    assert site.in_files() == site.in_postgres() == site.in_kafka() == site.truth()
    assert site.prepared() == []
    assert job.guarantee().level is ps.EXACTLY_ONCE
    kept = b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert b"to-postgres" in kept
    assert postgres_process.PASSWORD.encode() not in kept


class BeforeTheMetadata(ForwardingStorage):
    """Calls `then` on the driver once, right before the first metadata is written: every sink has pre-committed."""

    def __init__(self, inner: LocalStorage, then: Callable[[], None]) -> None:
        super().__init__(inner)
        self._root = inner.root
        self._then = [then]

    def __reduce__(self):
        return LocalStorage, (self._root,)

    def create(self, name: str, data: bytes) -> bool:
        if name.endswith("_metadata") and self._then:
            self._then.pop()()
        return super().create(name, data)


def test_one_of_them_is_down(spark, tmp_path, kafka, caplog):
    """PostgreSQL dies with prepared transactions: the others go on, its commits are retried, a batch with rows for it waits; then all is exact."""
    caplog.set_level(logging.WARNING, logger="penstock")
    caplog.set_level(logging.DEBUG, logger="penstock.checkpoint")
    with postgres_process.running() as server:
        site = Site(tmp_path, server.dsn(), kafka, "several_down")

        def die() -> None:
            assert server.process is not None
            server.process.kill()
            server.process.wait()

        job = build(
            spark,
            site.places,
            storage=BeforeTheMetadata(LocalStorage(tmp_path / "store"), die),
            only_for_postgres=lambda frame: frame.where("app = 'both'"),
            restart=ps.exponential_delay(initial="20ms", maximum="500ms"),
        )
        site.ledger.append(0, "both", 20)
        site.ledger.append(1, "others", 20)
        handle = job.start()
        try:
            wait_for(
                "the commits of the others",
                handle,
                lambda: site.in_files() == site.in_kafka() == site.truth(),
            )
            wait_for("tries of the one", handle, lambda: len(pauses(caplog)) >= 4)
            assert pauses(caplog)[:4] == [0.1, 0.2, 0.4, 0.8]
            site.ledger.append(1, "others", 30)
            wait_for("more in the others", handle, lambda: site.in_files() == site.in_kafka() == site.truth())
            assert handle.progress.restarts == 0

            site.ledger.append(0, "both", 30)
            wait_for("recoveries in vain", handle, lambda: "the sink to-postgres does not" in caplog.text)
            server.kill()  # it starts it again
            wait_for("the table", handle, lambda: site.in_postgres() == site.truth("both"))
        finally:
            handle.stop()
        assert handle.progress.restarts >= 1
        assert site.in_files() == site.in_kafka() == site.truth()
        assert site.in_postgres() == site.truth("both")
        assert site.prepared() == []
    assert postgres_process.PASSWORD not in caplog.text


def pauses(caplog) -> list[float]:
    found = re.findall(r"sink to-postgres: next try in ([0-9.]+) s", caplog.text)
    return [float(text) for text in found]


def test_the_driver_dies_between_two_of_them(spark, tmp_path, postgres_server, kafka):
    """Killed with -9 when the files are committed and the table is not: the next run commits the rest, and goes on."""
    site = Site(tmp_path, postgres_server.dsn(), kafka, "several_killed")
    site.ledger.fill(150)
    places = site.places
    arguments = [str(places.root), places.dsn, places.table, places.brokers, places.topic]
    script = Path(several_sinks_job.__file__)
    ended = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert site.in_postgres() < site.in_files() < site.truth()
    assert site.prepared()
    assert DIES_IN in checkpoint_ids(LocalStorage(tmp_path / "store" / "several"))
    build(spark, places).run(available_now=True)
    assert site.in_files() == site.in_postgres() == site.in_kafka() == site.truth()
    assert site.prepared() == []


class Held(ps.sinks.Files):
    """Cannot commit until `released` is there."""

    released: Path

    def commit_all(self, transactions):
        if not self.released.exists():
            raise UnavailableError("the server is away")
        super().commit_all(transactions)


def test_batches_wait_when_too_many_commits_do(spark, tmp_path, caplog, monkeypatch):
    """A sink that stays down stops the batches at the limit, so that metadata cannot grow for ever; a cancel still ends the job."""
    caplog.set_level(logging.WARNING, logger="penstock")
    caplog.set_level(logging.DEBUG, logger="penstock.checkpoint")
    monkeypatch.setattr(engine_run, "MOST_WAITING_COMMITS", 4)
    ledger = Ledger(tmp_path)
    ledger.fill(600)
    held = Held(tmp_path / "held")
    held.released = tmp_path / "released"

    def job() -> ps.Job:
        built = ledger.job(parallelism=1)
        clicks = built.read(ledger.log.read(spark, rows_per_batch=100), uid="clicks")
        numbered = clicks.key_by("app").process(Number(), schema="app string, n long", uid="number")
        numbered.write_to(held, uid="held")
        numbered.write_to(ledger.files(), uid="free")
        return built

    handle = job().start()
    try:
        wait_for(
            "the limit", handle, lambda: "transactions wait for their commit, the most is 4" in caplog.text
        )
        reached = handle.progress.batches
        tries = caplog.text.count("next try in")
        wait_for("two more tries", handle, lambda: caplog.text.count("next try in") >= tries + 2)
        assert handle.progress.batches == reached < 12
    finally:
        handle.cancel()
    assert not ledger.rows("held")
    held.released.touch()
    job().run(available_now=True)
    rows = Counter((row["app"], row["n"]) for row in ledger.rows("held"))
    assert rows == Counter((row["app"], row["n"]) for row in ledger.rows())
    assert rows == Counter((app, n) for app, count in ledger.truth().items() for n in range(1, count + 1))
