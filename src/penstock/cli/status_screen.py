"""`penstock status`: one job on one screen with its graph, and in one exit code. Driver; no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import msgspec
from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from penstock.cli.console import ago, in_brief, lasting, moment, rate, time_of_day
from penstock.cli.job_tables import STATE_STYLES, TIGHT, as_json, cost, ui, what_happened
from penstock.status.health import Concern, Tone, concerns, needs_attention
from penstock.status.live import OperatorLive, Progress, SinkLive, SourceLive
from penstock.status.plan import PARTLY_AGGREGATED, Plan, PlanNode
from penstock.status.view import CaughtUp, JobState, JobView, is_caught_up, source_behind
from penstock.wording import counted, duration, milliseconds, size

Line = tuple[str, PlanNode, bool]
"""The branches to draw before a node, the node, and whether this is its first line."""


def lines(plan: Plan) -> Iterator[Line]:
    """The graph depth first. A node with several inputs appears below each; its own outputs appear only below the first."""
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
    for node in plan.nodes:  # a plan with a cycle, or with an unknown input
        if node.uid not in seen:
            yield from walk(node, "", "")


def graph_table(view: JobView, spark: Callable[[str], str] | None = None, *, wide: bool = True) -> Table:
    """One line for each node. `spark`: the sparkline of its rate. `wide`: there is room for all columns."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=TIGHT)
    table.add_column("from sources to sinks", no_wrap=True, overflow="ellipsis", min_width=16)
    table.add_column("rows/s", justify="right", no_wrap=True)
    if spark is not None:
        table.add_column("", no_wrap=True, style="cyan")
    if wide:
        table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("now", overflow="fold")
    live = view.live if view.live is not None else Progress(run=view.run, at=0.0, status="")
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
            _activity(doing, node, view) if known and doing else "",
        )
    return table


def _doing(live: Progress, node: PlanNode) -> SourceLive | OperatorLive | SinkLive | None:
    of_kind = {"source": live.sources, "operator": live.operators, "sink": live.sinks}
    return of_kind.get(node.kind, {}).get(node.uid)  # type: ignore[attr-defined, no-any-return]


def _activity(doing: SourceLive | OperatorLive | SinkLive, node: PlanNode, view: JobView) -> Text:
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
    return [Text(f"{what}: unknown", "dim")]


def _of_source(source: SourceLive, view: JobView) -> list[str | Text]:
    behind = source_behind(view, source)
    if behind.rows is None:
        return _unknown("behind")
    if behind.as_of:
        return [Text(f"{behind.rows:,} behind at {time_of_day(behind.as_of)}", "dim")]
    return [f"{behind.rows:,} behind" if behind.rows else Text("nothing left to read", "green")]


def _as_of(view: JobView) -> str:
    """If the run is over: the time of its last batch, from which the numbers are."""
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


NEEDS_ATTENTION = 3
NOT_SEEN = 2
LONGEST_NEED = 400
SHOWN_OF_HISTORY = 20
"""The checkpoints, failures and events in the JSON; `penstock checkpoints` and `failures` have the rest."""


def exit_code(view: JobView) -> int:
    """0: the job is healthy, recovers by itself, or ended on request. 2: its state is unknown. 3: it needs attention."""
    if view.state is JobState.UNREADABLE:
        return NOT_SEEN
    return NEEDS_ATTENTION if needs_attention(view) else 0


def status_json(view: JobView) -> dict[str, Any]:
    """The view as in the JSON of its page, with only the newest history, and conclusions from it."""
    brief = msgspec.structs.replace(
        view,
        checkpoints=view.checkpoints[:SHOWN_OF_HISTORY],
        failures=view.failures[:SHOWN_OF_HISTORY],
        events=view.story[:SHOWN_OF_HISTORY],
        asked=view.asked[:SHOWN_OF_HISTORY],
        runs=view.runs[:SHOWN_OF_HISTORY],
    )
    summed_up = {name: value for name, value in as_json(view).items() if name not in brief.__struct_fields__}
    answer = is_caught_up(view)
    return {
        **msgspec.to_builtins(brief),
        **summed_up,
        "caught_up": answer.answer.value,
        "caught_up_why": answer.why or None,
        "needs": [{"text": one.text, "advice": one.advice, "urgent": one.urgent} for one in problems(view)],
        "exit_code": exit_code(view),
    }


def screen(view: JobView) -> RenderableType:
    """The most important facts, then the graph."""
    parts: list[RenderableType] = [heading(view), *needs_lines(view), Text(), facts(view)]
    if view.plan is not None:
        parts += [Text(), graph_table(view)]
    return Group(*parts)


def heading(view: JobView) -> Text:
    """The name and state of the job, for how long, and where it runs."""
    live, style = view.live, STATE_STYLES.get(view.state, "")
    text = Text.assemble((view.name, "bold"), "  ", (view.state.value, style))
    if view.since:
        text.append(f" {_since(view)}")
    if view.run:
        text.append(f", run {view.run}")
    if view.state.is_alive and view.host:
        text.append(f" on {view.host} (pid {view.pid}{', supervised' if view.supervised else ''})")
    if live is not None and live.doing and view.state.is_alive:
        text.append(f"  {live.doing}", "yellow")
    return text


def _since(view: JobView) -> str:
    how_long = lasting(view.now - view.since)
    return f"for {how_long}" if view.state.is_alive else f"{how_long} ago, {moment(view.since)} UTC"


def needs_lines(view: JobView, before: str = "") -> Iterator[RenderableType]:
    """The problems of a job, each with advice."""
    for one in problems(view):
        mark, style = ("NEEDS ATTENTION ", "bold red") if one.urgent else ("WARNING ", "yellow")
        yield Text.assemble((mark, style), (before, "bold"), in_brief(one.text, LONGEST_NEED))
        yield Padding(Text(one.advice, "dim"), (0, 0, 0, 2))


def problems(view: JobView) -> list[Concern]:
    """The concerns that are problems, without those that only inform."""
    return [one for one in concerns(view) if one.tone is not Tone.QUIET]


def facts(view: JobView) -> Table:
    """The facts about a job, one line each."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, value in _facts(view):
        table.add_row(label, value)
    return table


def _facts(view: JobView) -> Iterator[tuple[str, Text]]:
    yield "checkpoint", _checkpoint(view)
    yield "caught up", _caught_up(view)
    if view.live is not None:
        yield "input", _input(view, view.live)
        if view.live.recent_batches:
            yield "batch", _batch(view, view.live)
    yield "last failure", _last_failure(view)
    if view.plan is not None:
        limited = f", limited by {view.plan.limited_by}" if view.plan.limited_by else ""
        yield "guarantee", Text(f"{view.plan.guarantee}{limited}")
    if ui(view):
        yield "pages", Text(ui(view))
    if view.savepoints:
        yield "savepoint", Text(view.savepoints[0])
    yield "as of", Text(f"{moment(view.now)} UTC{_last_word(view)}", "dim")
    yield "id", Text(view.id, "dim")


def _last_word(view: JobView) -> str:
    """When a running job last wrote its status."""
    if view.live is None or not view.state.is_alive:
        return ""
    return f"; the job wrote its status {ago(view.now - view.live.at)}"


def _checkpoint(view: JobView) -> Text:
    last = view.last_completed
    if last is None:
        return Text("none yet", "bold red" if view.is_late else "")
    took = f"took {duration(last.duration_ms / 1000)}, {size(last.state_bytes)} of state ({size(last.new_bytes)} new)"
    age = Text(ago(view.now - last.completed_at), "bold red" if view.is_late else "")
    interval = f", every {duration(view.plan.settings.interval_s)}" if view.plan is not None else ""
    text = Text.assemble(
        f"{last.checkpoint}, ", age, " (late)" if view.is_late else "", f"{interval}, {took}"
    )
    if view.summary.failed:
        text.append(
            f", {view.summary.failed} of {view.summary.failed + view.summary.completed} given up", "yellow"
        )
    return text


def _caught_up(view: JobView) -> Text:
    found = is_caught_up(view)
    style = {CaughtUp.YES: "green", CaughtUp.NO: "yellow", CaughtUp.UNKNOWN: "dim"}[found.answer]
    return Text.assemble((found.answer.value, style), f": {found.why}" if found.why else "")


def _input(view: JobView, live: Progress) -> Text:
    now = f"{rate(live.rows_per_s)}, " if view.is_up else ""
    batches = f"{counted(live.batches, 'batch', 'batches')} since this start, the last took {duration(live.batch_seconds)}"
    counted_by_spark = live.rows_in or any(source.looked_at for source in live.sources.values())
    rows = f"{counted(live.rows_in, 'row')} in " if counted_by_spark or not live.batches else ""
    text = Text(f"{now}{rows}{batches}")
    if view.restarts:
        text.append(f", {counted(view.restarts, 'restart')}", "yellow")
    return text


def _batch(view: JobView, live: Progress) -> Text:
    """Where the time of the recent batches went, and of the last commit."""
    recent = live.recent_batches
    took = duration(median(one.seconds for one in recent))
    ms = {name: median(one.phases[name] for one in recent) for name in recent[0].phases}
    ms["tasks"] += ms["state"]
    parts = {name: f"{name} {milliseconds(of)}" for name, of in ms.items() if of >= 1}
    if "state" in parts:
        parts["tasks"] += f" ({parts.pop('state')})"
    text = Text(f"{took}: {', '.join(parts.values())} (median of {counted(len(recent), 'batch', 'batches')})")
    if view.last_commit_ms:
        text.append(f"; commit {milliseconds(view.last_commit_ms)}, beside the next batch")
    if live.planned_anew:
        text.append(f"; every batch is planned anew: {live.planned_anew}", "yellow")
    return text


def _last_failure(view: JobView) -> Text:
    if not view.failures:
        return Text("none known", "green")
    last = view.failures[0]
    return Text(f"{ago(view.now - last.at)}, in run {last.run}: {what_happened(last, 160)}; {cost(last)}")
