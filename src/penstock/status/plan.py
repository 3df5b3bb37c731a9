"""What a job is: its graph from sources to sinks, its settings, its guarantees. A run writes it once, as `runs/<k>.plan`. Pure; driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from penstock.config import Checkpointing, OnCancel, choice
from penstock.graph import BadRecords, Graph, Late, Output, Side, Source
from penstock.operators.base import Node, Operator
from penstock.operators.inputs import shown_keys
from penstock.sinks.two_phase_commit import Delivery


class PlanNode(msgspec.Struct, frozen=True, kw_only=True):
    """A source, an operator or a sink."""

    uid: str
    kind: str
    """`source`, `operator` or `sink`."""
    what: str
    """In a few words: `aggregate by app`, `SQLite page-views/views.db`, `kafka`."""
    inputs: tuple[str, ...] = ()
    """The uids of those whose rows come to it directly."""
    parallelism: int = 0
    """0: as many tasks as Spark makes."""
    keys: tuple[str, ...] = ()
    event_time: bool = False
    """Whether it goes by event time."""
    promise: str = ""
    """Of a sink: when its rows are visible, or what may come of a repetition."""
    partly_aggregated: bool = False
    """Whether the rows that come to it are counted after Spark's own partial aggregation: fewer than were read."""


PARTLY_AGGREGATED = "partly aggregated"
"""The remark next to row counts of such a node."""


class PlanSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings for checkpoints and restarts."""

    mode: str
    interval_s: float
    timeout_s: float
    min_pause_s: float
    max_concurrent: int
    tolerable_failures: int
    retained: int
    on_cancel: str
    restart: str
    trigger_s: float | None = None
    backend: str = ""
    parallelism: int = 0
    max_parallelism: int = 0
    local_recovery: bool = True


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The same for all runs of one start."""

    job: str
    nodes: tuple[PlanNode, ...]
    """Those in front come first."""
    settings: PlanSettings
    guarantee: str
    """`exactly-once`, ... or `no guarantee`."""
    limited_by: str = ""
    reason: str = ""
    program: str = ""
    penstock: str = ""
    spark: str = ""
    python: str = ""
    available_now: bool = False


_PROMISES = {
    Delivery.TRANSACTIONAL: "visible with the checkpoint",
    Delivery.IDEMPOTENT: "written by key: a repetition does no harm",
    Delivery.AT_LEAST_ONCE: "written at once: rows may come again after a failure",
}


def plan_nodes(graph: Graph, kinds: Mapping[str, str], parallelism: int) -> tuple[PlanNode, ...]:
    """The graph, those in front first. `kinds`: what Spark calls each source."""
    return (
        *(_source(one, kinds.get(one.uid, "")) for one in graph.sources),
        *(_operator(one, graph, parallelism) for one in graph.operators),
        *(_sink(one) for one in graph.outputs),
    )


def _source(source: Source, kind: str) -> PlanNode:
    return PlanNode(uid=source.uid, kind="source", what=kind, event_time=source.event_time is not None)


def _operator(operator: Operator, graph: Graph, parallelism: int) -> PlanNode:
    return PlanNode(
        uid=operator.uid,
        kind="operator",
        what=_described(operator),
        inputs=tuple(_direct(operator)),
        parallelism=parallelism,
        keys=shown_keys(operator.keys),
        event_time=bool(graph.event_time_sources(operator)),
        partly_aggregated=operator.partly_aggregated,
    )


def _sink(output: Output) -> PlanNode:
    delivery = output.sink.delivery
    return PlanNode(
        uid=output.uid,
        kind="sink",
        what=type(output.sink).__name__,  # never its settings: there may be a password among them
        inputs=tuple(_direct(output)),
        promise=output.sink.explanation or _PROMISES[delivery],
    )


def _described(operator: Operator) -> str:
    keys = shown_keys(operator.keys)
    by = f" by {', '.join(keys)}" if keys else ""
    return f"{operator.describe()}{by}"


def _direct(part: Operator | Output) -> list[str]:
    """The uids of those whose rows come to it without another operator in between; each once."""
    return list(dict.fromkeys(uid for node in part.inputs for uid in _nearest(node)))


def _nearest(node: Node) -> Iterator[str]:
    match node:
        case Source() | Operator():
            yield node.uid
        case Side() | BadRecords() | Late():
            yield node.of.uid
        case _:
            for before in node.inputs:
                yield from _nearest(before)


def plan_settings(
    checkpoint: Checkpointing,
    *,
    restart: str,
    trigger_s: float | None,
    backend: str,
    parallelism: int,
    max_parallelism: int,
    local_recovery: bool,
) -> PlanSettings:
    """The settings of the job."""
    return PlanSettings(
        mode=checkpoint.delivery_mode.value,
        interval_s=checkpoint.interval_s,
        timeout_s=checkpoint.timeout_s,
        min_pause_s=checkpoint.min_pause_s,
        max_concurrent=checkpoint.max_concurrent,
        tolerable_failures=checkpoint.tolerable_failures,
        retained=checkpoint.retained,
        on_cancel=choice("checkpoint.on_cancel", checkpoint.on_cancel, OnCancel).value,
        restart=restart,
        trigger_s=trigger_s,
        backend=backend,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        local_recovery=local_recovery,
    )
