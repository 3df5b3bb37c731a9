"""What a job is, written down for people: its graph from sources to sinks, its settings, what it promises. Pure; driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.config import Checkpointing, OnCancel, choice
from penstock.graph import BadRecords, Graph, Late, Output, Side, Source
from penstock.operators.base import Node, Operator
from penstock.operators.inputs import shown_keys
from penstock.sinks.two_phase_commit import Delivery
from penstock.status.plan import PlanNode, PlanSettings

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
    """What the job was told."""
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
