"""`dedupe` as Spark sees it: rows go to tasks as they are. Driver."""

from __future__ import annotations

from penstock.operators.dedupe import Dedupe, DedupeSpec
from penstock.spark.dead_letters import all_nullable
from penstock.spark.event_times import event_time_of
from penstock.spark.operators.base import CompiledOperator, OperatorInput, compiled
from penstock.spark.operators.inputs import check_names


def compile_dedupe(node: Dedupe, given: OperatorInput) -> CompiledOperator:
    """Check it against the columns there are; raises `ConfigError`."""
    check_names(node.uid, "only", given.frame)
    time = event_time_of(node.upstream, given.frame, uid=node.uid, named=node.event_time)
    spec = DedupeSpec(given.columns, node.keys, time, node.within_us)
    return compiled(given, spec, all_nullable(given.frame.schema))
