"""What a source, an operator or a sink does at the moment, ready to be shown in the drawing and in the table below it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.status.live import OperatorLive, Progress, SinkLive, SourceLive
from penstock.status.plan import PARTLY_AGGREGATED, PlanNode
from penstock.status.view import JobView, source_behind
from penstock.wording import (
    NOTHING,
    behind,
    clock_time,
    compact,
    counted,
    lasted,
    rate,
    size,
    watermark_moment,
)


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One node, in words. A dash stands where nothing is known."""

    node: PlanNode
    speed: str = NOTHING
    rows: str = NOTHING
    counted: str = ""
    """How its rows are counted, where that is not one by one: `partly aggregated`."""
    state: str = NOTHING
    """Size of state; of a source what lies in it unread, of a sink what waits for its commit."""
    state_label: str = ""
    as_of: str = ""
    """Of a state that is left of a run that is over: the time when it was so."""
    as_of_s: float = 0.0
    time: str = NOTHING
    """How far event time is behind the clock."""
    lag: str = ""
    """The same in words: `8.1 s behind`; '' where there is none."""
    watermark: str = NOTHING
    """In UTC, with every digit."""
    watermark_us: int | None = None
    files: str = NOTHING
    left_out: str = ""
    """Late and bad rows; '' for none."""
    alarm: str = ""
    """In a word or two, why somebody should look; '' when nothing is wrong."""
    why: str = ""
    """The whole story of it."""
    position: str = ""


def node_facts(view: JobView) -> dict[str, NodeFacts]:
    """By uid. Of a job that is not running, what it said last."""
    nodes = view.plan.nodes if view.plan else ()
    live = view.live
    return {node.uid: _facts(node, live, view) if live else NodeFacts(node=node) for node in nodes}


def _facts(node: PlanNode, live: Progress, view: JobView) -> NodeFacts:
    if node.kind == "source" and node.uid in live.sources:
        return _source(node, live.sources[node.uid], view)
    if node.kind == "sink" and node.uid in live.sinks:
        return _sink(node, live.sinks[node.uid], view)
    if node.uid in live.operators:
        return _operator(node, live.operators[node.uid], view)
    return NodeFacts(node=node)


def _source(node: PlanNode, source: SourceLive, view: JobView) -> NodeFacts:
    unread = source_behind(view, source)
    return NodeFacts(
        node=node,
        speed=_speed(source.rows_per_s, view),
        rows=f"{source.rows:,}",
        state=NOTHING if unread.rows is None else _rows(unread.rows),
        state_label="unread",
        as_of=_time(unread.as_of),
        as_of_s=unread.as_of,
        time=behind(source.watermark_us, _asked_at(view)),
        lag=_lag(source.watermark_us, view),
        watermark=watermark_moment(source.watermark_us),
        watermark_us=source.watermark_us,
        position=source.position,
    )


def _operator(node: PlanNode, operator: OperatorLive, view: JobView) -> NodeFacts:
    return NodeFacts(
        node=node,
        speed=_speed(operator.rows_per_s, view),
        rows=f"{operator.rows:,}",
        counted=PARTLY_AGGREGATED if node.partly_aggregated else "",
        state=size(operator.state_bytes),
        state_label="state",
        as_of=_time(view.live.batch_at if view.live and not view.is_up else 0.0),
        as_of_s=view.live.batch_at if view.live and not view.is_up else 0.0,
        time=behind(operator.watermark_us, _asked_at(view)),
        lag=_lag(operator.watermark_us, view),
        watermark=watermark_moment(operator.watermark_us),
        watermark_us=operator.watermark_us,
        files=f"{operator.files:,}",
        left_out=", ".join(_left_out(operator.late_rows, operator.bad_records)),
    )


def _sink(node: PlanNode, sink: SinkLive, view: JobView) -> NodeFacts:
    since = (
        f", the oldest for {lasted(_asked_at(view) - sink.waiting_since)}" if sink.waiting_since > 0 else ""
    )
    is_known = view.is_up or not view.state.is_alive
    waits = f"{counted(sink.waiting, 'transaction')} with {counted(sink.waiting_rows, 'row')} wait for their commit{since}"
    return NodeFacts(
        node=node,
        speed=_speed(sink.rows_per_s, view),
        rows=f"{sink.rows:,}",
        state=_rows(sink.waiting_rows) if sink.waiting else "none" if is_known else NOTHING,
        state_label="uncommitted",
        as_of=_time(view.live.at if view.live and not view.state.is_alive else 0.0),
        as_of_s=view.live.at if view.live and not view.state.is_alive else 0.0,
        left_out=", ".join(_left_out(0, sink.bad_records)),
        alarm="down" if sink.down else "",
        why=f"{sink.down}. {waits}" if sink.down else waits if sink.waiting else "",
    )


def _left_out(late: int, bad: int) -> Iterator[str]:
    if late:
        yield f"{compact(late)} late"
    if bad:
        yield f"{compact(bad)} bad"


def _lag(watermark_us: int | None, view: JobView) -> str:
    said = behind(watermark_us, _asked_at(view))
    return "" if said == NOTHING else said if said.endswith("ahead") else f"{said} behind"


def _speed(rows_per_s: float, view: JobView) -> str:
    return rate(rows_per_s) if view.is_up else NOTHING


def _time(at: float) -> str:
    return clock_time(at) if at > 0 else ""


def _asked_at(view: JobView) -> float:
    """Of a job that has ended, times are counted up to what it said last."""
    return view.now if view.state.is_alive or view.live is None else view.live.at


def _rows(number: int) -> str:
    return "1 row" if number == 1 else " ".join((compact(number), "rows"))
