"""Spark's Kafka connector for tests and benchmarks: by the name of its package, or, where a mirror lacks a part, put together from parts."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pyspark

from penstock.spark.versions import with_version
from services import maven

_SPARK = "org.apache.spark"
_CONNECTOR = "spark-sql-kafka-0-10_2.13"
_EARLIER = {"4.0": "4.0.4", "4.1": "4.1.3", "4.2": "4.2.0", "4.3": "4.2.0"}
"""For each Spark an earlier release of the connector, which runs on it; what else the parts need, Spark has itself."""
_OTHER_PARTS = (
    (_SPARK, "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)


@dataclass(frozen=True)
class Connector:
    """`settings` give it to a Spark session; `story` says in one line which one it is, and why."""

    settings: dict[str, str]
    story: str


@functools.cache
def connector() -> Connector:
    """The connector of this Spark if it can be fetched, otherwise one from parts; raises `JarsMissingError` with both reasons."""
    package = with_version(f"{_SPARK}:{_CONNECTOR}")
    try:
        maven.resolve(*package.split(":"))
    except maven.JarsMissingError as missing:
        return _from_parts(str(missing))
    settings = {"spark.jars.packages": package, "spark.jars.ivy": str(maven.ivy_dir())}
    return Connector(settings, f"Kafka connector: {package}, with all it depends on")


def parts_for(spark: str) -> list[tuple[str, str, str]]:
    """Organisation, module and version of what makes a connector for a Spark."""
    minor = ".".join(spark.split(".")[:2])
    return [(_SPARK, _CONNECTOR, _EARLIER[minor]), *_OTHER_PARTS]


def _from_parts(why: str) -> Connector:
    parts = parts_for(pyspark.__version__)
    try:
        folders = [maven.resolve(*part, transitive=False) for part in parts]
    except maven.JarsMissingError as missing:
        raise maven.JarsMissingError(f"{why}; and from parts: {missing}") from missing
    jars = ",".join(str(jar) for folder in folders for jar in sorted(folder.glob("*.jar")))
    names = " + ".join(f"{module}:{version}" for _, module, version in parts)
    return Connector({"spark.jars": jars}, f"Kafka connector: {names}, as jars, because {why}")
