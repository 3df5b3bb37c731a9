"""A Spark session on this machine, for demos, tests and notebooks. Runs on the driver.

A production job brings its own session; Penstock never needs one from here. This one sets the Java to run on, the Python of workers,
sockets on loopback only, quiet logs, and retries of tasks whose Python worker died.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from penstock.errors import ConfigError
from penstock.spark.java import JavaHome, archive_options, cache_dir, find_java, use_java, write_cached
from penstock.spark.versions import with_version
from penstock.supervise.channel import take_socket_from_environment

_log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
MAX_TASK_FAILURES = 4
SHUFFLE_PARTITIONS = 4

_LOCAL = re.compile(r"local(?:\[(\d+|\*)\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*(\d+)\s*\]")
_LINE = "%d{yy/MM/dd HH:mm:ss} %p %c{1}: %m"
_CAUSE = " %replace{%ex{short.message}}{(?s)[\\\\r\\\\n].*}{}"
_LOG4J = """\
# Written by Penstock for local sessions: errors only, to stderr.
rootLogger.level = error
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.alwaysWriteExceptions = false
appender.stderr.layout.pattern = """


def local_session(
    app_name: str = "penstock",
    *,
    cores: int = 2,
    master: str | None = None,
    packages: Sequence[str] = (),
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark on this machine, or return the session that already runs with the same master.

    `master` replaces `local[cores]`, for example "local-cluster[2,1,512]" for two executors in separate processes with one core and
    512 MB each. `packages` are fetched from Maven Central with their dependencies, for example
    "org.apache.spark:spark-sql-kafka-0-10_2.13": a package of Spark's own without a version gets the version of this Spark. `config`
    overrides every setting made here.
    """
    if cores < 1:
        raise ConfigError(f"cores is {cores}; a local session needs at least 1", cores=cores)
    master = _with_retries(master or f"local[{cores}]")
    _refuse_other_master(master)
    take_socket_from_environment()
    java = find_java()
    java_home = use_java(java, quiet=True)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    given = {
        **({"spark.jars.packages": ",".join(map(with_version, packages))} if packages else {}),
        **(config or {}),
    }
    settings: dict[str, str] = {
        "spark.master": master,
        "spark.app.name": app_name,
        **_settings(master, java, java_home, given),
    }
    new = SparkContext._active_spark_context is None
    _start_java(settings)
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if new:
        atexit.register(_stop_at_exit, session)
    return session


def _start_java(settings: Mapping[str, str]) -> None:
    """Let PySpark start its JVM in a separate thread, which Ctrl-C does not interrupt.

    An exception during the start would remove the folder into which the JVM is about to write its address. The JVM would then fail
    without ending, and nothing would ever end it. A JVM that this thread has started is used by the next call, or ends with the process.
    """
    conf = SparkConf().setAll(list(settings.items()))
    failures: list[BaseException] = []
    up = threading.Event()

    def start() -> None:
        try:
            SparkContext._ensure_initialized(conf=conf)
        except BaseException as error:  # noqa: BLE001 - raised below, by the waiting thread
            failures.append(error)
        up.set()

    threading.Thread(target=start, name="penstock-start-java", daemon=True).start()
    _import_meanwhile()
    up.wait()
    if failures:
        raise failures[0]


def _import_meanwhile() -> None:
    """Import modules that a job will need while Java starts, which takes seconds in its own process."""
    for module in (
        "penstock.job",
        "penstock.spark.job_handle",
        "penstock.spark.foreground",
        "pyspark.sql.functions",
    ):
        import_module(module)


def _stop_at_exit(session: SparkSession) -> None:
    """Stop the session at exit, or PySpark's threads print errors about the lost JVM."""
    if is_alive(session):
        session.stop()


def is_alive(session: SparkSession) -> bool:
    """Whether Spark still responds: the session was not stopped, and its JVM has not died."""
    try:
        return not session.sparkContext._jsc.sc().isStopped()
    except (Py4JError, OSError, AttributeError):  # AttributeError: a stopped session has no context
        return False


def _settings(master: str, java: JavaHome, java_home: Path, config: Mapping[str, str]) -> dict[str, str]:
    settings = {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        "spark.executorEnv.JAVA_HOME": str(java_home),
        **_executor_memory(master),
        **config,
    }
    settings["spark.driver.extraJavaOptions"] = _driver_options(java, config)
    python_path = _worker_python_path(config)
    if python_path:
        settings["spark.executorEnv.PYTHONPATH"] = python_path
    return settings


def _with_retries(master: str) -> str:
    """Add retries: plain `local[N]` fails at the first lost Python worker; `local[N,4]` retries as a cluster does."""
    match = _LOCAL.fullmatch(master)
    return f"local[{match.group(1) or 1},{MAX_TASK_FAILURES}]" if match else master


def _executor_memory(master: str) -> dict[str, str]:
    """The memory of an executor in a local cluster. It must fit into its worker, or Spark waits forever."""
    match = _LOCAL_CLUSTER.fullmatch(master)
    return {"spark.executor.memory": f"{match.group(1)}m"} if match else {}


def _driver_options(java: JavaHome, config: Mapping[str, str]) -> str:
    """Java's options, including a log with one line per error. With level DEBUG for 'penstock', errors are logged with their stacks."""
    asked = config.get("spark.driver.extraJavaOptions", "")
    given = f"{archive_options(java, asked)} {asked}".strip()
    if "log4j2.configurationFile" in given:
        return given
    traces = _log.isEnabledFor(logging.DEBUG)
    log4j = cache_dir() / ("log4j2-traces.properties" if traces else "log4j2-lines.properties")
    write_cached(log4j, _LOG4J + _LINE + ("%n%ex" if traces else _CAUSE + "%n") + "\n", 0o644)
    return f"-Dlog4j2.configurationFile={log4j.as_uri()} {given}".strip()


def _worker_python_path(config: Mapping[str, str]) -> str:
    """The PYTHONPATH of workers: they find an installed Penstock without it, but not a source tree."""
    parts = [config.get("spark.executorEnv.PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
    source_root = str(Path(__file__).resolve().parents[2])
    if source_root not in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        parts.append(source_root)
    entries = os.pathsep.join(part for part in parts if part).split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(entry for entry in entries if entry))


def _refuse_other_master(master: str) -> None:
    running = SparkContext._active_spark_context
    if running is not None and running.master != master:
        raise ConfigError(
            f"Spark already runs in this process with master {running.master}, and {master} was asked for; "
            "nothing was changed. Call stop() on the session that runs, or ask for its master",
            running=running.master,
            asked=master,
        )
