"""A Spark session on this machine, for demos, tests and notebooks. Runs on the driver.

A production job brings its own session; nothing in Penstock needs one made here. What this one takes care of:
the Java to run on, the Python that workers start, sockets on loopback only, silence at start, retries of a
task whose Python worker died.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.errors import ConfigError
from penstock.spark.java import cache_dir, ensure_java, write_cached

LOOPBACK = "127.0.0.1"
MAX_TASK_FAILURES = 4
SHUFFLE_PARTITIONS = 4

_LOCAL = re.compile(r"local(?:\[(\d+|\*)\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*(\d+)\s*\]")
_QUIET_LOG4J = """\
# Written by Penstock for local sessions: errors only, to stderr.
rootLogger.level = error
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


def local_session(
    app_name: str = "penstock",
    *,
    cores: int = 2,
    master: str | None = None,
    packages: Sequence[str] = (),
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark on this machine, or return the session that already runs with the same master.

    `master` replaces `local[cores]`, for example "local-cluster[2,1,512]" for two executors in processes of
    their own with one core and 512 MB each. `packages` are fetched from Maven Central with all they need, for example
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0". `config` has the last word over every setting made here.
    """
    if cores < 1:
        raise ConfigError(f"cores is {cores}; a local session needs at least 1", cores=cores)
    master = _with_retries(master or f"local[{cores}]")
    _refuse_other_master(master)
    java_home = ensure_java(quiet=True)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    builder = SparkSession.builder.master(master).appName(app_name)
    given = {**({"spark.jars.packages": ",".join(packages)} if packages else {}), **(config or {})}
    for name, value in _settings(master, java_home, given).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def is_alive(session: SparkSession) -> bool:
    """Whether Spark answers: neither was the session stopped nor did its JVM die."""
    try:
        return not session.sparkContext._jsc.sc().isStopped()
    except (Py4JError, OSError, AttributeError):  # AttributeError: a stopped session has no context any more
        return False


def _settings(master: str, java_home: Path, config: Mapping[str, str]) -> dict[str, str]:
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
    settings["spark.driver.extraJavaOptions"] = _driver_options(config)
    python_path = _worker_python_path(config)
    if python_path:
        settings["spark.executorEnv.PYTHONPATH"] = python_path
    return settings


def _with_retries(master: str) -> str:
    """Plain `local[N]` fails at the first lost Python worker; `local[N,4]` tries again as a cluster does."""
    match = _LOCAL.fullmatch(master)
    return f"local[{match.group(1) or 1},{MAX_TASK_FAILURES}]" if match else master


def _executor_memory(master: str) -> dict[str, str]:
    """An executor of a local cluster must fit into its worker, or Spark waits for ever."""
    match = _LOCAL_CLUSTER.fullmatch(master)
    return {"spark.executor.memory": f"{match.group(1)}m"} if match else {}


def _driver_options(config: Mapping[str, str]) -> str:
    given = config.get("spark.driver.extraJavaOptions", "")
    if "log4j2.configurationFile" in given:
        return given
    log4j = cache_dir() / "log4j2-quiet.properties"
    write_cached(log4j, _QUIET_LOG4J, 0o644)
    return f"-Dlog4j2.configurationFile={log4j.as_uri()} {given}".strip()


def _worker_python_path(config: Mapping[str, str]) -> str:
    """Workers find an installed Penstock by themselves; they have to be told about a source tree."""
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
