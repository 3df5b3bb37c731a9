"""The graph of a job as a tree in a table: from sources to sinks, each with what it does now. Driver; no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich import box
from rich.table import Table
from rich.text import Text

from penstock.cli.job_list import TIGHT
from penstock.cli.printing import lasting, time_of_day
from penstock.status.backlog import source_behind
from penstock.status.live import Live, OperatorLive, SinkLive, SourceLive
from penstock.status.plan import PARTLY_AGGREGATED, Plan, PlanNode
from penstock.status.view import JobView
from penstock.wording import counted, size

Line = tuple[str, PlanNode, bool]
"""The branches before a node, the node, and whether it stands here for the first time."""


def lines(plan: Plan) -> Iterator[Line]:
    """Depth first. A node with several inputs stands below each of them, with what comes behind it only below the first."""
    below: dict[str, list[PlanNode]] = {node.uid: [] for node in plan.nodes}
    for node in plan.nodes:
        for uid in node.inputs:
            below.setdefault(uid, []).append(node)
    seen: set[str] = set()

    def walk(node: PlanNode, own: str, others: str) -> Iterator[Line]:
        first = node.uid not in seen
        seen.add(node.uid)
        yield own, node, first
        children = below.get(node.uid, []) if first else []
        for number, child in enumerate(children):
            last = number == len(children) - 1
            yield from walk(child, others + ("└─ " if last else "├─ "), others + ("   " if last else "│  "))

    for root in plan.nodes:
        if not root.inputs:
            yield from walk(root, "", "")
    for node in plan.nodes:  # of a plan that has a circle, or an input that it does not name
        if node.uid not in seen:
            yield from walk(node, "", "")


def graph_table(view: JobView, spark: Callable[[str], str] | None = None, *, wide: bool = True) -> Table:
    """One line a node. `spark`: how its rows a second went, as a picture. `wide`: there is room for all columns."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=TIGHT)
    table.add_column("from sources to sinks", no_wrap=True, overflow="ellipsis", min_width=16)
    table.add_column("rows/s", justify="right", no_wrap=True)
    if spark is not None:
        table.add_column("", no_wrap=True, style="cyan")
    if wide:
        table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("now", overflow="fold")
    live = view.live if view.live is not None else Live(run=view.run, at=0.0, status="")
    for branches, node, first in lines(view.plan) if view.plan is not None else ():
        doing = _doing(live, node)
        name = Text.assemble(
            (branches, "dim"), (node.uid, "bold"), (f"  {node.what}" if first else "  as above", "dim")
        )
        known = first and doing is not None
        table.add_row(
            name,
            f"{doing.rows_per_s:,.0f}" if known and doing and view.is_up else "",
            *([spark(node.uid) if first else ""] if spark is not None else []),
            *([f"{doing.rows:,}" if known and doing else ""] if wide else []),
            _said(doing, node, view) if known and doing else "",
        )
    return table


def _doing(live: Live, node: PlanNode) -> SourceLive | OperatorLive | SinkLive | None:
    of_kind = {"source": live.sources, "operator": live.operators, "sink": live.sinks}
    return of_kind.get(node.kind, {}).get(node.uid)  # type: ignore[attr-defined, no-any-return]


def _said(doing: SourceLive | OperatorLive | SinkLive, node: PlanNode, view: JobView) -> Text:
    now = view.now if view.state.is_alive or view.live is None else view.live.at
    match doing:
        case SourceLive():
            parts = _of_source(doing, view)
        case OperatorLive():
            parts = _of_operator(doing, now, _as_of(view))
        case SinkLive():
            parts = _of_sink(doing, now) if view.is_up or not view.state.is_alive else _unknown("waiting")
    if node.partly_aggregated:
        parts = [*parts, Text(f"rows {PARTLY_AGGREGATED}", "dim")]
    return Text(", ").join(part if isinstance(part, Text) else Text(part) for part in parts)


def _unknown(what: str) -> list[str | Text]:
    return [Text(f"{what}: not known", "dim")]


def _of_source(source: SourceLive, view: JobView) -> list[str | Text]:
    behind = source_behind(view, source)
    if behind.rows is None:
        return _unknown("behind")
    if behind.as_of:
        return [Text(f"{behind.rows:,} behind at {time_of_day(behind.as_of)}", "dim")]
    return [f"{behind.rows:,} behind" if behind.rows else Text("nothing left to read", "green")]


def _as_of(view: JobView) -> str:
    """Of what the last batch has said, where its run is over: when that was."""
    at = 0.0 if view.is_up or view.live is None else view.live.batch_at
    return f" at {time_of_day(at)}" if at else ""


def _of_operator(operator: OperatorLive, now: float, as_of: str) -> list[str | Text]:
    parts: list[str | Text] = [f"{size(operator.state_bytes)} in {counted(operator.files, 'file')}{as_of}"]
    if operator.watermark_us is not None:
        lag_s = now - operator.watermark_us / 1e6
        parts.append(f"watermark {lasting(lag_s)} behind" if lag_s > 0 else "watermark ahead of the clock")
    elif operator.timed:
        parts.append("no watermark yet")
    for rows, what in ((operator.late_rows, "late row"), (operator.bad_records, "bad row")):
        if rows:
            parts.append(Text(counted(rows, what), "yellow"))
    return parts


def _of_sink(sink: SinkLive, now: float) -> list[str | Text]:
    parts: list[str | Text] = []
    if sink.down:
        parts.append(Text("down", "bold red"))
    if sink.waiting:
        since = f" for {lasting(now - sink.waiting_since)}" if sink.waiting_since else ""
        parts.append(
            f"{counted(sink.waiting, 'transaction waits', 'transactions wait')} ({counted(sink.waiting_rows, 'row')}){since}"
        )
    else:
        parts.append(Text("nothing waits", "green"))
    if sink.bad_records:
        parts.append(Text(counted(sink.bad_records, "bad row"), "yellow"))
    return parts
