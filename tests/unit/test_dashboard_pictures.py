"""What the pages draw and say: the graph, the time line of a checkpoint, bars, verdicts, sentences. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations, pairwise, product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.job_views import (
    HOSTILE,
    JOBS,
    NOW,
    completed,
    died,
    healthy,
    hostile,
    late,
    live,
    page_views_plan,
    restarting,
    story,
    subtasks,
)
from penstock.checkpoint.pending import PendingLive
from penstock.dashboard.pages.job_graph import Box, Drawing, draw, node_facts
from penstock.dashboard.pages.timings import (
    LEGEND,
    MOST_LANES,
    Point,
    bar,
    full_bar_ms,
    rates,
    slow_subtasks,
    sparkline,
    split,
    split_ms,
    timeline,
)
from penstock.status.events import Event, FirstBatch
from penstock.status.health import Tone, concerns, needs_attention, verdict
from penstock.status.job_history import history
from penstock.status.live import SourceLive
from penstock.status.plan import PlanNode
from penstock.status.sentences import sentence
from penstock.status.view import Behind, CheckpointStatus, CheckpointView, JobState, JobView, total_behind
from penstock.wording import NOTHING, ago, behind, compact, near, shortened, utc_moment

# ── the graph ──────────────────────────────────────────────────────────────────────────────────


@st.composite
def graphs(making: st.DrawFn) -> list[PlanNode]:
    """Nodes that get rows from some of those before them, and from some that are nowhere."""
    size = making(st.integers(0, 14))
    nodes = []
    for number in range(size):
        inputs = making(st.lists(st.integers(0, size + 1), max_size=4))
        kind = making(st.sampled_from(["source", "operator", "sink"]))
        nodes.append(
            PlanNode(uid=f"n{number}", kind=kind, what="x", inputs=tuple(f"n{one}" for one in inputs))
        )
    return nodes


def overlap(one: Box, other: Box) -> bool:
    """Whether two boxes share a point."""
    apart = one.x + one.width <= other.x or other.x + other.width <= one.x
    return not (apart or one.y + one.height <= other.y or other.y + other.height <= one.y)


def points(path: str) -> list[tuple[float, float]]:
    """The points at which parts of a line meet."""
    found: list[tuple[float, float]] = []
    for command, numbers in re.findall(r"([MCL])([^MCL]+)", path):
        values = [float(number) for number in numbers.split()]
        found.append((values[-2], values[-1]))
        assert len(values) == (6 if command == "C" else 2)
    return found


def straight(drawing: Drawing) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Where lines run straight past a layer."""
    return [
        (before, after)
        for line in drawing.lines
        for before, after in zip(points(line.path)[1::2], points(line.path)[2::2], strict=False)
    ]


@given(graphs(), st.booleans())
def test_no_box_lies_on_another(nodes: list[PlanNode], downward: bool) -> None:
    """Boxes never overlap, and all lie inside the picture."""
    drawing = draw(nodes, downward=downward)
    assert [box.node.uid for box in drawing.boxes] == [node.uid for node in nodes]
    assert not [pair for pair in combinations(drawing.boxes, 2) if overlap(*pair)]
    for box in drawing.boxes:
        assert 0 <= box.x <= drawing.width - box.width
        assert 0 <= box.y <= drawing.height - box.height


@given(graphs(), st.booleans())
def test_rows_flow_one_way(nodes: list[PlanNode], downward: bool) -> None:
    """A line begins behind its source and ends before its target, which lies further on."""
    drawing = draw(nodes, downward=downward)
    boxes = {box.node.uid: box for box in drawing.boxes}
    for line in drawing.lines:
        source, target = boxes[line.source], boxes[line.target]
        first, last = points(line.path)[0], points(line.path)[-1]
        if downward:
            assert source.y + source.height < target.y
            assert (first[1], last[1]) == pytest.approx((source.y + source.height, target.y), abs=0.06)
        else:
            assert source.x + source.width < target.x
            assert (first[0], last[0]) == pytest.approx((source.x + source.width, target.x), abs=0.06)


@given(graphs(), st.booleans())
def test_no_line_runs_through_a_box(nodes: list[PlanNode], downward: bool) -> None:
    """A line that passes a layer passes between its boxes."""
    drawing = draw(nodes, downward=downward)
    for (x, y), (to_x, to_y) in straight(drawing):
        for box in drawing.boxes:
            inside_x = box.x < max(x, to_x) and min(x, to_x) < box.x + box.width
            inside_y = box.y < max(y, to_y) and min(y, to_y) < box.y + box.height
            assert not (inside_x and inside_y), box.node.uid


def test_lines_of_the_usual_job_do_not_cross() -> None:
    """Where an order without crossings exists and is easily found, it is taken: the line past two sinks lies outside them."""
    boxes = {box.node.uid: box for box in draw(page_views_plan().nodes).boxes}
    assert boxes["top-products"].y < boxes["dashboard-db"].y
    passing = straight(draw(page_views_plan().nodes))
    assert all(
        y > boxes["dashboard-db"].y + boxes["dashboard-db"].height
        for (_, y), (x, _) in passing
        if x > boxes["dashboard-db"].x
    )


def test_a_source_lies_close_to_what_it_feeds() -> None:
    """A source that only a late operator reads is drawn beside it, and not at the very left."""
    nodes = [
        PlanNode(uid="early", kind="source", what=""),
        PlanNode(uid="late", kind="source", what=""),
        PlanNode(uid="a", kind="operator", what="", inputs=("early",)),
        PlanNode(uid="b", kind="operator", what="", inputs=("a", "late")),
    ]
    boxes = {box.node.uid: box for box in draw(nodes).boxes}
    assert boxes["late"].x == boxes["a"].x > boxes["early"].x


# ── what parts do ──────────────────────────────────────────────────────────────────────────────


def test_a_sink_that_is_down_says_why() -> None:
    """Its facts have the alarm, the reason, and what waits."""
    fact = node_facts(late())["ledger"]
    assert fact.alarm == "down"
    assert (
        "connection refused. 7 transactions with 8,114 rows wait for their commit, the oldest for 1 min 34 s"
        in fact.why
    )


def test_late_and_bad_rows_are_said() -> None:
    """An operator says what it has left out, and how far its event time is behind."""
    facts = node_facts(healthy())
    assert (facts["priced"].left_out, facts["priced"].time) == ("1.2 k late", "8.1 s")
    assert facts["top-products"].left_out == "3 bad"


@pytest.mark.parametrize(("known", "expected"), [([3, 4], 7), ([3, None], None), ([0], 0), ([], None)])
def test_lag_is_known_of_all_sources_or_not_at_all(known: list[int | None], expected: int | None) -> None:
    """A sum in which one source is missing would look better than it is."""
    sources = {f"s{number}": SourceLive(behind=behind) for number, behind in enumerate(known)}
    seen = msgspec.structs.replace(healthy(), live=live(sources=sources, up_since=0.0))
    assert total_behind(seen) == Behind(expected)


def test_what_a_dead_run_left_is_shown_as_old() -> None:
    """While no run is up: with the time when it was so, or not at all. A run that has come up has to look first."""
    for seen in (restarting(), died()):
        facts = node_facts(seen)
        assert {fact.speed for fact in facts.values()} == {NOTHING}
        assert facts["clicks"].state == "14.3 k rows"
        assert facts["clicks"].as_of
        assert facts["priced"].as_of
    assert total_behind(restarting()) == Behind(14_312, NOW - 1)
    assert node_facts(restarting())["lake"].state == NOTHING
    came_up = msgspec.structs.replace(healthy(), live=live(up_since=NOW - 0.5))
    assert total_behind(came_up).now is None
    assert total_behind(healthy()) == Behind(14_312)


# ── checkpoints ────────────────────────────────────────────────────────────────────────────────


def view_of(*events: Event) -> CheckpointView:
    return history(events, {}, [])[0]


def test_the_phases_are_the_time_that_passed() -> None:
    """The picture is as long as the duration, then comes the commit; alignment and freezing lie inside the batch."""
    usual = view_of(completed(5, NOW))
    idle = msgspec.structs.replace(usual, batch_ms=0.0, duration_ms=205.0, async_ms=123.0)
    clocks_differ = msgspec.structs.replace(usual, batch_ms=900.0, duration_ms=205.0)
    for one in (usual, idle, clocks_differ):
        phases = split(one)
        assert split_ms(one) == pytest.approx(one.duration_ms + one.commit_ms)
        assert all(phase.ms >= 0 for phase in phases)
        assert [phase.name for phase in phases] == [label.name for label in LEGEND]


def test_the_scale_of_a_checkpoint_counts_from_its_trigger() -> None:
    """Also of one that was stored before it was triggered: what lies left of the trigger is before it."""
    one = view_of(completed(5, NOW))
    (zero,) = (tick for tick in timeline(one, NOW).ticks if tick.text == "0")
    assert zero.x == pytest.approx(
        next(mark.x for mark in timeline(one, NOW).marks if mark.name == "trigger")
    )
    early = msgspec.structs.replace(one, triggered_at=one.completed_at - 0.01)
    ticks = timeline(early, NOW).ticks
    assert any(tick.text.startswith("-") for tick in ticks)
    assert [tick.x for tick in ticks] == sorted(tick.x for tick in ticks)
    assert all(0 <= tick.x <= 100 for tick in ticks)


def test_a_bar_is_full_for_the_longest() -> None:
    """Parts of a bar lie side by side, and those of the longest checkpoint fill it."""
    one = view_of(completed(5, NOW))
    parts = bar(one, split_ms(one))
    assert parts[-1].left + parts[-1].width == pytest.approx(100)
    assert all(before.left + before.width <= after.left + 1e-9 for before, after in pairwise(parts))
    assert bar(one, 0.0)[0].width == 0


def test_one_that_took_very_long_does_not_hide_the_others() -> None:
    """A first checkpoint of half a minute is cut, and the bars of the usual ones can still be told apart."""
    events = [completed(number, NOW + 10 * number) for number in range(1, 15)]
    slow = msgspec.structs.replace(events[0], batch_ms=60_000.0, duration_ms=61_000.0)
    shown = history([slow, *events[1:]], {}, [])
    full_ms = full_bar_ms(shown)
    assert full_ms < 10_000
    cut = bar(shown[-1], full_ms)
    assert cut[-1].left + cut[-1].width == 100
    usual = bar(shown[0], full_ms)
    assert 20 < usual[-1].left + usual[-1].width < 100
    assert full_bar_ms([]) == 0


def test_a_checkpoint_without_a_batch_is_drawn_whole() -> None:
    """What happened before the trigger, when no batch came, lies in the picture and is not cut off at its edge."""
    part = msgspec.structs.replace(subtasks(NOW - 1, {"a": 1})[0], async_ms=300.0, acknowledged_at=NOW - 0.8)
    one = view_of(
        completed(
            3,
            NOW,
            triggered_at=NOW - 0.01,
            barrier_at=NOW - 1,
            stored_at=NOW - 0.01,
            batch_ms=0.0,
            subtasks=(part,),
        )
    )
    (lane,) = [lane for lane in timeline(one, NOW).lanes if lane.name == "a-0"]
    widths = {stretch.kind: stretch.width for stretch in lane.stretches}
    assert widths["asynchronous"] / widths["alignment"] == pytest.approx(300.0 / part.alignment_ms, rel=0.01)


def test_slow_is_measured_against_the_own_kind() -> None:
    """A subtask is slow beside those of its operator, and not beside a quicker operator; 50 ms are never slow."""
    assert slow_subtasks(subtasks(NOW, {"a": 8, "b": 8}, ("a", 3))) == {("a", 3)}
    assert slow_subtasks(subtasks(NOW, {"a": 8, "b": 8})) == frozenset()
    quick = [
        msgspec.structs.replace(one, async_ms=one.async_ms / 100) for one in subtasks(NOW, {"a": 8}, ("a", 3))
    ]
    assert slow_subtasks(quick) == frozenset()


def test_rates_do_not_span_a_restart() -> None:
    """Between the checkpoints of two runs lies a time in which nothing was processed: no rate is made of it."""
    events = [
        completed(1, NOW, run=1, rows=100),
        completed(2, NOW + 10, run=1, rows=100),
        completed(3, NOW + 70, run=2, rows=100),
    ]
    assert [point.value for point in rates(history(events, {}, []))] == [10.0]


def test_a_sparkline_needs_two_points() -> None:
    """It goes from edge to edge and stays inside; one point is no line."""
    assert sparkline([Point(1, 5)], 100, 20) == ""
    assert sparkline([Point(1, 0), Point(3, 5)], 100, 20) == "M0.0 19.0L100.0 1.0"
    assert sparkline([Point(1, 0), Point(2, 0)], 100, 20) == "M0.0 19.0L100.0 19.0"


def test_a_timeline_is_in_order() -> None:
    """Trigger, barrier, stored, complete and commit come one after the other; all inside the picture."""
    one = healthy().last_completed
    assert one is not None
    line = timeline(one, NOW)
    assert [mark.name for mark in line.marks] == ["trigger", "barrier", "stored", "complete", "commit"]
    assert (line.marks[0].x, line.marks[-1].x) == (0, 100)
    stretches = [stretch for lane in line.lanes for stretch in lane.stretches]
    assert all(0 <= stretch.x <= 100 and stretch.x + stretch.width <= 100.2 for stretch in stretches)
    assert sum(lane.dot is not None for lane in line.lanes) == 20


def test_a_timeline_of_many_subtasks_draws_the_slowest() -> None:
    """Of 2,000 subtasks the slowest are drawn, and it is said how many are not."""
    one = next(one for one in hostile().checkpoints if one.checkpoint == 7)
    line = timeline(one, NOW)
    assert line.left_out == 2000 - MOST_LANES
    assert [lane.name for lane in line.lanes if lane.slow] == [f"{one.subtasks[17].operator}-17"]


@pytest.mark.parametrize(
    ("one", "marks"),
    [
        (CheckpointView(checkpoint=1, run=1, status=CheckpointStatus.IN_PROGRESS, triggered_at=NOW - 3), ["trigger"]),
        (CheckpointView(checkpoint=1, run=1, status=CheckpointStatus.FAILED, triggered_at=NOW - 3, completed_at=NOW, reason="expired"), ["trigger", "given up"]),
        (CheckpointView(checkpoint=1, run=1, status=CheckpointStatus.COMPLETED, triggered_at=0.0), []),
        (CheckpointView(checkpoint=1, run=1, status=CheckpointStatus.COMPLETED, triggered_at=NOW, completed_at=NOW, stored_at=NOW - 9), ["stored", "trigger", "complete"]),
    ],
)  # fmt: skip
def test_a_timeline_of_what_is_known(one: CheckpointView, marks: list[str]) -> None:
    """One that is under way, one that was given up, one of which nothing was noted, and one that was stored before it was triggered."""
    assert [mark.name for mark in timeline(one, NOW).marks] == marks


# ── words ──────────────────────────────────────────────────────────────────────────────────────


def with_a_sink_down() -> JobView:
    """A job that is well but for a sink."""
    view = healthy()
    assert view.live is not None
    uid, sink = next(iter(view.live.sinks.items()))
    sinks = {**view.live.sinks, uid: msgspec.structs.replace(sink, down="no answer")}
    return msgspec.structs.replace(view, live=msgspec.structs.replace(view.live, sinks=sinks))


@pytest.mark.parametrize("state", list(JobState))
def test_every_state_has_a_verdict(state: JobState) -> None:
    """Whatever state a job is in, one sentence says how it is."""
    found = verdict(msgspec.structs.replace(healthy(), state=state))
    assert found.headline
    assert found.detail.endswith(".")


@pytest.mark.parametrize("made", [healthy, late, with_a_sink_down])
def test_bad_is_what_needs_somebody(made: Callable[[], JobView]) -> None:
    """The pages show a job as bad just where `penstock status` says by its exit code that it needs somebody, and say why."""
    for state, supervised in product(JobState, (False, True)):
        view = msgspec.structs.replace(made(), state=state, supervised=supervised)
        found = verdict(view)
        assert (found.tone is Tone.BAD) == needs_attention(view), (state, supervised)
        if made is with_a_sink_down and state.is_alive:
            assert found.tone is Tone.BAD
            assert "does not take commits" in found.detail


def test_concerns_come_with_the_worst_first() -> None:
    """A late checkpoint and a sink that is down come before checkpoints that failed; a job that is well has no worry."""
    found = concerns(late())
    assert [one.tone for one in found] == [Tone.BAD, Tone.BAD, Tone.WARNING]
    assert "3 of 3 tolerated failures" in found[2].text
    assert [one.tone for one in concerns(healthy())] == [Tone.QUIET]


def test_a_job_that_begins_is_not_late() -> None:
    """Until its first batch is done nobody is told that a checkpoint is late."""
    begun = live(
        status="starting",
        checkpoint_at=0.0,
        rows_since_checkpoint=0,
        pending=(PendingLive(checkpoint=0, triggered_at=NOW - 60),),
    )
    starting = msgspec.structs.replace(healthy(), state=JobState.STARTING, live=begun)
    assert not starting.is_late
    assert msgspec.structs.replace(
        starting, state=JobState.RUNNING, live=msgspec.structs.replace(begun, started_at=NOW - 90)
    ).is_late


def test_a_job_that_is_silent_is_a_worry() -> None:
    """Numbers that are old are not shown as if they were new."""
    silent = msgspec.structs.replace(healthy(), live=live(at=NOW - 40))
    assert verdict(silent).tone is Tone.WARNING
    assert "has not reported for 40 s" in verdict(silent).detail


@pytest.mark.parametrize("event", [*story(), *hostile().events], ids=lambda event: type(event).__name__)
def test_every_event_is_a_sentence(event: Event) -> None:
    """Each has a text that ends, and keeps its moment."""
    said = sentence(event)
    assert said.at == event.at
    assert said.text.rstrip().endswith(".")


def test_only_what_happens_all_the_time_is_routine() -> None:
    """A list without routine still has every start and every failure."""
    assert {type(event).__name__ for event in healthy().events if sentence(event).routine} == {
        "CheckpointCompleted",
        "CheckpointCommitted",
    }
    assert (
        sentence(FirstBatch(at=NOW, run=1, batch=7, took_s=2.0)).text
        == "The first batch of run 1, batch 7, finished after 2 s."
    )


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (compact(0), "0"), (compact(0.4), "0.4"), (compact(999), "999"), (compact(12_400), "12.4 k"), (compact(999_999), "1 M"), (compact(-5), "-5"), (compact(3e18), "3000000 T"),
        (utc_moment(0), NOTHING), (utc_moment(1e300), NOTHING), (utc_moment(-5), NOTHING), (utc_moment(NOW), "2026-11-17 10:52:44"),
        (ago(NOW - 0.2, NOW), "just now"), (ago(0, NOW), NOTHING), (ago(NOW - 90, NOW), "1 min 30 s ago"), (ago(NOW + 90, NOW), "just now"),
        (near(NOW - 60, NOW), "10:51:44"), (near(NOW - 86_400, NOW), "2026-11-16 10:52:44"),
        (behind(None, NOW), NOTHING), (behind(int((NOW - 4.2) * 1e6), NOW), "4.2 s"), (behind(int((NOW + 3) * 1e6), NOW), "3 s ahead"),
        (shortened("abcdefgh", 8), "abcdefgh"), (shortened("abcdefghi", 8), "abcd…ghi"), (shortened("abcdefghi", 7), "abc…ghi"),
    ],
)  # fmt: skip
def test_words(said: str, expected: str) -> None:
    """Numbers and moments are said as people read them, whatever a file has in it."""
    assert said == expected


def test_all_made_up_jobs_are_different() -> None:
    """The jobs of these tests have names of their own, and one of them has a text of markup in every field."""
    assert len({maker().name for maker in JOBS.values()}) == len(JOBS)
    assert HOSTILE in hostile().unreadable
