"""Servers for the benchmarks: those that the tests start. Driver.

What cannot be had on this machine is a reason to skip a figure.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench import SkippedError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

if TYPE_CHECKING:
    from services.kafka_broker import KafkaBroker
    from services.postgres_process import PostgresProcess


@contextmanager
def postgres() -> Iterator[PostgresProcess]:
    """A PostgreSQL that syncs to disk as a fresh one does; the one of the tests does not."""
    try:
        import pytest

        from services.postgres_process import PostgresProcess
    except ImportError as error:
        raise SkippedError(f"no PostgreSQL to measure with: {error}") from error
    try:
        server = PostgresProcess(fsync="on")
    except pytest.skip.Exception as reason:
        raise SkippedError(str(reason)) from None
    try:
        yield server
    finally:
        server.remove()


def jar(organisation: str, module: str, version: str) -> Path:
    """A jar from Maven Central, from the cache or fetched."""
    from services.maven import JarsMissingError, resolve

    try:
        return resolve(organisation, module, version) / f"{module}-{version}.jar"
    except JarsMissingError as missing:
        raise SkippedError(str(missing)) from missing


@contextmanager
def kafka(folder: Path) -> Iterator[KafkaBroker]:
    """A Kafka broker with its data in `folder`."""
    try:
        from services.kafka_broker import KafkaBroker
        from services.maven import JarsMissingError
    except ImportError as error:
        raise SkippedError(f"no Kafka broker to measure with: {error}") from error
    folder.mkdir()
    try:
        broker = KafkaBroker(folder)
    except JarsMissingError as missing:
        raise SkippedError(f"no Kafka broker to measure with: {missing}") from missing
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


def kafka_connector() -> dict[str, str]:
    """The settings that give Spark's Kafka connector to a session."""
    from services.maven import JarsMissingError
    from services.spark_kafka_connector import connector

    try:
        return connector().settings
    except JarsMissingError as missing:
        raise SkippedError(f"no Kafka connector to measure with: {missing}") from missing
