"""How far event time has come: partitions, sources, operators, idleness and silence."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint.model import SourceTime, TimeReached
from penstock.graph import TimeSettings
from penstock.ids import CheckpointId
from penstock.operators.event_time import OperatorClock, TimeColumn
from penstock.run.reading import (
    ALL_ROWS,
    moved,
    named_partitions,
    partition_name,
    partition_parts,
)
from penstock.run.watermarks import Newest, Watermarks, latest_us
from penstock.state.lifetimes import FAR_AWAY_US, LONG_AGO_US

IDLE_US = 100
OP = "op"
PARTS_OF_NAMES = st.lists(
    st.none() | st.sampled_from(["", "a", "a/b", "b/c", "*", "None", '"', "é"]) | st.text(max_size=3),
    min_size=1,
    max_size=3,
)


DUE = {OP: LONG_AGO_US}
"""The operator waits for something that any watermark brings."""


def source(
    *,
    out_of_order: int = 0,
    idle: int | None = IDLE_US,
    ahead: int | None = None,
    parts: bool = True,
    clock: bool = False,
) -> TimeSettings:
    return TimeSettings(
        "ts", out_of_order, idle, ahead, ("p",) if parts else (), in_positions=parts, follows_clock=clock
    )


@dataclass
class Story:
    """Batches one after the other; each tells the watermark that holds once its rows are known."""

    sources: Mapping[str, TimeSettings]
    partitions: Mapping[str, Collection[str]] = field(default_factory=dict)
    reached: TimeReached = field(default_factory=TimeReached)
    now_us: int = 1_000

    def __post_init__(self) -> None:
        self.marks = Watermarks(self.sources, {OP: tuple(self.sources)}, self.reached, self.now_us)

    def batch(self, rows: Newest, *, after: int = 1, takes: int = 0) -> int:
        """A batch begins so long after the last one ended; returns where a batch right behind it would bring the watermark."""
        self.now_us += after
        self.marks.know(self.partitions, self.now_us)
        self.marks.begin(self.now_us, reads=self.sources, looked_us=self.now_us)
        self.marks.finish(rows)
        self.now_us += takes
        return self.next()

    def next(self) -> int:
        """Where a batch that has rows would bring the watermark."""
        return self.marks._ahead(self.marks._looked_us, frozenset(self.sources), DUE)[0][OP]

    def tick(self, after: int, *, looked: bool = True) -> int:
        """A batch that reads nothing; somebody has looked right before it, or nobody since the last batch with rows."""
        self.now_us += after
        clocks = self.marks.begin(self.now_us, looked_us=self.now_us if looked else None, waiting=DUE)
        self.marks.finish({})
        return clocks[OP].watermark_us

    def restored(self) -> Story:
        return Story(self.sources, self.partitions, self.marks.reached(), self.now_us + 5)


def one(*parts: str, out_of_order: int = 0, idle: int | None = IDLE_US, clock: bool = False) -> Story:
    return Story({"s": source(out_of_order=out_of_order, idle=idle, clock=clock)}, {"s": parts})


# ── the cases of Flink's valve, with partitions for its channels ──────────────────────────────────


def test_one_partition_goes_on_and_never_back() -> None:
    """Its watermark is just before its newest row, less what may be out of order; an older row changes nothing."""
    story = one("a", out_of_order=3)
    assert story.batch({"s": {"a": 10}}) == 6
    assert story.batch({"s": {"a": 25}}) == 21
    assert story.batch({"s": {"a": 12}}) == 21


def test_all_partitions_have_to_speak_first() -> None:
    """One that is known and has had no rows holds the watermark, until it is idle."""
    story = one("a", "b", "c")
    assert story.batch({"s": {"a": 10}}) == LONG_AGO_US
    assert story.batch({"s": {"b": 20}}) == LONG_AGO_US
    assert story.batch({"s": {"c": 30}}) == 9


def test_the_slowest_partition_decides() -> None:
    """And it alone: the others may run ahead."""
    story = one("a", "b", "c")
    assert story.batch({"s": {"a": 5, "b": 5, "c": 5}}) == 4
    assert story.batch({"s": {"a": 12}}) == 4
    assert story.batch({"s": {"b": 10}}) == 4
    assert story.batch({"s": {"c": 11}}) == 9
    assert story.batch({"s": {"a": 1, "b": 1, "c": 1}}) == 9


def test_partitions_become_idle_one_by_one() -> None:
    """Each that falls silent is waited for no more; when the last one does, the watermark stays."""
    story = one("a", "b", "c")
    assert story.batch({"s": {"a": 25, "b": 10, "c": 17}}) == 9
    assert story.batch({"s": {"a": 25, "c": 17}}, after=60) == 9
    assert story.batch({"s": {"a": 25, "c": 17}}, after=60) == 16
    assert story.batch({"s": {"a": 20}}, after=60) == 16
    assert story.batch({"s": {"a": 20}}, after=60) == 24
    story.now_us += IDLE_US
    assert story.marks.if_nothing_is_read(story.now_us)[OP] == 24


@pytest.mark.parametrize(("clock", "reached"), [(False, 5), (True, 89)])
def test_the_newest_counts_only_where_time_follows_the_clock(clock: bool, reached: int) -> None:
    """Otherwise the slowest decides if it spoke last, as in Flink's sources."""
    story = one("a", "b", clock=clock)
    story.batch({"s": {"a": 90, "b": 5}})
    assert story.batch({"s": {"b": 6}}, after=IDLE_US) == 5
    assert story.tick(IDLE_US) == reached


def test_a_partition_that_wakes_up_behind_holds_and_does_not_turn_back() -> None:
    """The watermark stays where it is until that one has caught up."""
    story = one("a", "b")
    story.batch({"s": {"a": 10, "b": 3}})
    assert story.batch({"s": {"a": 50}}, after=IDLE_US) == 49
    assert story.batch({"s": {"a": 60, "b": 20}}) == 49
    assert story.batch({"s": {"b": 55}}) == 54


def test_a_new_partition_is_waited_for() -> None:
    """It may have rows that are older than what the others are at."""
    story = one("a")
    assert story.batch({"s": {"a": 10}}) == 9
    story.partitions = {"s": ("a", "b")}
    assert story.batch({"s": {"a": 20}}) == 9
    assert story.batch({"s": {"b": 15}}) == 14


def test_a_partition_that_is_gone_is_not_waited_for() -> None:
    """Not even without a limit for silence."""
    story = one("a", "b", idle=None)
    story.batch({"s": {"a": 10, "b": 5}})
    story.partitions = {"s": ("a",)}
    assert story.batch({"s": {"a": 20}}) == 19


# ── the cases of Flink's generator with idleness ──────────────────────────────────────────────────


def test_rows_keep_a_partition_from_being_idle() -> None:
    """Every batch with rows of it counts, whatever their time."""
    story = one("a", "b")
    story.batch({"s": {"a": 10, "b": 5}})
    for _ in range(5):
        assert story.batch({"s": {"a": 50, "b": 1}}, after=IDLE_US - 1) == 4


def test_it_is_idle_again_after_it_woke_up() -> None:
    """Silence is counted anew each time."""
    story = one("a", "b")
    story.batch({"s": {"a": 10, "b": 5}})
    assert story.batch({"s": {"a": 20}}, after=IDLE_US) == 19
    assert story.batch({"s": {"a": 30, "b": 22}}) == 21
    assert story.batch({"s": {"a": 30}}, after=IDLE_US - 1) == 21
    assert story.batch({"s": {"a": 30}}) == 29


def test_without_a_limit_it_is_always_waited_for() -> None:
    """`idle_after=None`: the watermark stands still rather than go on without a partition."""
    story = one("a", "b", idle=None)
    story.batch({"s": {"a": 10, "b": 5}})
    assert story.batch({"s": {"a": 999}}, after=10**9) == 4
    assert story.tick(10**9) == 4


def test_a_batch_that_takes_long_makes_nobody_idle() -> None:
    """What came while it ran is in the next one, which nobody has seen yet."""
    story = one("a", "b")
    story.batch({"s": {"a": 50, "b": 5}}, takes=10 * IDLE_US)
    assert story.next() == 4
    assert story.batch({"s": {"a": 60, "b": 6}}, takes=10 * IDLE_US) == 5


def test_who_was_not_looked_at_is_not_idle() -> None:
    """Between the end of a batch and the next look at the sources nothing is known of them, and the clock brings nothing on."""
    story = one("a", "b", clock=True)
    story.batch({"s": {"a": 50, "b": 5}}, takes=10 * IDLE_US)
    assert story.tick(10 * IDLE_US, looked=False) == 4
    assert story.tick(1) > 4


# ── silence ───────────────────────────────────────────────────────────────────────────────────────


def test_when_all_are_idle_it_can_go_on_with_the_clock() -> None:
    """So the last windows close in the end, but not before the time in which the next row may come has passed."""
    story = one("a", out_of_order=10, clock=True)
    story.batch({"s": {"a": 500}})
    assert story.tick(IDLE_US - 1) == 489
    assert story.tick(1) == 489
    assert story.tick(30) == 519
    assert story.tick(1_000) == 1_519


def test_rows_that_come_after_a_silence_are_not_late_because_of_it() -> None:
    """The batch that has them does not go on with the clock, and neither do those behind it."""
    story = one("a", clock=True)
    story.batch({"s": {"a": 500}})
    story.now_us += 100_000
    assert story.batch({"s": {"a": 501}}) == 500
    assert story.batch({"s": {"a": 502}}) == 501


def test_a_job_that_has_seen_no_time_has_none_to_go_on_from() -> None:
    """The clock alone says nothing about the time of rows."""
    assert one("a", clock=True).tick(10**9) == LONG_AGO_US


def test_after_a_restart_it_goes_on_with_the_clock_from_where_it_was() -> None:
    """It first waits as long as for anybody who is silent."""
    story = one("a", clock=True)
    story.batch({"s": {"a": 500}})
    assert story.tick(IDLE_US + 1_000) == 1_499
    again = story.restored()
    assert again.tick(IDLE_US - 1) == 1_499
    assert again.tick(1 + 50) == 1_549


# ── when all are idle ─────────────────────────────────────────────────────────────────────────────


def test_when_all_are_idle_the_watermark_stays() -> None:
    """Rows that come in order after any silence are in time, whatever has been due by the clock meanwhile."""
    story = one("a", "b", out_of_order=10)
    story.batch({"s": {"a": 500, "b": 300}})
    for _ in range(3):
        assert story.tick(10 * IDLE_US) == 289
    assert story.restored().tick(10 * IDLE_US) == 289
    assert story.batch({"s": {"a": 501, "b": 301}}) == 290


def test_the_last_to_fall_silent_decide_whenever_somebody_looks() -> None:
    """They were still active when the others were idle already; one that never had rows is not among them."""
    for looks in ([60, 39, 2, 500], [1_000]):
        story = one("a", "b", "c")
        story.batch({"s": {"a": 90, "b": 5}})
        story.batch({"s": {"b": 50, "a": 91}}, after=10)
        story.batch({"s": {"b": 60}}, after=10)
        for after in looks:
            reached = story.tick(after)
        assert reached == 59


def test_the_last_source_to_fall_silent_decides() -> None:
    """As partitions do in a source."""
    story = Story({"l": source(parts=False), "r": source(parts=False), "silent": source(parts=False)})
    story.batch({"l": {ALL_ROWS: 50}, "r": {ALL_ROWS: 20}})
    story.batch({"r": {ALL_ROWS: 30}}, after=10)
    assert story.tick(10 * IDLE_US) == 29


def test_an_idle_operator_that_waits_holds_nobody() -> None:
    """A timer that is set again and again behind a silent source does not hold an operator that a live source moves on."""
    sources = {"a": source(parts=False), "b": source(parts=False)}
    marks = Watermarks(
        sources, {"second": ("a", "b"), "first": ("a",)}, TimeReached(), 0, {"second": ["first"], "first": []}
    )
    for now in range(0, 300, 10):
        rows = {"b": {ALL_ROWS: now}, **({"a": {ALL_ROWS: now}} if now <= 30 else {})}
        clocks = marks.begin(now, reads=rows, looked_us=now, waiting={"first": 35})
        marks.finish(rows)
    assert (clocks["first"].watermark_us, clocks["second"].watermark_us) == (29, 279)


def test_partitions_that_only_rows_tell_are_forgotten_when_they_are_idle() -> None:
    """A checkpoint names those that may hold the watermark, not every device there ever was; the watermark is the same."""
    story = Story({"s": TimeSettings("ts", 0, IDLE_US, None, ("device",))})
    for at in range(1_000):
        assert story.batch({"s": {f"device {at}": at}}, after=IDLE_US // 10) == max(0, at - 9) - 1
    named = story.marks.reached().sources["s"]
    assert len(named.newest_us) <= 11
    assert named.newest_us.keys() == named.seen_us.keys()
    story.tick(10 * IDLE_US)
    assert story.marks.reached().sources["s"].newest_us == {"device 999": 999}
    assert story.batch({"s": {"device 5": 2_000}}) == 1_999


# ── runs that end with their input ────────────────────────────────────────────────────────────────


def test_silence_counts_over_runs_that_read_to_the_end() -> None:
    """A partition that had nothing in run after run is idle at the end of one, as if a single run had waited as long."""
    story = one("a", "b")
    reached = []
    for run in range(4):
        story.batch({"s": {"a": 10 * (run + 1)}}, after=40)
        story.marks.read_to_the_end(story.now_us)
        reached.append(story.tick(1, looked=False))
        story = story.restored()
    assert reached == [LONG_AGO_US, LONG_AGO_US, LONG_AGO_US, 39]
    waiting = one("a", "b", idle=None)
    waiting.batch({"s": {"a": 10}})
    waiting = waiting.restored()
    waiting.now_us += 10**9
    waiting.marks.read_to_the_end(waiting.now_us)
    assert waiting.tick(1) == LONG_AGO_US


def test_silence_of_earlier_runs_does_not_count_before_all_is_read() -> None:
    """There may be a backlog of a partition in a later batch: until then it is waited for as at any start."""
    story = one("a", "b")
    story.batch({"s": {"a": 10, "b": 5}})
    story = story.restored()
    story.now_us += 10**9
    story = Story(story.sources, story.partitions, story.marks.reached(), story.now_us)
    assert story.batch({"s": {"a": 500}}) == 4
    assert story.batch({"s": {"b": 6}}) == 5
    story.marks.read_to_the_end(story.now_us)
    assert story.tick(1) == 5


# ── sources and operators ─────────────────────────────────────────────────────────────────────────


def test_the_slowest_source_decides_and_an_idle_one_does_not() -> None:
    """As partitions do in a source; a source without event time is not asked."""
    story = Story({"l": source(parts=False, clock=True), "r": source(parts=False, clock=True)})
    assert story.batch({"l": {ALL_ROWS: 50}}) == LONG_AGO_US
    assert story.batch({"r": {ALL_ROWS: 20}}) == 19
    assert story.batch({"l": {ALL_ROWS: 60}}, after=IDLE_US) == 59
    assert story.batch({"r": {ALL_ROWS: 10}}) == 59
    assert story.tick(IDLE_US + 7) == 59 + 7


def test_a_source_that_is_new_holds_operators_where_they_were() -> None:
    """Added to a job that goes on: until it speaks, or is idle, time stands still; it goes neither back nor on without it."""
    reached = TimeReached({OP: 500}, {"old": SourceTime(500, {ALL_ROWS: 500})})
    story = Story({"old": source(parts=False), "new": source(parts=False)}, reached=reached)
    assert story.next() == 500
    assert story.batch({"old": {ALL_ROWS: 900}}) == 500
    assert (
        story.batch({"old": {ALL_ROWS: 950}, "new": {ALL_ROWS: 100}}) == 500
    )  # older rows of it are late, as any are
    assert story.batch({"new": {ALL_ROWS: 800}}) == 799
    silent = Story({"old": source(parts=False), "new": source(parts=False)}, reached=reached)
    silent.batch({"old": {ALL_ROWS: 900}})
    assert silent.batch({"old": {ALL_ROWS: 901}}, after=IDLE_US) == 900


def test_a_busy_source_does_not_keep_a_silent_one_from_its_end() -> None:
    """Each operator goes on with the clock when nothing comes of its own sources, whatever others read; Spark looks at all of them."""
    sources = {"busy": source(parts=False), "silent": source(parts=False, clock=True)}
    marks = Watermarks(sources, {OP: ("silent",), "other": ("busy",)}, TimeReached(), 0)
    marks.begin(10, reads=sources, looked_us=10)
    marks.finish({"busy": {ALL_ROWS: 50}, "silent": {ALL_ROWS: 50}})
    for now in range(20, 10 + IDLE_US + 200, 10):
        clocks = marks.begin(now, reads=["busy", "without time"], looked_us=now, waiting=DUE)
        marks.finish({"busy": {ALL_ROWS: 50}})
        assert clocks[OP].watermark_us == 49 + max(0, now - 10 - IDLE_US)
        assert clocks["other"].watermark_us == 49
    assert moved({"a": 1, "b": {"0": 2}}, {"a": 1, "b": {"0": 3}, "c": None}) == {"b", "c"}


def test_a_batch_that_waits_after_it_was_planned_has_seen_nothing_since() -> None:
    """Sinks that are down hold it up; what came meanwhile is in the next one."""
    marks = Watermarks({"s": source(), "t": source(clock=True)}, {OP: ("t",)}, TimeReached(), 0)
    marks.begin(10, reads=["t"], looked_us=10)
    marks.finish({"t": {"a": 500}})
    assert marks.begin(10_000, reads=["s"], looked_us=20)[OP].watermark_us == 499
    marks.finish({})
    assert marks.begin(10_001, looked_us=10_001, waiting=DUE)[OP].watermark_us > 499


OPEN = {"first": 30}


def chain() -> Watermarks:
    """`a` -> first -> with `b` -> second; `a` has fallen silent long ago and follows the clock, and `first` has a window open."""
    sources = {"a": source(parts=False, clock=True), "b": source(parts=False)}
    marks = Watermarks(
        sources, {"second": ("a", "b"), "first": ("a",)}, TimeReached(), 0, {"second": ["first"], "first": []}
    )
    for now in range(0, 300, 10):
        rows = {"b": {ALL_ROWS: now}, **({"a": {ALL_ROWS: now}} if now <= 30 else {})}
        clocks = marks.begin(now, reads=rows, looked_us=now, waiting=OPEN)
        marks.finish(rows)
        assert clocks["second"].watermark_us <= clocks["first"].watermark_us
    return marks


def test_an_operator_does_not_pass_one_in_front_that_waits() -> None:
    """What that one gives when its moment comes is on time; with the clock it comes."""
    marks = chain()
    assert marks.begin(300, reads=["b"], looked_us=300, waiting=OPEN)["second"].watermark_us == 29 + 170
    assert marks.begin(300, reads=["b"], looked_us=300)["second"].watermark_us == 289
    held = marks.begin(310, reads=["b"], looked_us=310, waiting=OPEN)
    assert (held["first"].watermark_us, held["second"].watermark_us) == (209, 289)  # and never back
    assert chain().if_nothing_is_read(300, OPEN)["second"] == 199


def test_with_the_clock_only_those_go_on_for_whom_something_is_due() -> None:
    """And the operators before them, whose results must not be late; a timer of one operator moves no other."""
    operators = {"first": ("a",), "second": ("a",), "beside": ("a",)}

    def at(now: int, waiting: dict[str, int]) -> dict[str, int]:
        marks = Watermarks(
            {"a": source(parts=False, clock=True)}, operators, TimeReached(), 0, {"second": ["first"]}
        )
        marks.begin(10, reads=["a"], looked_us=10)
        marks.finish({"a": {ALL_ROWS: 50}})
        expected = marks.if_nothing_is_read(now, waiting)
        clocks = marks.begin(now, looked_us=now, waiting=waiting)
        assert expected == {uid: clock.watermark_us for uid, clock in clocks.items()}
        return expected

    gone_on = 49 + 200
    now = 10 + IDLE_US + 200
    assert at(now, {}) == dict.fromkeys(operators, 49)
    assert at(now, {"first": gone_on}) == {"first": gone_on, "second": 49, "beside": 49}
    assert at(now, {"first": gone_on + 1}) == dict.fromkeys(operators, 49)
    assert at(now, {"second": 60, "first": 900}) == {"first": gone_on, "second": gone_on, "beside": 49}


def test_who_knows_of_no_time_holds_nobody() -> None:
    """It would do so for ever."""
    marks = Watermarks(
        {"b": source(parts=False)}, {"first": (), "second": ("b",)}, TimeReached(), 0, {"second": ["first"]}
    )
    marks.begin(1, reads=["b"])
    marks.finish({"b": {ALL_ROWS: 70}})
    assert marks.begin(2, waiting={"first": 3})["second"].watermark_us == 69


def test_rows_and_clocks_do_not_end_time() -> None:
    """Only a drain does, whatever is believed."""
    story = one("a", clock=True)
    assert story.batch({"s": {"a": FAR_AWAY_US * 2 - 1}}) == FAR_AWAY_US - 1
    assert story.tick(IDLE_US + 10) == FAR_AWAY_US - 1
    clock = OperatorClock(now_us=5).judging(TimeColumn("ts", ahead_us=FAR_AWAY_US))
    assert clock.latest_us == latest_us(source(ahead=FAR_AWAY_US), 5) == FAR_AWAY_US


def test_an_operator_without_sources_knows_of_no_event_time() -> None:
    """But of the clock: its timers fire by it."""
    marks = Watermarks({}, {OP: ()}, TimeReached(), 10)
    first, second = marks.begin(20, reads=["x"])[OP], marks.begin(30)[OP]
    assert (first.before_us, first.watermark_us) == (LONG_AGO_US, LONG_AGO_US)
    assert (first.fired_us, first.now_us) == (LONG_AGO_US, 20)
    assert (second.fired_us, second.now_us) == (20, 30)
    assert second.latest_us == FAR_AWAY_US


def test_a_change_of_what_tells_partitions_apart_keeps_the_watermark_only() -> None:
    """Newest times of partitions that are no longer told apart would hold it for ever."""
    reached = TimeReached({OP: 70}, {"s": SourceTime(70, {"a": 80, "b": 71})})
    story = Story({"s": source(parts=False, idle=None)}, reached=reached)
    assert story.next() == 70
    assert story.batch({"s": {ALL_ROWS: 90}}) == 89
    back = Story({"s": source(idle=None)}, {"s": ("a",)}, story.marks.reached())
    assert back.batch({"s": {"a": 95}}) == 94
    told = TimeSettings("ts", 0, None, None, ("k",))
    other = Story({"s": told}, reached=back.marks.reached())
    assert other.batch({"s": {"x": 120, "y": 97}}) == 96
    assert other.restored().batch({"s": {"x": 130}}) == 96  # the same columns: y is waited for


def test_windows_that_were_over_stay_over_when_the_lateness_grows() -> None:
    """So it is after every later start, until time has passed the longer lateness, too; a drain does not count."""
    sources = {"s": source(idle=None)}

    def start(lateness_us: int, reached: TimeReached) -> Watermarks:
        marks = Watermarks(sources, {OP: ("s",), "other": ("s",)}, reached, 0, lateness_us={OP: lateness_us})
        marks.know({"s": ("a",)}, 0)
        return marks

    def batch(marks: Watermarks, newest_us: int) -> OperatorClock:
        clock = marks.begin(1, reads=("s",))[OP]
        marks.finish({"s": {"a": newest_us}})
        return clock

    marks = start(10, TimeReached())
    assert batch(marks, 100).closed_until_us(10) == LONG_AGO_US
    batch(marks, 100)
    assert batch(marks, 100).closed_until_us(10) == 99 - 10
    for lateness_us in (50, 60):
        marks = start(lateness_us, marks.reached())
        assert batch(marks, 120).closed_until_us(lateness_us) == 99 - 10
    batch(marks, 300)
    batch(marks, 300)
    assert batch(marks, 300).closed_until_us(60) == 299 - 60
    marks.begin_end_of_time(2)
    marks.finish({})
    assert marks.reached().over_us == {OP: 299 - 60}
    assert start(0, marks.reached()).begin(3)["other"].over_us == LONG_AGO_US


def test_positions_name_partitions() -> None:
    """Kafka's have topics around them; of other sources nothing is known."""
    kafka = {"clicks": {"0": 5, "1": 6}, "views": {"0": 1}}
    found = named_partitions(
        {"k": kafka, "log": {"0": 1}, "files": {"logOffset": 3}, "new": None},
        {"k": source(), "log": source(), "files": source(parts=False), "new": source()},
    )
    assert found == {"k": {'["clicks","0"]', '["clicks","1"]', '["views","0"]'}, "log": {'["0"]'}}


@given(first=PARTS_OF_NAMES, second=PARTS_OF_NAMES)
def test_no_two_partitions_share_a_name(first: list[str | None], second: list[str | None]) -> None:
    """Whatever is in the columns, and none is called like all rows; numbers are called as in the positions."""
    assert (partition_name(first) == partition_name(second)) == (first == second)
    assert partition_parts(partition_name(first)) == first
    assert partition_name(first) != ALL_ROWS
    assert partition_name(("t", 3)) == partition_name(("t", "3"))


def test_an_empty_name_is_one_partition_of_many() -> None:
    """A restart does not take it for all rows, and still waits for it."""
    empty, other = partition_name([""]), partition_name(["x"])
    story = Story({"s": TimeSettings("ts", 0, None, None, ("p",))})
    story.batch({"s": {empty: 10, other: 1_000}})
    assert story.restored().batch({"s": {other: 1_001}}) == story.batch({"s": {other: 1_001}}) == 9


# ── the end of time ───────────────────────────────────────────────────────────────────────────────


def test_the_end_of_time_and_what_follows_it() -> None:
    """All is due; then a batch in which all has expired; then the watermark is that of the rows again."""
    story = one("a")
    story.batch({"s": {"a": 500}})
    story.tick(1)
    clock = story.marks.begin_end_of_time(story.now_us)[OP]
    assert (clock.before_us, clock.watermark_us) == (499, FAR_AWAY_US)
    story.marks.finish({})
    assert story.marks.time_is_over
    again = story.restored()  # a crash right here
    assert again.marks.time_is_over
    for marks in (story.marks, again.marks):
        clock = marks.begin_anew(CheckpointId(7))[OP]
        assert (clock.before_us, clock.watermark_us) == (FAR_AWAY_US, FAR_AWAY_US)
        assert marks.time_is_over
        assert marks.reached().to_go_on_from_us == {OP: 499}
        assert Watermarks(story.sources, {OP: ("s",)}, marks.reached(), 1).time_is_over
        assert marks.reached().counted_from_us == {OP: 499}
        marks.finish({})
        assert not marks.time_is_over
        assert marks.reached().watermarks_us == {OP: 499}
        assert marks.reached().with_state_of(CheckpointId(7)) == marks.reached()
        older = marks.reached().with_state_of(CheckpointId(6))
        assert (older.watermarks_us, older.to_go_on_from_us) == ({OP: FAR_AWAY_US}, {OP: 499})
        assert marks.begin(again.now_us)[OP].watermark_us == 499


def test_after_a_drain_the_watermark_is_that_of_all_rows() -> None:
    """Also of those of the last batch, after which no other has come."""
    story = one("a")
    story.batch({"s": {"a": 500}})
    story.batch({"s": {"a": 700}})
    story.marks.begin_end_of_time(story.now_us)
    story.marks.finish({})
    assert story.marks.reached().counted_from_us == {OP: 699}
    story.marks.begin_anew(CheckpointId(7))
    story.marks.finish({})
    assert story.marks.reached().watermarks_us == {OP: 699}


def test_the_clock_stands_still_in_the_batch_that_begins_anew() -> None:
    """Its timers would give rows, and all of them were late: they fire in the batch behind it, also after a restart."""
    story = one("a")
    story.batch({"s": {"a": 500}})
    fired = story.marks.begin_end_of_time(story.now_us + 10)[OP].now_us
    story.marks.finish({})
    clock = story.marks.begin_anew(CheckpointId(2))[OP]
    assert (clock.fired_us, clock.now_us) == (fired, fired)
    story.marks.finish({})
    for marks in (story.restored().marks, story.marks):
        clock = marks.begin(fired + 50)[OP]
        assert (clock.fired_us, clock.now_us) == (fired, fired + 50)


# ── whatever happens ──────────────────────────────────────────────────────────────────────────────

PARTS = {"l": ("a", "b"), "r": ("c",)}


@st.composite
def scripts(draw: st.DrawFn) -> list[tuple[str, int, dict[str, dict[str, int]]]]:
    times = st.integers(0, 400)
    rows = st.fixed_dictionaries(
        {}, optional={uid: st.dictionaries(st.sampled_from(parts), times) for uid, parts in PARTS.items()}
    )
    step = st.tuples(st.sampled_from(["batch", "batch", "tick", "restart"]), st.integers(1, 80), rows)
    return draw(st.lists(step, max_size=25))


@dataclass
class Model:
    """The rules once more, from all that has happened: nothing is remembered but the story itself."""

    sources: Mapping[str, TimeSettings]
    start_us: int
    looks: dict[str, int]
    seen: dict[tuple[str, str], int] = field(default_factory=dict)
    newest: dict[tuple[str, str], int] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    operator: int = LONG_AGO_US
    silence: tuple[int, int] | None = None

    def since(self, uid: str, part: str) -> int:
        return max(self.start_us, self.seen.get((uid, part), 0))

    def idle(self, uid: str, part: str) -> bool:
        after = self.sources[uid].idle_after_us
        return after is not None and self.looks[uid] >= self.since(uid, part) + after

    def look(self) -> None:
        for uid, parts in PARTS.items():
            waited = [part for part in parts if not self.idle(uid, part)]
            known = [part for part in parts if (uid, part) in self.newest]
            if not waited and known and self.sources[uid].follows_clock:
                reached = max(self.newest[uid, part] for part in known)
            elif not waited and known:
                last = max(self.since(uid, part) for part in known)
                reached = min(self.newest[uid, part] for part in known if self.since(uid, part) == last)
            elif waited and all((uid, part) in self.newest for part in waited):
                reached = min(self.newest[uid, part] for part in waited)
            else:
                continue
            mark = reached - self.sources[uid].out_of_order_us - 1
            self.marks[uid] = max(mark, self.marks.get(uid, LONG_AGO_US))

    def advance(self, *, silent: bool) -> None:
        self.look()
        active = [uid for uid, parts in PARTS.items() if not all(self.idle(uid, part) for part in parts)]
        every = {uid: self.marks.get(uid, LONG_AGO_US) for uid in PARTS}
        follows = all(one.follows_clock for one in self.sources.values())
        fell = {uid: max(self.since(uid, part) for part in PARTS[uid]) for uid in self.marks}
        last = [every[uid] for uid in fell if fell[uid] == max(fell.values())]
        reached = [every[uid] for uid in active] or ([max(every.values())] if follows else last)
        self.operator = max(self.operator, min(reached, default=LONG_AGO_US))
        if active or self.operator == LONG_AGO_US or not follows:
            self.silence = None
            return
        began = max(
            self.since(uid, part) + (self.sources[uid].idle_after_us or 0)
            for uid, parts in PARTS.items()
            for part in parts
        )
        if self.silence is None or self.silence[0] != began:
            self.silence = (began, self.operator)
        if silent:
            self.operator = max(self.operator, self.silence[1] + min(self.looks.values()) - began)


@pytest.mark.parametrize(("idle", "clock"), [(60, ""), (60, "l"), (60, "lr"), (None, "")])
@given(script=scripts(), out_of_order=st.integers(0, 20))
def test_it_is_what_the_rules_say(
    idle: int | None, clock: str, script: list[tuple[str, int, dict[str, dict[str, int]]]], out_of_order: int
) -> None:
    """Random batches, ticks and restarts: the watermark is that of a model, never goes back, and no row it was made of is behind it."""
    sources = {uid: source(out_of_order=out_of_order, idle=idle, clock=uid in clock) for uid in PARTS}
    now = 1_000
    story = Story(sources, PARTS, now_us=now)
    story.marks.know(PARTS, now)
    model = Model(sources, now, dict.fromkeys(PARTS, now))
    before = LONG_AGO_US
    for kind, after, rows in script:
        now += after
        if kind == "restart":
            story = Story(sources, PARTS, story.marks.reached(), now)
            story.marks.know(PARTS, now)
            model.start_us, model.looks, model.silence = now, dict.fromkeys(PARTS, now), None
            continue
        reads = set() if kind == "tick" else set(rows)
        silent = not reads
        looked = now if after % 3 or kind == "batch" else None
        expected = story.marks.if_nothing_is_read(looked, DUE)[OP]
        if looked is not None:
            model.looks.update(dict.fromkeys(PARTS.keys() - reads, looked))
        model.advance(silent=silent)
        told = story.marks.begin(now, reads=reads, looked_us=looked, waiting=DUE)[OP]
        assert (told.before_us, told.watermark_us) == (before, model.operator)
        assert told.watermark_us >= before
        assert not silent or told.watermark_us == expected
        assert clock == "lr" or told.watermark_us < max(model.newest.values(), default=0) - out_of_order
        before = told.watermark_us
        story.marks.finish({} if silent else rows)
        if not silent:
            model.looks.update(dict.fromkeys(reads, now))
            for uid, found in rows.items():
                for part, us in found.items():
                    model.seen[uid, part] = now
                    model.newest[uid, part] = max(us, model.newest.get((uid, part), us))
        model.look()
