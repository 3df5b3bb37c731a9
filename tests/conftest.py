"""Shared by all tests: one Spark session and one server of each kind for the run, started when first asked for, and patience."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

from penstock.spark.local_session import local_session

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from services.flink import Flink
    from services.kafka_broker import KafkaBroker
    from services.redis_process import Server
    from services.s3_server import S3Server

RAM_DISK = Path("/dev/shm")
ROOM_BYTES = 12 << 30
"""What must be free for temporary files in memory, beside two Sparks and the servers."""


HEARD = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: lambda *_: None,
    signal.SIGQUIT: lambda *_: None,
}
"""What `nohup` and a script with `&` make a process ignore, and what it does here instead."""


def pytest_configure(config: pytest.Config) -> None:
    """Failures are told at once, and temporary files lie in memory where there is much of it."""
    from services import tiers
    from services.failures_at_once import FailuresAtOnce

    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config))
    _files_in_memory()
    _default_signals_for_children()
    tiers.use(config.getoption("--tier"))
    _use_hypothesis_profile()


def _default_signals_for_children() -> None:
    """A program inherits that a signal is ignored, but not that it is handled: so it is handled here."""
    for number, handler in HEARD.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def _use_hypothesis_profile() -> None:
    from services import tiers

    settings.register_profile(
        "penstock",
        max_examples=tiers.share(100),
        deadline=None,  # no test depends on time
        print_blob=True,  # failures replay
        derandomize="CI" in os.environ,  # what lands is judged by the same examples each time
    )
    settings.load_profile("penstock")


def _files_in_memory() -> None:
    """Tests sync all the time, and none of them cuts the power."""
    if "TMPDIR" in os.environ or not os.access(RAM_DISK, os.W_OK):
        return
    if min(shutil.disk_usage(RAM_DISK).free, psutil.virtual_memory().available) > ROOM_BYTES:
        os.environ["TMPDIR"] = str(RAM_DISK)
        tempfile.tempdir = None  # asked again


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the first test that starts Spark, here or in a child."""
    from services import quick_spark

    if item.get_closest_marker("spark"):
        quick_spark.use()


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """The command line's `--debug` is for the rest of a process; here it ends with the test."""
    logger = logging.getLogger("penstock")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from services import quick_spark

    with quick_spark.source_runners() as in_reach:
        with in_reach():
            session = local_session("penstock-tests", cores=2)
        yield session
        session.stop()


@pytest.fixture(scope="session")
def postgres_server():
    """One PostgreSQL for the run; who kills it does so with one of their own."""
    from services.postgres_process import running

    with running() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server():
    """One MariaDB for the run; skips, with the reason, where there is none and none can be fetched."""
    from services.mariadb_process import running

    with running() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server that speaks Redis for the run; who kills it does so with one of their own."""
    from services.redis_process import Server

    server = Server(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One S3 server for the run; skips, with the reason, where there is none and none can be fetched."""
    from services.s3_server import NoServerError, running

    with ExitStack() as stack:
        try:
            server = stack.enter_context(running())
        except NoServerError as missing:
            pytest.skip(f"S3: no server to test with: {missing}")
        yield server


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with its address and keys in the environment."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture(scope="session")
def hdfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an HDFS for the run; skips, with the reason, where there is none and none can be fetched."""
    from services.hdfs_process import CannotStartError, running
    from services.maven import JarsMissingError

    with ExitStack() as stack:
        try:
            address = stack.enter_context(running(tmp_path_factory.mktemp("hdfs")))
        except (CannotStartError, JarsMissingError) as missing:
            pytest.skip(f"HDFS: no name node to test with: {missing}")
        yield address


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    from services.kafka_broker import KafkaBroker
    from services.maven import JarsMissingError

    try:
        broker = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    except JarsMissingError as missing:
        pytest.skip(f"Kafka: no broker to test with: {missing}")
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


@pytest.fixture(scope="session")
def flink() -> Iterator[Flink]:
    """Flink's own operators, to judge ours."""
    from services.flink import CannotCompileError, running
    from services.maven import JarsMissingError

    with ExitStack() as stack:
        try:
            judge = stack.enter_context(running())
        except (CannotCompileError, JarsMissingError) as missing:
            pytest.skip(f"Flink: no operators to compare with: {missing}")
        yield judge


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A real browser, for one module: while it is open no other event loop can run in this thread."""
    from services.chromium import NoChromiumError, launched

    with ExitStack() as stack:
        try:
            browser = stack.enter_context(launched())
        except NoChromiumError as missing:
            pytest.skip(f"Chromium: no browser to look at pages with: {missing}")
        yield browser


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=["check", "test", "all", "chaos"],
        help="leave out what only a later command runs, see tests/services/tiers.py",
    )
    parser.addoption(
        "--write-seconds",
        action="store_true",
        help="write down what modules took, by which they are dealt out",
    )
    parser.addoption(
        "--write-screens",
        action="store_true",
        help="write down what terminals show after a mistake, see tests/spark/test_screens.py",
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test for the first command that runs it."""
    from services import tiers

    tiers.mark(item)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only later commands run, and remember what that is."""
    from services import tiers

    if tier := config.getoption("--tier"):
        tiers.leave_out(config, items, tier)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Heard by the process that deals out, too."""
    from services import dealing

    dealing.spent[dealing.scope_of(report.nodeid)] += report.duration


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal out tests to processes by what they cost."""
    from services.dealing import ByCost

    return ByCost(config, log)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process among several tells the first one which servers it had; the first one has the seconds of all."""
    from services import dealing, summary, tiers

    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["services"] = summary.versions()
        session.config.workeroutput["left"] = dict(tiers.left)
    elif session.config.getoption("--write-seconds"):
        dealing.write_seconds(dealing.SECONDS, dealing.measured_s())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The first one hears it; a process that died says nothing."""
    from services import summary, tiers

    output = getattr(node, "workeroutput", {})
    for name, version in output.get("services", {}).items():
        summary.started(name, version)
    tiers.left.update(output.get("left", {}))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which servers there were, which tests were skipped for want of one, and which are left to later commands."""
    from services import summary, tiers

    skips = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    said = summary.line(skips)
    if said:
        terminalreporter.write_line(said)
    for what, tests in sorted(tiers.left.items()):
        terminalreporter.write_line(f"left to {what} ({tests})")
