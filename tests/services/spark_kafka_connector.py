"""Spark's Kafka connector for tests and benchmarks: by the name of its package, or, where a mirror lacks a part, put together from parts."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from services import maven

_SPARK = "org.apache.spark"
_CONNECTOR = "spark-sql-kafka-0-10_2.13"
_VERSION = "4.3.0"
_PARTS = (
    (_SPARK, _CONNECTOR, "4.2.0"),
    (_SPARK, "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)
"""Of earlier releases, which run on this Spark; what else they need, Spark has itself."""


@dataclass(frozen=True)
class Connector:
    """`settings` give it to a Spark session; `story` says in one line which one it is, and why."""

    settings: dict[str, str]
    story: str


@functools.cache
def connector() -> Connector:
    """The connector of this Spark if it can be fetched, otherwise one from parts; raises `JarsMissingError` with both reasons."""
    package = f"{_SPARK}:{_CONNECTOR}:{_VERSION}"
    try:
        maven.resolve(_SPARK, _CONNECTOR, _VERSION)
    except maven.JarsMissingError as missing:
        return _from_parts(str(missing))
    settings = {"spark.jars.packages": package, "spark.jars.ivy": str(maven.ivy_dir())}
    return Connector(settings, f"Kafka connector: {package}, with all it depends on")


def _from_parts(why: str) -> Connector:
    try:
        folders = [maven.resolve(*part, transitive=False) for part in _PARTS]
    except maven.JarsMissingError as missing:
        raise maven.JarsMissingError(f"{why}; and from parts: {missing}") from missing
    jars = ",".join(str(jar) for folder in folders for jar in sorted(folder.glob("*.jar")))
    names = " + ".join(f"{module}:{version}" for _, module, version in _PARTS)
    return Connector({"spark.jars": jars}, f"Kafka connector: {names}, as jars, because {why}")
