"""How the shuffles of a batch are planned: into how many partitions, and whether Spark may change that. Driver.

A keyed operator needs exactly its parallelism, whatever Spark finds out about the rows. A batch is one plan with one set of settings, so:

    only operators shuffle       adaptive execution is off and the number of partitions is the parallelism. Then the shuffle of an
                                 aggregate brings every key to its subtask by itself.
    the user's own SQL does too  the settings are those of the user's session. Before an operator rows are placed by a shuffle with
                                 a number of its own, which adaptive execution leaves as it is.

In the second case one rule of adaptive execution stays off. It takes a side of a join out of the plan when the other is found empty, with
the operators in that side, which may have begun to run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

ADAPTIVE = "spark.sql.adaptive.enabled"
PARTITIONS = "spark.sql.shuffle.partitions"
_EXCLUDED = "spark.sql.adaptive.optimizer.excludedRules"
_PROPAGATE_EMPTY = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"

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


def settings_of(session: SparkSession) -> dict[str, str]:
    """What the user's session says about shuffles, for the batches of a job whose own SQL has some."""
    excluded = session.conf.get(_EXCLUDED, "") or ""
    return {
        ADAPTIVE: str(session.conf.get(ADAPTIVE)),
        PARTITIONS: str(session.conf.get(PARTITIONS)),
        _EXCLUDED: ",".join(filter(None, (excluded, _PROPAGATE_EMPTY))),
    }


def fixed_settings(parallelism: int) -> dict[str, str]:
    """For the batches of a job in which only operators shuffle."""
    return {ADAPTIVE: "false", PARTITIONS: str(parallelism)}


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
