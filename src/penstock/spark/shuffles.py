"""How the shuffles of a batch are planned: into how many partitions, and whether Spark may change that. Driver.

A keyed operator needs exactly its parallelism, whatever Spark finds out about the rows. A batch is one plan with one set of settings, so:

    only operators shuffle       adaptive execution is off and the number of partitions is the parallelism. Then the shuffle of an
                                 aggregate brings every key to its subtask by itself.
    the user's own SQL does too  the settings are those of the user's session. Before an operator rows are placed by a shuffle with
                                 a number of its own, which adaptive execution leaves as it is.

A plan that Spark finds to be without rows loses its shuffles, and operators their subtasks. So the rules that look for such plans are off.
That of adaptive execution would also take a side of a join out of a plan that runs, with operators in it that have begun.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

ADAPTIVE = "spark.sql.adaptive.enabled"
PARTITIONS = "spark.sql.shuffle.partitions"
_EXCLUDED = {
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation",
    "spark.sql.adaptive.optimizer.excludedRules": "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation",
}

_NODE = re.compile(r"^[\s:+-]*([A-Z]\w*)(.*)$", re.MULTILINE)
_SUBQUERY = re.compile(r"\b(?:list|exists|(?:scalar|lateral)-subquery)#")
_STAYS_IN_PLACE = {
    "CollectMetrics",
    "EventTimeWatermark",
    "Filter",
    "Generate",
    "LocalRelation",
    "LogicalRDD",
    "MapInArrow",
    "MapInPandas",
    "Project",
    "Repartition",
    "Sample",
    "SubqueryAlias",
    "Union",
}
"""Parts of a plan that leave every row in its partition, or have a number of partitions of their own."""


def shuffles(plan: str) -> bool:
    """Whether an analysed plan may need a shuffle of Spark's choice; True for whatever is not known."""
    return bool(_SUBQUERY.search(plan)) or any(
        name not in _STAYS_IN_PLACE and not _has_its_own_number(name, rest)
        for name, rest in _NODE.findall(plan)
    )


def _has_its_own_number(name: str, rest: str) -> bool:
    return (name == "Sort" and rest.endswith(", false")) or (
        name == "RepartitionByExpression" and re.search(r", \d+$", rest) is not None
    )


def batch_settings(session: SparkSession, *, own_shuffles: bool, parallelism: int) -> dict[str, str]:
    """What the batches of a job are planned with, in the user's session; `own_shuffles`: whether the user's own SQL shuffles."""
    excluded = {
        name: ",".join(filter(None, (session.conf.get(name, None), rule))) for name, rule in _EXCLUDED.items()
    }
    if own_shuffles:
        return excluded | {name: str(session.conf.get(name)) for name in (ADAPTIVE, PARTITIONS)}
    return excluded | {ADAPTIVE: "false", PARTITIONS: str(parallelism)}


@contextmanager
def in_force(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Plan with these settings, and leave the session as it was: Spark plans the sources of the next batch in it."""
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)
