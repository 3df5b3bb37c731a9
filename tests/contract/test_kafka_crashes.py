"""The sink `Kafka` while drivers die, come back as zombies, and brokers are killed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka_target import KafkaTarget
from watched_producer import WatchedProducer

from penstock.errors import CommitLostError, UnavailableError
from penstock.sinks import Kafka
from penstock.sinks.kafka.cluster import KafkaCluster
from penstock.testing.sink_contract import JOB, SINK
from services.kafka_broker import KafkaBroker
from services.kafka_proxy import END_TXN, PRODUCE
from services.patience import PATIENCE_S


@pytest.fixture
def suite(kafka: KafkaBroker, tmp_path: Path) -> KafkaTarget:
    return KafkaTarget().use(kafka, tmp_path)


KILLED_COMMIT = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[1])
from watched_producer import WatchedProducer
from penstock.sinks import Kafka
from penstock.sinks.kafka.cluster import KafkaCluster

settings, where, nth, transactions = json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4]), json.loads(sys.argv[5])
seen = 0

def die_at(place):
    global seen
    seen += place == where
    if seen == nth:
        os.kill(os.getpid(), signal.SIGKILL)

def watched(cluster, settings):
    return WatchedProducer(made(cluster, settings), lambda name: die_at("before " + name), lambda name: die_at("after " + name))

made, KafkaCluster.producer = KafkaCluster.producer, watched
sys.addaudithook(lambda event, args: event == "os.remove" and die_at("remove"))
sys.addaudithook(lambda event, args: event == "open" and str(args[0]).endswith(".log") and args[1] == "a" and die_at("log"))
sys.addaudithook(lambda event, args: event == "open" and str(args[0]).endswith("owners") and args[1] == "a" and die_at("owners"))
Kafka(**settings).commit_all(transactions)
"""

STEPS = [
    ("before init_transactions", 1, 0),
    ("after init_transactions", 1, 0),
    ("after begin_transaction", 1, 0),
    ("after produce", 1, 0),
    ("after commit_transaction", 1, 0),
    ("owners", 1, 0),
    ("after init_transactions", 2, 0),
    ("after begin_transaction", 2, 0),
    ("after produce", 2, 0),
    ("after produce", 38, 0),
    ("after flush", 1, 0),
    ("after produce", 62, 0),
    ("after commit_transaction", 2, 60),
    ("log", 1, 60),
    ("remove", 1, 60),
    ("remove", 2, 60),
]
SENT, COMMITTED = ("after flush", 1, 0), ("after commit_transaction", 2, 60)


def killed(suite: KafkaTarget, where: str, nth: int, staged: list[Any]) -> None:
    """Commit in a process that is killed there."""
    settings = {
        "address": suite.broker.address,
        "topic": suite.topic,
        "staging": str(suite.staging),
        "commits_topic": suite.commits,
        **suite.settings,
    }
    here = Path(__file__).parent
    command = [
        sys.executable,
        "-c",
        KILLED_COMMIT,
        str(here),
        json.dumps(settings),
        where,
        str(nth),
        json.dumps(staged),
    ]
    done = subprocess.run(command, check=False, timeout=PATIENCE_S)
    assert done.returncode == -signal.SIGKILL


def stage_three(suite: KafkaTarget) -> list[Any]:
    return [suite.staged(range(20 * c, 20 * c + 20), checkpoint=c) for c in range(3)]


@pytest.mark.parametrize(("where", "nth", "visible"), STEPS)
def test_killed_in_commit_all(suite: KafkaTarget, where: str, nth: int, visible: int) -> None:
    """After kill -9 at any step a reader sees all or nothing, and the next commit_all makes it all, once."""
    staged = stage_three(suite)
    killed(suite, where, nth, staged)
    suite.assert_visible(*range(visible))
    suite.sink().commit_all(staged)
    suite.assert_visible(*range(60))
    assert suite.unfinished() == []
    assert list(suite.staging.rglob("*.arrow")) == []


@pytest.mark.parametrize(("where", "nth", "visible"), [SENT, COMMITTED])
def test_what_a_killed_commit_left_is_found(suite: KafkaTarget, where: str, nth: int, visible: int) -> None:
    """A driver that comes back and only looks finds what was not committed, and nothing that was."""
    staged = stage_three(suite)
    killed(suite, where, nth, staged)
    assert len(suite.unfinished()) == (0 if visible else 3)
    for found in suite.sink().find_transactions(JOB, SINK):
        suite.sink().abort(found)
    suite.assert_visible(*range(visible))


def test_only_read_committed_is_exact(suite: KafkaTarget) -> None:
    """A reader that does not ask for committed messages also sees those of a commit that died: the guarantee is not for it."""
    staged = stage_three(suite)
    killed(suite, "after flush", 1, staged)
    suite.sink().commit_all(staged)
    assert len(suite.broker.read(suite.topic, isolation="read_uncommitted")) == 120
    suite.assert_visible(*range(60))


def with_hook(sink: Kafka, monkeypatch: pytest.MonkeyPatch, at: str, hook: Callable[[], None]) -> None:
    """Let `hook` run once, just before the producer of this sink does `at`."""
    hooks = [hook]

    def before(name: str) -> None:
        if name == at and hooks:
            hooks.pop()()

    watch(sink, monkeypatch, before)


def watch(sink: Kafka, monkeypatch: pytest.MonkeyPatch, before: Callable[[str], None]) -> None:
    """Let `before` be told of each call of the producers of this sink, with its name."""
    plain = KafkaCluster.producer

    def watched(cluster: KafkaCluster, settings: Any) -> Any:
        made = plain(cluster, settings)
        return WatchedProducer(made, before, lambda name: None) if cluster is sink.cluster else made

    monkeypatch.setattr(KafkaCluster, "producer", watched)


def test_a_zombie_is_fenced(suite: KafkaTarget) -> None:
    """A driver whose successor has committed can commit nothing any more; the successor can."""
    zombie = suite.sink()
    zombie.commit(suite.staged([1], checkpoint=1))
    second, third = suite.staged([2], checkpoint=2), suite.staged([3], checkpoint=3)
    successor = suite.sink()
    successor.commit(second)
    with pytest.raises(UnavailableError, match="fenced"):
        zombie.commit(third)
    suite.assert_visible(1, 2)
    successor.commit(third)
    suite.assert_visible(1, 2, 3)


def test_a_zombie_that_slept_before_it_took_the_id_over(
    suite: KafkaTarget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a successor committed and went on from, after a zombie had looked into the log, is not produced again."""
    staged = stage_three(suite)
    later = suite.staged([100], checkpoint=4)
    shutil.copytree(suite.staging, tmp_path / "copy")

    def overtake() -> None:
        successor = suite.sink()
        successor.commit_all(staged)
        successor.commit(later)
        for path in (tmp_path / "copy").rglob("*.arrow"):  # as if it had not come to delete them
            shutil.copy(path, suite.staging / JOB / SINK)

    zombie = suite.sink()
    with_hook(zombie, monkeypatch, "init_transactions", overtake)
    zombie.commit_all(staged)
    suite.assert_visible(*range(60), 100)


@pytest.mark.parametrize("at", ["begin_transaction", "produce", "flush", "commit_transaction"])
def test_overtaken_in_the_middle_of_a_commit(
    suite: KafkaTarget, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """When a successor commits the same transactions in the middle of a zombie's commit, each is visible once."""
    staged = stage_three(suite)
    zombie = suite.sink()
    with_hook(zombie, monkeypatch, at, lambda: suite.sink().commit_all(staged))
    with pytest.raises(UnavailableError):
        zombie.commit_all(staged)
    suite.assert_visible(*range(60))
    zombie.commit_all(staged)
    suite.assert_visible(*range(60))


def test_broker_killed_between_pre_commit_and_commit(suite: KafkaTarget) -> None:
    """While the broker is down a commit says so and can be repeated; after its return every row is visible once."""
    suite.settings = {**suite.settings, "commit_timeout": "2s"}
    driver = suite.sink()
    driver.commit(suite.staged([100], checkpoint=0))
    staged = [suite.staged(range(20), checkpoint=1)]
    suite.broker.kill()
    try:
        for sink in (driver, suite.make_sink()):
            with pytest.raises(UnavailableError):
                sink.commit_all(staged)
    finally:
        suite.broker.start()
    again = suite.make_sink(commit_timeout="2min")
    again.commit_all(staged)
    again.commit_all(staged)
    suite.assert_visible(100, *range(20))


@pytest.mark.parametrize("at", ["flush", "commit_transaction"])
def test_broker_killed_in_the_middle_of_a_commit(
    suite: KafkaTarget, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """A commit during which the broker dies fails or not, and repeated it leaves every row visible once."""
    staged = stage_three(suite)
    driver = suite.sink()
    driver.commit_timeout_s = 3.0

    def restart() -> None:
        suite.broker.kill()
        suite.broker.start()

    with_hook(driver, monkeypatch, at, restart)
    try:
        driver.commit_all(staged)
    except UnavailableError:
        suite.make_sink(commit_timeout="2min").commit_all(staged)
    suite.assert_visible(*range(60))


class DriverDiedError(Exception):
    """Stands for the death of the driver at this place."""


@pytest.mark.parametrize("delayed", [PRODUCE, END_TXN], ids=["produce", "end of transaction"])
def test_a_request_that_comes_in_the_next_transaction(
    suite: KafkaTarget, monkeypatch: pytest.MonkeyPatch, delayed: int
) -> None:
    """A request that reaches the broker only when the next commit is under way has no effect on that."""
    before, first, second = (
        suite.staged(rows, checkpoint=checkpoint)
        for checkpoint, rows in enumerate([[100], range(20), range(20, 40)])
    )
    driver = suite.sink()
    driver.cluster.address = suite.broker.proxy_address
    armed = threading.Event()

    def let_it_come(name: str) -> None:
        if name == "commit_transaction" and armed.is_set():
            proxy.release()
            raise DriverDiedError

    watch(driver, monkeypatch, let_it_come)
    with suite.broker.proxy() as proxy:
        driver.commit(before)
        proxy.hold(delayed)
        driver.commit(first)
        assert proxy.holds.is_set()
        armed.set()
        with pytest.raises(DriverDiedError):
            driver.commit(second)
    suite.assert_visible(100, *range(20))
    suite.sink().commit(second)
    suite.assert_visible(100, *range(40))


def test_a_proof_behind_an_open_transaction_of_somebody_else(suite: KafkaTarget, tmp_path: Path) -> None:
    """A proof that cannot be seen yet is waited for: it is never taken for one that does not exist."""
    driver = suite.sink()
    driver.commit(suite.staged([100], checkpoint=9))
    staged = stage_three(suite)
    shutil.copytree(suite.staging, tmp_path / "copy")
    stranger = Producer(
        {"bootstrap.servers": suite.broker.address, "transactional.id": f"stranger-{suite.topic}"}
    )
    stranger.init_transactions(30)
    stranger.begin_transaction()
    stranger.produce(suite.commits, b"{}", b"stranger")
    stranger.flush(30)
    driver.commit_all(staged)
    shutil.rmtree(suite.staging)
    (tmp_path / "copy").rename(suite.staging)  # as if the driver had died right after Kafka's commit
    with pytest.raises(UnavailableError, match="a transaction is open at offset"):
        suite.make_sink(commit_timeout="1s").commit_all(staged)
    stranger.abort_transaction(30)
    suite.sink().commit_all(staged)
    suite.assert_visible(100, *range(60))


# Between a crash and the next start


@pytest.mark.parametrize(("where", "nth", "visible"), [SENT, COMMITTED])
@pytest.mark.parametrize("changed", ["topic", "commits_topic", "transactional_id"])
def test_settings_that_change_while_a_commit_is_in_doubt(
    suite: KafkaTarget, changed: str, where: str, nth: int, visible: int
) -> None:
    """What was promised goes to the topic of then, once, whatever the settings are now; what is new goes by the new ones."""
    staged = stage_three(suite)
    killed(suite, where, nth, staged)
    suite.assert_visible(*range(visible))
    old, new = suite.topic, suite.broker.new_topic(cleanup_policy="compact")
    suite.topic = new if changed == "topic" else old
    suite.settings = {**suite.settings, **({} if changed == "topic" else {changed: new})}
    suite.sink().commit_all([*staged, suite.staged([60], checkpoint=3)])
    suite.assert_visible(*([60] if changed == "topic" else range(61)))
    suite.topic = old
    suite.assert_visible(*(range(60) if changed == "topic" else range(61)))


def made_anew(suite: KafkaTarget) -> None:
    """Delete the topic of commits; the next start creates it again."""
    admin = suite.broker.admin()
    admin.delete_topics([suite.commits])[suite.commits].result(PATIENCE_S)
    while suite.commits in admin.list_topics(timeout=PATIENCE_S).topics:
        pass
    suite.starts_anew()


@pytest.mark.parametrize("earlier", [True, False])
def test_a_topic_of_commits_made_anew_while_a_commit_is_in_doubt(suite: KafkaTarget, earlier: bool) -> None:
    """Without the record nothing is guessed, also if the commit was the first; with the record of the error it goes on."""
    if earlier:
        suite.sink().commit(suite.staged([100], checkpoint=0))
    staged = [suite.staged(range(20), checkpoint=1)]
    killed(suite, "after commit_transaction", 2, staged)
    made_anew(suite)
    expected = [*range(20), *([100] if earlier else [])]
    for _ in range(2):
        with pytest.raises(CommitLostError, match="no longer has a record of") as lost:
            suite.sink().commit_all(staged)
        suite.assert_visible(*expected)
    facts = lost.value.facts
    suite.broker.produce(suite.commits, [facts["record"].encode()], key=facts["key"], partition=0)
    suite.sink().commit_all([*staged, suite.staged([200], checkpoint=2)])
    suite.assert_visible(*expected, 200)


def test_a_topic_of_commits_made_anew_without_a_commit_in_doubt(suite: KafkaTarget) -> None:
    """Whoever has looked and found nothing in the topic deletes the file that the error names, and the rows are produced."""
    suite.sink().commit(suite.staged([100], checkpoint=0))
    staged = stage_three(suite)
    made_anew(suite)
    with pytest.raises(CommitLostError, match="owners and start the job again"):
        suite.sink().commit_all(staged)
    (suite.staging / JOB / SINK / "owners").unlink()
    suite.sink().commit_all(staged)
    suite.assert_visible(100, *range(60))
