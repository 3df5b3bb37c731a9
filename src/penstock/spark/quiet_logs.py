"""Suppresses Spark's log messages about failures that Penstock reports itself, while a job runs. Driver.

Spark logs one failure many times: for each attempt of a task, for the stage, for the query, each with stacks of Java and Python. A filter
in Java's log4j suppresses warnings and errors of these loggers, in any session and at any level; their other messages, and all other
loggers, are unchanged. The filter is removed when the job has ended. With level DEBUG for 'penstock' nothing is suppressed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from py4j.protocol import Py4JError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from penstock.graph import Source

_log = logging.getLogger(__name__)

JAVA_LOGGERS = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.streaming.MicroBatchExecution",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
)
"""Spark 4.1 has moved the query to another package."""
SCHEDULER, OF_A_DEAD_DRIVER = "org.apache.spark.scheduler.DAGScheduler", "Failed to update accumulator.*"
"""After a driver was killed, Java lives on for a moment, and logs that it cannot reach the driver."""
PYTHON_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""PySpark logs every error of a query with its plan, about 8 kB, before it raises it."""
_LOG4J = "org.apache.logging.log4j"


@contextmanager
def quiet_logs(session: SparkSession) -> Iterator[None]:
    """Suppress messages about failures inside this block."""
    _quiet_accumulators(session)
    if logging.getLogger("penstock").isEnabledFor(logging.DEBUG):
        yield
        return
    loggers = [PySparkLogger.getLogger(name) for name in PYTHON_LOGGERS]
    held_back = _HeldBack()
    for logger in loggers:
        logger.addFilter(held_back)
    filtered = _filter_java(session)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(held_back)
        _unfilter_java(filtered)


@contextmanager
def quiet_logs_for(sources: Sequence[Source]) -> Iterator[None]:
    """The same, for a job that may have no sources yet."""
    with quiet_logs(sources[0].frame.sparkSession) if sources else nullcontext():
        yield


def _quiet_accumulators(session: SparkSession) -> None:
    """Suppress, permanently, the stack that PySpark's accumulator server prints when the JVM dies: the job reports this itself."""
    server = getattr(session.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = _lost_its_peer


def _lost_its_peer(_request: object, address: object) -> None:
    _log.debug("the accumulators of Spark have lost %s", address, exc_info=True)


class _HeldBack(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:  # noqa: ARG002 - drops every record
        return False


def _filter_java(session: SparkSession) -> list[tuple[Any, Any]]:
    """Add a filter to each logger. Returns the configurations of the loggers with their filters."""
    filtered: list[tuple[Any, Any]] = []
    try:
        jvm = session.sparkContext._jvm
        context = getattr(jvm, f"{_LOG4J}.LogManager").getContext(False)  # noqa: FBT003 - as Spark asks for it
        loggers = context.getConfiguration().getLoggers()
        for name in (*JAVA_LOGGERS, SCHEDULER):
            logger = loggers.get(name)
            if logger is None:
                # without its own level, so that it follows the level of the session, even when it changes
                logger = getattr(jvm, f"{_LOG4J}.core.config.LoggerConfig")(name, None, True)  # noqa: FBT003
                context.getConfiguration().addLogger(name, logger)
            one = _text_filter(jvm, OF_A_DEAD_DRIVER) if name == SCHEDULER else _level_filter(jvm)
            logger.addFilter(one)
            filtered.append((logger, one))
        context.updateLoggers()
    except (
        Py4JError,
        OSError,
        TypeError,
    ) as error:  # another logging platform, whose messages are not filtered
        _log.debug("the log of Java stays as it is: %s", error)
    return filtered


def _level_filter(jvm: Any) -> Any:
    level = getattr(jvm, f"{_LOG4J}.Level")
    kind = getattr(jvm, f"{_LOG4J}.core.filter.LevelRangeFilter")
    return kind.createFilter(level.FATAL, level.WARN, *_deny(jvm))


def _text_filter(jvm: Any, text: str) -> Any:
    kind = getattr(jvm, f"{_LOG4J}.core.filter.RegexFilter")
    return kind.createFilter(text, None, False, *_deny(jvm))  # noqa: FBT003 - the text with its values


def _deny(jvm: Any) -> tuple[Any, Any]:
    """The results of a filter for matching messages and for others."""
    result = getattr(jvm, f"{_LOG4J}.core.Filter$Result")
    return result.valueOf("DENY"), result.valueOf("NEUTRAL")


def _unfilter_java(filtered: list[tuple[Any, Any]]) -> None:
    try:
        for logger, one in filtered:
            logger.removeFilter(one)
    except (Py4JError, OSError) as error:  # the JVM is gone
        _log.debug("the log of Java was not given back: %s", error)
